//! Chains that have changed: rolled back, replaced by another chain, or with another commit of the
//! held version.

use std::fs;
use std::path::Path;

use deltachain::chain::{ChainDocument, Commit, ObjectName};
use deltachain::tensor::Digest;
use deltachain_store::{
    Base, Directory, Follower, FollowerOptions, PublishOptions, Publisher, RawObjects, Store,
    StoreOptions, find_version,
};

use super::{Mending, long_chain, open, pull, quick, shown};
use crate::common::{Chain, Notes, follow, state};

/// Removes a commit, and returns its bytes.
fn take_away(chain: &Chain, version: u64) -> Vec<u8> {
    let path = chain.path(ObjectName::Commit(version));
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(path).unwrap();
    bytes
}

fn commit_digest(chain: &Chain, version: u64) -> Digest {
    Digest::of_bytes(&fs::read(chain.path(ObjectName::Commit(version))).unwrap())
}

fn accepting(chain: &Chain, directory: &Path, commit: Digest) -> Follower<Directory> {
    let options = FollowerOptions::default().allow_rollback(Some(commit));
    Follower::in_directory(chain.store.clone(), directory, options).unwrap()
}

fn refused(subscriber: &mut Follower<Directory>, version: Option<u64>) -> Option<&'static str> {
    subscriber.prepare(version, &()).unwrap_err().rule()
}

#[test]
fn a_chain_that_has_gone_back_is_not_followed() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, None);
    let third = take_away(&chain, 3);
    let fourth = take_away(&chain, 4);
    assert_eq!(refused(&mut subscriber, None), Some("R-CHN-14"));
    drop(subscriber);
    // Nor by a process that selects other tensors, or finds damaged files.
    let options = FollowerOptions::default().tensors(Some(vec!["a".to_owned()]));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
    assert_eq!(refused(&mut subscriber, None), Some("R-CHN-14"));
    drop(subscriber);
    let model = folder.path().join("current/model.safetensors");
    let whole = fs::read(&model).unwrap();
    fs::write(&model, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(
        refused(&mut open(&chain, folder.path()), None),
        Some("R-CHN-14")
    );
    fs::write(&model, whole).unwrap();
    // While the held version is missing, an older one is refused, too.
    let mut subscriber = open(&chain, folder.path());
    assert_eq!(refused(&mut subscriber, Some(2)), Some("R-CHN-03"));
    assert_eq!(shown(folder.path()), chain.whole(4));
    for (version, bytes) in [(3, third), (4, fourth)] {
        fs::write(chain.path(ObjectName::Commit(version)), bytes).unwrap();
    }
    assert_eq!(pull(&mut subscriber, Some(2)).version, 2);
}

#[test]
fn a_store_without_any_commit_has_gone_back_too() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), Some(0));
    (0..5).for_each(|version| drop(take_away(&chain, version)));
    assert_eq!(
        refused(&mut open(&chain, folder.path()), None),
        Some("R-CHN-14")
    );
    let fresh = tempfile::tempdir().unwrap();
    assert_eq!(
        refused(&mut open(&chain, fresh.path()), None),
        Some("R-CHN-03")
    );
}

#[test]
fn a_step_back_is_taken_if_its_commit_is_accepted() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = accepting(&chain, folder.path(), commit_digest(&chain, 2));
    // The option changes nothing while the chain continues.
    pull(&mut subscriber, Some(3));
    assert_eq!(pull(&mut subscriber, None).routes, [(Some(3), 4)]);
    take_away(&chain, 4);
    take_away(&chain, 3);
    let switched = pull(&mut subscriber, None);
    assert_eq!((switched.version, switched.routes[0].0), (2, None));
    assert_eq!(shown(folder.path()), chain.whole(2));
    assert!(subscriber.prepare(None, &()).unwrap().is_none());
}

#[test]
fn another_chain_is_not_followed_unless_its_commit_is_accepted() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), Some(0));
    let mut other = Chain::new();
    fs::write(
        other.path(ObjectName::Chain),
        ChainDocument::new(8).to_bytes().unwrap(),
    )
    .unwrap();
    other.begin_again();
    for value in 1..3 {
        other.add(state(&[("a", &[value])]), &[None]);
    }
    assert_eq!(
        refused(&mut open(&other, folder.path()), None),
        Some("R-CHN-13")
    );
    let mut subscriber = accepting(&other, folder.path(), Digest::of_bytes(b"another commit"));
    assert_eq!(refused(&mut subscriber, None), Some("R-CHN-13"));
    drop(subscriber);
    assert_eq!(shown(folder.path()), chain.whole(0));
    let mut subscriber = accepting(&other, folder.path(), commit_digest(&other, 1));
    assert_eq!(pull(&mut subscriber, None).version, 1);
    assert_eq!(shown(folder.path()), other.whole(1));
    // From now on, the other chain is followed.
    drop(subscriber);
    other.add(state(&[("a", &[3])]), &[Some(1)]);
    assert_eq!(
        pull(&mut open(&other, folder.path()), None).routes,
        [(Some(1), 2)]
    );
}

#[test]
fn a_chain_that_says_something_else_of_what_is_held_is_not_followed() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), Some(0));
    // The fork has the same chain document.
    let mut fork = Chain::new();
    fork.add(state(&[("a", &[1])]), &[None]);
    assert_eq!(
        refused(&mut open(&fork, folder.path()), None),
        Some("R-CHN-05")
    );
    assert_eq!(shown(folder.path()), chain.whole(0));
    assert_eq!(
        pull(
            &mut accepting(&fork, folder.path(), commit_digest(&fork, 0)),
            None
        )
        .version,
        0
    );
    assert_eq!(shown(folder.path()), fork.whole(0));

    let empty = tempfile::tempdir().unwrap();
    let store = Store::open(empty.path().to_str().unwrap(), StoreOptions::default()).unwrap();
    let model = tempfile::tempdir().unwrap();
    let mut subscriber =
        Follower::in_directory(store, model.path(), FollowerOptions::default()).unwrap();
    assert_eq!(refused(&mut subscriber, None), Some("R-CHN-01"));
    fs::write(
        empty.path().join("chain.json"),
        ChainDocument::new(1).to_bytes().unwrap(),
    )
    .unwrap();
    assert_eq!(refused(&mut subscriber, None), Some("R-CHN-03"));
}

/// Creates another chain with this many versions.
fn other_chain(versions: u8) -> Chain {
    let mut other = Chain::new();
    fs::write(
        other.path(ObjectName::Chain),
        ChainDocument::new(8).to_bytes().unwrap(),
    )
    .unwrap();
    other.begin_again();
    for value in 1..=versions {
        other.add(state(&[("a", &[value])]), &[None]);
    }
    other
}

fn adopting(chain: &Chain, directory: &Path) -> Follower<Directory> {
    let options = FollowerOptions::default().adopt(true);
    Follower::in_directory(chain.store.clone(), directory, options).unwrap()
}

#[test]
fn a_step_back_is_allowed_once() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), None);
    let commits = [3, 4].map(|version| {
        (
            chain.path(ObjectName::Commit(version)),
            take_away(&chain, version),
        )
    });
    let allowed = commit_digest(&chain, 2);
    let allowing = || accepting(&chain, folder.path(), allowed);
    assert_eq!(pull(&mut allowing(), None).version, 2);
    assert!(allowing().prepare(None, &()).unwrap().is_none());
    // The chain continues, and is rolled back once more. The earlier permission no longer counts,
    // neither for this process nor for others.
    let mend = || {
        commits
            .iter()
            .for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    };
    mend();
    let mut subscriber = allowing();
    assert_eq!(pull(&mut subscriber, None).version, 4);
    [3, 4]
        .iter()
        .for_each(|&version| drop(take_away(&chain, version)));
    assert_eq!(refused(&mut subscriber, None), Some("R-CHN-14"));
    drop(subscriber);
    assert_eq!(refused(&mut allowing(), None), Some("R-CHN-14"));
    assert_eq!(shown(folder.path()), chain.whole(4));
    // If the allowed version was held already, the option allows no rollback, either.
    mend();
    pull(&mut open(&chain, folder.path()), Some(3));
    let mut subscriber = accepting(&chain, folder.path(), commit_digest(&chain, 3));
    pull(&mut subscriber, None);
    drop(subscriber);
    let third = commit_digest(&chain, 3);
    take_away(&chain, 4);
    assert_eq!(
        refused(&mut accepting(&chain, folder.path(), third), None),
        Some("R-CHN-14")
    );
}

#[test]
fn a_chain_may_have_gone_on_from_what_is_allowed() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), None);
    let other = other_chain(4);
    let mut subscriber = accepting(&other, folder.path(), commit_digest(&other, 1));
    assert_eq!(pull(&mut subscriber, None).version, 1);
    assert_eq!(shown(folder.path()), other.whole(1));
    assert_eq!(pull(&mut subscriber, None).version, 3);
    drop(subscriber);
    // Without a rollback, no older version is loaded, whatever else is wrong with the chain.
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), Some(3));
    let mut subscriber = accepting(&chain, folder.path(), commit_digest(&chain, 1));
    for from in [None, Some(3)] {
        fs::remove_file(chain.path(chain.files(4, from)[0].name())).unwrap();
    }
    assert_eq!(refused(&mut subscriber, None), Some("R-CHN-09"));
    assert_eq!(shown(folder.path()), chain.whole(3));
}

#[test]
fn a_fork_is_followed_if_its_commit_is_allowed() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), Some(2));
    // A store that lost version 3, got another one, and kept version 4.
    let path = chain.path(ObjectName::Commit(3));
    let mut third =
        Commit::parse(&fs::read(&path).unwrap(), &deltachain::Limits::default()).unwrap();
    third.metadata = [("again".to_owned(), String::new())].into();
    fs::write(path, third.to_bytes().unwrap()).unwrap();
    assert_eq!(
        refused(&mut open(&chain, folder.path()), None),
        Some("R-CHN-04")
    );
    assert_eq!(
        refused(&mut adopting(&chain, folder.path()), None),
        Some("R-CHN-04")
    );
    assert_eq!(shown(folder.path()), chain.whole(2));
    let switched = pull(
        &mut accepting(&chain, folder.path(), commit_digest(&chain, 4)),
        None,
    );
    assert_eq!((switched.version, switched.routes), (4, vec![(None, 4)]));
    assert_eq!(shown(folder.path()), chain.whole(4));
}

#[test]
fn another_chain_is_adopted_once() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), Some(1));
    // The other chain may be longer or shorter.
    for versions in [1, 3] {
        let other = other_chain(versions);
        assert_eq!(
            refused(&mut open(&other, folder.path()), None),
            Some("R-CHN-13")
        );
        let mut subscriber = adopting(&other, folder.path());
        assert_eq!(pull(&mut subscriber, None).version, u64::from(versions) - 1);
        assert_eq!(shown(folder.path()), other.whole(u64::from(versions) - 1));
        // The same process does not adopt yet another chain.
        let document = other.path(ObjectName::Chain);
        let bytes = fs::read(&document).unwrap();
        fs::write(&document, ChainDocument::new(9).to_bytes().unwrap()).unwrap();
        assert_eq!(refused(&mut subscriber, None), Some("R-CHN-13"));
        fs::write(document, bytes).unwrap();
        drop(subscriber);
        pull(&mut adopting(&chain, folder.path()), Some(1));
    }
    // Nor does it adopt a chain that appears after it has seen the followed one.
    let mut subscriber = adopting(&chain, folder.path());
    assert!(subscriber.prepare(Some(1), &()).unwrap().is_none());
    fs::write(
        chain.path(ObjectName::Chain),
        ChainDocument::new(9).to_bytes().unwrap(),
    )
    .unwrap();
    assert_eq!(refused(&mut subscriber, None), Some("R-CHN-13"));
    drop(subscriber);
    fs::write(
        chain.path(ObjectName::Chain),
        ChainDocument::new(7).to_bytes().unwrap(),
    )
    .unwrap();
    // A rollback does not make another chain.
    pull(&mut open(&chain, folder.path()), None);
    take_away(&chain, 4);
    assert_eq!(
        refused(&mut adopting(&chain, folder.path()), None),
        Some("R-CHN-14")
    );
}

#[test]
fn a_work_directory_follows_one_chain() {
    let place = tempfile::tempdir().unwrap();
    let work = place.path().join("work");
    let publish = |chain: &Chain, value: u8, observer: &Notes| {
        let mut publisher =
            Publisher::open(chain.store.clone(), PublishOptions::default()).unwrap();
        publisher.publish(&state(&[("a", &[value])]), Base::Work(&work), observer)
    };
    let chain = other_chain(1);
    (1..4).for_each(|value| drop(publish(&chain, value, &Notes::default()).unwrap()));
    let version = || find_version(&work, None).unwrap().unwrap().version;
    assert_eq!(version(), 3);
    // Another chain, which is shorter, or has another version of this number.
    let mut other = Chain::new();
    for value in 0..6 {
        other.add(state(&[("a", &[value])]), &[None]);
        let notes = Notes::default();
        assert_eq!(
            publish(&other, 9, &notes).unwrap_err().rule(),
            Some("R-CHN-13")
        );
        assert!(
            notes
                .remarks()
                .iter()
                .any(|remark| remark.contains("an empty directory")),
            "{:?}",
            notes.remarks()
        );
    }
    // The same chain without its head.
    take_away(&chain, 3);
    let notes = Notes::default();
    assert_eq!(
        publish(&chain, 9, &notes).unwrap_err().rule(),
        Some("R-CHN-03")
    );
    assert!(
        notes
            .remarks()
            .iter()
            .any(|remark| remark.contains("an empty directory")),
        "{:?}",
        notes.remarks()
    );
    assert_eq!(
        (version(), chain.store.listing(0).unwrap().head()),
        (3, Some(2))
    );
}

#[test]
fn a_mirror_that_lags_behind_is_asked_again() {
    let mut chain = Chain::new();
    chain.add(state(&[("a", &[1])]), &[None]);
    chain.add(state(&[("a", &[2])]), &[Some(0)]);
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, None);
    chain.add(state(&[("a", &[3])]), &[Some(1)]);
    let commits = [1, 2].map(|version| {
        (
            chain.path(ObjectName::Commit(version)),
            take_away(&chain, version),
        )
    });
    let mend = || {
        commits
            .iter()
            .for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    };
    let observer = Mending {
        mend: &mend,
        notes: Notes::default(),
    };
    follow(&mut subscriber, &quick(Some(2)), &observer, &mut |_, _| {
        Ok(())
    })
    .unwrap();
    assert_eq!(shown(folder.path()), chain.whole(2));
    assert!(
        observer.notes.remarks()[0].contains("R-CHN-14"),
        "{:?}",
        observer.notes.remarks()
    );
}
