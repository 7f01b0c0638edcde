//! Copies of a chain: right at any time, whenever the copying ends.

use std::num::NonZeroU64;
use std::sync::Arc;

use deltachain::chain::{ObjectName, Signer, SigningKey};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Result};
use deltachain_store::{
    FollowOptions, Follower, FollowerOptions, Memory, MirrorReport, Poller, RawObjects, Snapshots,
    Store, init, mirror, plan_prune, prune, sign,
};
use object_store::memory::InMemory;

use crate::maintenance::{Chain, check, keep, names};
use crate::support::faulty::{Control, FaultyStore};
use crate::support::quick;
use crate::support::verify::rebuild;

fn empty() -> (Store, Arc<Control>) {
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    (
        Store::from_objects(objects, "", quick().attempts(1)).unwrap(),
        control,
    )
}

fn copy(source: &Store, destination: &Store) -> Result<MirrorReport> {
    let scratch = tempfile::tempdir().unwrap();
    let report = mirror(source, destination, scratch.path(), &());
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    report
}

/// Each version that a copy has can be built, but for those that are pruned.
fn assert_right(chain: &mut Chain, copied: &Store) -> usize {
    let report = check(copied, None);
    let versions = report.versions;
    // Routes come before their commit, so that no reader takes those of the commit that are gone.
    let early = format!("routes/{versions:020}-");
    let is_early = |error: &Error| error.file().is_some_and(|file| file.starts_with(&early));
    assert!(
        report.problems.iter().all(is_early),
        "{:?}",
        report.problems
    );
    for version in 0..versions {
        match rebuild(copied, Some(version as u64)) {
            Ok(state) => assert_eq!(&state, chain.models.state(version as u64)),
            Err(error) => assert_eq!(error.rule(), Some("R-CHN-08"), "{error}"),
        }
    }
    versions
}

#[test]
fn a_copy_is_right_whenever_copying_ends_and_goes_on() {
    let mut chain = Chain::new(6, Snapshots::Every(3), &[2]);
    let commit = Digest::of_bytes(&chain.store.get(ObjectName::Commit(5)).unwrap().unwrap());
    let key: Arc<dyn Signer> = Arc::new(SigningKey::from_seed("a-key", [7; 32]).unwrap());
    sign(&chain.store, 5, commit, &[key]).unwrap();
    let plan = plan_prune(&chain.store, &keep(3, None, &[])).unwrap();
    prune(&chain.store, &plan, &()).unwrap();
    let (mut seen, mut ends) = (0, 0);
    for writes in 0.. {
        let (copied, control) = empty();
        control.stop_after(writes);
        let ended = copy(&chain.store, &copied);
        control.heal();
        if copied.get(ObjectName::Chain).unwrap().is_some() {
            let versions = assert_right(&mut chain, &copied);
            assert!(versions >= seen, "{writes}");
            seen = versions;
        }
        if ended.is_ok() {
            break;
        }
        ends += 1;
        assert_eq!(copy(&chain.store, &copied).unwrap().version, Some(5));
        assert_eq!(names(&copied), names(&chain.store));
    }
    assert!(ends > 15 && seen == 6, "{ends}");
    // What is new, and nothing else.
    let (copied, control) = empty();
    copy(&chain.store, &copied).unwrap();
    // Files of versions that the source has withdrawn go a day later, and those of others stay.
    control.set_clock(30);
    let plan = plan_prune(&copied, &keep(u64::MAX, None, &[])).unwrap();
    assert!(plan.expected.withdrawn.is_empty());
    assert!(!prune(&copied, &plan, &()).unwrap().removed.is_empty());
    assert_right(&mut chain, &copied);
    control.set_clock(0);
    let (copied, _) = empty();
    copy(&chain.store, &copied).unwrap();
    let nothing = copy(&chain.store, &copied).unwrap();
    assert_eq!((nothing.documents, nothing.files, nothing.bytes), (0, 0, 0));
    chain.publish(6);
    let one = copy(&chain.store, &copied).unwrap();
    assert_eq!((one.version, one.documents), (Some(6), 1));
    assert_eq!(assert_right(&mut chain, &copied), 7);
}

#[test]
fn lost_objects_come_back_from_a_copy() {
    let mut chain = Chain::new(4, Snapshots::Every(2), &[]);
    let (copied, _) = empty();
    copy(&chain.store, &copied).unwrap();
    let all = names(&chain.store);
    for name in &all {
        chain.store.delete(&[*name]).unwrap();
        let back = copy(&copied, &chain.store);
        let back = back.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert_eq!(
            back.files,
            usize::from(matches!(name, ObjectName::File(_))),
            "{name}"
        );
        assert_eq!(names(&chain.store), all, "{name}");
    }
    assert_eq!(assert_right(&mut chain, &copied), 4);
}

#[test]
fn what_is_no_copy_of_the_chain_is_not_touched() {
    let chain = Chain::new(2, Snapshots::Never, &[]);
    let other = Chain::new(3, Snapshots::Never, &[]);
    let before = names(&other.store);
    assert_eq!(
        copy(&chain.store, &other.store).unwrap_err().class(),
        ErrorClass::Chain
    );
    assert_eq!(names(&other.store), before);
    // The source was rolled back.
    let (copied, _) = empty();
    copy(&chain.store, &copied).unwrap();
    chain.store.delete(&[ObjectName::Commit(1)]).unwrap();
    assert_eq!(
        copy(&chain.store, &copied).unwrap_err().class(),
        ErrorClass::Chain
    );
    let (none, _) = empty();
    assert_eq!(copy(&none, &copied).unwrap_err().rule(), Some("R-CHN-01"));
    // A chain without versions is one.
    init(&none).unwrap();
    let (second, _) = empty();
    assert_eq!(copy(&none, &second).unwrap().version, None);
    assert_eq!(names(&second), names(&none));
}

fn follower(store: &Store) -> Follower<Memory> {
    Follower::in_memory(store.clone(), FollowerOptions::default()).unwrap()
}

#[test]
fn only_each_third_version_is_taken() {
    let mut chain = Chain::new(2, Snapshots::Never, &[]);
    let mut follower = follower(&chain.store);
    let mut poller = Poller::new(&FollowOptions::default().every(NonZeroU64::new(3)));
    let mut taken = Vec::new();
    for version in 2..9 {
        if let Some(mut prepared) = poller.poll(&mut follower, &()).unwrap() {
            taken.push(follower.apply(&mut prepared).unwrap().version);
        }
        chain.publish(version);
    }
    // Version 3 was found when 4 was the head; each is found once.
    assert_eq!(taken, [0, 3, 6]);
}
