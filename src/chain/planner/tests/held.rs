//! Effects of a held version: on the chain, the commit, the shards, and the lists.

use super::*;

#[test]
fn who_holds_a_version_above_passes_no_fault_over_up_to_it() {
    // The path from nothing begins at the wanted version.
    let store = line().with_routes(1, 1, &[(None, &[1])]);
    let held = store.held(3);
    let refusal = |change: &dyn Fn(&mut Store)| {
        let mut store = store.clone();
        change(&mut store);
        store
            .plan(Some(1), held)
            .map(|plan| path(&plan))
            .map_err(|error| rule_and_file(&error))
    };
    let other = |number: u64| {
        move |store: &mut Store| {
            store.change_commit(number, |commit| {
                commit.metadata = BTreeMap::from([("other".to_owned(), String::new())]);
            });
        }
    };
    assert_eq!(refusal(&|_| {}), Ok((None, vec![1])));
    assert_eq!(
        refusal(&|store| store.remove(commit(0))),
        Ok((None, vec![1]))
    );
    assert_eq!(
        refusal(&|store| store.remove(commit(1))),
        Err(("R-CHN-03", commit(1).to_string()))
    );
    assert_eq!(
        refusal(&|store| store.remove(commit(2))),
        Err(("R-CHN-03", commit(2).to_string()))
    );
    assert_eq!(
        refusal(&|store| store.remove(commit(3))),
        Err(("R-CHN-03", commit(3).to_string()))
    );
    assert_eq!(
        refusal(&|store| store.put(commit(2), Vec::new())),
        Err(("R-DOC-01", commit(2).to_string()))
    );
    assert_eq!(refusal(&other(1)), Err(("R-CHN-04", commit(2).to_string())));
    assert_eq!(refusal(&other(2)), Err(("R-CHN-04", commit(3).to_string())));
    assert_eq!(refusal(&other(3)), Err(("R-CHN-05", commit(3).to_string())));
    // The fault of the lowest version is reported.
    let several = |store: &mut Store| {
        other(3)(store);
        store.remove(commit(2));
    };
    assert_eq!(refusal(&several), Err(("R-CHN-03", commit(2).to_string())));
}

#[test]
fn the_chain_is_the_one_of_which_a_version_is_held() {
    let store = line();
    let chain = Digest([7; 32]);
    for (wanted, held) in [(None, 1), (None, 3), (Some(3), 1), (Some(1), 3)] {
        let held = store.held(held).map(|held| VersionId { chain, ..held });
        assert_eq!(
            store.refusal(wanted, held),
            ("R-CHN-13", "chain.json".to_owned())
        );
    }
    // The other chain is the first fault.
    let mut empty = store.clone();
    empty.objects.retain(|name, _| name == "chain.json");
    assert_eq!(
        empty
            .refusal(None, store.held(1).map(|held| VersionId { chain, ..held }))
            .0,
        "R-CHN-13"
    );
    empty.objects.clear();
    assert_eq!(empty.refusal(None, store.held(1)).0, "R-CHN-01");
}

#[test]
fn a_chain_does_not_go_back() {
    let store = line();
    let mut back = store.clone();
    back.remove(commit(3));
    assert_eq!(
        back.refusal(None, store.held(3)),
        ("R-CHN-14", commit(3).to_string())
    );
    assert!(back.plan(None, store.held(2)).unwrap().hops.is_empty());
    // A request for a version is refused because that version is missing, or the held one.
    assert_eq!(
        back.refusal(Some(3), store.held(3)),
        ("R-CHN-03", commit(3).to_string())
    );
    assert_eq!(
        back.refusal(Some(2), store.held(3)),
        ("R-CHN-03", commit(3).to_string())
    );
    for version in 0..3 {
        back.remove(commit(version));
    }
    assert_eq!(
        back.refusal(None, store.held(3)),
        ("R-CHN-14", commit(3).to_string())
    );
    assert_eq!(
        back.refusal(None, store.held(0)),
        ("R-CHN-14", commit(0).to_string())
    );
    // A gap is a different fault.
    let mut gap = store.clone();
    gap.remove(commit(2));
    assert_eq!(
        gap.refusal(None, store.held(2)),
        ("R-CHN-03", commit(2).to_string())
    );
}

#[test]
fn a_commit_that_was_not_seen_is_looked_for_once_more() {
    let store = line();
    let mut planner = planner(None, store.held(2));
    assert_eq!(
        planner.step().unwrap(),
        PlannerStep::List {
            from: 2,
            notes: false
        }
    );
    planner.list(Listing::default());
    assert_eq!(
        planner.step().unwrap(),
        PlannerStep::Fetch(vec![ObjectName::Chain])
    );
    planner.supply(
        ObjectName::Chain,
        store.objects.get("chain.json").map(Vec::as_slice),
    );
    assert_eq!(
        planner.step().unwrap(),
        PlannerStep::List {
            from: 2,
            notes: false
        }
    );
    let mut again = planner;
    again.list(store.listing(2));
    assert_eq!(
        path(&store.drive(&mut again).unwrap().0),
        (Some(2), vec![3])
    );
}

#[test]
fn another_chain_may_be_accepted() {
    let plan = |store: &Store, wanted, held, accept| {
        let plan = store.drive(&mut Planner::new(wanted, held, accept, &Limits::default()));
        plan.map(|(plan, _)| path(&plan))
            .map_err(|error| rule_and_file(&error))
    };
    let store = line();
    let accept = Some(store.digest(commit(3)));
    let from_nothing = Ok((None, vec![0, 1, 2, 3]));
    let other_chain = |version| {
        store.held(version).map(|held| VersionId {
            chain: Digest([7; 32]),
            ..held
        })
    };
    let other_commit = |version| {
        store.held(version).map(|held| VersionId {
            commit: Digest([7; 32]),
            ..held
        })
    };
    let above = other_commit(3).map(|held| VersionId { version: 9, ..held });
    for held in [
        None,
        store.held(2),
        other_chain(2),
        other_commit(2),
        other_commit(3),
        above,
    ] {
        assert_eq!(plan(&store, None, held, accept), from_nothing, "{held:?}");
    }
    for held in [store.held(2), other_chain(2), other_commit(2), above] {
        assert_eq!(
            plan(&store, Some(3), held, accept),
            from_nothing,
            "{held:?}"
        );
    }
    // Another commit is not accepted, and has no effect.
    let other = Some(store.digest(commit(2)));
    let chain = Err(("R-CHN-13", "chain.json".to_owned()));
    assert_eq!(plan(&store, None, None, other), from_nothing);
    assert_eq!(
        plan(&store, None, store.held(1), other),
        Ok((Some(1), vec![2, 3]))
    );
    assert_eq!(plan(&store, None, other_chain(1), other), chain);
    assert_eq!(
        plan(&store, None, other_commit(1), other),
        Err(("R-CHN-05", commit(1).to_string()))
    );
    assert_eq!(
        plan(&store, None, above, other),
        Err(("R-CHN-14", commit(9).to_string()))
    );
    let above_of_other_chain = above.map(|held| VersionId {
        chain: Digest([7; 32]),
        ..held
    });
    assert_eq!(plan(&store, None, above_of_other_chain, other), chain);
    // The accepted commit must exist, and be a commit of this version.
    let mut gone = store.clone();
    gone.remove(commit(3));
    assert_eq!(
        plan(&gone, Some(3), other_chain(2), accept),
        Err(("R-CHN-03", commit(3).to_string()))
    );
    gone.put(commit(3), Vec::new());
    assert_eq!(
        plan(&gone, Some(3), other_chain(2), accept),
        Err(("R-DOC-01", commit(3).to_string()))
    );
    gone.put(commit(3), store.objects[&commit(2).to_string()].clone());
    assert_eq!(
        plan(&gone, Some(3), other_chain(1), other),
        Err(("R-CHN-02", commit(3).to_string()))
    );
    gone.objects.retain(|name, _| name == "chain.json");
    assert_eq!(
        plan(&gone, None, store.held(2), accept).unwrap_err().0,
        "R-CHN-03"
    );
}

#[test]
fn to_accept_the_commit_that_is_held_has_no_effect() {
    let plan = |store: &Store, wanted, held| {
        let accept = Some(store.digest(commit(3)));
        let plan = store.drive(&mut Planner::new(wanted, held, accept, &Limits::default()));
        plan.map(|(plan, _)| (path(&plan).1, plan.start.is_some()))
            .map_err(|error| rule_and_file(&error))
    };
    let mut store = line().add(&[(Some(3), &[20])]);
    assert_eq!(plan(&store, Some(3), store.held(3)), Ok((vec![], true)));
    assert_eq!(plan(&store, None, store.held(3)), Ok((vec![4], true)));
    let held = store.held(3);
    store.remove(commit(4));
    assert_eq!(plan(&store, None, held), Ok((vec![], true)));
    let other_chain = held.map(|held| VersionId {
        chain: Digest([7; 32]),
        ..held
    });
    assert_eq!(
        plan(&store, None, other_chain),
        Err(("R-CHN-13", "chain.json".to_owned()))
    );
    // A damaged commit below does not matter, and is not read.
    store.put(commit(2), Vec::new());
    assert_eq!(plan(&store, None, held), Ok((vec![], true)));
}

#[test]
fn what_is_held_may_turn_out_to_be_something_else() {
    let store = line().with_routes(2, 1, &[(Some(1), &[15])]);
    let refused = || Error::broken(&rules::APP_01, "another state");
    for held in [3, 2, 0] {
        let mut planner = planner(None, store.held(held));
        assert!(store.drive(&mut planner).unwrap().0.start.is_some());
        planner.fail_held(refused());
        let (plan, _) = store.drive(&mut planner).unwrap();
        assert_eq!(
            (path(&plan), plan.bytes, &plan.start),
            ((None, vec![0, 1, 2, 3]), 135, &None),
            "{held}"
        );
    }
    let pruned = store.with_routes(0, 1, &[]);
    let mut planner = planner(None, pruned.held(3));
    pruned.drive(&mut planner).unwrap();
    planner.fail_held(refused());
    assert_eq!(
        pruned.drive(&mut planner).unwrap_err().rule(),
        Some("R-APP-01")
    );
}

#[test]
fn who_was_away_for_a_long_time_starts_from_nothing() {
    let store = line().add(&[(None, &[9]), (Some(3), &[10])]);
    let away = |store: &Store, wanted, held, accept| {
        let mut planner = Planner::new(wanted, held, accept, &Limits::default());
        planner.long_time = 2;
        store
            .drive(&mut planner)
            .map(|(plan, count)| (path(&plan), count))
            .map_err(|error| rule_and_file(&error))
    };
    // Two versions behind, the planner reads the chain document and three commits, as always.
    assert_eq!(
        away(&store, None, store.held(2), None),
        Ok(((None, vec![4]), 4))
    );
    // Three versions behind, it reads only the last commit, besides the chain document and the held
    // commit.
    assert_eq!(
        away(&store, None, store.held(1), None),
        Ok(((None, vec![4]), 3))
    );
    assert_eq!(
        away(&store, Some(4), store.held(0), None),
        Ok(((None, vec![4]), 3))
    );
    // If the held version is above the wanted one, it reads all commits.
    assert_eq!(
        away(&store, Some(0), store.held(4), None),
        Ok(((None, vec![0]), 6))
    );
    let mut gap = store.clone();
    gap.remove(commit(2));
    assert_eq!(
        away(&gap, None, store.held(1), None),
        Ok(((None, vec![4]), 3))
    );
    assert_eq!(
        away(&gap, None, store.held(2), None),
        Err(("R-CHN-03", commit(2).to_string()))
    );

    // These are still refused: another chain, a rollback, another commit, and a missing one.
    let refusal = |store: &Store, wanted, held| away(store, wanted, held, None).unwrap_err();
    let other_chain = store.held(1).map(|held| VersionId {
        chain: Digest([7; 32]),
        ..held
    });
    assert_eq!(refusal(&store, None, other_chain).0, "R-CHN-13");
    let other_commit = store.held(1).map(|held| VersionId {
        commit: Digest([7; 32]),
        ..held
    });
    assert_eq!(
        refusal(&store, None, other_commit),
        ("R-CHN-05", commit(1).to_string())
    );
    let above = store.held(4).map(|held| VersionId { version: 9, ..held });
    assert_eq!(refusal(&store, None, above).0, "R-CHN-14");
    let mut gone = store.clone();
    gone.remove(commit(1));
    assert_eq!(
        refusal(&gone, None, store.held(1)),
        ("R-CHN-03", commit(1).to_string())
    );
    gone.put(commit(1), Vec::new());
    assert_eq!(
        refusal(&gone, None, store.held(1)),
        ("R-DOC-01", commit(1).to_string())
    );
    gone.put(commit(1), store.objects[&commit(2).to_string()].clone());
    assert_eq!(
        refusal(&gone, None, store.held(1)),
        ("R-CHN-02", commit(1).to_string())
    );
    // The wanted commit is checked first.
    gone.remove(commit(4));
    assert_eq!(
        refusal(&gone, Some(4), store.held(1)),
        ("R-CHN-03", commit(4).to_string())
    );
    // If a commit is accepted, the held one is not read.
    let accept = Some(store.digest(commit(4)));
    assert_eq!(
        away(&store, None, other_commit, accept),
        Ok(((None, vec![4]), 2))
    );
}

#[test]
fn the_commit_wanted_is_looked_for_before_the_one_held_is_compared() {
    let store = line();
    let other = store.held(1).map(|held| VersionId {
        commit: Digest([7; 32]),
        ..held
    });
    assert_eq!(
        store.refusal(Some(9), other),
        ("R-CHN-03", commit(9).to_string())
    );
    assert_eq!(
        store.refusal(Some(3), other),
        ("R-CHN-05", commit(1).to_string())
    );
}

#[test]
fn shards_that_are_taken_have_to_be_there() {
    let store = Store::new()
        .add(&[(None, &[1, 2, 3])])
        .add(&[(None, &[5, 5]), (None, &[9, 9])])
        .add(&[(Some(1), &[1, 1])]);
    let plan = |store: &Store, wanted, held, shards: &[usize]| {
        let mut planner = planner(wanted, held).shards(shards.iter().copied());
        store
            .drive(&mut planner)
            .map(|(plan, _)| path(&plan))
            .map_err(|error| rule_and_file(&error))
    };
    let refused = |version| Err(("R-CHN-17", commit(version).to_string()));
    assert_eq!(plan(&store, None, None, &[1, 0]), Ok((None, vec![1, 2])));
    assert_eq!(plan(&store, None, None, &[0, 2, 1]), refused(2));
    // Only the shards of the wanted version matter, whatever other versions have.
    assert_eq!(plan(&store, Some(0), None, &[2]), Ok((None, vec![0])));
    assert_eq!(
        plan(&store, Some(0), store.held(1), &[2]),
        Ok((None, vec![0]))
    );
    assert_eq!(plan(&store, Some(0), store.held(1), &[3]), refused(0));
    assert_eq!(plan(&store, None, store.held(2), &[2]), refused(2));
    // R-CHN-17 comes after the commits that must be checked, and before all other faults.
    let mut broken = store.clone();
    broken.change_commit(1, |commit| {
        commit.metadata = BTreeMap::from([("other".to_owned(), String::new())]);
    });
    assert_eq!(
        plan(&broken, None, store.held(1), &[2]),
        Err(("R-CHN-05", commit(1).to_string()))
    );
    assert_eq!(plan(&broken, None, None, &[2]), refused(2));
    let pruned = store.with_routes(2, 1, &[]);
    assert_eq!(plan(&pruned, None, None, &[2]), refused(2));
    assert_eq!(
        plan(&pruned, None, None, &[1]),
        Err(("R-CHN-08", commit(2).to_string()))
    );
}

#[test]
fn routes_below_the_version_held_count() {
    // No route leads from 4 to 5, so the path begins below; and there the routes of the commits are
    // not in force.
    let store = line()
        .add(&[(None, &[1000]), (Some(3), &[10])])
        .add(&[(None, &[500]), (Some(1), &[10]), (Some(3), &[5])])
        .with_routes(3, 1, &[(Some(1), &[40]), (Some(2), &[90])])
        .with_routes(1, 3, &[(Some(0), &[20])]);
    let plan = store.plan(None, store.held(4)).unwrap();
    assert_eq!((path(&plan), plan.bytes), ((None, vec![0, 1, 5]), 130));
    let withdrawn = store.clone().with_routes(1, 4, &[]);
    assert_eq!(
        path(&withdrawn.plan(None, withdrawn.held(4)).unwrap()),
        (None, vec![5])
    );
    let withdrawn = withdrawn.with_routes(5, 1, &[(Some(1), &[10]), (Some(3), &[5])]);
    assert_eq!(withdrawn.refusal(None, withdrawn.held(4)).0, "R-CHN-08");
    // The longer list shows the current chain.
    let mut planner = planner(None, store.held(4));
    let mut lists = Vec::new();
    let changed = store.clone().with_routes(5, 1, &[(Some(3), &[5])]);
    let list = |from, _| {
        lists.push(from);
        Ok(if from == 4 {
            store.listing(from)
        } else {
            changed.listing(from)
        })
    };
    let fetch = |names: &[ObjectName], _| {
        Ok(names
            .iter()
            .map(|name| (*name, changed.objects.get(&name.to_string())))
            .collect())
    };
    let plan = planner.plan_with(list, fetch).unwrap();
    assert_eq!(path(&plan), (None, vec![0, 1, 3, 5]));
    assert_eq!(lists, [4, 2, 0]);
}

#[test]
fn a_path_may_begin_below_the_version_held() {
    let mut store = line().with_routes(3, 1, &[(Some(0), &[400]), (Some(2), &[500])]);
    assert_eq!(
        path(&store.plan(None, store.held(2)).unwrap()),
        (Some(2), vec![3])
    );
    store = store.with_routes(3, 2, &[(Some(0), &[399]), (Some(2), &[500])]);
    assert_eq!(
        path(&store.plan(None, store.held(2)).unwrap()),
        (None, vec![0, 3])
    );
    store = store.with_routes(3, 3, &[(Some(0), &[1000])]);
    assert_eq!(
        path(&store.plan(None, store.held(2)).unwrap()),
        (None, vec![0, 3])
    );
    // Faults of commits below the held version rule out only the paths that begin there.
    store.remove(commit(1));
    assert_eq!(
        store.refusal(None, store.held(2)),
        ("R-CHN-03", commit(1).to_string())
    );
    let store = store.with_routes(3, 4, &[(None, &[2000]), (Some(0), &[1000])]);
    assert_eq!(
        path(&store.plan(None, store.held(2)).unwrap()),
        (None, vec![3])
    );
}
