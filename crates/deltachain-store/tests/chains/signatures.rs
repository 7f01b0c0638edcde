//! Signed chains under attack: whatever a stranger writes or removes, a follower with trust keeps
//! its version, or goes to a version that a trusted key has signed; and a signing publisher does
//! not build on a stranger's version.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use deltachain::chain::{Commit, Note, ObjectName, Signer, SigningKey, Trust, TrustedKey};
use deltachain::tensor::{Digest, MemoryState};
use deltachain::{Error, ErrorClass, Limits, Result};
use deltachain_store::{
    Base, Directory, FollowOptions, Follower, FollowerOptions, FsckOptions, Health, Keep, Poller,
    PublishOptions, PublishReport, Publisher, RawObjects, Signers, Store, TrustStatus,
    chain_digest, fsck, init, log, plan_prune, prune, sign,
};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use tempfile::TempDir;

use crate::common::{Notes, state};
use crate::support::counting::CountingStore;
use crate::support::faulty::{Fault, FaultyStore, Operation};
use crate::support::quick;
use crate::support::web::WebServer;

pub(crate) fn key(name: &str) -> Arc<dyn Signer> {
    Arc::new(SigningKey::from_seed(name, Digest::of_bytes(name.as_bytes()).0).unwrap())
}

pub(crate) fn trust(names: &[&str]) -> Trust {
    Trust::new(names.iter().map(|name| key(name).public().clone()), 1).unwrap()
}

/// Options of a publisher that signs with these keys.
pub(crate) fn signing(names: &[&str]) -> PublishOptions {
    PublishOptions::default().sign(names.iter().map(|name| key(name)).collect())
}

/// Options of a stranger without a key.
fn unsigned() -> PublishOptions {
    PublishOptions::default().unsigned(true)
}

fn number(version: u64) -> MemoryState {
    state(&[("a", &[u8::try_from(version).unwrap(); 40])])
}

struct Chain {
    objects: Arc<dyn ObjectStore>,
    store: Store,
    place: TempDir,
}

impl Chain {
    fn new() -> Self {
        Self::over(Arc::new(InMemory::new()))
    }

    fn over(objects: Arc<dyn ObjectStore>) -> Self {
        let store = Store::from_objects(Arc::clone(&objects), "chain", quick()).unwrap();
        init(&store).unwrap().unwrap();
        Self {
            objects,
            store,
            place: tempfile::tempdir().unwrap(),
        }
    }

    /// Creates a chain of versions that `a` has signed.
    fn signed(versions: u64) -> Self {
        let chain = Self::new();
        for _ in 0..versions {
            chain.publish(signing(&["a"])).unwrap();
        }
        chain
    }

    /// Publishes the next version as another process would.
    fn publish(&self, options: PublishOptions) -> Result<PublishReport> {
        let mut publisher = Publisher::open(self.store.clone(), options)?;
        let version = publisher.head()?.map_or(0, |head| head.version + 1);
        let base = if version == 0 {
            Base::Nothing
        } else {
            Base::Chain
        };
        publisher.publish(&number(version), base, &())
    }

    fn get(&self, name: ObjectName) -> Vec<u8> {
        self.store.get(name).unwrap().unwrap()
    }

    fn commit(&self, version: u64) -> Digest {
        Digest::of_bytes(&self.get(ObjectName::Commit(version)))
    }

    /// Names of the keys' own notes on a version.
    fn own_notes(&self, version: u64, names: &[&str]) -> Vec<ObjectName> {
        names
            .iter()
            .map(|name| key(name).public().own_note(version, self.commit(version)))
            .collect()
    }

    /// Replaces an object, as a stranger with write access can.
    fn replace(&self, name: ObjectName, bytes: &[u8]) {
        self.store.delete(&[name]).unwrap();
        assert!(self.store.put_if_absent(name, bytes).unwrap());
    }

    fn notes(&self, version: u64) -> Vec<ObjectName> {
        let names = self
            .store
            .objects()
            .unwrap()
            .into_iter()
            .map(|object| object.name);
        names
            .filter(
                |name| matches!(name, ObjectName::Signature { version: of, .. } if *of == version),
            )
            .collect()
    }

    fn directory(&self) -> PathBuf {
        self.place.path().join("follower")
    }

    fn open(&self, options: FollowerOptions) -> Result<Follower<Directory>> {
        Follower::in_directory(self.store.clone(), &self.directory(), options)
    }

    fn follower(&self) -> Follower<Directory> {
        self.open(FollowerOptions::default().trust(Some(trust(&["a"]))))
            .unwrap()
    }
}

/// Brings a follower to the head, and returns the version that it then holds.
fn advance(follower: &mut Follower<Directory>) -> Result<u64> {
    if let Some(prepared) = follower.prepare(None, &())? {
        follower.apply(prepared)?;
    }
    let held = follower.held().unwrap();
    let file = fs::read(held.directory.join("model.safetensors")).unwrap();
    assert!(
        file.ends_with(&[u8::try_from(held.version).unwrap(); 40]),
        "the file belongs to another version"
    );
    Ok(held.version)
}

fn rule(error: &Error) -> &str {
    error.rule().unwrap_or_default()
}

/// Checks that the follower refuses the chain by this rule, and keeps its version.
fn keeps(follower: &mut Follower<Directory>, version: u64, refused_by: &str) {
    let error = follower.prepare(None, &()).unwrap_err();
    assert_eq!(rule(&error), refused_by, "{error}");
    assert_eq!(follower.held().unwrap().version, version);
}

/// Version and commit of the newest signed head that a directory has seen.
fn seen(trust: &TrustStatus) -> (u64, String) {
    let seen = &serde_json::to_value(trust).unwrap()["seen"];
    (
        seen["version"].as_u64().unwrap(),
        seen["commit"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn a_stranger_on_top_is_skipped_and_told() {
    let chain = Chain::signed(3);
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 2);
    // Without a key, and with an untrusted one.
    chain.publish(unsigned()).unwrap();
    assert_eq!(advance(&mut follower).unwrap(), 2);
    let stranger = signing(&["stranger"])
        .trust(Some(trust(&["stranger"])))
        .vouch(Some(chain.commit(3)));
    chain.publish(stranger).unwrap();
    let notes = Notes::default();
    for _ in 0..3 {
        assert!(follower.prepare(None, &notes).unwrap().is_none());
    }
    let text = "version 4 exists, but none of the trusted keys has signed it";
    assert_eq!(notes.remarks(), [text]);
    let status = Health::of(&chain.directory(), None).unwrap().trust.unwrap();
    assert_eq!(
        (status.unsigned.as_deref(), status.problem()),
        (Some(text), None)
    );
    let error = follower.prepare(Some(3), &()).unwrap_err();
    assert_eq!(
        (rule(&error), error.class()),
        ("R-SIG-01", ErrorClass::Chain)
    );
    // A new follower gets the same version.
    let mut other = Follower::in_memory(
        chain.store.clone(),
        FollowerOptions::default().trust(Some(trust(&["a"]))),
    )
    .unwrap();
    assert_eq!(other.prepare(None, &()).unwrap().unwrap().held().version, 2);
    // The honest publisher does not build on the stranger's version.
    let error = chain.publish(signing(&["a"])).unwrap_err();
    assert_eq!(
        (rule(&error), error.class()),
        ("R-SIG-03", ErrorClass::Chain)
    );
    assert!(error.message().contains(&chain.commit(4).to_string()));
    assert_eq!(chain.store.listing(0).unwrap().head(), Some(4));
    // Unless its operator vouches for that version.
    let vouching = signing(&["a"]).vouch(Some(chain.commit(4)));
    assert_eq!(chain.publish(vouching).unwrap().version, 5);
    assert_eq!(advance(&mut follower).unwrap(), 5);
}

#[test]
fn a_stranger_between_two_honest_versions_is_refused() {
    let chain = Chain::signed(3);
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 2);
    chain.publish(signing(&["a"])).unwrap();
    chain.publish(signing(&["a"])).unwrap();
    let mut other = Commit::parse(&chain.get(ObjectName::Commit(3)), &Limits::default()).unwrap();
    other.metadata.insert("other".to_owned(), String::new());
    chain.replace(ObjectName::Commit(3), &other.to_bytes().unwrap());
    keeps(&mut follower, 2, "R-CHN-04");
}

#[test]
fn an_old_head_is_not_taken_again() {
    let chain = Chain::signed(4);
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 3);
    // The newest commit, or the notes on it, are removed.
    let name = ObjectName::Commit(3);
    let bytes = chain.get(ObjectName::Commit(3));
    chain.store.delete(&[name]).unwrap();
    keeps(&mut follower, 3, "R-CHN-14");
    assert!(chain.store.put_if_absent(name, &bytes).unwrap());
    assert_eq!(advance(&mut follower).unwrap(), 3);
    chain.store.delete(&chain.notes(3)).unwrap();
    keeps(&mut follower, 3, "R-CHN-14");
    drop(follower);
    // A directory that holds no version any more still knows the signed head that it has seen.
    fs::remove_file(chain.directory().join("current")).unwrap();
    let error = chain.follower().prepare(None, &()).unwrap_err();
    assert_eq!(rule(&error), "R-CHN-14");
}

#[test]
fn what_was_seen_counts_although_it_could_not_be_built() {
    let chain = Chain::signed(3);
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 2);
    let files = |chain: &Chain| -> Vec<ObjectName> {
        let names = chain
            .store
            .objects()
            .unwrap()
            .into_iter()
            .map(|object| object.name);
        names
            .filter(|name| matches!(name, ObjectName::File(_)))
            .collect()
    };
    let before = files(&chain);
    let published = chain.publish(signing(&["a"])).unwrap();
    let after: Vec<ObjectName> = files(&chain)
        .into_iter()
        .filter(|file| !before.contains(file))
        .collect();
    chain.store.delete(&after).unwrap();
    // No path leads to the new version.
    let error = follower.prepare(None, &()).unwrap_err();
    assert_eq!(rule(&error), "R-CHN-09");
    drop(follower);
    let status = Health::of(&chain.directory(), None).unwrap();
    let recorded = status.trust.unwrap();
    assert_eq!(
        (status.version, seen(&recorded)),
        (Some(2), (3, published.commit.to_string()))
    );
    assert_eq!(
        recorded.signed_by,
        vec![key("a").public().clone()],
        "the signers of the held version"
    );
    chain.store.delete(&[ObjectName::Commit(3)]).unwrap();
    let mut follower = chain.follower();
    keeps(&mut follower, 2, "R-CHN-14");
    drop(follower);
    // Memory remembers the signed head, too, as long as the process lives.
    let chain = Chain::signed(2);
    let before = files(&chain);
    chain.publish(signing(&["a"])).unwrap();
    let after: Vec<ObjectName> = files(&chain)
        .into_iter()
        .filter(|file| !before.contains(file))
        .collect();
    chain.store.delete(&after).unwrap();
    let mut follower = Follower::in_memory(
        chain.store.clone(),
        FollowerOptions::default().trust(Some(trust(&["a"]))),
    )
    .unwrap();
    assert_eq!(rule(&follower.prepare(None, &()).unwrap_err()), "R-CHN-09");
    chain.store.delete(&[ObjectName::Commit(2)]).unwrap();
    assert_eq!(rule(&follower.prepare(None, &()).unwrap_err()), "R-CHN-14");
}

#[test]
fn a_fork_by_a_removed_key_is_refused() {
    let chain = Chain::new();
    for _ in 0..3 {
        chain.publish(signing(&["a", "old"])).unwrap();
    }
    let both = trust(&["a", "old"]);
    let mut follower = chain
        .open(FollowerOptions::default().trust(Some(both.clone())))
        .unwrap();
    assert_eq!(advance(&mut follower).unwrap(), 2);
    drop(follower);
    // A holder of the removed key publishes the next version.
    chain.publish(signing(&["old"])).unwrap();
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 2);
    // Or replaces a version that is held.
    chain
        .store
        .delete(&[ObjectName::Commit(3), ObjectName::Commit(2)])
        .unwrap();
    chain.publish(signing(&["old"])).unwrap();
    keeps(&mut follower, 2, "R-CHN-14");
    drop(follower);
    let mut trusting = chain
        .open(FollowerOptions::default().trust(Some(both)))
        .unwrap();
    keeps(&mut trusting, 2, "R-CHN-05");
}

#[test]
fn a_commit_of_another_chain_does_not_count() {
    let chain = Chain::signed(2);
    let other = Chain::signed(3);
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 1);
    let note = other.notes(2)[0];
    for name in [ObjectName::Commit(2), note] {
        assert!(chain.store.put_if_absent(name, &other.get(name)).unwrap());
    }
    assert_eq!(advance(&mut follower).unwrap(), 1);
    // The other chain replaces the whole chain.
    for name in other
        .store
        .objects()
        .unwrap()
        .into_iter()
        .map(|object| object.name)
    {
        if matches!(
            name,
            ObjectName::Chain | ObjectName::Commit(_) | ObjectName::Signature { .. }
        ) {
            let _ = chain.store.delete(&[name]);
            assert!(chain.store.put_if_absent(name, &other.get(name)).unwrap());
        }
    }
    keeps(&mut follower, 1, "R-CHN-13");
}

#[test]
fn signatures_that_were_tampered_with_do_not_count() {
    let chain = Chain::signed(2);
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 1);
    let published = chain.publish(signing(&["a"])).unwrap();
    let own = chain.own_notes(2, &["a"])[0];
    let good = chain.get(own);
    let named = |bytes: &[u8]| ObjectName::Signature {
        version: 2,
        commit: published.commit,
        note: Digest::of_bytes(bytes),
    };
    let name = named(&good);
    let doubled = [good.as_slice(), &good].concat();
    let mut flipped = good.clone();
    let last = flipped.len() - 8;
    flipped[last] ^= 1;
    let long = vec![b'x'; 1 << 20];
    for bytes in [
        &good[..good.len() - 1],
        &good[..good.len() / 2],
        &doubled,
        &flipped,
        b"",
        b"rubbish",
        &long,
    ] {
        // In the places of the real notes, or under a name of its own.
        chain.replace(own, bytes);
        chain.replace(name, bytes);
        assert_eq!(advance(&mut follower).unwrap(), 1);
        chain.store.delete(&[name]).unwrap();
        assert!(chain.store.put_if_absent(named(bytes), bytes).unwrap());
        assert_eq!(advance(&mut follower).unwrap(), 1);
        chain.store.delete(&[named(bytes)]).unwrap();
    }
    chain.store.delete(&[own]).unwrap();
    // 64 notes with smaller names crowd a note out; others do not.
    let rubbish = |first: u8| {
        (0..64_u8).map(move |number| {
            let note = Digest(std::array::from_fn(
                |place| if place == 0 { first } else { number },
            ));
            ObjectName::Signature {
                version: 2,
                commit: published.commit,
                note,
            }
        })
    };
    let ObjectName::Signature { note, .. } = name else {
        panic!("{name}")
    };
    assert!(
        note.0[0] > 0 && note.0[0] < 0xff,
        "another key is needed for this test"
    );
    assert!(chain.store.put_if_absent(name, &good).unwrap());
    for name in rubbish(0) {
        assert!(chain.store.put_if_absent(name, b"rubbish").unwrap());
    }
    assert_eq!(advance(&mut follower).unwrap(), 1);
    let error = chain.publish(signing(&["a"])).unwrap_err();
    assert_eq!(rule(&error), "R-SIG-03");
    // They do not crowd out an own note, neither for new readers nor for the publisher.
    assert!(chain.store.put_if_absent(own, &good).unwrap());
    let mut new = Follower::in_memory(
        chain.store.clone(),
        FollowerOptions::default().trust(Some(trust(&["a"]))),
    )
    .unwrap();
    assert_eq!(new.prepare(None, &()).unwrap().unwrap().held().version, 2);
    assert_eq!(
        Publisher::open(chain.store.clone(), signing(&["a"]))
            .unwrap()
            .head()
            .unwrap()
            .unwrap()
            .version,
        2
    );
    chain.store.delete(&[own]).unwrap();
    chain.store.delete(&rubbish(0).collect::<Vec<_>>()).unwrap();
    for name in rubbish(0xff) {
        assert!(chain.store.put_if_absent(name, b"rubbish").unwrap());
    }
    assert_eq!(advance(&mut follower).unwrap(), 2);
}

#[test]
fn trust_is_not_forgotten_at_a_restart() {
    let chain = Chain::signed(2);
    assert_eq!(advance(&mut chain.follower()).unwrap(), 1);
    let error = chain.open(FollowerOptions::default()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage, "{error}");
    // Trust also stays if no version has been loaded yet, and a record that cannot be read is an
    // error.
    let fresh = Chain::new();
    fresh.follower();
    assert_eq!(
        fresh.open(FollowerOptions::default()).unwrap_err().class(),
        ErrorClass::Usage
    );
    let record = chain.directory().join("trust.json");
    let text = fs::read(&record).unwrap();
    fs::write(&record, b"").unwrap();
    for options in [
        FollowerOptions::default(),
        FollowerOptions::default().trust(Some(trust(&["a"]))),
    ] {
        assert_eq!(chain.open(options).unwrap_err().class(), ErrorClass::Io);
    }
    fs::write(&record, text).unwrap();
    // Other keys are allowed, so that keys can be exchanged.
    chain.publish(signing(&["a", "b"])).unwrap();
    let options = || FollowerOptions::default().trust(Some(trust(&["b"])));
    assert_eq!(advance(&mut chain.open(options()).unwrap()).unwrap(), 2);
    let status = Health::of(&chain.directory(), None).unwrap().trust.unwrap();
    assert_eq!(
        (status.trust, status.signed_by),
        (trust(&["b"]), vec![key("b").public().clone()])
    );
    // `forget_trust` also forgets the signed head that was seen.
    chain.store.delete(&[ObjectName::Commit(2)]).unwrap();
    fs::remove_file(chain.directory().join("current")).unwrap();
    let refused = chain
        .open(FollowerOptions::default().trust(Some(trust(&["a"]))))
        .unwrap()
        .prepare(None, &())
        .unwrap_err();
    assert_eq!(rule(&refused), "R-CHN-14");
    let taken_back = FollowerOptions::default().forget_trust(true);
    assert_eq!(advance(&mut chain.open(taken_back).unwrap()).unwrap(), 1);
    assert!(!record.exists());
    assert_eq!(
        advance(&mut chain.open(FollowerOptions::default()).unwrap()).unwrap(),
        1
    );
    assert_eq!(Health::of(&chain.directory(), None).unwrap().trust, None);
}

#[test]
fn trust_that_comes_late_is_unhealthy_until_a_signed_version_is_held() {
    let chain = Chain::signed(3);
    chain.publish(unsigned()).unwrap();
    assert_eq!(
        advance(&mut chain.open(FollowerOptions::default()).unwrap()).unwrap(),
        3
    );
    let health = || Health::of(&chain.directory(), None).unwrap();
    assert!(health().healthy);
    // The stranger's version stays, since no signed one is as new.
    let mut follower = chain.follower();
    keeps(&mut follower, 3, "R-CHN-14");
    let problem =
        "the held version is not known to be signed by the trusted keys (0 of 1 signatures)";
    assert_eq!(
        (health().healthy, health().problems),
        (false, vec![problem.to_owned()])
    );
    chain
        .publish(signing(&["a"]).vouch(Some(chain.commit(3))))
        .unwrap();
    assert_eq!(advance(&mut follower).unwrap(), 4);
    assert!(health().healthy, "{:?}", health().problems);
    drop(follower);
    // A removed key does not count, either, and one of two signatures is not enough.
    let two = Trust::new(["a", "b"].map(|name| key(name).public().clone()), 2).unwrap();
    for (trust, by) in [(trust(&["b"]), "0 of 1"), (two, "1 of 2")] {
        let mut follower = chain
            .open(FollowerOptions::default().trust(Some(trust)))
            .unwrap();
        keeps(&mut follower, 4, "R-CHN-14");
        assert!(health().problems[0].contains(by), "{:?}", health().problems);
    }
    // A signature on the held version is as good as a new signed version.
    sign(&chain.store, 4, chain.commit(4), &[key("b")]).unwrap();
    assert_eq!(
        advance(
            &mut chain
                .open(FollowerOptions::default().trust(Some(trust(&["b"]))))
                .unwrap()
        )
        .unwrap(),
        4
    );
    assert!(health().healthy, "{:?}", health().problems);
}

#[test]
fn a_directory_that_was_removed_keeps_its_trust() {
    let chain = Chain::signed(2);
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 1);
    fs::remove_dir_all(chain.directory()).unwrap();
    assert_eq!(advance(&mut follower).unwrap(), 1);
    drop(follower);
    assert_eq!(
        chain.open(FollowerOptions::default()).unwrap_err().class(),
        ErrorClass::Usage
    );
}

#[test]
fn a_step_back_has_to_be_signed_and_is_taken_once() {
    let chain = Chain::signed(4);
    let mut follower = chain.follower();
    assert_eq!(advance(&mut follower).unwrap(), 3);
    drop(follower);
    let back = chain.commit(2);
    chain.store.delete(&[ObjectName::Commit(3)]).unwrap();
    let options = || {
        FollowerOptions::default()
            .trust(Some(trust(&["a"])))
            .allow_rollback(Some(back))
    };
    let notes = chain.notes(2);
    let kept: Vec<(ObjectName, Vec<u8>)> =
        notes.iter().map(|name| (*name, chain.get(*name))).collect();
    chain.store.delete(&notes).unwrap();
    let mut follower = chain.open(options()).unwrap();
    assert!(["R-SIG-01", "R-CHN-14"].contains(&rule(&follower.prepare(None, &()).unwrap_err())));
    assert_eq!(follower.held().unwrap().version, 3);
    for (name, content) in kept {
        assert!(chain.store.put_if_absent(name, &content).unwrap());
    }
    assert_eq!(advance(&mut follower).unwrap(), 2);
    drop(follower);
    let trust = Health::of(&chain.directory(), None).unwrap().trust.unwrap();
    assert_eq!(seen(&trust), (2, back.to_string()));
}

#[test]
fn a_quorum_is_made_up_later() {
    let chain = Chain::new();
    let two = Trust::new(["a", "b"].map(|name| key(name).public().clone()), 2).unwrap();
    chain.publish(signing(&["a"])).unwrap();
    let mut follower = chain
        .open(FollowerOptions::default().trust(Some(two.clone())))
        .unwrap();
    let error = follower.prepare(None, &()).unwrap_err();
    let notes = Notes::default();
    for _ in 0..2 {
        assert!(rule(&error) == "R-SIG-01" && follower.is_missing(None, &error, &notes));
    }
    assert_eq!(
        notes.remarks(),
        ["version 0 exists, but 1 of the trusted keys signed it, and the quorum is 2"]
    );
    let commit = chain.commit(0);
    let error = sign(&chain.store, 0, Digest([7; 32]), &[key("b")]).unwrap_err();
    assert_eq!(
        (error.class(), chain.notes(0).len()),
        (ErrorClass::Usage, 2)
    );
    assert_eq!(
        sign(&chain.store, 9, commit, &[key("b")])
            .unwrap_err()
            .rule(),
        Some("R-CHN-03")
    );
    // The publisher waits for the second signature, too.
    let options = || signing(&["a"]).trust(Some(two.clone()));
    assert_eq!(rule(&chain.publish(options()).unwrap_err()), "R-SIG-03");
    let (name, taken) = sign(&chain.store, 0, commit, &[key("b")]).unwrap();
    assert_eq!(
        sign(&chain.store, 0, commit, &[key("b")]).unwrap(),
        (name, taken.clone())
    );
    assert_eq!(taken, []);
    assert_eq!(advance(&mut follower).unwrap(), 0);
    assert_eq!(chain.publish(options()).unwrap().version, 1);
    assert_eq!(advance(&mut follower).unwrap(), 0);
    // A publisher does not build on its own version, either, until the others have signed it.
    let mut publisher = Publisher::open(chain.store.clone(), options()).unwrap();
    assert_eq!(
        rule(&publisher.publish(&number(2), Base::Chain, &()).unwrap_err()),
        "R-SIG-03"
    );
    // Another object has the name of the own note: the note under its digest counts anyway.
    let own = chain.own_notes(1, &["b"]);
    assert!(chain.store.put_if_absent(own[0], b"rubbish").unwrap());
    let (note, taken) = sign(&chain.store, 1, chain.commit(1), &[key("b")]).unwrap();
    assert_eq!(taken, own);
    assert_eq!(advance(&mut follower).unwrap(), 1);
    assert!(chain.notes(1).contains(&note));
    publisher.publish(&number(2), Base::Chain, &()).unwrap();
    assert_eq!(
        rule(&publisher.publish(&number(3), Base::Chain, &()).unwrap_err()),
        "R-SIG-03"
    );
    // Rubbish in the place of a note that is to be stored again.
    chain.replace(name, b"rubbish");
    let error = sign(&chain.store, 0, commit, &[key("b")]).unwrap_err();
    assert_eq!(
        (rule(&error), error.class()),
        ("R-SIG-02", ErrorClass::Chain)
    );
}

#[test]
fn who_signs_trusts_itself_and_signs_once() {
    let chain = Chain::new();
    let open = |options: PublishOptions| {
        Publisher::open(chain.store.clone(), options)
            .map(drop)
            .map_err(|error| error.class())
    };
    assert_eq!(
        open(signing(&["a"]).trust(Some(trust(&["b"])))),
        Err(ErrorClass::Usage)
    );
    assert_eq!(open(signing(&["a", "a"])), Err(ErrorClass::Usage));
    assert_eq!(
        open(signing(&["a"]).trust(Some(trust(&["b", "a"])))),
        Ok(())
    );
    // Two keys make one note, which is stored under its digest and once for each key.
    chain.publish(signing(&["a", "b"])).unwrap();
    let mut notes = chain.notes(0);
    let content: Vec<_> = notes.iter().map(|name| chain.get(*name)).collect();
    assert!(notes.len() == 3 && content.iter().all(|note| *note == content[0]));
    notes.retain(|name| {
        *name
            != ObjectName::Signature {
                version: 0,
                commit: chain.commit(0),
                note: Digest::of_bytes(&content[0]),
            }
    });
    assert_eq!(
        notes,
        chain
            .own_notes(0, &["a", "b"])
            .into_iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
    // A publisher that trusts keys but does not sign checks the head, too.
    chain
        .publish(unsigned().trust(Some(trust(&["b"]))))
        .unwrap();
    let error = chain
        .publish(unsigned().trust(Some(trust(&["b"]))))
        .unwrap_err();
    assert_eq!(rule(&error), "R-SIG-03");
    // An existing chain begins to be signed.
    sign(&chain.store, 1, chain.commit(1), &[key("b")]).unwrap();
    assert_eq!(chain.publish(signing(&["b"])).unwrap().version, 2);
}

/// A key that was not passed on would end a signed chain for its followers.
#[test]
fn a_publisher_without_a_key_follows_no_signed_head() {
    let chain = Chain::signed(2);
    let refused = |options: PublishOptions| {
        let error = chain.publish(options).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage, "{error}");
        for word in ["version 1", "--sign-key", "--unsigned", "unsigned=True"] {
            assert!(error.message().contains(word), "{error}");
        }
    };
    refused(PublishOptions::default());
    // Trust and a vouched commit make no difference.
    refused(PublishOptions::default().trust(Some(trust(&["a"]))));
    refused(PublishOptions::default().vouch(Some(chain.commit(1))));
    assert_eq!(chain.notes(2), []);
    // `unsigned` and signing keys contradict each other.
    let error = chain.publish(signing(&["a"]).unsigned(true)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage, "{error}");
    // The same for a commit of shards.
    let prepared = |options: PublishOptions| {
        let mut publisher = Publisher::open(chain.store.clone(), options).unwrap();
        let model = number(2);
        publisher
            .prepare([(0, (&model).into(), Base::Chain)], 1, &())
            .unwrap()
    };
    let parts = prepared(unsigned());
    let commit = |options: PublishOptions| {
        let mut publisher = Publisher::open(chain.store.clone(), options).unwrap();
        publisher.commit(parts.clone(), BTreeMap::new(), &())
    };
    let error = commit(PublishOptions::default()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage, "{error}");
    assert_eq!(commit(unsigned()).unwrap().version, 2);
    // The head is unsigned now, and only the head counts.
    assert_eq!(chain.publish(PublishOptions::default()).unwrap().version, 3);
    // A signature by any key makes the head a signed one.
    sign(&chain.store, 3, chain.commit(3), &[key("b")]).unwrap();
    let error = chain.publish(PublishOptions::default()).unwrap_err();
    assert!(error.message().contains("version 3"), "{error}");
    assert_eq!(chain.publish(signing(&["b"])).unwrap().version, 4);
}

#[test]
fn what_is_no_note_signs_no_head() {
    let chain = Chain::new();
    chain.publish(PublishOptions::default()).unwrap();
    let name = |note: u8| ObjectName::Signature {
        version: 0,
        commit: chain.commit(0),
        note: Digest([note; 32]),
    };
    let put = |name, content: &[u8]| assert!(chain.store.put_if_absent(name, content).unwrap());
    put(name(1), b"");
    put(name(2), b"<html>not found</html>");
    // A note on another commit, under a name for this one.
    let (_, other) = Note::make(
        chain_digest(&chain.store).unwrap(),
        0,
        Digest([9; 32]),
        &[key("a")],
    )
    .unwrap();
    put(name(3), &other);
    assert_eq!(chain.publish(PublishOptions::default()).unwrap().version, 1);
}

/// A head whose notes cannot be read does not count as unsigned.
#[test]
fn notes_that_cannot_be_read_are_an_error() {
    let chain = Chain::signed(1);
    for operation in [Operation::Get, Operation::List] {
        let (objects, control) = FaultyStore::new(Arc::clone(&chain.objects));
        let store = Store::from_objects(objects, "chain", quick()).unwrap();
        control.plan(move |call| {
            let fails = call.operation == operation && call.path.contains("signatures");
            fails.then_some(Fault::FailBefore)
        });
        let mut publisher = Publisher::open(store, PublishOptions::default()).unwrap();
        let publish = |publisher: &mut Publisher| publisher.publish(&number(1), Base::Chain, &());
        assert_eq!(publish(&mut publisher).unwrap_err().class(), ErrorClass::Io);
        control.heal();
        let error = publish(&mut publisher).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage, "{error}");
    }
}

#[test]
fn whether_a_head_is_signed_is_asked_once() {
    let objects = CountingStore::new();
    let chain = Chain::over(Arc::clone(&objects) as _);
    chain.publish(PublishOptions::default()).unwrap();
    let requests = |publisher: &mut Publisher| {
        objects.requests();
        publisher.head().unwrap();
        objects.requests()
    };
    let open = |options| Publisher::open(chain.store.clone(), options).unwrap();
    let mut asks = open(PublishOptions::default());
    let mut does_not = open(unsigned());
    assert_eq!(requests(&mut asks), requests(&mut does_not) + 1);
    assert_eq!(requests(&mut asks), requests(&mut does_not));
    // The publisher knows its own head.
    asks.publish(&number(1), Base::Chain, &()).unwrap();
    does_not.head().unwrap();
    assert_eq!(requests(&mut asks), requests(&mut does_not));
}

#[test]
fn log_show_and_fsck_tell_who_signed_and_prune_leaves_notes_alone() {
    let chain = Chain::signed(3);
    sign(&chain.store, 1, chain.commit(1), &[key("b")]).unwrap();
    let names = |signers: &Signers| {
        signers
            .claimed
            .iter()
            .map(|signer| signer.name.clone())
            .collect::<Vec<_>>()
    };
    let entries = log(&chain.store, None, None).unwrap();
    assert_eq!(
        entries
            .iter()
            .map(|entry| names(&entry.signers))
            .collect::<Vec<_>>(),
        [vec!["a"], vec!["a", "b"], vec!["a"]]
    );
    assert!(
        entries
            .iter()
            .all(|entry| (entry.signers.signed, &entry.signers.signed_by) == (None, &None))
    );
    let shown = deltachain_store::show(&chain.store, Some(1), Some(&trust(&["b", "c"])))
        .unwrap()
        .signers;
    assert_eq!(
        (shown.signed, shown.signed_by),
        (Some(true), Some(vec![key("b").public().clone()]))
    );
    assert_eq!(log(&chain.store, Some(1), None).unwrap().len(), 1);

    let whole = fsck(&chain.store, &FsckOptions::default(), &()).unwrap();
    assert!(
        whole.problems.is_empty() && whole.hints.is_empty() && whole.orphans == 0,
        "{whole:?}"
    );
    assert_eq!(
        (
            whole.signatures[1].version,
            names(&whole.signatures[1].signers)
        ),
        (1, vec!["a".to_owned(), "b".to_owned()])
    );
    let stray = |version, bytes: &[u8]| {
        let name = ObjectName::Signature {
            version,
            commit: chain.commit(2),
            note: Digest::of_bytes(bytes),
        };
        assert!(chain.store.put_if_absent(name, bytes).unwrap());
    };
    stray(2, b"rubbish");
    stray(7, b"rubbish");
    let report = fsck(&chain.store, &FsckOptions::default(), &()).unwrap();
    assert!(report.problems.is_empty() && report.orphans == 0);
    assert_eq!(report.hints.len(), 2, "{:?}", report.hints);

    let notes = |chain: &Chain| {
        (0..9)
            .map(|version| chain.notes(version).len())
            .sum::<usize>()
    };
    let before = notes(&chain);
    let keep = Keep {
        last: 1,
        ..Keep::default()
    };
    let plan = plan_prune(&chain.store, &keep).unwrap();
    prune(&chain.store, &plan, &()).unwrap();
    assert_eq!((before, notes(&chain)), (10, 10));
}

/// Own notes are found without a list, whatever other notes exist, and whatever unsigned versions
/// follow.
#[test]
fn a_web_server_is_enough_for_trust() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("chain");
    let store = Store::create(path.to_str().unwrap(), quick()).unwrap();
    init(&store).unwrap().unwrap();
    let publish = |version, options| {
        let base = if version == 0 {
            Base::Nothing
        } else {
            Base::Chain
        };
        Publisher::open(store.clone(), options)
            .unwrap()
            .publish(&number(version), base, &())
            .unwrap()
    };
    publish(0, signing(&["a"]));
    publish(1, signing(&["a"]));
    let server = WebServer::start(place.path());
    let web = || Store::open(&server.url("chain/"), quick()).unwrap();
    let options = |names: &[&str]| FollowerOptions::default().trust(Some(trust(names)));
    let mut follower =
        Follower::in_directory(web(), &place.path().join("follower"), options(&["a"])).unwrap();
    assert_eq!(advance(&mut follower).unwrap(), 1);
    for version in 2..12 {
        publish(version, unsigned());
    }
    assert_eq!(advance(&mut follower).unwrap(), 1);
    let prepare = |names: &[&str], version| {
        let mut new = Follower::in_memory(web(), options(names)).unwrap();
        new.prepare(version, &())
            .map(|prepared| prepared.unwrap().held().version)
    };
    assert_eq!(prepare(&["a"], None).unwrap(), 1);
    assert_eq!(rule(&prepare(&["a"], Some(2)).unwrap_err()), "R-SIG-01");
    assert_eq!(rule(&prepare(&["b"], None).unwrap_err()), "R-SIG-01");
    let commit = Digest::of_bytes(&store.get(ObjectName::Commit(11)).unwrap().unwrap());
    sign(&store, 11, commit, &[key("a")]).unwrap();
    assert_eq!(advance(&mut follower).unwrap(), 11);
    let entry = deltachain_store::show(&web(), None, Some(&trust(&["a"]))).unwrap();
    assert_eq!((entry.version, entry.signers.signed), (11, Some(true)));
}

#[test]
fn a_key_for_one_chain_does_not_open_another() {
    let chain = Chain::signed(2);
    let other = Chain::signed(3);
    let digest = |chain: &Chain| Digest::of_bytes(&chain.get(ObjectName::Chain));
    let only = |names: &[&str], quorum, chain: &Chain| {
        let key = |name| TrustedKey {
            chains: [digest(chain)].into(),
            ..key(name).public().clone().into()
        };
        Trust::new(names.iter().map(|name| key(*name)), quorum).unwrap()
    };
    let options = |trust| FollowerOptions::default().trust(Some(trust));
    let mut follower = chain.open(options(only(&["a"], 1, &chain))).unwrap();
    assert_eq!(advance(&mut follower).unwrap(), 1);
    drop(follower);
    // Other permissions of the user do not help.
    let here = only(&["a"], 1, &chain);
    let allowed = options(here.clone())
        .adopt(true)
        .allow_rollback(Some(other.commit(2)));
    let mut follower =
        Follower::in_directory(other.store.clone(), &chain.directory(), allowed).unwrap();
    keeps(&mut follower, 1, "R-SIG-05");
    let mut new = Follower::in_memory(other.store.clone(), options(here.clone())).unwrap();
    assert_eq!(rule(&new.prepare(None, &()).unwrap_err()), "R-SIG-05");
    // Nor does the key count towards a quorum there, and a publisher does not build on the head.
    let keys = here
        .keys()
        .iter()
        .cloned()
        .chain([key("b").public().clone().into()]);
    let mixed = Trust::new(keys, 2).unwrap();
    let error = other
        .publish(PublishOptions::default().trust(Some(mixed)))
        .unwrap_err();
    assert_eq!(
        (rule(&error), error.class()),
        ("R-SIG-05", ErrorClass::Chain)
    );
    assert_eq!(
        other
            .publish(signing(&["a"]).trust(Some(only(&["a"], 1, &other))))
            .unwrap()
            .version,
        3
    );
}

#[test]
fn a_publisher_killed_at_any_write_leaves_no_unsigned_head() {
    let options = || signing(&["a", "b"]);
    let mut stages = 0;
    for writes in 0.. {
        let chain = Chain::signed(2);
        let (objects, control) = FaultyStore::new(Arc::clone(&chain.objects));
        let store = Store::from_objects(objects, "chain", quick()).unwrap();
        let mut publisher = Publisher::open(store, options()).unwrap();
        control.stop_after(writes);
        let done = publisher.publish(&number(2), Base::Chain, &()).is_ok();
        // No follower finds an unsigned head.
        let mut follower = chain.follower();
        let head = chain.store.listing(0).unwrap().head().unwrap();
        assert_eq!(
            advance(&mut follower).unwrap(),
            head,
            "after {writes} writes"
        );
        // The next honest publisher continues, and followers with it.
        let next = chain.publish(signing(&["a"])).unwrap();
        assert_eq!(next.version, head + 1);
        assert_eq!(advance(&mut follower).unwrap(), head + 1);
        stages += 1;
        if done {
            break;
        }
    }
    // The links, the note, the commit.
    assert!(stages >= 3, "{stages}");
}

#[test]
fn what_signatures_cost() {
    // Numbers of requests of a new publisher, of a running one, of a whole poll of an unchanged
    // chain, and of a short poll.
    let costs = |options: &dyn Fn() -> PublishOptions, trust: Option<Trust>| {
        let objects = CountingStore::new();
        let chain = Chain::over(Arc::clone(&objects) as Arc<dyn ObjectStore>);
        chain.publish(options()).unwrap();
        objects.requests();
        let before = number(0);
        let state = number(1);
        let mut publisher = Publisher::open(chain.store.clone(), options()).unwrap();
        publisher
            .publish(&state, Base::State((&before).into()), &())
            .unwrap();
        let new = objects.requests();
        publisher
            .publish(&before, Base::State((&state).into()), &())
            .unwrap();
        let warm = objects.requests();
        let mut follower =
            Follower::in_memory(chain.store.clone(), FollowerOptions::default().trust(trust))
                .unwrap();
        let mut prepared = follower.prepare(None, &()).unwrap().unwrap();
        follower.apply(&mut prepared).unwrap();
        objects.requests();
        let mut polling = Poller::new(&FollowOptions::default());
        assert!(polling.poll(&mut follower, &()).unwrap().is_none());
        let whole = objects.requests();
        assert!(polling.poll(&mut follower, &()).unwrap().is_none());
        [new, warm, whole, objects.requests()]
    };
    let without = costs(&PublishOptions::default, None);
    let signed = costs(&|| signing(&["a"]), Some(trust(&["a"])));
    let by_two = costs(&|| signing(&["a", "b"]), Some(trust(&["a"])));
    let more: Vec<u64> = signed
        .iter()
        .zip(without)
        .map(|(signed, without)| signed - without)
        .collect();
    // The note is stored under two names. A publisher that has not made the head itself requests
    // its own note on it; without a key, it lists the notes. The same for a whole poll.
    assert_eq!(more, [2, 2, 1, 0]);
    // One more name, and one more key whose own note is requested.
    let two: Vec<u64> = by_two
        .iter()
        .zip(signed)
        .map(|(by_two, signed)| by_two - signed)
        .collect();
    assert_eq!(two, [2, 1, 0, 0]);
    assert_eq!(without[3], 1);
}
