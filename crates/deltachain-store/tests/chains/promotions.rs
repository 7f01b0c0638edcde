//! Promoting a version: `mirror --up-to`. The fleet follows a copy that ends with the promoted
//! version, and never takes another one, wherever the promotion stops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use deltachain::chain::ObjectName;
use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use deltachain_store::{
    Follower, FollowerOptions, MirrorOptions, MirrorReport, PromotedVersion, RawObjects, Snapshots,
    Store, plan_prune, prune, sign,
};

use crate::maintenance::{Chain, commit_of, keep, names};
use crate::mirror::{commit_digest, contents, copy, copy_with, empty, key, trust};
use crate::support::verify::rebuild;

fn up_to(store: &Store, version: u64) -> MirrorOptions {
    let commit = commit_digest(store, version);
    MirrorOptions::default().up_to(Some(PromotedVersion { version, commit }))
}

fn promote(from: &Store, to: &Store, version: u64) -> Result<MirrorReport> {
    copy_with(from, to, up_to(from, version))
}

/// The version that a new follower takes, or the rule by which it takes none.
fn taken(store: &Store) -> Result<u64, Option<&'static str>> {
    let mut follower = Follower::in_memory(store.clone(), FollowerOptions::default()).unwrap();
    let prepared = follower
        .prepare(None, &())
        .map_err(|error: Error| error.rule())?
        .unwrap();
    Ok(prepared.held().version)
}

#[test]
fn a_fleet_gets_promoted_versions_and_no_others() {
    let mut chain = Chain::new(3, Snapshots::Every(3), &[]);
    let (stable, _) = empty();
    let report = promote(&chain.store, &stable, 1).unwrap();
    assert_eq!((report.version, report.problems.len()), (Some(1), 0));
    assert_eq!(taken(&stable), Ok(1));
    // Once more: nothing is to be done.
    let again = promote(&chain.store, &stable, 1).unwrap();
    assert_eq!((again.documents, again.files), (0, 0));
    chain.publish(3);
    chain.publish(4);
    assert_eq!(promote(&chain.store, &stable, 4).unwrap().version, Some(4));
    assert_eq!(taken(&stable), Ok(4));
    assert_eq!(&rebuild(&stable, Some(4)).unwrap(), chain.models.state(4));
    // It never goes back.
    let before = contents(&stable);
    let error = promote(&chain.store, &stable, 2).unwrap_err();
    assert!(error.message().contains("at version 4"), "{error}");
    assert_eq!(contents(&stable), before);
}

#[test]
fn a_version_that_is_not_the_one_that_was_named_is_not_promoted() {
    let chain = Chain::new(3, Snapshots::Never, &[]);
    let (stable, _) = empty();
    promote(&chain.store, &stable, 0).unwrap();
    let before = contents(&stable);
    for (version, commit, said) in [
        (1, commit_digest(&chain.store, 2), "has the commit"),
        (1, Digest([7; 32]), "has the commit"),
        (9, Digest([7; 32]), "no such version"),
    ] {
        let options = MirrorOptions::default().up_to(Some(PromotedVersion { version, commit }));
        let error = copy_with(&chain.store, &stable, options).unwrap_err();
        assert!(error.message().contains(said), "{error}");
        assert_eq!(contents(&stable), before);
    }
    // The source was rolled back after a promotion, and goes on with other versions.
    promote(&chain.store, &stable, 2).unwrap();
    let named = up_to(&chain.store, 2);
    let before = contents(&stable);
    chain.store.delete(&[ObjectName::Commit(2)]).unwrap();
    let error = copy_with(&chain.store, &stable, named).unwrap_err();
    assert!(error.message().contains("no such version"), "{error}");
    let error = promote(&chain.store, &stable, 1).unwrap_err();
    assert!(error.message().contains("at version 2"), "{error}");
    assert_eq!(contents(&stable), before);
    assert_eq!(taken(&stable), Ok(2));
}

#[test]
fn a_version_without_a_path_is_not_promoted() {
    // Version 1 needs the link of version 1; version 2 has a snapshot of its own.
    let chain = Chain::new(3, Snapshots::Never, &[]);
    chain.compact(Some(2), &[], true).unwrap();
    let (stable, _) = empty();
    promote(&chain.store, &stable, 0).unwrap();
    let lost = commit_of(&chain.store, 1).routes[0].files[0];
    chain.store.delete(&[lost.name()]).unwrap();
    let before = contents(&stable);
    let error = promote(&chain.store, &stable, 1).unwrap_err();
    assert_eq!(error.file(), Some(&*lost.name().to_string()), "{error}");
    // Readers of the destination see the same documents as before.
    let documents = |all: &BTreeMap<ObjectName, Vec<u8>>| {
        let is_document = |name: &&ObjectName| !matches!(name, ObjectName::File(_));
        all.keys().filter(is_document).copied().collect::<Vec<_>>()
    };
    assert_eq!(documents(&contents(&stable)), documents(&before));
    assert_eq!(taken(&stable), Ok(0));
    // Version 2 can be reached without that file, which is named nevertheless.
    let report = promote(&chain.store, &stable, 2).unwrap();
    assert_eq!((report.version, report.problems.len()), (Some(2), 1));
    assert_eq!(taken(&stable), Ok(2));
}

#[test]
fn a_pruned_version_is_not_promoted() {
    let chain = Chain::new(6, Snapshots::Every(2), &[]);
    let plan = plan_prune(&chain.store, &keep(1, None, &[])).unwrap();
    prune(&chain.store, &plan, &()).unwrap();
    let (stable, _) = empty();
    let error = promote(&chain.store, &stable, 1).unwrap_err();
    assert!(error.breaks(&["R-CHN-08"]), "{error}");
    assert_eq!(taken(&stable), Err(Some("R-CHN-01")));
    promote(&chain.store, &stable, 5).unwrap();
    assert_eq!(taken(&stable), Ok(5));
}

#[test]
fn only_signed_versions_are_promoted_if_keys_are_trusted() {
    let chain = Chain::new(3, Snapshots::Never, &[]);
    let key = key("a", 1);
    let trust = trust(&[&key], 1);
    let trusting = |version| up_to(&chain.store, version).trust(Some(trust.clone()));
    let signed = |version| {
        let commit = commit_digest(&chain.store, version);
        sign(&chain.store, version, commit, &[Arc::clone(&key)]).unwrap();
    };
    let (stable, _) = empty();
    signed(1);
    let error = copy_with(&chain.store, &stable, trusting(2)).unwrap_err();
    assert!(error.message().contains("not signed"), "{error}");
    assert!(names(&stable).is_empty());
    copy_with(&chain.store, &stable, trusting(1)).unwrap();
    assert_eq!(taken(&stable), Ok(1));
    signed(2);
    copy_with(&chain.store, &stable, trusting(2)).unwrap();
    assert_eq!(taken(&stable), Ok(2));
    // A version below a signed one is not signed by that.
    let (other, _) = empty();
    let error = copy_with(&chain.store, &other, trusting(0)).unwrap_err();
    assert!(error.message().contains("signed"), "{error}");
    assert!(names(&other).is_empty());
}

#[test]
fn a_promoter_that_is_killed_at_any_request_promotes_nothing_else() {
    let mut chain = Chain::new(2, Snapshots::Every(3), &[]);
    let (before, _) = empty();
    promote(&chain.store, &before, 1).unwrap();
    for version in 2..6 {
        chain.publish(version);
    }
    let mut ends = 0;
    for writes in 0.. {
        let (stable, control) = empty();
        copy(&before, &stable).unwrap();
        control.stop_after(writes);
        let ended = promote(&chain.store, &stable, 5);
        control.heal();
        // Not one of the versions between is ever the newest one: a gap is refused.
        let now = taken(&stable);
        assert!(
            [Ok(1), Ok(5), Err(Some("R-CHN-03"))].contains(&now),
            "{writes}: {now:?}"
        );
        if ended.is_ok() {
            assert_eq!(now, Ok(5));
            break;
        }
        ends += 1;
        promote(&chain.store, &stable, 5).unwrap();
        assert_eq!(taken(&stable), Ok(5), "{writes}");
    }
    assert!(ends > 8, "{ends}");
    // A first promotion is no chain before its end.
    for writes in 0.. {
        let (stable, control) = empty();
        control.stop_after(writes);
        let ended = promote(&chain.store, &stable, 5);
        control.heal();
        if ended.is_ok() {
            break;
        }
        assert_eq!(taken(&stable), Err(Some("R-CHN-01")), "{writes}");
        promote(&chain.store, &stable, 5).unwrap();
        assert_eq!(taken(&stable), Ok(5), "{writes}");
    }
}

#[test]
fn two_promoters_end_at_the_higher_version() {
    let chain = Chain::new(8, Snapshots::Every(3), &[]);
    for _ in 0..5 {
        let (stable, _) = empty();
        promote(&chain.store, &stable, 1).unwrap();
        thread::scope(|scope| {
            for version in [4, 6] {
                let source = &chain.store;
                let destination = &stable;
                scope.spawn(move || {
                    // The lower one may find the destination above it.
                    let done = promote(source, destination, version);
                    assert!(done.is_ok() || version == 4, "{done:?}");
                });
            }
        });
        assert_eq!(taken(&stable), Ok(6));
        let (whole, _) = empty();
        promote(&chain.store, &whole, 6).unwrap();
        assert_eq!(contents(&stable), contents(&whole));
    }
}

#[test]
fn a_copy_of_an_unfinished_promotion_waits_for_its_end() {
    let mut chain = Chain::new(2, Snapshots::Every(3), &[]);
    let (stable, control) = empty();
    promote(&chain.store, &stable, 1).unwrap();
    let (copied, _) = empty();
    let scratch = tempfile::tempdir().unwrap();
    let options = MirrorOptions::default();
    let mut mirror = deltachain_store::Mirror::new(stable.clone(), &copied, options);
    mirror.round(scratch.path(), &()).unwrap();
    assert_eq!(taken(&copied), Ok(1));
    for version in 2..6 {
        chain.publish(version);
    }
    // The promoter is killed after its newest commit.
    let mut writes = 0;
    while !names(&stable).contains(&ObjectName::Commit(5)) {
        control.stop_after(writes);
        promote(&chain.store, &stable, 5).unwrap_err();
        control.heal();
        writes += 1;
    }
    assert_eq!(taken(&stable), Err(Some("R-CHN-03")));
    // Neither a mirror that runs on nor a new one copies a part of it.
    let report = mirror.round(scratch.path(), &()).unwrap();
    assert!(!report.problems.is_empty());
    assert_eq!(taken(&copied), Ok(1));
    let report = copy(&stable, &copied).unwrap();
    assert!(!report.problems.is_empty());
    assert_eq!(taken(&copied), Ok(1));
    promote(&chain.store, &stable, 5).unwrap();
    copy(&stable, &copied).unwrap();
    assert_eq!(taken(&copied), Ok(5));
    assert_eq!(mirror.round(scratch.path(), &()).unwrap().version, Some(5));
}
