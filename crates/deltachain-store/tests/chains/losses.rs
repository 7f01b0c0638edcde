//! Maintenance of a chain whose objects are lost, restored, or missing in a list.

use std::collections::BTreeMap;
use std::sync::Arc;

use deltachain::chain::ObjectName;
use deltachain::tensor::{Dtype, MemoryState};
use deltachain::{Error, Result};
use deltachain_store::{
    Base, Keep, PruneReport, PublishOptions, Publisher, RawObjects, Snapshots, Store, init,
    plan_prune, prune, undo_prune,
};
use object_store::memory::InMemory;

use crate::maintenance::{Chain, check, commit_of, files, keep, names};
use crate::support::faulty::FaultyStore;
use crate::support::models::Models;
use crate::support::verify::rebuild;
use crate::support::{Random, quick};

/// A little more than a day, in hours.
pub(crate) const DAY: i64 = 25;

fn prune_now(store: &Store, keep: &Keep) -> Result<PruneReport> {
    prune(store, &plan_prune(store, keep)?, &())
}

fn rule(error: &Error) -> &str {
    error.rule().unwrap_or("none")
}

/// Contents of the objects that `wanted` selects.
fn copy(store: &Store, wanted: impl Fn(ObjectName) -> bool) -> BTreeMap<ObjectName, Vec<u8>> {
    let names = names(store).into_iter().filter(|&name| wanted(name));
    names
        .map(|name| (name, store.get(name).unwrap().unwrap()))
        .collect()
}

fn is_commit(name: ObjectName) -> bool {
    matches!(name, ObjectName::Commit(_))
}

fn is_routes(name: ObjectName) -> bool {
    matches!(name, ObjectName::Routes { .. })
}

impl Chain {
    /// Removes these objects, and returns their contents.
    pub(crate) fn lose(
        &self,
        wanted: impl Fn(ObjectName) -> bool,
    ) -> BTreeMap<ObjectName, Vec<u8>> {
        let lost = copy(&self.store, wanted);
        self.store
            .delete(&lost.keys().copied().collect::<Vec<_>>())
            .unwrap();
        lost
    }

    pub(crate) fn restore(&self, name: ObjectName, content: &[u8]) {
        assert!(self.store.put_if_absent(name, content).unwrap());
    }

    /// Prunes, which may be refused, and checks that no file is removed.
    fn prune_without_removal(&self, keep: &Keep, what: &str) {
        let before = files(&self.store);
        let pruned = prune_now(&self.store, keep);
        assert_eq!(files(&self.store), before, "{what}: {pruned:?}");
    }
}

/// Commits of a chain that is three days or a year old are lost, and then restored, one by one and
/// in any order, with prunes in between.
#[test]
fn files_of_commits_that_are_lost_stay_until_they_are_restored() {
    let mut random = Random(3);
    for (first_lost, days) in [(0, 3), (0, 365), (5, 3), (5, 365), (3, 3), (2, 365)] {
        for _ in 0..4 {
            let mut chain = Chain::new(6, Snapshots::Never, &[]);
            let rule = keep(6, None, &[]);
            chain.control.set_clock(days * DAY);
            let mut lost: Vec<_> = chain
                .lose(|name| matches!(name, ObjectName::Commit(version) if version >= first_lost))
                .into_iter()
                .collect();
            chain.prune_without_removal(&rule, "lost");
            let mut hours = days * DAY;
            while !lost.is_empty() {
                let (name, content) =
                    lost.swap_remove(usize::try_from(random.below(lost.len() as u64)).unwrap());
                chain.restore(name, &content);
                hours += 30;
                chain.control.set_clock(hours);
                chain.prune_without_removal(&rule, "restored in part");
            }
            assert_eq!(prune_now(&chain.store, &rule).unwrap().removed, []);
            assert_eq!(chain.reachable(), [0, 1, 2, 3, 4, 5]);
        }
    }
}

/// A publisher that starts over gives the number of the lost commit to another version. Its prune
/// removes no file of the lost commit, either.
#[test]
fn a_publisher_removes_no_file_of_a_commit_that_is_lost() {
    let place = tempfile::tempdir().unwrap();
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    let store = Store::from_objects(objects, "", quick()).unwrap();
    init(&store).unwrap();
    let mut models = Models::new(17, 10);
    let options = PublishOptions::default()
        .snapshots(Snapshots::Every(1))
        .keep_last(Some(2));
    for version in 0..6 {
        let mut publisher = Publisher::open(store.clone(), options.clone()).unwrap();
        publisher
            .publish(&models.save(version, place.path()), Base::Chain, &())
            .unwrap();
    }
    let lost = commit_of(&store, 5);
    let content = store.get(ObjectName::Commit(5)).unwrap().unwrap();
    store.delete(&[ObjectName::Commit(5)]).unwrap();
    control.set_clock(3 * DAY);
    // The publisher starts over, and prunes.
    let mut publisher = Publisher::open(store.clone(), options).unwrap();
    let _ = publisher.publish(&models.save(6, place.path()), Base::Nothing, &());
    let there = names(&store);
    assert!(
        lost.routes
            .iter()
            .flat_map(|route| &route.files)
            .all(|file| there.contains(&file.name()))
    );
    store.delete(&[ObjectName::Commit(5)]).unwrap();
    assert!(
        store
            .put_if_absent(ObjectName::Commit(5), &content)
            .unwrap()
    );
    assert_eq!(&rebuild(&store, Some(5)).unwrap(), models.state(5));
}

/// The list lacks the newest commit, all commits, or all routes documents.
#[test]
fn what_a_list_lacks_is_not_removed() {
    type Hidden = fn(&str) -> bool;
    let hidden: [(&str, Hidden); 3] = [
        ("the newest commit", |name| {
            name == ObjectName::Commit(5).to_string()
        }),
        ("all commits", |name| name.starts_with("commits/")),
        ("all routes documents", |name| name.starts_with("routes/")),
    ];
    for (what, hidden) in hidden {
        let mut chain = Chain::new(6, Snapshots::Never, &[]);
        chain.compact(Some(4), &[], true).unwrap();
        prune_now(&chain.store, &keep(2, None, &[])).unwrap();
        chain.control.set_clock(3 * DAY);
        prune_now(&chain.store, &keep(2, None, &[])).unwrap();
        assert_eq!(chain.reachable(), [4, 5]);
        chain.control.set_clock(6 * DAY);
        chain.control.hide(hidden);
        chain.prune_without_removal(&keep(2, None, &[]), what);
        chain.prune_without_removal(&keep(1, None, &[]), what);
        chain.control.hide(|_| false);
        assert_eq!(chain.reachable(), [4, 5], "{what}");
        chain.publish(6);
        assert_eq!(chain.reachable(), [4, 5, 6]);
    }
}

#[test]
fn the_path_whose_files_are_there_stays() {
    for size in [None, Some(0), Some(1)] {
        let mut chain = Chain::new(6, Snapshots::Never, &[]);
        chain.compact(Some(5), &[], true).unwrap();
        let snapshot = deltachain_store::show(&chain.store, Some(5), None)
            .unwrap()
            .routes[0]
            .files[0];
        chain.control.set_clock(3 * DAY);
        // The snapshot is lost, or cut.
        let content = chain
            .lose(|name| name == snapshot.name())
            .remove(&snapshot.name())
            .unwrap();
        if let Some(cut) = size {
            chain.restore(snapshot.name(), &content[..content.len() - 1 - cut]);
        }
        let rule = keep(1, None, &[]);
        for days in [3, 6, 9] {
            chain.control.set_clock(days * DAY);
            chain.prune_without_removal(&rule, "broken");
            if size.is_none() {
                assert_eq!(
                    &rebuild_without(&chain.store, snapshot.name()),
                    chain.models.state(5)
                );
            }
        }
        // Once it is restored, both paths are complete, and then the longer one is removed.
        chain.lose(|name| name == snapshot.name());
        chain.restore(snapshot.name(), &content);
        assert_eq!(
            &rebuild(&chain.store, Some(5)).unwrap(),
            chain.models.state(5)
        );
        for days in [12, 15] {
            chain.control.set_clock(days * DAY);
            prune_now(&chain.store, &rule).unwrap();
        }
        assert_eq!((chain.reachable(), files(&chain.store)), (vec![5], 1));
    }
}

/// Builds the head like a reader that does not find this file.
fn rebuild_without(store: &Store, missing: ObjectName) -> MemoryState {
    use deltachain::chain::Planner;
    use deltachain::{Limits, LinkReader, apply};
    let mut planner = Planner::new(None, None, None, &Limits::default());
    loop {
        let plan = planner
            .plan_with(
                |from, _| store.listing(from),
                |names, _| store.get_all(names),
            )
            .unwrap();
        if let Some(hop) = plan
            .hops
            .iter()
            .find(|hop| hop.files.iter().any(|file| file.name() == missing))
        {
            planner.fail_file(&hop.files[0], hop.files[0].missing());
            continue;
        }
        return plan.hops.iter().fold(MemoryState::new(), |state, hop| {
            let content = store.get(hop.files[0].name()).unwrap().unwrap();
            apply(
                &state,
                &LinkReader::open(content, &Limits::default()).unwrap(),
            )
            .unwrap()
        });
    }
}

/// A link that starts from a state without a commit proves that a commit was lost.
#[test]
fn a_check_fails_on_proof_of_a_loss_alone() {
    let chain = Chain::new(6, Snapshots::Never, &[]);
    let told = |chain: &Chain| {
        let report = check(&chain.store, None);
        let rules: Vec<String> = report
            .problems
            .iter()
            .map(|problem| rule(problem).to_owned())
            .collect();
        (rules, report.hints.len())
    };
    let newest = chain.lose(|name| name == ObjectName::Commit(5));
    // A publisher may be at work, or was killed lately.
    assert_eq!(told(&chain), (vec![], 0));
    let second = chain.lose(|name| name == ObjectName::Commit(4));
    assert_eq!(told(&chain), (vec![], 0));
    chain.restore(ObjectName::Commit(4), &second[&ObjectName::Commit(4)]);
    // The chain is a year old, so a publisher may have been killed long ago.
    chain.control.set_clock(-365 * DAY);
    for (name, content) in chain.lose(|_| true) {
        chain.restore(name, &content);
    }
    chain.control.set_clock(0);
    assert_eq!(told(&chain), (vec![], 1));
    chain.lose(|name| name == ObjectName::Commit(4));
    assert_eq!(told(&chain).0, ["R-CHN-03"]);
    chain.restore(ObjectName::Commit(4), &second[&ObjectName::Commit(4)]);
    chain.restore(ObjectName::Commit(5), &newest[&ObjectName::Commit(5)]);
    chain.compact(Some(5), &[], true).unwrap();
    assert_eq!(told(&chain), (vec![], 0));
    // A routes document is an immediate proof.
    chain.lose(|name| name == ObjectName::Commit(5));
    assert_eq!(told(&chain).0, ["R-CHN-06"]);
    // Files of many killed publishers prove nothing.
    let mut chain = Chain::new(2, Snapshots::Never, &[]);
    chain.control.set_clock(-365 * DAY);
    for version in 2..5 {
        let mut state = chain.models.state(version).clone();
        state.insert("more", Dtype::U8, &[1], vec![7]).unwrap();
        let mut publisher =
            Publisher::open(chain.store.clone(), PublishOptions::default()).unwrap();
        publisher
            .prepare([(0, (&state).into(), Base::Chain)], 1, &())
            .unwrap();
    }
    chain.control.set_clock(0);
    assert_eq!(told(&chain), (vec![], 3));
}

/// Without its first document a chain has no identity; a new document in its place would split it
/// in two.
#[test]
fn no_chain_is_begun_where_one_was() {
    for lost in [
        |name| name == ObjectName::Chain,
        |name| name == ObjectName::Chain || is_commit(name),
    ] {
        let chain = Chain::new(2, Snapshots::Never, &[]);
        let documents = chain.lose(lost);
        let before = names(&chain.store);
        let error = init(&chain.store).unwrap_err();
        assert_eq!(
            (rule(&error), error.class().name()),
            ("R-CHN-01", "CHAIN"),
            "{error}"
        );
        assert_eq!(names(&chain.store), before);
        for (name, content) in documents {
            chain.restore(name, &content);
        }
        assert_eq!(init(&chain.store).unwrap(), None);
    }
}

/// Routes documents are lost, and then restored one by one.
#[test]
fn routes_documents_that_are_lost_take_no_file_with_them() {
    let mut chain = Chain::new(6, Snapshots::Never, &[]);
    chain.compact(Some(4), &[], true).unwrap();
    let rule = keep(2, None, &[]);
    for days in [0, 3] {
        chain.control.set_clock(days * DAY);
        prune_now(&chain.store, &rule).unwrap();
    }
    chain.control.set_clock(6 * DAY);
    let lost = chain.lose(is_routes);
    chain.prune_without_removal(&rule, "lost");
    chain.control.set_clock(9 * DAY);
    chain.prune_without_removal(&rule, "lost");
    for (name, content) in lost {
        chain.restore(name, &content);
        chain.prune_without_removal(&rule, "restored in part");
    }
    assert_eq!(chain.reachable(), [4, 5]);
}

/// Stores the link of a version after the head, without a commit.
fn leave_a_file(chain: &mut Chain, version: u64) -> ObjectName {
    let before = names(&chain.store);
    let mut publisher = Publisher::open(chain.store.clone(), chain.options.clone()).unwrap();
    let state = chain.models.state(version).clone();
    publisher
        .prepare([(0, (&state).into(), Base::Chain)], 1, &())
        .unwrap();
    *names(&chain.store).difference(&before).next().unwrap()
}

#[test]
fn files_that_nothing_names_are_counted_and_removed_by_hand() {
    let mut chain = Chain::new(4, Snapshots::Never, &[]);
    let by_hand = Keep {
        abandoned: true,
        ..keep(u64::MAX, None, &[])
    };
    let left = leave_a_file(&mut chain, 4);
    let size = chain.store.find(left).unwrap().unwrap().size;
    chain.control.set_clock(DAY);
    let young = leave_a_file(&mut chain, 5);
    // No other prune removes them, however old they are.
    for rule in [keep(4, None, &[]), keep(u64::MAX, Some(2), &[])] {
        let plan = plan_prune(&chain.store, &rule).unwrap();
        assert_eq!(
            (
                plan.expected.unnamed.len(),
                plan.expected.removed.len(),
                plan.expected.young.len()
            ),
            (2, 0, 0)
        );
        let pruned = prune(&chain.store, &plan, &()).unwrap();
        assert_eq!(
            (pruned.unnamed, pruned.removed),
            (plan.expected.unnamed, Vec::new())
        );
    }
    let report = check(&chain.store, None);
    assert_eq!(
        (report.problems.len(), report.unnamed, report.orphans),
        (0, 2, 2)
    );
    assert!(report.unnamed_bytes > size && report.unnamed_bytes == report.orphan_bytes);
    let pruned = prune_now(&chain.store, &by_hand).unwrap();
    assert_eq!((pruned.removed, pruned.unnamed), (vec![left], vec![young]));
    assert_eq!(pruned.removed_bytes, size);
    assert!(!names(&chain.store).contains(&left));
    assert_eq!(chain.reachable(), [0, 1, 2, 3]);
}

#[test]
fn files_that_speak_of_a_loss_are_not_removed_by_hand() {
    let rule = keep(3, None, &[]);
    let by_hand = Keep {
        abandoned: true,
        ..rule.clone()
    };
    let accepted = Keep {
        accept_loss: true,
        ..by_hand.clone()
    };
    let refused = |chain: &Chain, keep: &Keep| {
        let before = names(&chain.store);
        let error = prune_now(&chain.store, keep).unwrap_err();
        assert_eq!(
            (rule_of(&error), names(&chain.store)),
            ("R-RET-05".to_owned(), before),
            "{error}"
        );
        assert_eq!(error.class().name(), "CHAIN");
    };
    // A link from a state without a commit.
    let chain = Chain::new(6, Snapshots::Never, &[]);
    chain.control.set_clock(3 * DAY);
    let lost = chain.lose(|name| matches!(name, ObjectName::Commit(4 | 5)));
    assert_eq!(prune_now(&chain.store, &rule).unwrap().unnamed.len(), 2);
    refused(&chain, &by_hand);
    assert_eq!(prune_now(&chain.store, &accepted).unwrap().removed.len(), 2);
    assert!(check(&chain.store, None).problems.is_empty() && lost.len() == 2);

    // A note that a killed signing publisher leaves for good: the daily prune continues.
    let mut chain = Chain::new(3, Snapshots::Never, &[]);
    leave_a_file(&mut chain, 3);
    let digest = deltachain::tensor::Digest::of_bytes(b"note");
    let note = ObjectName::Signature {
        version: 3,
        commit: digest,
        note: digest,
    };
    chain.restore(note, b"note");
    chain.control.set_clock(3 * DAY);
    assert_eq!(prune_now(&chain.store, &rule).unwrap().unnamed.len(), 1);
    refused(&chain, &by_hand);
    assert_eq!(prune_now(&chain.store, &accepted).unwrap().removed.len(), 1);
    assert!(names(&chain.store).contains(&note));

    // Files of a publisher that never committed its first version, or of a chain that has lost all
    // commits.
    for versions in [0, 3] {
        let mut chain = Chain::new(versions, Snapshots::Never, &[]);
        leave_a_file(&mut chain, versions);
        chain.lose(is_commit);
        chain.control.set_clock(3 * DAY);
        refused(&chain, &rule);
        refused(&chain, &by_hand);
        assert!(
            prune_now(&chain.store, &accepted)
                .unwrap()
                .unnamed
                .is_empty()
        );
        assert_eq!(files(&chain.store), 0);
    }
}

fn rule_of(error: &Error) -> String {
    rule(error).to_owned()
}

/// A routes document names a commit that is missing.
#[test]
fn a_prune_is_refused_until_lost_commits_are_back_or_given_up() {
    let rule = keep(2, None, &[]);
    for version in [4, 5] {
        let mut chain = Chain::new(6, Snapshots::Never, &[]);
        chain.compact(Some(version), &[], true).unwrap();
        let snapshot = deltachain_store::show(&chain.store, Some(version), None)
            .unwrap()
            .routes[0]
            .files[0]
            .name();
        chain.control.set_clock(3 * DAY);
        let lost = chain.lose(|name| matches!(name, ObjectName::Commit(lost) if lost >= version));
        if version == 4 {
            // Another version has the number of the lost commit.
            let state = chain.models.save(9, chain.place.path());
            let _ = Publisher::open(chain.store.clone(), chain.options.clone())
                .unwrap()
                .publish(&state, Base::Nothing, &());
        }
        let before = names(&chain.store);
        let error = plan_prune(&chain.store, &rule).unwrap_err();
        assert_eq!(
            (rule_of(&error), names(&chain.store)),
            ("R-RET-05".to_owned(), before)
        );
        if version == 5 {
            for (name, content) in &lost {
                chain.restore(*name, content);
            }
            assert!(prune_now(&chain.store, &rule).is_ok());
            chain.lose(|name| name == ObjectName::Commit(5));
        }
        // Once the loss is accepted, the document is removed, and later prunes succeed.
        let accepted = Keep {
            accept_loss: true,
            ..rule.clone()
        };
        let pruned = prune_now(&chain.store, &accepted).unwrap();
        assert!(pruned.removed.contains(&ObjectName::Routes {
            version,
            generation: 1
        }));
        assert!(names(&chain.store).contains(&snapshot));
        chain.control.set_clock(6 * DAY);
        assert!(prune_now(&chain.store, &rule).is_ok());
        let removed = prune_now(
            &chain.store,
            &Keep {
                abandoned: true,
                ..accepted
            },
        )
        .unwrap()
        .removed;
        assert!(removed.contains(&snapshot));
        chain.assert_sound();
    }
}

/// A snapshot was stored after the list of files, and its document before the list of documents.
#[test]
fn a_file_that_the_list_lacks_is_asked_for_by_name() {
    let mut chain = Chain::new(6, Snapshots::Never, &[]);
    chain.compact(Some(5), &[], true).unwrap();
    let snapshot = deltachain_store::show(&chain.store, Some(5), None)
        .unwrap()
        .routes[0]
        .files[0]
        .name()
        .to_string();
    chain.control.hide(move |name| name == snapshot);
    let plan = plan_prune(&chain.store, &keep(1, None, &[])).unwrap();
    assert_eq!(plan.expected.withdrawn, [0, 1, 2, 3, 4]);
    prune(&chain.store, &plan, &()).unwrap();
    chain.control.hide(|_| false);
    assert_eq!(chain.reachable(), [5]);
}

#[test]
fn nothing_is_pruned_where_a_version_that_stays_has_no_whole_path() {
    let chain = Chain::new(6, Snapshots::Never, &[]);
    let file = commit_of(&chain.store, 2).routes[0].files[0].name();
    let content = chain.lose(|name| name == file).remove(&file).unwrap();
    let before = names(&chain.store);
    let error = plan_prune(&chain.store, &keep(2, None, &[])).unwrap_err();
    assert_eq!(
        (rule(&error), error.file()),
        ("R-RET-01", Some(&*file.to_string()))
    );
    assert!(error.message().contains("version 4"), "{error}");
    assert_eq!(names(&chain.store), before);
    // The file is lost after the plan was made, or after routes were withdrawn.
    chain.restore(file, &content);
    chain.compact(Some(4), &[], true).unwrap();
    let snapshot = deltachain_store::show(&chain.store, Some(4), None)
        .unwrap()
        .routes[0]
        .files[0]
        .name();
    let plan = plan_prune(&chain.store, &keep(2, None, &[])).unwrap();
    prune(&chain.store, &plan, &()).unwrap();
    chain.control.set_clock(3 * DAY);
    let plan = plan_prune(&chain.store, &keep(2, None, &[])).unwrap();
    let content = chain
        .lose(|name| name == snapshot)
        .remove(&snapshot)
        .unwrap();
    let before = files(&chain.store);
    let error = prune(&chain.store, &plan, &()).unwrap_err();
    assert_eq!(
        (rule(&error), files(&chain.store)),
        ("R-RET-05", before),
        "{error}"
    );
    chain.restore(snapshot, &content);
    assert!(prune(&chain.store, &plan, &()).is_ok());
}

/// Two routes name the missing file, as two skips to equal states may: neither is a path.
#[test]
fn a_missing_file_of_several_routes_rules_all_of_them_out() {
    let chain = Chain::new(4, Snapshots::Every(1), &[]);
    let snapshot = commit_of(&chain.store, 3).routes[0].clone();
    let commit = deltachain::tensor::Digest::of_bytes(
        &chain.store.get(ObjectName::Commit(2)).unwrap().unwrap(),
    );
    let routes = vec![snapshot.clone()];
    let version = 2;
    let generation = 1;
    let metadata = BTreeMap::new();
    let document = deltachain::chain::RoutesDocument {
        version,
        generation,
        commit,
        routes,
        metadata,
    };
    chain.restore(
        ObjectName::Routes {
            version,
            generation,
        },
        &document.to_bytes().unwrap(),
    );
    chain.lose(|name| name == snapshot.files[0].name());
    let error = plan_prune(&chain.store, &keep(1, None, &[])).unwrap_err();
    assert_eq!(
        (rule(&error), error.file()),
        ("R-RET-01", Some(&*snapshot.files[0].name().to_string()))
    );
}

#[test]
fn a_mistaken_prune_is_taken_back_within_20_hours() {
    let mut chain = Chain::new(6, Snapshots::Every(3), &[]);
    let everything = [0, 1, 2, 3, 4, 5];
    let wrong = keep(1, None, &[]);
    chain.control.set_clock(3 * DAY);
    assert_eq!(
        undo_prune(&chain.store, &()).unwrap_err().class().name(),
        "CHAIN"
    );
    prune_now(&chain.store, &wrong).unwrap();
    assert_eq!(chain.reachable(), [3, 4, 5]);
    chain.control.set_clock(3 * DAY + 19);
    assert_eq!(undo_prune(&chain.store, &()).unwrap(), [0, 1, 2, 3]);
    assert_eq!(chain.reachable(), everything);
    assert_eq!(
        undo_prune(&chain.store, &()).unwrap_err().class().name(),
        "CHAIN"
    );
    // The files of these versions are needed again.
    for days in [6, 9] {
        chain.control.set_clock(days * DAY);
        assert!(
            prune_now(&chain.store, &keep(6, None, &[]))
                .unwrap()
                .removed
                .into_iter()
                .all(is_routes)
        );
        assert_eq!(chain.reachable(), everything);
    }
    // An undo covers two prunes in a row. A version that lacks a file stays withdrawn.
    prune_now(&chain.store, &keep(2, None, &[])).unwrap();
    prune_now(&chain.store, &wrong).unwrap();
    let lost = commit_of(&chain.store, 1).routes[0].files[0].name();
    let content = chain.lose(|name| name == lost);
    assert_eq!(undo_prune(&chain.store, &()).unwrap(), [0, 2, 3]);
    assert_eq!(
        rule(&undo_prune(&chain.store, &()).unwrap_err()),
        "R-CHN-09"
    );
    chain.restore(lost, &content[&lost]);
    assert_eq!(undo_prune(&chain.store, &()).unwrap(), [1]);
    assert_eq!(chain.reachable(), everything);
    // It is too late to undo: a prune may be about to remove the files.
    prune_now(&chain.store, &wrong).unwrap();
    chain.control.set_clock(9 * DAY + 20);
    let before = names(&chain.store);
    assert_eq!(
        undo_prune(&chain.store, &()).unwrap_err().class().name(),
        "CHAIN"
    );
    assert_eq!(
        (names(&chain.store), chain.reachable()),
        (before, vec![3, 4, 5])
    );
}

/// Each plan withdraws routes that the path of the other needs.
#[test]
fn two_prunes_with_different_plans_lose_nothing() {
    let mut chain = Chain::new(6, Snapshots::Never, &[]);
    chain.compact(Some(3), &[], true).unwrap();
    let plans = [keep(6, None, &[]), keep(1, None, &[]), keep(2, None, &[0])]
        .map(|keep| (plan_prune(&chain.store, &keep).unwrap(), keep));
    chain.control.set_clock(3 * DAY);
    assert!(prune(&chain.store, &plans[1].0, &()).is_ok());
    for (plan, _) in [&plans[0], &plans[2]] {
        assert_eq!(
            rule(&prune(&chain.store, plan, &()).unwrap_err()),
            "R-PUB-06"
        );
    }
    chain.control.set_clock(6 * DAY);
    let plan = plan_prune(&chain.store, &plans[1].1).unwrap();
    assert!(
        !prune_now(&chain.store, &plans[1].1)
            .unwrap()
            .removed
            .is_empty()
    );
    // The second prune misses the objects that the first has removed.
    assert!(prune(&chain.store, &plan, &()).is_err());
    assert_eq!(chain.reachable(), [3, 4, 5]);
    chain.assert_sound();
}

/// A restored file has a new date, so it stays for a day, and with it the document that records its
/// withdrawal.
#[test]
fn what_tells_of_a_withdrawal_goes_after_the_files() {
    let chain = Chain::new(3, Snapshots::Never, &[]);
    chain.compact(Some(2), &[], true).unwrap();
    let snapshot = deltachain_store::show(&chain.store, Some(2), None)
        .unwrap()
        .routes[0]
        .files[0]
        .name();
    chain.compact(Some(2), &[], true).unwrap();
    let first = ObjectName::Routes {
        version: 2,
        generation: 1,
    };
    chain.control.set_clock(DAY);
    let content = chain.lose(|name| name == snapshot);
    chain.restore(snapshot, &content[&snapshot]);
    let rule = keep(3, None, &[]);
    assert_eq!(
        prune_now(&chain.store, &rule).unwrap().young,
        [first, snapshot]
    );
    chain.control.set_clock(2 * DAY);
    assert_eq!(
        prune_now(&chain.store, &rule).unwrap().removed,
        [first, snapshot]
    );
}
