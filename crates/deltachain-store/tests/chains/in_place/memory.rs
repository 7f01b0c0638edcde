//! The caller's memory in place: through versions, past faults of all kinds.

use super::*;
use crate::in_place::engine::Executor;

#[test]
fn memory_of_the_caller_is_changed_in_place() {
    let chain = Chain::of(&ALL[..2], 11);
    for step in [1, 2, 5] {
        let mut own = scribbled(&chain.states[0]);
        let mut follower =
            Follower::into_memory(chain.store.clone(), vec![lend(&mut own)], FollowerOptions::default()).unwrap();
        assert_eq!(follower.held(), None);
        let mut first = follower.prepare(Some(0), &()).unwrap().unwrap();
        // Nothing is written, and nothing but the links is held.
        assert_eq!((first.is_whole(), first.patch_sets().len()), (true, 0));
        assert_eq!(buffers(&copy(&follower)), scribbled(&chain.states[0]));
        let switched = follower.apply(&mut first, &()).unwrap();
        assert_eq!((switched.fallback, switched.proof, switched.written), (None, Proof::Hashed, 0));
        assert!(follower.apply(&mut first, &()).is_err() && follower.undo(&mut first).is_err());
        for version in (step..11).step_by(step) {
            let mut prepared = follower.prepare(Some(version as u64), &()).unwrap().unwrap();
            assert!(!prepared.is_whole());
            for _ in 0..2 {
                let switched = follower.apply(&mut prepared, &()).unwrap();
                assert_eq!((switched.fallback, switched.proof), (None, Proof::ChangedLanes), "{version}");
                assert_eq!(switched.routes.len(), step);
                assert_eq!(copy(&follower), chain.states[version]);
                follower.undo(&mut prepared).unwrap();
                assert_eq!(copy(&follower), chain.states[version - step]);
            }
            let switched = follower.apply(&mut prepared, &()).unwrap();
            assert_eq!(follower.held().unwrap().proof, switched.proof);
            // The sums are those of the links, and right.
            assert_eq!(follower.check(&()).unwrap(), Some(Proof::Memory));
            assert_eq!(follower.held().unwrap().proof, Proof::Memory);
            if version == 5 {
                follower.verify(&()).unwrap();
                assert_eq!(follower.held().unwrap().proof, Proof::Hashed);
            }
        }
        // Back is another way.
        let notes = Notes::default();
        let mut back = follower.prepare(Some(5), &notes).unwrap().unwrap();
        assert!(notes.remarks().iter().any(|remark| remark.contains("version 5 is loaded as a whole")));
        let switched = follower.apply(&mut back, &()).unwrap();
        assert_eq!((switched.fallback, switched.proof), (Some(Fallback::NoRoute), Proof::Hashed));
        assert_eq!(copy(&follower), chain.states[5]);
        assert_eq!(go(&mut follower, 6).fallback, None);
        // Who begins with weights has all sums.
        drop(follower);
        let mut follower = at(&chain, 6, &mut own, FollowerOptions::default());
        assert_eq!(follower.check(&()).unwrap(), Some(Proof::Memory));
        assert_eq!(go(&mut follower, 10).fallback, None);
        drop(follower);
        assert_eq!(own, buffers(&chain.states[10]));
    }
}

#[test]
fn a_wrong_lane_that_changes_is_noticed_and_repaired() {
    for profiles in [&[Profile::Local][..], &[Profile::Direct, Profile::Local], &[Profile::Compact]] {
        let chain = Chain::of(profiles, 6);
        for tensor in 0..3 {
            let (memory, mut follower) = elsewhere(&chain, 4, FollowerOptions::default());
            memory.flip(tensor, lane(&chain, 5, tensor, true));
            let (notes, before) = (Notes::default(), memory.copy());
            let mut prepared = follower.prepare(Some(5), &notes).unwrap().unwrap();
            assert_eq!(memory.copy(), before);
            let remarks = notes.remarks();
            assert!(remarks.iter().any(|remark| remark.contains("does not hold what it should")), "{remarks:?}");
            let switched = follower.apply(&mut prepared, &()).unwrap();
            assert_eq!((switched.fallback, switched.proof), (Some(Fallback::Proof), Proof::Hashed));
            assert_eq!(memory.copy(), chain.states[5]);
            // By sums where the snapshot has them.
            let proof = if profiles.contains(&Profile::Local) { Proof::Memory } else { Proof::Hashed };
            assert_eq!(follower.check(&()).unwrap(), Some(proof));
        }
    }
}

#[test]
fn a_wrong_lane_that_does_not_change_is_found_by_a_check() {
    let chain = Chain::of(&ALL[..1], 6);
    for tensor in 0..3 {
        let (memory, mut follower) = elsewhere(&chain, 4, FollowerOptions::default());
        memory.flip(tensor, lane(&chain, 5, tensor, false));
        assert_eq!(go(&mut follower, 5).proof, Proof::ChangedLanes);
        assert_ne!(memory.copy(), chain.states[5]);
        // Nothing is published from there: who gives it as a base has it hashed.
        let publisher = Publisher::open(chain.store.clone(), PublishOptions::default());
        let state = follower.state();
        let base = Base::State(deltachain_store::Model::State(&state));
        assert_eq!(publisher.unwrap().publish(&chain.states[5], base, &()).unwrap_err().rule(), Some("R-PUB-01"));
        drop(state);

        let error = if tensor == 0 { follower.verify(&()).unwrap_err() } else { follower.check(&()).unwrap_err() };
        assert_eq!(error.rule(), Some(if tensor == 0 { "R-APP-01" } else { "R-SUM-04" }));
        // It holds no version now, but is not torn, and the same version is loaded again.
        assert_eq!((follower.held(), follower.is_torn()), (None, false));
        let switched = go(&mut follower, 5);
        assert_eq!((switched.from, switched.fallback), (Some(5), Some(Fallback::Check)));
        assert_eq!(memory.copy(), chain.states[5]);
        follower.verify(&()).unwrap();
    }
}

#[test]
fn memory_is_checked_from_time_to_time() {
    let chain = Chain::of(&ALL[..1], 6);
    let follow = |follower: &mut Follower<Memory<Elsewhere>>, every: Option<Duration>, memory: &Elsewhere| {
        let options = FollowOptions::default().poll(Duration::ZERO).check_every(every);
        let (mut checks, mut polls) = (Vec::new(), 0);
        let event = |_: &Follower<Memory<Elsewhere>>, event: FollowEvent<()>| {
            match event {
                FollowEvent::Checked(checked) => checks.push(checked.map_err(|error| error.rule())),
                FollowEvent::Newest if polls == 2 => return Ok(ControlFlow::Break(())),
                FollowEvent::Newest => {
                    polls += 1;
                    memory.flip(1, 7);
                }
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        };
        let mut event = event;
        follower.follow(&options, &(), &mut event).unwrap();
        checks
    };
    let (memory, mut follower) = elsewhere(&chain, 5, FollowerOptions::default());
    let checks = follow(&mut follower, Some(Duration::ZERO), &memory);
    assert!(checks.starts_with(&[Ok(Proof::Memory), Err(Some("R-SUM-04"))]), "{checks:?}");
    assert!(checks.ends_with(&[Err(Some("R-SUM-04")), Ok(Proof::Memory)]), "{checks:?}");
    assert_eq!(memory.copy(), chain.states[5]);
    // An hour has not passed, and without a time there are none.
    for every in [FollowOptions::default().check_every, None] {
        let (memory, mut follower) = elsewhere(&chain, 5, FollowerOptions::default());
        assert_eq!(follow(&mut follower, every, &memory), []);
    }
    // The follower's own is never checked, unless that is asked for.
    let mut own = Follower::in_memory(chain.store.clone(), FollowerOptions::default()).unwrap();
    let options = FollowOptions::default().poll(Duration::ZERO).check_every(Some(Duration::ZERO));
    let mut polls = 0;
    let mut event = |_: &Follower<Memory>, event: FollowEvent<()>| {
        assert!(!matches!(event, FollowEvent::Checked(_)));
        polls += usize::from(matches!(event, FollowEvent::Newest));
        Ok(if polls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    own.follow(&options, &(), &mut event).unwrap();
    assert_eq!(own.check(&()).unwrap(), Some(Proof::Hashed));
}

#[test]
fn who_writes_between_proof_and_switch_is_noticed() {
    let chain = Chain::of(&ALL[..1], 6);
    let (memory, mut follower) = elsewhere(&chain, 4, FollowerOptions::default());
    let mut prepared = follower.prepare(Some(5), &()).unwrap().unwrap();
    memory.flip(2, lane(&chain, 5, 2, true));
    let before = memory.copy();
    assert_eq!(follower.apply(&mut prepared, &()).unwrap_err().rule(), Some("R-APP-01"));
    // All is as it was, with the other's value in it. It is not the version held.
    assert_eq!((memory.copy(), follower.held(), follower.is_torn()), (before, None, false));
    assert!(follower.apply(&mut prepared, &()).is_err());
    let switched = go(&mut follower, 5);
    assert_eq!((switched.fallback, memory.copy()), (Some(Fallback::Proof), chain.states[5].clone()));
}

#[test]
fn what_cannot_be_written_is_torn_until_it_is_loaded() {
    let chain = Chain::of(&ALL[..1], 6);
    let mut torn = 0;
    for writes in 0.. {
        let (memory, mut follower) = elsewhere(&chain, 4, FollowerOptions::default());
        let mut prepared = follower.prepare(Some(5), &()).unwrap().unwrap();
        memory.writes.store(writes, Ordering::SeqCst);
        let Err(error) = follower.apply(&mut prepared, &()) else { break };
        assert_eq!((error.class(), follower.held()), (ErrorClass::Io, None));
        // The way back fails, too, unless nothing had been written.
        assert_eq!(follower.is_torn(), memory.copy() != chain.states[4] || follower.is_torn());
        torn += usize::from(follower.is_torn());
        memory.writes.store(usize::MAX, Ordering::SeqCst);
        let switched = go(&mut follower, 5);
        let why = switched.fallback.unwrap();
        assert!(matches!(why, Fallback::Torn | Fallback::Proof), "{why:?}");
        assert_eq!((memory.copy(), follower.is_torn()), (chain.states[5].clone(), false));
    }
    assert!(torn > 1);
    // A load that stops at any moment.
    let mut stop_at = 1;
    loop {
        let memory = Elsewhere::new(&next(None, 99));
        let mut follower =
            Follower::into_memory(chain.store.clone(), vec![memory.clone()], FollowerOptions::default()).unwrap();
        let mut prepared = follower.prepare(Some(5), &()).unwrap().unwrap();
        let Err(error) = follower.apply(&mut prepared, &Notes::stopping_at(stop_at)) else { break };
        assert_eq!(error.message(), "stopped by the test");
        assert_eq!((follower.held(), follower.is_torn()), (None, true));
        // Nobody takes that for proven.
        assert!(follower.check(&()).is_err() && follower.verify(&()).is_err() && follower.held().is_none());
        // The same again, or another version.
        if stop_at % 2 == 0 {
            follower.apply(&mut prepared, &()).unwrap();
        } else {
            assert_eq!(go(&mut follower, 5).fallback, Some(Fallback::Torn));
        }
        assert_eq!((memory.copy(), follower.is_torn()), (chain.states[5].clone(), false));
        stop_at += 1;
    }
    assert!(stop_at > 2);
}

#[test]
fn bad_links_do_not_tear_what_is_held_and_are_tried_once_on_nothing() {
    let mut chain = Chain::of(&ALL[..1], 4);
    chain.options.snapshots = Snapshots::Never;
    chain.publish();
    // A snapshot of version 4 that is shorter than the path, and not what it says: its last segment is damaged.
    let mut snapshot = Vec::new();
    let report = diff(&MemoryState::new(), &chain.states[4], &DiffOptions::default(), &mut snapshot).unwrap();
    let place = snapshot.len() - 20;
    snapshot[place] ^= 1;
    let folder = chain.folder.path().join("chain");
    let digest = Digest::of_bytes(&snapshot);
    let file = deltachain::chain::FileReference { digest, size: report.bytes };
    let path = folder.join(file.name().to_string());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, snapshot).unwrap();
    let mut routes = chain.commit(4).routes;
    routes.insert(0, Route { from: None, files: vec![file] });
    chain.set_routes(4, routes);

    // From nothing there is nothing to tear; the second attempt proves the links first, and takes another path.
    let memory = Elsewhere::new(&next(None, 99));
    let mut follower =
        Follower::into_memory(chain.store.clone(), vec![memory.clone()], FollowerOptions::default()).unwrap();
    let mut prepared = follower.prepare(None, &()).unwrap().unwrap();
    let error = follower.apply(&mut prepared, &()).unwrap_err();
    assert!(error.rule().is_some(), "{error}");
    assert!(follower.is_torn());
    let switched = go(&mut follower, 4);
    assert_eq!((switched.fallback, switched.routes[0].0), (Some(Fallback::Torn), None));
    assert!(switched.routes.len() > 1);
    assert_eq!(memory.copy(), chain.states[4]);

    // What is held is not torn by it.
    let (memory, mut follower) = elsewhere(&chain, 3, FollowerOptions::default());
    memory.flip(0, lane(&chain, 4, 0, true));
    let before = memory.copy();
    let mut prepared = follower.prepare(None, &()).unwrap().unwrap();
    assert_eq!(memory.copy(), before);
    assert_eq!(follower.apply(&mut prepared, &()).unwrap().fallback, Some(Fallback::Proof));
    assert_eq!(memory.copy(), chain.states[4]);
}

#[test]
fn a_link_without_sums_in_between_is_taken_by_digests() {
    let mut chain = Chain::of(&ALL[..1], 2);
    chain.options.profiles = vec![Profile::Compact];
    chain.publish();
    chain.options.profiles = vec![Profile::Local];
    chain.publish();
    chain.publish();
    for versions in [&[2, 3, 4][..], &[3, 4], &[4]] {
        let (memory, mut follower) = elsewhere(&chain, 1, FollowerOptions::default());
        for &version in versions {
            let switched = go(&mut follower, version);
            assert_eq!(
                (switched.fallback, memory.copy()),
                (None, chain.states[usize::try_from(version).unwrap()].clone())
            );
            // What is not known is hashed.
            follower.check(&()).unwrap();
        }
    }
}

#[test]
fn a_route_that_only_a_document_names_is_not_trusted() {
    let chain = Chain::of(&ALL[..1], 4);
    // A stranger's link to the right state, whose sums fit whatever it does: it is shorter than the commit's.
    let mut link = Vec::new();
    let options = DiffOptions::default().profile(Profile::Local).sums(true);
    let report = diff(&chain.states[1], &chain.states[3], &options, &mut link).unwrap();
    let file = deltachain::chain::FileReference { digest: Digest::of_bytes(&link), size: report.bytes };
    let path = chain.folder.path().join("chain").join(file.name().to_string());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, &link).unwrap();
    let mut routes = chain.commit(3).routes;
    routes.insert(0, Route { from: Some(1), files: vec![file] });
    chain.set_routes(3, routes.clone());
    let (memory, mut follower) = elsewhere(&chain, 1, FollowerOptions::default());
    assert_eq!(go(&mut follower, 3).routes, [(Some(1), 2), (Some(2), 3)]);
    assert_eq!(memory.copy(), chain.states[3]);
    // If there is no other, memory that can be read takes it by digests, and an engine takes the whole version.
    let name = ObjectName::Routes { version: 3, generation: 2 };
    let commit = Digest::of_bytes(&chain.store.get(ObjectName::Commit(3)).unwrap().unwrap());
    let metadata = BTreeMap::from([("deltachain.in-place".to_owned(), "0".to_owned())]);
    let document = RoutesDocument { version: 3, generation: 2, commit, routes: routes[..1].to_vec(), metadata };
    assert!(chain.store.put_if_absent(name, &document.to_bytes().unwrap()).unwrap());
    let (memory, mut follower) = elsewhere(&chain, 1, FollowerOptions::default());
    let switched = go(&mut follower, 3);
    assert_eq!((switched.routes, switched.fallback), (vec![(Some(1), 3)], None));
    assert_eq!(memory.copy(), chain.states[3]);
    assert_eq!(follower.check(&()).unwrap(), Some(Proof::Hashed));
    let mut executor = Executor::new(&chain);
    executor.go(1);
    assert_eq!(executor.go(3), (How::Whole, Some(Fallback::NoRoute)));
}

#[test]
fn what_takes_more_than_the_budget_is_loaded_as_a_whole() {
    let chain = Chain::of(&ALL[..1], 4);
    let (memory, mut follower) = elsewhere(&chain, 2, FollowerOptions::default().budget(100));
    let notes = Notes::default();
    let mut prepared = follower.prepare(None, &notes).unwrap().unwrap();
    assert!(notes.remarks().iter().any(|remark| remark.contains("the budget")), "{:?}", notes.remarks());
    assert_eq!(follower.apply(&mut prepared, &()).unwrap().fallback, Some(Fallback::Budget));
    assert_eq!(memory.copy(), chain.states[3]);
    // That it is to end is no reason.
    let (memory, mut follower) = elsewhere(&chain, 2, FollowerOptions::default());
    let mut stop_at = 1;
    while let Err(error) = follower.prepare(None, &Notes::stopping_at(stop_at)) {
        assert_eq!(error.message(), "stopped by the test");
        assert_eq!(follower.held().unwrap().version, 2);
        stop_at += 1;
    }
    assert_eq!(memory.copy(), chain.states[2]);
}

#[test]
fn a_file_that_was_damaged_in_the_cache_is_fetched_again() {
    let chain = Chain::of(&ALL[..1], 4);
    let cache = tempfile::tempdir().unwrap();
    let options = || FollowerOptions::default().cache(Some(cache.path().to_owned()));
    let (_, mut first) = elsewhere(&chain, 2, options());
    assert!(go(&mut first, 3).downloaded > 0);
    drop(first);
    let path = cache.path().join(format!("{}.dcf", chain.in_place_route(3, 2).files[0].digest));
    let mut bytes = fs::read(&path).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (memory, mut second) = elsewhere(&chain, 2, options());
    let switched = go(&mut second, 3);
    assert!(switched.downloaded > 0);
    assert_eq!((switched.fallback, memory.copy()), (None, chain.states[3].clone()));
}

#[test]
fn memory_of_other_tensors_is_refused_before_anything_is_written() {
    let chain = Chain::of(&ALL[..1], 2);
    let mut other = chain.states[0].clone();
    other.insert("a", Dtype::BF16, &[29_999], vec![1; 59_998]).unwrap();
    let memory = Elsewhere::new(&other);
    // A follower's own begins empty.
    let own = Follower::into_memory(chain.store.clone(), vec![other.clone()], FollowerOptions::default());
    assert_eq!(own.unwrap_err().class(), ErrorClass::Usage);
    for memories in [vec![memory.clone()], Vec::new(), vec![memory.clone(); 2]] {
        let mut follower = Follower::into_memory(chain.store.clone(), memories, FollowerOptions::default()).unwrap();
        assert_eq!(follower.prepare(None, &()).unwrap_err().class(), ErrorClass::Usage);
        assert_eq!((memory.copy(), follower.is_torn()), (other.clone(), false));
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
    let memory = Elsewhere::new(&part(3));
    let mut follower = Follower::into_memory(chain.store.clone(), vec![memory.clone()], options()).unwrap();
    for version in [0, 1, 2, 4] {
        let switched = go(&mut follower, version as u64);
        assert_eq!((switched.fallback, memory.copy()), (None, part(version)));
        assert_eq!(follower.check(&()).unwrap(), Some(Proof::Memory));
    }
}
