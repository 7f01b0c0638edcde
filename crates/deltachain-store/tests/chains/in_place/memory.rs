//! One process's memory in place: from version to version, and past faults of all kinds.

use super::*;

#[test]
fn memory_of_the_caller_is_changed_in_place() {
    let chain = Chain::of(&ALL[..2], 11);
    for step in [1, 2, 5] {
        let mut own = scribbled(&chain.states[0]);
        let mut follower = into_memory(
            chain.store.clone(),
            lend(&mut own),
            FollowerOptions::default(),
        )
        .unwrap();
        assert_eq!(follower.check(&Alone, &()).unwrap(), None);
        assert_eq!((follower.held(), follower.is_torn()), (None, false));
        let mut first = follower.prepare_proven(Some(0), &()).unwrap().unwrap();
        // Preparing writes nothing, and keeps only the links in memory.
        assert!(first.is_whole());
        assert_eq!(buffers(&copy(&follower)), scribbled(&chain.states[0]));
        let switched = follower.apply(&mut first, &Alone, &()).unwrap();
        // The whole memory has been compared with its sums, and nothing was hashed.
        assert_eq!(
            (switched.from, switched.fallback, switched.written),
            (None, None, 0)
        );
        assert_eq!(
            (switched.proof, follower.held().unwrap().proof),
            (Proof::Memory, Proof::Memory)
        );
        assert_eq!(
            follower.apply(&mut first, &Alone, &()).unwrap_err().class(),
            ErrorClass::Usage
        );
        for version in (step..11).step_by(step) {
            let mut prepared = follower
                .prepare_proven(Some(version as u64), &())
                .unwrap()
                .unwrap();
            assert!(!prepared.is_whole());
            assert_eq!(copy(&follower), chain.states[version - step]);
            let changed = differing(&chain.states[version - step], &chain.states[version]);
            let switched = follower.apply(&mut prepared, &Alone, &()).unwrap();
            assert_eq!(
                (switched.fallback, switched.proof),
                (None, Proof::ChangedLanes)
            );
            let written = switched.written;
            assert!(
                written >= changed as u64 && written < 200 * changed as u64,
                "{written} for {changed}"
            );
            assert_eq!(
                (switched.from, switched.routes.len()),
                (Some((version - step) as u64), step)
            );
            assert_eq!(copy(&follower), chain.states[version]);
            assert_eq!(follower.held().unwrap().proof, switched.proof);
            assert!(follower.apply(&mut prepared, &Alone, &()).is_err());
            // The memory matches the sums of the links, and also the digests.
            assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
            assert_eq!(follower.held().unwrap().proof, Proof::Memory);
            if version == 5 {
                follower.verify(&()).unwrap();
                assert_eq!(follower.held().unwrap().proof, Proof::Hashed);
                assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
                assert_eq!(follower.held().unwrap().proof, Proof::Hashed);
            }
        }
        assert!(follower.prepare_proven(Some(10), &()).unwrap().is_none());
        // An older version is reached by another path.
        let notes = Notes::default();
        let mut back = follower.prepare_proven(Some(5), &notes).unwrap().unwrap();
        assert!(
            notes
                .remarks()
                .iter()
                .any(|remark| remark.contains("version 5 is loaded as a whole"))
        );
        let switched = follower.apply(&mut back, &Alone, &()).unwrap();
        assert_eq!(
            (switched.fallback, switched.proof),
            (Some(Fallback::NoRoute), Proof::Memory)
        );
        assert_eq!(copy(&follower), chain.states[5]);
        assert_eq!(go(&mut follower, 6).fallback, None);
        assert_eq!(go(&mut follower, 10).fallback, None);
        drop(follower);
        assert_eq!(own, buffers(&chain.states[10]));
    }
}

/// Number of lanes that differ.
fn differing(left: &MemoryState, right: &MemoryState) -> usize {
    let all = left.iter().zip(right.iter());
    let differing = all.map(|((info, left), (_, right))| {
        let width = info.dtype().lane_bytes();
        left.chunks(width)
            .zip(right.chunks(width))
            .filter(|(left, right)| left != right)
            .count()
    });
    differing.sum()
}

#[test]
fn a_wrong_lane_that_changes_is_noticed_and_repaired() {
    for profiles in [
        &[Profile::Local][..],
        &[Profile::Direct, Profile::Local],
        &[Profile::Compact],
    ] {
        let chain = Chain::of(profiles, 6);
        for (tensor, can_be_read) in [
            (0, true),
            (1, true),
            (2, true),
            (0, false),
            (1, false),
            (2, false),
        ] {
            let (memory, mut follower) =
                elsewhere(&chain, 4, can_be_read, FollowerOptions::default());
            memory.flip(tensor, lane(&chain, 5, tensor, true));
            let notes = Notes::default();
            let before = memory.copy();
            let mut prepared = follower.prepare_proven(Some(5), &notes).unwrap().unwrap();
            assert_eq!(memory.copy(), before);
            let is_read = can_be_read || profiles.contains(&Profile::Local);
            let why = if is_read {
                Fallback::Proof
            } else {
                Fallback::NoRoute
            };
            let remarks = notes.remarks();
            assert!(
                remarks
                    .iter()
                    .any(|remark| remark.contains(&why.to_string())),
                "{remarks:?}"
            );
            // That the changed lanes are not enough says nothing about the memory.
            assert_eq!(
                (follower.held().is_none(), follower.is_torn()),
                (is_read, false)
            );
            let switched = follower.apply(&mut prepared, &Alone, &()).unwrap();
            assert_eq!(
                (switched.from, switched.fallback, switched.proof),
                (Some(4), Some(why), Proof::Memory)
            );
            assert_eq!(memory.copy(), chain.states[5]);
            assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
        }
    }
}

#[test]
fn a_wrong_lane_that_does_not_change_is_found_by_a_check() {
    let chain = Chain::of(&ALL[..1], 6);
    for (tensor, can_be_read) in [
        (0, true),
        (1, true),
        (2, true),
        (0, false),
        (1, false),
        (2, false),
    ] {
        let (memory, mut follower) = elsewhere(&chain, 4, can_be_read, FollowerOptions::default());
        memory.flip(tensor, lane(&chain, 5, tensor, false));
        assert_eq!(go(&mut follower, 5).proof, Proof::ChangedLanes);
        assert_ne!(memory.copy(), chain.states[5]);
        let error = if can_be_read {
            // The publisher hashes a base, so it does not publish from this one.
            let publisher = Publisher::open(chain.store.clone(), PublishOptions::default());
            let base = Base::State(Model::State(follower.memory().unwrap().state().unwrap()));
            assert_eq!(
                publisher
                    .unwrap()
                    .publish(&chain.states[5], base, &())
                    .unwrap_err()
                    .rule(),
                Some("R-PUB-01")
            );
            if tensor == 0 {
                follower.verify(&()).unwrap_err()
            } else {
                follower.check(&Alone, &()).unwrap_err()
            }
        } else {
            // The memory cannot be hashed, which says nothing about its content.
            assert_eq!(follower.verify(&()).unwrap_err().class(), ErrorClass::Usage);
            assert_eq!(follower.held().unwrap().version, 5);
            follower.check(&Alone, &()).unwrap_err()
        };
        let is_hashed = can_be_read && tensor == 0;
        assert_eq!(
            error.rule(),
            Some(if is_hashed { "R-APP-01" } else { "R-SUM-04" })
        );
        // The follower holds no version now, but is not torn, and loads the same version again.
        assert_eq!((follower.held(), follower.is_torn()), (None, false));
        assert_eq!(
            follower.check(&Alone, &()).unwrap_err().class(),
            ErrorClass::Usage
        );
        let switched = go(&mut follower, 5);
        assert_eq!(
            (switched.from, switched.fallback),
            (Some(5), Some(Fallback::Check))
        );
        assert_eq!(memory.copy(), chain.states[5]);
        follower.check(&Alone, &()).unwrap();
    }
}

#[test]
fn who_writes_between_proof_and_switch_is_noticed() {
    let chain = Chain::of(&ALL[..1], 6);
    for can_be_read in [true, false] {
        let (memory, mut follower) = elsewhere(&chain, 4, can_be_read, FollowerOptions::default());
        let mut prepared = follower.prepare_proven(Some(5), &()).unwrap().unwrap();
        let place = lane(&chain, 5, 2, true);
        memory.flip(2, place);
        let before = memory.copy();
        let error = follower.apply(&mut prepared, &Alone, &()).unwrap_err();
        assert_eq!(
            (error.rule(), error.tensor()),
            (Some("R-APP-01"), Some("c"))
        );
        // The memory is unchanged and contains the outside value, so it is not the held version.
        assert_eq!(
            (memory.copy(), follower.held(), follower.is_torn()),
            (before, None, false)
        );
        // The follower does not trust the memory again when that value is gone.
        memory.flip(2, place);
        assert_eq!(
            follower
                .apply(&mut prepared, &Alone, &())
                .unwrap_err()
                .class(),
            ErrorClass::Usage
        );
        assert_eq!(
            (memory.copy(), follower.is_torn()),
            (chain.states[4].clone(), false)
        );
        let switched = go(&mut follower, 5);
        assert_eq!(
            (switched.fallback, memory.copy()),
            (Some(Fallback::Proof), chain.states[5].clone())
        );
    }
}

#[test]
fn what_cannot_be_written_is_torn_until_it_is_loaded() {
    let chain = Chain::of(&ALL[..1], 6);
    for can_be_read in [true, false] {
        let mut torn = 0;
        for writes in 0.. {
            let (memory, mut follower) =
                elsewhere(&chain, 4, can_be_read, FollowerOptions::default());
            let mut prepared = follower.prepare_proven(Some(5), &()).unwrap().unwrap();
            memory.faults.writes.store(writes, Ordering::SeqCst);
            let Err(error) = follower.apply(&mut prepared, &Alone, &()) else {
                break;
            };
            // The undo fails, too.
            assert_eq!(
                (error.class(), follower.held(), follower.is_torn()),
                (ErrorClass::Io, None, true)
            );
            torn += usize::from(memory.copy() != chain.states[4]);
            memory.faults.writes.store(usize::MAX, Ordering::SeqCst);
            // The prepared version is useless now: it would be proven by the values already
            // written.
            assert_eq!(
                follower
                    .apply(&mut prepared, &Alone, &())
                    .unwrap_err()
                    .class(),
                ErrorClass::Usage
            );
            assert!(follower.is_torn() && follower.held().is_none());
            let switched = go(&mut follower, 5);
            assert_eq!(
                (switched.from, switched.fallback),
                (Some(4), Some(Fallback::Torn))
            );
            assert_eq!(
                (memory.copy(), follower.is_torn()),
                (chain.states[5].clone(), false)
            );
        }
        assert!(torn > 0);
    }
}

#[test]
fn what_cannot_be_written_is_brought_back_if_that_goes() {
    let chain = Chain::of(&ALL[..1], 6);
    for can_be_read in [true, false] {
        for new_values in 0.. {
            let (memory, mut follower) =
                elsewhere(&chain, 4, can_be_read, FollowerOptions::default());
            let held = follower.held().cloned();
            let mut prepared = follower.prepare_proven(Some(5), &()).unwrap().unwrap();
            memory.faults.new_values.store(new_values, Ordering::SeqCst);
            let Err(error) = follower.apply(&mut prepared, &Alone, &()) else {
                assert!(new_values > 1);
                break;
            };
            assert_eq!((error.class(), follower.is_torn()), (ErrorClass::Io, false));
            assert_eq!(
                (memory.copy(), follower.held()),
                (chain.states[4].clone(), held.as_ref())
            );
            // A second attempt succeeds.
            memory.faults.new_values.store(usize::MAX, Ordering::SeqCst);
            assert_eq!(
                follower.apply(&mut prepared, &Alone, &()).unwrap().fallback,
                None
            );
            assert_eq!(memory.copy(), chain.states[5]);
        }
    }
}

#[test]
fn memory_that_cannot_be_read_is_what_it_was() {
    let chain = Chain::of(&ALL[..1], 6);
    let (memory, mut follower) = elsewhere(&chain, 4, false, FollowerOptions::default());
    let held = follower.held().cloned();
    memory.faults.reads.store(0, Ordering::SeqCst);
    assert_eq!(
        follower.prepare_proven(Some(5), &()).unwrap_err().class(),
        ErrorClass::Io
    );
    assert_eq!(
        follower.check(&Alone, &()).unwrap_err().class(),
        ErrorClass::Io
    );
    assert_eq!(
        (follower.held(), follower.is_torn()),
        (held.as_ref(), false)
    );
    memory.faults.reads.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(
        (go(&mut follower, 5).fallback, memory.copy()),
        (None, chain.states[5].clone())
    );
}

#[test]
fn a_load_that_stops_at_any_moment_is_torn_or_done() {
    let chain = Chain::of(&ALL[..1], 6);
    // Start with no version, and with a version from which no route leads to the target.
    for (can_be_read, from) in [(true, None), (false, None), (false, Some(5))] {
        let mut stop_at = 1;
        let mut torn = 0;
        let mut done = 0;
        loop {
            let (memory, mut follower) = match from {
                Some(from) => elsewhere(&chain, from, can_be_read, FollowerOptions::default()),
                None => {
                    let memory = Elsewhere::of(&scribbled(&chain.states[0]), can_be_read);
                    let options = FollowerOptions::default();
                    (
                        memory.clone(),
                        into_memory(chain.store.clone(), memory, options).unwrap(),
                    )
                }
            };
            let mut prepared = follower.prepare_proven(Some(2), &()).unwrap().unwrap();
            let Err(error) = follower.apply(&mut prepared, &Alone, &Notes::stopping_at(stop_at))
            else {
                break;
            };
            assert_eq!(error.message(), "stopped by the test");
            if follower.is_torn() {
                torn += 1;
                // Torn memory does not count as proven.
                assert!(follower.check(&Alone, &()).is_err() && follower.verify(&()).is_err());
                assert_eq!(follower.held(), None);
                // Apply the prepared version again, or prepare the version anew.
                if stop_at % 2 == 0 {
                    assert_eq!(
                        follower.apply(&mut prepared, &Alone, &()).unwrap().proof,
                        Proof::Memory
                    );
                } else {
                    assert_eq!(go(&mut follower, 2).fallback, Some(Fallback::Torn));
                }
            } else {
                // Everything has been written, but not compared.
                done += 1;
                let held = follower.held().unwrap();
                assert_eq!((held.version, held.proof), (2, Proof::ChangedLanes));
            }
            assert_eq!(
                (memory.copy(), follower.is_torn()),
                (chain.states[2].clone(), false)
            );
            assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
            stop_at += 1;
        }
        assert!(torn > 2 && done > 1, "{torn} {done}");
    }
}

#[test]
fn what_is_prepared_can_stop_at_any_moment() {
    let chain = Chain::of(&ALL[..1], 6);
    for (can_be_read, to) in [(true, 5), (false, 5), (false, 2)] {
        let (memory, mut follower) = elsewhere(&chain, 4, can_be_read, FollowerOptions::default());
        let held = follower.held().cloned();
        let mut stop_at = 1;
        while let Err(error) = follower.prepare_proven(Some(to), &Notes::stopping_at(stop_at)) {
            assert_eq!(error.message(), "stopped by the test");
            // A request to stop is no reason to load the whole version.
            assert_eq!(follower.held(), held.as_ref());
            stop_at += 1;
        }
        assert!(stop_at > 3);
        assert_eq!(memory.copy(), chain.states[4]);
        let fallback = (to == 2).then_some(Fallback::NoRoute);
        assert_eq!(go(&mut follower, to).fallback, fallback);
        assert_eq!(memory.copy(), chain.states[usize::try_from(to).unwrap()]);
    }
}

#[test]
fn what_was_loaded_is_compared() {
    let chain = Chain::of(&ALL[..1], 6);
    let (memory, mut follower) = elsewhere(&chain, 4, false, FollowerOptions::default());
    let mut prepared = follower.prepare_proven(Some(2), &()).unwrap().unwrap();
    // An outside writer changes the memory when the load has ended.
    let writes = Writing {
        memory: memory.clone(),
    };
    let error = follower.apply(&mut prepared, &Alone, &writes).unwrap_err();
    assert_eq!(
        (error.rule(), error.tensor()),
        (Some("R-SUM-04"), Some("b"))
    );
    assert_eq!((follower.held(), follower.is_torn()), (None, false));
    let switched = go(&mut follower, 2);
    assert_eq!(
        (switched.fallback, memory.copy()),
        (Some(Fallback::Check), chain.states[2].clone())
    );
}

/// Changes the memory when its comparison begins.
struct Writing {
    memory: Elsewhere,
}

impl Observer for Writing {
    fn begin(&self, phase: Phase, _bytes: u64) {
        if phase == Phase::Hash {
            self.memory.flip(1, 7);
        }
    }

    fn advance(&self, _phase: Phase, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, _text: &str) {}
}

#[test]
fn bad_links_do_not_tear_what_is_held_and_are_tried_once_on_nothing() {
    let mut chain = Chain::of(&ALL[..1], 4);
    chain.options = chain.options.snapshots(Snapshots::Never);
    chain.publish();
    // A snapshot of version 4 that is shorter than the path, with a damaged last segment.
    let mut snapshot = Vec::new();
    let report = diff(
        &MemoryState::new(),
        &chain.states[4],
        &DiffOptions::default(),
        &mut snapshot,
    )
    .unwrap();
    let place = snapshot.len() - 20;
    snapshot[place] ^= 1;
    let folder = chain.folder.path().join("chain");
    let digest = Digest::of_bytes(&snapshot);
    let file = FileReference {
        digest,
        size: report.bytes,
    };
    let path = folder.join(file.name().to_string());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, snapshot).unwrap();
    let mut routes = chain.commit(4).routes;
    routes.insert(
        0,
        Route {
            from: None,
            files: vec![file],
        },
    );
    chain.set_routes(4, routes);

    for can_be_read in [true, false] {
        // A first load has nothing to tear. The second attempt proves the links first, and finds
        // another path.
        let memory = Elsewhere::of(&scribbled(&chain.states[0]), can_be_read);
        let mut follower = into_memory(
            chain.store.clone(),
            memory.clone(),
            FollowerOptions::default(),
        )
        .unwrap();
        let mut prepared = follower.prepare_proven(None, &()).unwrap().unwrap();
        let error = follower.apply(&mut prepared, &Alone, &()).unwrap_err();
        assert!(error.rule().is_some(), "{error}");
        assert!(follower.is_torn());
        let switched = go(&mut follower, 4);
        assert_eq!(
            (switched.fallback, switched.routes[0].0),
            (Some(Fallback::Torn), None)
        );
        assert!(switched.routes.len() > 1);
        assert_eq!(memory.copy(), chain.states[4]);

        // The damaged snapshot does not tear a held version.
        let (memory, mut follower) = elsewhere(&chain, 3, can_be_read, FollowerOptions::default());
        memory.flip(0, lane(&chain, 4, 0, true));
        let before = memory.copy();
        let mut prepared = follower.prepare_proven(None, &()).unwrap().unwrap();
        assert_eq!(memory.copy(), before);
        assert_eq!(
            follower.apply(&mut prepared, &Alone, &()).unwrap().fallback,
            Some(Fallback::Proof)
        );
        assert_eq!(memory.copy(), chain.states[4]);
    }
}

#[test]
fn a_file_that_is_another_one_puts_no_memory_in_doubt() {
    let chain = Chain::of(&ALL[..1], 4);
    let path = chain
        .folder
        .path()
        .join("chain")
        .join(chain.in_place_route(3, 2).files[0].name().to_string());
    let right = fs::read(&path).unwrap();
    let mut wrong = right.clone();
    wrong[right.len() - 20] ^= 1;
    for can_be_read in [true, false] {
        let (memory, mut follower) = elsewhere(&chain, 2, can_be_read, FollowerOptions::default());
        let held = follower.held().cloned();
        fs::write(&path, &wrong).unwrap();
        // All paths need the damaged file.
        assert_eq!(
            follower.prepare_proven(None, &()).unwrap_err().rule(),
            Some("R-CHN-10")
        );
        assert_eq!(
            (follower.held(), memory.copy()),
            (held.as_ref(), chain.states[2].clone())
        );
        fs::write(&path, &right).unwrap();
        assert_eq!(
            (go(&mut follower, 3).fallback, memory.copy()),
            (None, chain.states[3].clone())
        );
    }
}

#[test]
fn a_bad_link_in_place_is_passed_over() {
    let chain = Chain::of(&ALL[..1], 4);
    let folder = chain.folder.path().join("chain");
    let store = |link: &[u8]| {
        let file = FileReference {
            digest: Digest::of_bytes(link),
            size: link.len() as u64,
        };
        let path = folder.join(file.name().to_string());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, link).unwrap();
        file
    };
    // A publisher's mistake: the only link in place is the one that the commit names, but it is
    // damaged. There is a snapshot, too.
    let mut commit = chain.commit(3);
    assert_eq!(commit.routes.len(), 1);
    let mut link = fs::read(folder.join(commit.routes[0].files[0].name().to_string())).unwrap();
    // The damage is in a segment: damaged sums would count as missing.
    let place = link.len() / 2;
    link[place] ^= 1;
    commit.routes[0].files = vec![store(&link)];
    let mut snapshot = Vec::new();
    diff(
        &MemoryState::new(),
        &chain.states[3],
        &DiffOptions::default(),
        &mut snapshot,
    )
    .unwrap();
    commit.routes.insert(
        0,
        Route {
            from: None,
            files: vec![store(&snapshot)],
        },
    );
    commit
        .metadata
        .insert("deltachain.in-place".to_owned(), "1".to_owned());
    assert_eq!(commit.in_place_routes(), [false, true]);
    fs::write(
        folder.join(ObjectName::Commit(3).to_string()),
        commit.to_bytes().unwrap(),
    )
    .unwrap();
    for can_be_read in [true, false] {
        let (memory, mut follower) = elsewhere(&chain, 2, can_be_read, FollowerOptions::default());
        let held = follower.held().cloned();
        let mut prepared = follower.prepare_proven(None, &()).unwrap().unwrap();
        // The damaged link says nothing about the memory.
        assert_eq!(
            (follower.held(), memory.copy(), prepared.is_whole()),
            (held.as_ref(), chain.states[2].clone(), true)
        );
        let switched = follower.apply(&mut prepared, &Alone, &()).unwrap();
        assert_eq!(
            (switched.from, switched.fallback),
            (Some(2), Some(Fallback::NoRoute))
        );
        assert_eq!(
            (switched.routes, memory.copy()),
            (vec![(None, 3)], chain.states[3].clone())
        );
        assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
    }
}

#[test]
fn a_link_without_sums_in_between_is_taken_by_digests() {
    let mut chain = Chain::of(&ALL[..1], 2);
    chain.options = chain.options.profiles(vec![Profile::Compact]);
    chain.publish();
    chain.options = chain.options.profiles(vec![Profile::Local]);
    chain.publish();
    chain.publish();
    for versions in [&[2, 3, 4][..], &[3, 4], &[4]] {
        for (can_be_read, checks) in [(true, true), (true, false), (false, true), (false, false)] {
            let (memory, mut follower) =
                elsewhere(&chain, 1, can_be_read, FollowerOptions::default());
            for (at, &version) in versions.iter().enumerate() {
                let switched = go(&mut follower, version);
                // Lanes are enough if one path covers all versions, and from the second step on.
                let fallback = (!can_be_read && at == 0).then_some(Fallback::NoRoute);
                let state = chain.states[usize::try_from(version).unwrap()].clone();
                assert_eq!((switched.fallback, memory.copy()), (fallback, state));
                if checks {
                    // Without known sums, the memory is hashed.
                    let expected = if can_be_read && version == 2 {
                        Proof::Hashed
                    } else {
                        Proof::Memory
                    };
                    assert_eq!(follower.check(&Alone, &()).unwrap(), Some(expected));
                }
            }
        }
    }
}

#[test]
fn a_route_that_only_a_document_names_is_not_trusted() {
    let chain = Chain::of(&ALL[..1], 4);
    // A stranger's link to the right state, with matching sums, which is shorter than the commit's
    // link.
    let mut link = Vec::new();
    let options = DiffOptions::default().profile(Profile::Local).sums(true);
    let report = diff(&chain.states[1], &chain.states[3], &options, &mut link).unwrap();
    let file = FileReference {
        digest: Digest::of_bytes(&link),
        size: report.bytes,
    };
    let path = chain
        .folder
        .path()
        .join("chain")
        .join(file.name().to_string());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, &link).unwrap();
    let mut routes = chain.commit(3).routes;
    routes.insert(
        0,
        Route {
            from: Some(1),
            files: vec![file],
        },
    );
    chain.set_routes(3, routes.clone());
    for can_be_read in [true, false] {
        let (memory, mut follower) = elsewhere(&chain, 1, can_be_read, FollowerOptions::default());
        assert_eq!(go(&mut follower, 3).routes, [(Some(1), 2), (Some(2), 3)]);
        assert_eq!(memory.copy(), chain.states[3]);
    }
    // If there is no other route, readable memory uses the link by digests, and other memory loads
    // the whole version.
    let name = ObjectName::Routes {
        version: 3,
        generation: 2,
    };
    let commit = Digest::of_bytes(&chain.store.get(ObjectName::Commit(3)).unwrap().unwrap());
    let metadata = BTreeMap::from([("deltachain.in-place".to_owned(), "0".to_owned())]);
    let document = RoutesDocument {
        version: 3,
        generation: 2,
        commit,
        routes: routes[..1].to_vec(),
        metadata,
    };
    assert!(
        chain
            .store
            .put_if_absent(name, &document.to_bytes().unwrap())
            .unwrap()
    );
    for (can_be_read, routes) in [
        (true, vec![(Some(1), 3)]),
        (false, vec![(None, 0), (Some(0), 1), (Some(1), 3)]),
    ] {
        let (memory, mut follower) = elsewhere(&chain, 1, can_be_read, FollowerOptions::default());
        let switched = go(&mut follower, 3);
        assert_eq!(
            (switched.routes, switched.fallback),
            (routes, (!can_be_read).then_some(Fallback::NoRoute))
        );
        assert_eq!(memory.copy(), chain.states[3]);
        // The stranger's sums are not trusted: the sums come from what has been hashed.
        let proof = if can_be_read {
            Proof::Hashed
        } else {
            Proof::Memory
        };
        assert_eq!(follower.check(&Alone, &()).unwrap(), Some(proof));
        // Now the sums are known, and right.
        assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
    }
}

#[test]
fn a_file_that_was_damaged_in_the_cache_is_fetched_again() {
    let chain = Chain::of(&ALL[..1], 4);
    let cache = tempfile::tempdir().unwrap();
    let options = || FollowerOptions::default().cache(Some(cache.path().to_owned()));
    let (_, mut first) = elsewhere(&chain, 2, false, options());
    assert!(go(&mut first, 3).downloaded > 0);
    drop(first);
    let path = cache.path().join(format!(
        "{}.dcf",
        chain.in_place_route(3, 2).files[0].digest
    ));
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (memory, mut second) = elsewhere(&chain, 2, false, options());
    let switched = go(&mut second, 3);
    assert!(switched.downloaded > 0);
    assert_eq!(
        (switched.fallback, memory.copy()),
        (None, chain.states[3].clone())
    );
}

#[test]
fn memory_of_other_tensors_is_refused_before_anything_is_written() {
    let chain = Chain::of(&ALL[..1], 2);
    let of = |change: &dyn Fn(&mut MemoryState)| {
        let mut state = chain.states[0].clone();
        change(&mut state);
        state
    };
    let other = of(&|state| drop(state.insert("a", Dtype::BF16, &[29_999], vec![1; 59_998])));
    let fewer = of(&|state| assert!(state.remove("c")));
    let more = of(&|state| drop(state.insert("e", Dtype::U8, &[1], vec![1])));
    let dtype = of(&|state| drop(state.insert("a", Dtype::F16, &[150, 200], vec![1; 60_000])));
    for (state, can_be_read) in [
        (&other, true),
        (&fewer, true),
        (&more, false),
        (&dtype, false),
    ] {
        let memory = Elsewhere::of(&buffers(state), can_be_read);
        let mut follower = into_memory(
            chain.store.clone(),
            memory.clone(),
            FollowerOptions::default(),
        )
        .unwrap();
        assert_eq!(
            follower.prepare_proven(None, &()).unwrap_err().class(),
            ErrorClass::Usage
        );
        assert_eq!(
            (&memory.copy(), follower.held(), follower.is_torn()),
            (state, None, false)
        );
    }
    // A tensor of another shape but the same length is accepted, and gets the version's shape.
    let long = of(&|state| drop(state.insert("a", Dtype::BF16, &[30_000], vec![1; 60_000])));
    let memory = Elsewhere::of(&buffers(&long), false);
    let mut follower =
        into_memory(chain.store.clone(), memory, FollowerOptions::default()).unwrap();
    go(&mut follower, 1);
    assert_eq!(follower.memory().unwrap().copy(), chain.states[1]);
}

#[test]
fn a_tensor_may_take_another_shape() {
    let mut chain = Chain::of(&ALL[..1], 2);
    let mut turned = next(chain.states.last(), 2);
    let data = turned.get("a").unwrap().1.to_vec();
    turned.insert("a", Dtype::BF16, &[200, 150], data).unwrap();
    chain.publish_state(turned);
    chain.publish();
    for can_be_read in [true, false] {
        let (_, mut follower) = elsewhere(&chain, 1, can_be_read, FollowerOptions::default());
        for version in 2..4 {
            assert_eq!(go(&mut follower, version).fallback, None);
            let state = &chain.states[usize::try_from(version).unwrap()];
            assert_eq!(follower.memory().unwrap().copy(), *state);
            assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
        }
    }
}

#[test]
fn some_tensors_are_taken_in_place() {
    let chain = Chain::of(&ALL[..1], 5);
    let options = || FollowerOptions::default().tensors(Some(vec!["[bc]".to_owned()]));
    let part = |version: usize| {
        let mut part = chain.states[version].clone();
        part.remove("a");
        part.remove("d");
        part
    };
    for can_be_read in [true, false] {
        let memory = Elsewhere::of(&scribbled(&part(3)), can_be_read);
        let mut follower = into_memory(chain.store.clone(), memory.clone(), options()).unwrap();
        for version in [0, 1, 2, 4] {
            let switched = go(&mut follower, version as u64);
            assert_eq!((switched.fallback, memory.copy()), (None, part(version)));
            assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
            if can_be_read {
                follower.verify(&()).unwrap();
            }
        }
    }
}

#[test]
fn a_chain_that_goes_back_is_followed_where_that_is_allowed() {
    let chain = Chain::of(&ALL[..1], 6);
    let commits: Vec<Digest> = (0..6).map(|version| chain.published(version)).collect();
    for can_be_read in [true, false] {
        let options = FollowerOptions::default().allow_rollback(Some(commits[4]));
        let (memory, mut follower) = elsewhere(&chain, 5, can_be_read, options);
        let (_, mut other) = elsewhere(&chain, 5, can_be_read, FollowerOptions::default());
        let hidden = chain.store.get(ObjectName::Commit(5)).unwrap().unwrap();
        chain.store.delete(&[ObjectName::Commit(5)]).unwrap();
        // A follower does not go back to an older version, even if its memory is known to be torn.
        assert_eq!(
            other.prepare_proven(None, &()).unwrap_err().rule(),
            Some("R-CHN-14")
        );
        other.doubt(Fallback::Torn);
        assert_eq!(
            other.prepare_proven(None, &()).unwrap_err().rule(),
            Some("R-CHN-14")
        );
        let mut prepared = follower.prepare_proven(None, &()).unwrap().unwrap();
        let switched = follower.apply(&mut prepared, &Alone, &()).unwrap();
        assert_eq!(
            (switched.from, switched.version, switched.fallback),
            (Some(5), 4, Some(Fallback::NoRoute))
        );
        assert_eq!(memory.copy(), chain.states[4]);
        assert!(
            chain
                .store
                .put_if_absent(ObjectName::Commit(5), &hidden)
                .unwrap()
        );
        assert_eq!(
            (go(&mut follower, 5).fallback, memory.copy()),
            (None, chain.states[5].clone())
        );
    }
}

#[test]
fn another_chain_is_refused() {
    let chain = Chain::of(&ALL[..1], 3);
    let second = Chain::of(&ALL[..1], 2);
    let folder = chain.folder.path().join("chain");
    for can_be_read in [true, false] {
        // Even with `adopt`, a follower that already follows a chain refuses another one.
        let (memory, mut follower) = elsewhere(
            &chain,
            2,
            can_be_read,
            FollowerOptions::default().adopt(true),
        );
        let aside = chain.folder.path().join("aside");
        fs::rename(&folder, &aside).unwrap();
        fs::rename(second.folder.path().join("chain"), &folder).unwrap();
        let held = follower.held().cloned();
        assert_eq!(
            follower.prepare_proven(None, &()).unwrap_err().rule(),
            Some("R-CHN-13")
        );
        assert_eq!(
            (follower.held(), memory.copy()),
            (held.as_ref(), chain.states[2].clone())
        );
        follower.doubt(Fallback::Torn);
        assert_eq!(
            follower.prepare_proven(None, &()).unwrap_err().rule(),
            Some("R-CHN-13")
        );
        fs::rename(&folder, second.folder.path().join("chain")).unwrap();
        fs::rename(&aside, &folder).unwrap();
        assert_eq!(go(&mut follower, 2).fallback, Some(Fallback::Torn));
    }
}
