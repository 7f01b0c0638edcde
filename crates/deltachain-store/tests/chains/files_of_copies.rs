//! Followers that download files from copies of their chain. Only the chain's own store defines the
//! chain, and no fault of a copy is blamed on it.

use std::sync::Arc;

use deltachain::chain::{ObjectName, Signer, Trust};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{Digest, Dtype, MemoryState};
use deltachain::{ErrorClass, Result};
use deltachain_store::{
    FollowStatus, Follower, FollowerOptions, Memory, Place, Poller, PublishOptions, Publisher,
    RawObjects, Snapshots, Store, StoreRecord, init, sign,
};
use object_store::memory::InMemory;

use crate::common::{self, Notes, state};
use crate::maintenance::{Chain, names};
use crate::mirror;
use crate::signatures::key;
use crate::support::Random;
use crate::support::counting::CountingStore;
use crate::support::faulty::{Control, Fault, FaultyStore};
use crate::support::quick;

fn empty() -> (Store, Arc<Control>) {
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    (Store::from_objects(objects, "", quick()).unwrap(), control)
}

fn copy(source: &Store, destination: &Store) {
    let report = mirror::copy(source, destination).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

fn in_memory(store: &Store, options: FollowerOptions) -> Follower<Memory> {
    Follower::in_memory(store.clone(), options).unwrap()
}

fn advance(follower: &mut Follower<Memory>) -> Result<Option<u64>> {
    let Some(mut prepared) = follower.prepare(None, &())? else {
        return Ok(None);
    };
    follower
        .apply(&mut prepared)
        .map(|report| Some(report.version))
}

fn held(follower: &Follower<Memory>) -> Option<u64> {
    follower.held().map(|held| held.version)
}

/// Records of the chain's own store, and then of its copies.
fn stores<P: Place>(follower: &Follower<P>) -> Vec<StoreRecord> {
    let mut status = FollowStatus::default();
    status.observe(follower);
    status.stores
}

fn digest_of(store: &Store, version: u64) -> Digest {
    Digest::of_bytes(&store.get(ObjectName::Commit(version)).unwrap().unwrap())
}

/// Publishes another version in place of a lost one.
fn publish_other(store: &Store) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let mut other = MemoryState::new();
    other.insert("a", Dtype::U8, &[3], vec![1, 2, 3]).unwrap();
    crate::support::models::save(&other, &path, false);
    let state = SafetensorsState::open(&path).unwrap();
    Publisher::open(store.clone(), PublishOptions::default().unsigned(true))
        .unwrap()
        .publish(&state, deltachain_store::Base::Nothing, &())
        .unwrap();
}

/// Replaces the content of all files of a store.
fn damage(store: &Store, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    let is_file = |name: &ObjectName| matches!(name, ObjectName::File(_));
    for name in names(store).into_iter().filter(is_file) {
        let content = store.get(name).unwrap().unwrap();
        store.delete(&[name]).unwrap();
        assert!(store.put_if_absent(name, &change(content)).unwrap());
    }
}

#[test]
fn a_rollback_stays_though_copies_have_more() {
    for is_signed in [false, true] {
        let chain = Chain::new(4, Snapshots::Never, &[]);
        let signer: Arc<dyn Signer> = key("a");
        for version in 0..4 {
            let commit = digest_of(&chain.store, version);
            sign(&chain.store, version, commit, &[Arc::clone(&signer)]).unwrap();
        }
        let (copied, _) = empty();
        copy(&chain.store, &copied);
        let mut options =
            FollowerOptions::default().allow_rollback(Some(digest_of(&chain.store, 2)));
        if is_signed {
            let trust = Trust::new([key("a").public().clone()], 1).unwrap();
            options = options.trust(Some(trust));
        }
        let store = chain.store.with_copies(vec![copied.clone()]);
        let mut follower = in_memory(&store, options);
        assert_eq!(advance(&mut follower).unwrap(), Some(3));
        chain.store.delete(&[ObjectName::Commit(3)]).unwrap();
        assert_eq!(advance(&mut follower).unwrap(), Some(2));
        // The copy still has version 3. Even when the own store fails, the follower does not load
        // it again.
        chain.control.plan(|_| Some(Fault::FailBefore));
        let error = advance(&mut follower).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Io, "{error:#}");
        assert_eq!(held(&follower), Some(2));
        chain.control.heal();
        assert_eq!(advance(&mut follower).unwrap(), None);
        publish_other(&chain.store);
        let commit = digest_of(&chain.store, 3);
        assert_ne!(commit, digest_of(&copied, 3));
        sign(&chain.store, 3, commit, &[signer]).unwrap();
        assert_eq!(advance(&mut follower).unwrap(), Some(3));
        assert_eq!(follower.held().unwrap().commit, commit);
    }
}

#[test]
fn a_rollback_is_noticed_though_copies_have_more() {
    let chain = Chain::new(4, Snapshots::Never, &[]);
    let (copied, _) = empty();
    copy(&chain.store, &copied);
    let mut follower = in_memory(
        &chain.store.with_copies(vec![copied]),
        FollowerOptions::default(),
    );
    assert_eq!(advance(&mut follower).unwrap(), Some(3));
    chain.store.delete(&[ObjectName::Commit(3)]).unwrap();
    let error = advance(&mut follower).unwrap_err();
    assert_eq!(error.rule(), Some("R-CHN-14"), "{error:#}");
    publish_other(&chain.store);
    let error = advance(&mut follower).unwrap_err();
    assert_eq!(error.rule(), Some("R-CHN-05"), "{error:#}");
    assert_eq!(held(&follower), Some(3));
}

#[test]
fn a_copy_is_never_taken_for_the_chain() {
    let chain = Chain::new(3, Snapshots::Never, &[]);
    let other = Chain::new(4, Snapshots::Never, &[]);
    let store = chain.store.with_copies(vec![other.store.clone()]);
    let mut follower = in_memory(&store, FollowerOptions::default());
    chain.control.plan(|_| Some(Fault::FailBefore));
    let error = advance(&mut follower).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io, "{error:#}");
    // The documents of the chain's own store are lost.
    let (lost, _) = empty();
    let mut of_lost = in_memory(
        &lost.with_copies(vec![other.store.clone()]),
        FollowerOptions::default(),
    );
    assert_eq!(advance(&mut of_lost).unwrap_err().rule(), Some("R-CHN-01"));
    assert_eq!((held(&follower), held(&of_lost)), (None, None));
    chain.control.heal();
    assert_eq!(advance(&mut follower).unwrap(), Some(2));
    assert_eq!(follower.held().unwrap().commit, digest_of(&chain.store, 2));
}

#[test]
fn a_copy_that_is_ahead_of_a_store_that_fails_is_not_followed() {
    let mut chain = Chain::new(3, Snapshots::Never, &[]);
    let (copied, _) = empty();
    let store = chain.store.with_copies(vec![copied.clone()]);
    let mut follower = in_memory(&store, FollowerOptions::default());
    assert_eq!(advance(&mut follower).unwrap(), Some(2));
    chain.publish(3);
    copy(&chain.store, &copied);
    let before = stores(&follower)[0].failures;
    chain.control.plan(|_| Some(Fault::FailBefore));
    let error = advance(&mut follower).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io, "{error:#}");
    assert_eq!(held(&follower), Some(2));
    let [own, of_copy] = &stores(&follower)[..] else {
        panic!("two stores");
    };
    assert!(own.failures > before && own.last_failure.is_some());
    assert_eq!((of_copy.failures, of_copy.bytes), (0, 0));
    chain.control.heal();
    assert_eq!(advance(&mut follower).unwrap(), Some(3));
}

/// A faulty copy, and whether its faults count as damage.
struct Wrong {
    name: &'static str,
    make: fn(&Store) -> (Store, Arc<Control>),
    is_damaged: bool,
}

fn mirrored(source: &Store) -> (Store, Arc<Control>) {
    let (copied, control) = empty();
    copy(source, &copied);
    (copied, control)
}

fn damaged(source: &Store, change: impl Fn(Vec<u8>) -> Vec<u8>) -> (Store, Arc<Control>) {
    let (copied, control) = mirrored(source);
    damage(&copied, change);
    (copied, control)
}

const WRONG: [Wrong; 8] = [
    Wrong {
        name: "another chain",
        make: |_| mirrored(&Chain::new(3, Snapshots::Never, &[]).store),
        is_damaged: false,
    },
    Wrong {
        name: "nothing there",
        make: |_| empty(),
        is_damaged: false,
    },
    Wrong {
        name: "all requests fail",
        make: |source| {
            let (copied, control) = mirrored(source);
            control.plan(|_| Some(Fault::FailBefore));
            (copied, control)
        },
        is_damaged: false,
    },
    Wrong {
        name: "bodies end early",
        make: |source| {
            let (copied, control) = mirrored(source);
            control.plan(|_| Some(Fault::Truncate));
            (copied, control)
        },
        is_damaged: false,
    },
    Wrong {
        name: "cut files",
        make: |source| damaged(source, |content| content[..content.len() / 2].to_vec()),
        is_damaged: true,
    },
    Wrong {
        name: "empty files",
        make: |source| damaged(source, |_| Vec::new()),
        is_damaged: true,
    },
    Wrong {
        name: "a page of a portal",
        make: |source| damaged(source, |_| b"<html>Please sign in</html>".to_vec()),
        is_damaged: true,
    },
    Wrong {
        name: "wrong bytes of the right size",
        make: |source| {
            damaged(source, |mut content| {
                let last = content.len() - 1;
                content[last] ^= 1;
                content
            })
        },
        is_damaged: true,
    },
];

#[test]
fn nothing_of_a_wrong_copy_is_blamed_on_the_chain() {
    for tensors in [None, Some(vec!["layers/*".to_owned()])] {
        for wrong in WRONG {
            let mut chain = Chain::new(3, Snapshots::Never, &[]);
            let (copied, _control) = (wrong.make)(&chain.store);
            let store = chain.store.with_copies(vec![copied]);
            let folder = tempfile::tempdir().unwrap();
            let options = FollowerOptions::default().tensors(tensors.clone());
            let mut follower = Follower::in_directory(store, folder.path(), options).unwrap();
            let notes = Notes::default();
            let prepared = follower.prepare(None, &notes).unwrap().unwrap();
            let switched = follower.apply(prepared).unwrap();
            let name = wrong.name;
            assert_eq!(switched.version, 2, "{name}");
            assert_eq!(switched.state, digest_of_state(&mut chain, 2), "{name}");
            // The follower gave up no path.
            let remarks = notes.remarks();
            assert!(
                remarks.iter().all(|text| text.starts_with("copy ")),
                "{name}: {remarks:?}"
            );
            assert!(remarks.len() < 2, "{name}: {remarks:?}");
            let of_copy = &stores(&follower)[1];
            assert_eq!(
                of_copy.damage.is_some(),
                wrong.is_damaged,
                "{name}: {of_copy:?}"
            );
            assert_eq!(remarks.len(), usize::from(of_copy.missing == 0), "{name}");
            drop(follower);
            // The cache contains only files of the chain.
            for entry in std::fs::read_dir(folder.path().join("cache")).unwrap() {
                let path = entry.unwrap().path();
                let digest = Digest::of_bytes(&std::fs::read(&path).unwrap());
                assert!(path.ends_with(format!("{digest}.dcf")), "{name}");
            }
        }
    }
}

fn digest_of_state(chain: &mut Chain, version: u64) -> Digest {
    let state = chain.models.state(version);
    deltachain::tensor::StateDigests::of(state, &())
        .unwrap()
        .state
}

/// Such a link passes all checks of the download: it is valid, but for another state.
#[test]
fn a_right_link_in_a_wrong_place_is_fetched_again() {
    let two = |noise: &[u8]| {
        let mut two = state(&[("a", noise)]);
        two.insert("b", Dtype::I8, &[1000], noise[..1000].to_vec())
            .unwrap();
        two
    };
    let mut chain = common::Chain::new();
    let mut other = common::Chain::new();
    let noise = Random(3).bytes(40_000);
    let reversed: Vec<u8> = noise.iter().rev().copied().collect();
    chain.add(two(&noise), &[None]);
    other.add(two(&reversed), &[None]);
    let right = chain.files(0, None)[0];
    let wrong = other.files(0, None)[0];
    assert_eq!(right.size, wrong.size);
    let (copied, _) = empty();
    let content = other.store.get(wrong.name()).unwrap().unwrap();
    assert!(copied.put_if_absent(right.name(), &content).unwrap());
    let store = chain.store.with_copies(vec![copied]);
    for whole in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let patterns = (!whole).then(|| vec!["b".to_owned()]);
        let options = FollowerOptions::default().tensors(patterns);
        let mut follower = Follower::in_directory(store.clone(), folder.path(), options).unwrap();
        let notes = Notes::default();
        let prepared = follower.prepare(None, &notes).unwrap().unwrap();
        follower.apply(prepared).unwrap();
        let [own, of_copy] = &stores(&follower)[..] else {
            panic!("two stores");
        };
        assert!(own.bytes > 0 && of_copy.bytes > 0 && of_copy.damage.is_some());
        let remarks = notes.remarks();
        assert!(
            remarks.len() == 1 && remarks[0].contains("damaged"),
            "{remarks:?}"
        );
        let model = SafetensorsState::open(folder.path().join("current")).unwrap();
        let built = deltachain::tensor::StateDigests::of(&model, &()).unwrap();
        let mut expected = two(&noise);
        if !whole {
            assert!(expected.remove("a"));
        }
        let expected = deltachain::tensor::StateDigests::of(&expected, &()).unwrap();
        assert_eq!(built.state, expected.state);
    }
}

#[test]
fn a_file_that_is_damaged_everywhere_is_the_chains_fault() {
    let chain = Chain::new(2, Snapshots::Never, &[]);
    damage(&chain.store, |mut content| {
        content[0] ^= 1;
        content
    });
    let (copied, _) = empty();
    for name in names(&chain.store) {
        let content = chain.store.get(name).unwrap().unwrap();
        copied.put_if_absent(name, &content).unwrap();
    }
    let store = chain.store.with_copies(vec![copied]);
    let mut follower = in_memory(&store, FollowerOptions::default());
    let error = advance(&mut follower).unwrap_err();
    assert_eq!(error.rule(), Some("R-CHN-10"), "{error:#}");
    assert!(stores(&follower)[1].damage.is_none());
}

#[test]
fn a_lost_file_of_the_chain_comes_from_a_copy() {
    let chain = Chain::new(3, Snapshots::Never, &[]);
    let (copied, _) = empty();
    copy(&chain.store, &copied);
    let is_file = |name: &ObjectName| matches!(name, ObjectName::File(_) | ObjectName::Asset(_));
    let all: Vec<_> = names(&chain.store).into_iter().filter(is_file).collect();
    chain.store.delete(&all).unwrap();
    let store = chain.store.with_copies(vec![copied]);
    assert_eq!(
        advance(&mut in_memory(&store, FollowerOptions::default())).unwrap(),
        Some(2)
    );
}

#[test]
fn an_idle_follower_asks_no_copy() {
    let requests = |has_copy: bool| {
        let own = CountingStore::new();
        let store = Store::from_objects(Arc::clone(&own) as _, "", quick()).unwrap();
        init(&store).unwrap();
        publish_other(&store);
        let near = CountingStore::new();
        let copied = Store::from_objects(Arc::clone(&near) as _, "", quick()).unwrap();
        copy(&store, &copied);
        let store = if has_copy {
            store.with_copies(vec![copied])
        } else {
            store
        };
        let mut follower = in_memory(&store, FollowerOptions::default());
        let mut poller = Poller::new(&deltachain_store::FollowOptions::default());
        let mut prepared = poller.poll(&mut follower, &()).unwrap().unwrap();
        follower.apply(&mut prepared).unwrap();
        own.requests();
        near.requests();
        for _ in 0..40 {
            assert!(poller.poll(&mut follower, &()).unwrap().is_none());
        }
        assert_eq!(near.requests(), 0);
        own.requests()
    };
    let alone = requests(false);
    assert_eq!(requests(true), alone);
    // 38 polls for the next commit, and two of the whole chain.
    assert!(alone < 38 * 2 + 2 * 6, "{alone}");
}

/// Bytes that followers of 100 versions download from the distant store and from the copy.
#[test]
fn what_a_copy_lacks_comes_from_the_chains_own_store() {
    let bytes = |is_behind: bool, every: u64| {
        let mut chain = Chain::new(1, Snapshots::Never, &[]);
        let (copied, _) = empty();
        let store = chain.store.with_copies(vec![copied.clone()]);
        let mut follower = in_memory(&store, FollowerOptions::default());
        for version in 1..=100 {
            copy(&chain.store, &copied);
            chain.publish(version);
            if !is_behind {
                copy(&chain.store, &copied);
            }
            if version % every == 0 {
                assert_eq!(advance(&mut follower).unwrap(), Some(version));
            }
        }
        let [own, of_copy] = &stores(&follower)[..] else {
            panic!("two stores");
        };
        assert_eq!(of_copy.failures, 0);
        assert_eq!(of_copy.missing, if is_behind { 100 / every } else { 0 });
        (own.bytes, of_copy.bytes)
    };
    let mut table = Vec::new();
    for every in [1, 4, 20] {
        let (documents, near) = bytes(false, every);
        let (far, rest) = bytes(true, every);
        // The copy lacks one link of each step.
        assert!(
            rest * every * 10 >= near * (every - 1) * 9,
            "{rest} of {near}"
        );
        // Digests in documents differ from chain to chain, so lengths differ a little.
        let all = far + rest;
        let before = documents + near;
        assert!(all.abs_diff(before) < 1000, "{all}, {before}");
        table.push((every, documents, near, far, rest));
    }
    eprintln!("each Nth version, documents, files; far and near if one behind: {table:?}");
}
