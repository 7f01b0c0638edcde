//! Copies of a chain: valid at any time, wherever the copying stops, and whatever is damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread;

use deltachain::chain::{FileReference, ObjectName, Signer, SigningKey, Trust};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Result};
use deltachain_store::{
    Base, Follower, FollowerOptions, Mirror, MirrorOptions, MirrorReport, PublishOptions,
    Publisher, RawObjects, Snapshots, Store, init, plan_prune, prune, sign,
};
use object_store::memory::InMemory;

use crate::maintenance::{Chain, check, commit_of, files, keep, names};
use crate::support::faulty::{Control, Fault, FaultyStore, Operation};
use crate::support::models::Models;
use crate::support::verify::rebuild;
use crate::support::{Random, quick, setting};

pub(crate) fn empty() -> (Store, Arc<Control>) {
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    (
        Store::from_objects(objects, "", quick().attempts(1)).unwrap(),
        control,
    )
}

pub(crate) fn copy(source: &Store, destination: &Store) -> Result<MirrorReport> {
    copy_with(source, destination, MirrorOptions::default())
}

pub(crate) fn copy_with(
    source: &Store,
    destination: &Store,
    options: MirrorOptions,
) -> Result<MirrorReport> {
    round(&mut Mirror::new(source.clone(), destination, options))
}

fn round(mirror: &mut Mirror) -> Result<MirrorReport> {
    let scratch = tempfile::tempdir().unwrap();
    let report = mirror.round(scratch.path(), &());
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    report
}

fn verify(source: &Store, destination: &Store) -> Result<MirrorReport> {
    copy_with(source, destination, MirrorOptions::default().verify(true))
}

fn restore(source: &Store, destination: &Store) -> Result<MirrorReport> {
    copy_with(source, destination, MirrorOptions::default().restore(true))
}

/// Checks that the copy has everything, and that no problem is reported.
fn assert_clean(report: &MirrorReport) {
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.version, report.head);
}

/// Object and rule of each problem.
fn faults(report: &MirrorReport) -> Vec<(String, Option<&'static str>)> {
    let place = |error: &Error| (error.file().unwrap_or_default().to_owned(), error.rule());
    report.problems.iter().map(place).collect()
}

/// All objects with their contents.
pub(crate) fn contents(store: &Store) -> BTreeMap<ObjectName, Vec<u8>> {
    let names: Vec<ObjectName> = names(store).into_iter().collect();
    let contents = store.get_all(&names).unwrap().into_iter();
    contents
        .map(|(name, content)| (name, content.unwrap()))
        .collect()
}

/// Replaces the content of an object.
fn overwrite(store: &Store, name: ObjectName, content: &[u8]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    store
        .upload(file.path(), name, content.len() as u64, &())
        .unwrap();
}

pub(crate) fn commit_digest(store: &Store, version: u64) -> Digest {
    Digest::of_bytes(&store.get(ObjectName::Commit(version)).unwrap().unwrap())
}

pub(crate) fn key(name: &str, seed: u8) -> Arc<dyn Signer> {
    Arc::new(SigningKey::from_seed(name, [seed; 32]).unwrap())
}

pub(crate) fn trust(keys: &[&Arc<dyn Signer>], quorum: usize) -> Trust {
    Trust::new(keys.iter().map(|key| key.public().clone()), quorum).unwrap()
}

/// Checks that each version in a copy can be built, unless it is pruned. Returns their number.
fn assert_right(models: &mut Models, copied: &Store) -> usize {
    let report = check(copied, None);
    let versions = report.versions;
    // Routes documents are copied before their commit, so that no reader uses the commit's routes
    // whose files are gone.
    let early = format!("routes/{versions:020}-");
    let is_early = |error: &Error| error.file().is_some_and(|file| file.starts_with(&early));
    assert!(
        report.problems.iter().all(is_early),
        "{:?}",
        report.problems
    );
    for version in 0..versions {
        match rebuild(copied, Some(version as u64)) {
            Ok(state) => assert_eq!(&state, models.state(version as u64)),
            Err(error) => assert_eq!(error.rule(), Some("R-CHN-08"), "{error}"),
        }
    }
    versions
}

/// Rule by which a new follower refuses the chain.
fn refusal(store: &Store) -> Option<&'static str> {
    let mut follower = Follower::in_memory(store.clone(), FollowerOptions::default()).unwrap();
    let prepared = follower.prepare(None, &());
    prepared.err().and_then(|error| error.rule())
}

#[test]
fn a_copy_is_right_whenever_copying_ends_and_goes_on() {
    let mut chain = Chain::new(6, Snapshots::Every(3), &[2]);
    sign(
        &chain.store,
        5,
        commit_digest(&chain.store, 5),
        &[key("a-key", 7)],
    )
    .unwrap();
    let plan = plan_prune(&chain.store, &keep(3, None, &[])).unwrap();
    prune(&chain.store, &plan, &()).unwrap();
    let (whole, _) = empty();
    assert_clean(&copy(&chain.store, &whole).unwrap());
    assert_eq!(assert_right(&mut chain.models, &whole), 6);
    let mut ends = 0;
    for writes in 0.. {
        let (copied, control) = empty();
        control.stop_after(writes);
        let ended = copy(&chain.store, &copied);
        control.heal();
        if ended.is_ok() {
            assert_eq!(refusal(&copied), None);
            break;
        }
        // The copy is not a chain yet, and no version seems to be pruned.
        assert_eq!(refusal(&copied), Some("R-CHN-01"), "{writes}");
        ends += 1;
        assert_clean(&copy(&chain.store, &copied).unwrap());
        assert_eq!(contents(&copied), contents(&whole), "{writes}");
    }
    assert!(ends > 15, "{ends}");
    let nothing = copy(&chain.store, &whole).unwrap();
    assert_eq!((nothing.documents, nothing.files, nothing.bytes), (0, 0, 0));
    // Stop the copying of new versions at each write: readers find whole versions only.
    chain.publish(6);
    chain.publish(7);
    for writes in 0.. {
        let (copied, control) = empty();
        for (name, content) in contents(&whole) {
            overwrite(&copied, name, &content);
        }
        control.stop_after(writes);
        let ended = copy(&chain.store, &copied);
        control.heal();
        let versions = assert_right(&mut chain.models, &copied);
        if ended.is_ok() {
            assert_eq!(versions, 8);
            break;
        }
        assert_eq!(copy(&chain.store, &copied).unwrap().version, Some(7));
    }
}

#[test]
fn lost_objects_come_back_from_a_copy() {
    let mut chain = Chain::new(4, Snapshots::Every(2), &[]);
    let (copied, _) = empty();
    copy(&chain.store, &copied).unwrap();
    let all = contents(&chain.store);
    for name in all.keys() {
        chain.store.delete(&[*name]).unwrap();
        let back = copy(&copied, &chain.store);
        let back = back.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert_eq!(
            back.files,
            usize::from(matches!(name, ObjectName::File(_))),
            "{name}"
        );
        assert_eq!(contents(&chain.store), all, "{name}");
    }
    assert_eq!(assert_right(&mut chain.models, &copied), 4);
}

#[test]
fn what_is_no_copy_of_the_chain_is_not_touched() {
    let chain = Chain::new(2, Snapshots::Never, &[]);
    let other = Chain::new(3, Snapshots::Never, &[]);
    let before = contents(&other.store);
    let refused = |source: &Store, destination: &Store| {
        let error = copy(source, destination).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Chain, "{error:#}");
        error.file().unwrap_or_default().to_owned()
    };
    assert_eq!(refused(&chain.store, &other.store), "chain.json");
    assert_eq!(contents(&other.store), before);
    // An unfinished copy of another chain is not touched, either.
    other.store.delete(&[ObjectName::Chain]).unwrap();
    other
        .store
        .delete(&[ObjectName::Commit(2), ObjectName::Commit(1)])
        .unwrap();
    let before = contents(&other.store);
    assert_eq!(
        refused(&chain.store, &other.store),
        ObjectName::Commit(0).to_string()
    );
    assert_eq!(contents(&other.store), before);
    // The source was rolled back.
    let (copied, _) = empty();
    copy(&chain.store, &copied).unwrap();
    let before = contents(&copied);
    chain.store.delete(&[ObjectName::Commit(1)]).unwrap();
    assert_eq!(
        refused(&chain.store, &copied),
        ObjectName::Commit(1).to_string()
    );
    let (none, _) = empty();
    assert_eq!(copy(&none, &copied).unwrap_err().rule(), Some("R-CHN-01"));
    assert_eq!(contents(&copied), before);
    // A chain without versions can be copied, too.
    init(&none).unwrap();
    let (second, _) = empty();
    assert_eq!(copy(&none, &second).unwrap().version, None);
    assert_eq!(names(&second), names(&none));
}

#[test]
fn objects_of_another_size_are_replaced_and_others_by_verify() {
    let chain = Chain::new(3, Snapshots::Never, &[]);
    sign(
        &chain.store,
        2,
        commit_digest(&chain.store, 2),
        &[key("a-key", 7)],
    )
    .unwrap();
    chain.compact(None, &[0], true).unwrap();
    let (copied, _) = empty();
    copy(&chain.store, &copied).unwrap();
    let all = contents(&copied);
    for (name, content) in &all {
        if *name == ObjectName::Chain {
            continue;
        }
        let half = &content[..content.len() / 2];
        for cut in [&[][..], half] {
            overwrite(&copied, *name, cut);
            assert_clean(&copy(&chain.store, &copied).unwrap());
            assert_eq!(contents(&copied), all, "{name}");
        }
        // Wrong bytes of the same size.
        overwrite(&copied, *name, &vec![b'x'; content.len()]);
        assert_clean(&verify(&chain.store, &copied).unwrap());
        assert_eq!(contents(&copied), all, "{name}");
    }
    // A chain document that differs is reported and not replaced.
    overwrite(&copied, ObjectName::Chain, b"");
    let error = copy(&chain.store, &copied).unwrap_err();
    assert_eq!(error.file(), Some("chain.json"));
    copied.delete(&[ObjectName::Chain]).unwrap();
    assert_clean(&copy(&chain.store, &copied).unwrap());
    assert_eq!(contents(&copied), all);
}

#[test]
fn a_bad_file_stops_nothing_else_and_is_named_each_time() {
    let mut chain = Chain::new(2, Snapshots::Never, &[]);
    let lost = commit_of(&chain.store, 1).routes[0].files[0];
    chain.store.delete(&[lost.name()]).unwrap();
    let damaged = commit_of(&chain.store, 0).routes[0].files[0];
    let content = chain.store.get(damaged.name()).unwrap().unwrap();
    overwrite(&chain.store, damaged.name(), &content[1..]);
    chain.compact(Some(1), &[], true).unwrap_err();
    // Any writer can store such a file, and no document names it.
    let junk = ObjectName::File(Digest([0xaa; 32]));
    overwrite(&chain.store, junk, b"x");
    let (copied, _) = empty();
    for _ in 0..2 {
        let report = copy(&chain.store, &copied).unwrap();
        assert_eq!(report.version, Some(1));
        assert_eq!(
            faults(&report),
            [
                (damaged.name().to_string(), Some("R-CHN-10")),
                (lost.name().to_string(), Some("R-CHN-09"))
            ]
        );
    }
    assert!(!names(&copied).contains(&junk));
    // Once the damaged file is repaired, the copy gets it, and only the lost file is reported.
    overwrite(&chain.store, damaged.name(), &content);
    let report = copy(&chain.store, &copied).unwrap();
    assert_eq!(
        faults(&report),
        [(lost.name().to_string(), Some("R-CHN-09"))]
    );
    assert_eq!(&rebuild(&copied, Some(0)).unwrap(), chain.models.state(0));
}

#[test]
fn a_commit_that_cannot_be_read_ends_the_round_before_it() {
    let chain = Chain::new(4, Snapshots::Never, &[]);
    let whole = contents(&chain.store);
    for content in [&b"{}"[..], b"root:*:1::::::\n", &[0; 1000], b""] {
        let (copied, _) = empty();
        overwrite(&chain.store, ObjectName::Commit(2), content);
        let report = copy(&chain.store, &copied).unwrap();
        assert_eq!((report.version, report.head), (Some(1), Some(3)));
        assert!(!report.problems.is_empty());
        assert_eq!(check(&copied, None).problems.len(), 0);
        overwrite(
            &chain.store,
            ObjectName::Commit(2),
            &whole[&ObjectName::Commit(2)],
        );
        assert_clean(&copy(&chain.store, &copied).unwrap());
        assert_eq!(contents(&copied), whole);
    }
    // A gap ends the round before it, too, unless the copy has the missing version.
    let (copied, _) = empty();
    chain.store.delete(&[ObjectName::Commit(1)]).unwrap();
    assert_eq!(copy(&chain.store, &copied).unwrap().version, Some(0));
    let (copied, _) = empty();
    for (name, content) in &whole {
        if !matches!(name, ObjectName::Commit(2 | 3)) {
            overwrite(&copied, *name, content);
        }
    }
    let report = copy(&chain.store, &copied).unwrap();
    assert_eq!(report.version, Some(3));
    assert!(!report.problems.is_empty());
    assert_eq!(contents(&copied), whole);
}

#[test]
fn a_version_that_was_replaced_is_named_with_the_ways_out() {
    let mut chain = Chain::new(2, Snapshots::Never, &[]);
    let (copied, _) = empty();
    copy(&chain.store, &copied).unwrap();
    let mut mirror = Mirror::new(chain.store.clone(), &copied, MirrorOptions::default());
    assert_clean(&round(&mut mirror).unwrap());
    // The versions are published again, as after the removal of a stranger's version.
    let bad = contents(&chain.store)
        .remove(&ObjectName::Commit(1))
        .unwrap();
    chain.publish(2);
    assert_clean(&round(&mut mirror).unwrap());
    chain
        .store
        .delete(&[ObjectName::Commit(1), ObjectName::Commit(2)])
        .unwrap();
    // An idle round notices it, too.
    let ahead = round(&mut mirror).unwrap_err();
    assert_eq!(ahead.file(), Some(&*ObjectName::Commit(2).to_string()));
    chain.options = chain
        .options
        .clone()
        .metadata(BTreeMap::from([("again".to_owned(), "yes".to_owned())]));
    for version in 1..4 {
        let state = chain.models.save(version, chain.place.path());
        let mut publisher = Publisher::open(chain.store.clone(), chain.options.clone()).unwrap();
        publisher.publish(&state, Base::Nothing, &()).unwrap();
    }
    let before = contents(&copied);
    for result in [round(&mut mirror), copy(&chain.store, &copied)] {
        let error = result.unwrap_err();
        assert_eq!(error.file(), Some(&*ObjectName::Commit(1).to_string()));
        assert!(error.message().contains("version 1"), "{error}");
    }
    assert_eq!(contents(&copied), before);
    // Once the replaced commits are removed from the copy, too, the mirror continues.
    copied
        .delete(&[ObjectName::Commit(1), ObjectName::Commit(2)])
        .unwrap();
    let report = round(&mut mirror).unwrap();
    assert_clean(&report);
    assert_eq!(report.version, Some(3));
    assert_ne!(copied.get(ObjectName::Commit(1)).unwrap(), Some(bad));
    assert_eq!(assert_right(&mut chain.models, &copied), 4);
}

#[test]
fn only_signed_versions_are_copied_if_keys_are_trusted() {
    let mut chain = Chain::new(3, Snapshots::Never, &[]);
    let a = key("a", 1);
    let b = key("b", 2);
    let options = MirrorOptions::default().trust(Some(trust(&[&a, &b], 2)));
    let (copied, _) = empty();
    let signed_by = |version: u64, keys: &[&Arc<dyn Signer>]| {
        let commit = commit_digest(&chain.store, version);
        let keys: Vec<Arc<dyn Signer>> = keys.iter().map(|key| Arc::clone(key)).collect();
        sign(&chain.store, version, commit, &keys).unwrap();
    };
    signed_by(2, &[&a]);
    let error = copy_with(&chain.store, &copied, options.clone()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Chain);
    assert_eq!(names(&copied), BTreeSet::new());
    signed_by(1, &[&a, &b]);
    let mut mirror = Mirror::new(chain.store.clone(), &copied, options.clone());
    let report = round(&mut mirror).unwrap();
    assert_clean(&report);
    assert_eq!(report.version, Some(1));
    assert!(!names(&copied).contains(&ObjectName::Commit(2)));
    assert_eq!(round(&mut mirror).unwrap().version, Some(1));
    // The second key signs later.
    signed_by(2, &[&b]);
    let report = round(&mut mirror).unwrap();
    assert_eq!((report.version, report.whole), (Some(2), false));
    // A stranger's version on top, which is not even valid JSON.
    overwrite(&chain.store, ObjectName::Commit(3), b"junk");
    assert_eq!(round(&mut mirror).unwrap().version, Some(2));
    assert_clean(&copy_with(&chain.store, &copied, options.clone()).unwrap());
    chain.store.delete(&[ObjectName::Commit(3)]).unwrap();
    chain.publish(3);
    copy(&chain.store, &copied).unwrap();
    // The version was copied without trust; a copy with trust reports it.
    let report = copy_with(&chain.store, &copied, options).unwrap();
    assert_eq!(faults(&report), [(ObjectName::Commit(3).to_string(), None)]);
    let other = MirrorOptions::default().trust(Some(trust(&[&key("c", 3)], 1)));
    assert!(copy_with(&chain.store, &empty().0, other).is_err());
}

#[cfg(unix)]
#[test]
fn what_is_no_document_is_not_copied() {
    use std::os::unix::fs::symlink;

    let place = tempfile::tempdir().unwrap();
    let secret = place.path().join("secret");
    std::fs::write(&secret, "root:*:1::::::\n").unwrap();
    let directory = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let chain = Store::create(&directory("chain"), quick()).unwrap();
    let (memory, _) = empty();
    let made = Chain::new(2, Snapshots::Never, &[]);
    for (name, content) in contents(&made.store) {
        overwrite(&chain, name, &content);
    }
    let zero = Digest([0; 32]);
    let links = [
        ObjectName::Commit(2),
        ObjectName::Routes {
            version: 1,
            generation: 1,
        },
        ObjectName::Signature {
            version: 1,
            commit: commit_digest(&chain, 1),
            note: zero,
        },
        ObjectName::File(zero),
        ObjectName::Asset(zero),
    ];
    for name in links {
        let path = place.path().join("chain").join(name.to_string());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(&secret, path).unwrap();
    }
    let report = copy(&chain, &memory).unwrap();
    assert_eq!(report.version, Some(1));
    let named: BTreeSet<String> = faults(&report).into_iter().map(|(file, _)| file).collect();
    assert_eq!(
        named,
        links[..3].iter().map(ObjectName::to_string).collect()
    );
    assert_eq!(names(&memory), names(&made.store));
    // Folders that are symbolic links keep working.
    std::fs::rename(
        place.path().join("chain").join("files"),
        place.path().join("elsewhere"),
    )
    .unwrap();
    symlink(
        place.path().join("elsewhere"),
        place.path().join("chain").join("files"),
    )
    .unwrap();
    chain.delete(&links[..3]).unwrap();
    let (memory, _) = empty();
    assert_clean(&copy(&chain, &memory).unwrap());
    assert_eq!(contents(&memory), contents(&made.store));
    // The parent of a directory is not created.
    let target = directory("missing") + "/copy";
    let copied = Store::open_awaited(&target, quick()).unwrap();
    assert_eq!(
        copy(&chain, &copied).unwrap_err().class(),
        ErrorClass::Usage
    );
    assert!(!place.path().join("missing").exists());
    std::fs::create_dir(place.path().join("missing")).unwrap();
    let mut mirror = Mirror::new(chain.clone(), &copied, MirrorOptions::default());
    assert_clean(&round(&mut mirror).unwrap());
    // After a disk is unmounted, nothing is written in its place.
    std::fs::rename(directory("missing"), directory("unmounted")).unwrap();
    std::fs::create_dir_all(&target).unwrap();
    let content = contents(&made.store)[&ObjectName::Commit(1)].clone();
    overwrite(&chain, ObjectName::Commit(2), &content);
    assert!(
        round(&mut mirror)
            .unwrap_err()
            .message()
            .contains("unmounted")
    );
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
}

#[test]
fn a_chain_is_restored_from_a_copy_that_lags() {
    let mut chain = Chain::new(3, Snapshots::Never, &[]);
    sign(
        &chain.store,
        1,
        commit_digest(&chain.store, 1),
        &[key("a-key", 7)],
    )
    .unwrap();
    let (copied, _) = empty();
    copy(&chain.store, &copied).unwrap();
    chain.publish(3);
    let all = contents(&chain.store);
    let above = [
        ObjectName::Commit(3),
        commit_of(&chain.store, 3).routes[0].files[0].name(),
    ];
    for name in all.keys().filter(|name| !above.contains(name)) {
        chain.store.delete(&[*name]).unwrap();
        assert!(copy(&copied, &chain.store).is_err(), "{name}");
        assert_clean_restore(&restore(&copied, &chain.store).unwrap());
        assert_eq!(contents(&chain.store), all, "{name}");
        overwrite(&chain.store, *name, b"");
        if *name == ObjectName::Chain {
            overwrite(&chain.store, *name, &all[name]);
        } else {
            assert_clean_restore(&restore(&copied, &chain.store).unwrap());
            assert_eq!(contents(&chain.store), all, "{name}");
        }
    }
    // An object that the copy lacks, too, is reported.
    chain.store.delete(&[above[1]]).unwrap();
    let report = restore(&copied, &chain.store).unwrap();
    assert_eq!(faults(&report), [(above[1].to_string(), Some("R-CHN-09"))]);
    // Nothing is written above the newest common version.
    let (old, _) = empty();
    for (name, content) in &all {
        if !above.contains(name) && *name != ObjectName::Commit(2) {
            overwrite(&old, *name, content);
        }
    }
    let report = restore(&copied, &old).unwrap();
    assert_eq!(report.version, Some(1));
    assert_eq!(faults(&report), [(ObjectName::Commit(2).to_string(), None)]);
}

fn assert_clean_restore(report: &MirrorReport) {
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    assert_eq!(report.version, Some(3));
}

#[test]
fn a_pruned_copy_is_not_filled_again_and_what_it_alone_has_is_named() {
    let mut chain = Chain::new(7, Snapshots::Every(3), &[]);
    let (copied, control) = empty();
    copy(&chain.store, &copied).unwrap();
    let plan = plan_prune(&chain.store, &keep(3, None, &[])).unwrap();
    prune(&chain.store, &plan, &()).unwrap();
    assert_clean(&copy(&chain.store, &copied).unwrap());
    // A day later, the copy removes the files before the source does.
    control.set_clock(30);
    let plan = plan_prune(&copied, &keep(u64::MAX, None, &[])).unwrap();
    assert!(plan.expected.withdrawn.is_empty());
    assert!(!prune(&copied, &plan, &()).unwrap().removed.is_empty());
    let left = files(&copied);
    let report = copy(&chain.store, &copied).unwrap();
    assert_clean(&report);
    assert_eq!((report.files, files(&copied)), (0, left));
    assert_right(&mut chain.models, &copied);
    // A copy that was pruned by itself is reported, and gets the source's objects.
    let plan = plan_prune(&copied, &keep(1, None, &[])).unwrap();
    prune(&copied, &plan, &()).unwrap();
    let report = copy(&chain.store, &copied).unwrap();
    assert!(
        faults(&report)
            .iter()
            .all(|(file, _)| file.starts_with("routes/")),
        "{report:?}"
    );
    assert!(!report.problems.is_empty());
}

#[test]
fn an_idle_round_asks_twice_and_stores_nothing() {
    let mut chain = Chain::new(4, Snapshots::Never, &[]);
    let (copied, control) = empty();
    let mut mirror = Mirror::new(chain.store.clone(), &copied, MirrorOptions::default());
    round(&mut mirror).unwrap();
    let count = |control: &Control| {
        let calls: Arc<Mutex<Vec<Operation>>> = Arc::default();
        let seen = Arc::clone(&calls);
        control.plan(move |call| {
            seen.lock().unwrap().push(call.operation);
            None
        });
        calls
    };
    let asked = count(&chain.control);
    let stored = count(&control);
    assert_eq!(round(&mut mirror).unwrap().version, Some(3));
    assert_eq!(*asked.lock().unwrap(), [Operation::Get, Operation::List]);
    assert_eq!(*stored.lock().unwrap(), []);
    chain.control.heal();
    chain.publish(4);
    let asked = count(&chain.control);
    let report = round(&mut mirror).unwrap();
    assert_eq!(
        (report.version, report.documents, report.files, report.whole),
        (Some(4), 1, 1, false)
    );
    // One poll, three lists, the commit twice, the link in parts.
    let asked = asked.lock().unwrap();
    let gets = asked.iter().filter(|call| **call == Operation::Get).count();
    let lists = asked
        .iter()
        .filter(|call| **call == Operation::List)
        .count();
    assert!(gets < 12 && lists <= 4, "{asked:?}");
}

#[test]
fn three_mirrors_at_once_make_one_copy() {
    let chain = Chain::new(8, Snapshots::Every(3), &[2]);
    let (whole, _) = empty();
    copy(&chain.store, &whole).unwrap();
    for _ in 0..5 {
        let (copied, _) = empty();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let report = copy(&chain.store, &copied).unwrap();
                    assert!(report.problems.is_empty(), "{report:?}");
                });
            }
        });
        assert_eq!(contents(&copied), contents(&whole));
    }
}

/// A chain in memory whose requests can be watched apart from those of its publisher.
struct Live {
    watched: Store,
    control: Arc<Control>,
    store: Store,
    models: Models,
    place: tempfile::TempDir,
    next: u64,
}

impl Live {
    fn new(versions: u64) -> Self {
        let inner = Arc::new(InMemory::new());
        let store = Store::from_objects(inner.clone(), "", quick()).unwrap();
        let (objects, control) = FaultyStore::new(inner);
        let watched = Store::from_objects(objects, "", quick()).unwrap();
        init(&store).unwrap();
        let mut live = Self {
            watched,
            control,
            store,
            models: Models::new(11, 10),
            place: tempfile::tempdir().unwrap(),
            next: 0,
        };
        for _ in 0..versions {
            live.publish();
        }
        live
    }

    fn publish(&mut self) {
        let state = self.models.save(self.next, self.place.path());
        let options = PublishOptions::default().snapshots(Snapshots::Every(3));
        let mut publisher = Publisher::open(self.store.clone(), options).unwrap();
        let work = self.place.path().join("work");
        publisher.publish(&state, Base::Work(&work), &()).unwrap();
        self.next += 1;
    }

    fn prune(&self) {
        let plan = plan_prune(&self.store, &keep(2, None, &[])).unwrap();
        prune(&self.store, &plan, &()).unwrap();
    }

    /// Withdraws versions and removes their files at once, as after a day.
    fn remove(&self) {
        self.prune();
        let named = check(&self.store, None);
        assert!(named.problems.is_empty());
        let mut needed = BTreeSet::new();
        for entry in deltachain_store::log(&self.store, None, None).unwrap() {
            let files = entry.routes.iter().flat_map(|route| &route.files);
            needed.extend(files.map(FileReference::name));
        }
        let unneeded: Vec<ObjectName> = names(&self.store)
            .into_iter()
            .filter(|name| matches!(name, ObjectName::File(_)) && !needed.contains(name))
            .collect();
        self.store.delete(&unneeded).unwrap();
    }
}

#[test]
fn the_source_may_change_at_each_request() {
    let mut ends = 0;
    for action in ["publish", "prune", "remove", "roll back"] {
        for request in (0..).step_by(2) {
            let live = Live::new(5);
            let watched = live.watched.clone();
            let control = Arc::clone(&live.control);
            let live = Arc::new(Mutex::new(live));
            let acting = Arc::clone(&live);
            let count = Mutex::new(0);
            let has_acted = Arc::new(Mutex::new(false));
            let acted = Arc::clone(&has_acted);
            control.plan(move |_| {
                let mut count = count.lock().unwrap();
                *count += 1;
                if *count == request + 1 {
                    *acted.lock().unwrap() = true;
                    let acting = Arc::clone(&acting);
                    // A thread of its own, because this one serves the store.
                    let done = thread::spawn(move || {
                        let mut live = acting.lock().unwrap();
                        match action {
                            "publish" => live.publish(),
                            "prune" => live.prune(),
                            "remove" => live.remove(),
                            _ => live.store.delete(&[ObjectName::Commit(4)]).unwrap(),
                        }
                    });
                    done.join().unwrap();
                }
                None
            });
            let (copied, _) = empty();
            let mut mirror = Mirror::new(watched, &copied, MirrorOptions::default());
            let first = round(&mut mirror);
            control.heal();
            let mut live = live.lock().unwrap();
            // Readers find a valid chain, or none yet.
            if copied.get(ObjectName::Chain).unwrap().is_some() {
                assert_right(&mut live.models, &copied);
            }
            if action == "roll back" {
                let has_version = names(&copied).contains(&ObjectName::Commit(4));
                let is_ahead = has_version && *has_acted.lock().unwrap();
                let second = round(&mut mirror);
                assert_eq!(second.is_err(), is_ahead, "{request}: {second:?}");
                copied.delete(&[ObjectName::Commit(4)]).unwrap();
            } else {
                first.unwrap_or_else(|error| panic!("{action} {request}: {error:#}"));
            }
            round(&mut mirror).unwrap();
            assert_clean(&copy(&live.store, &copied).unwrap());
            assert_right(&mut live.models, &copied);
            if !*has_acted.lock().unwrap() {
                break;
            }
            ends += 1;
        }
    }
    assert!(ends > 40, "{ends}");
}

/// Damages the content of an object. `None` removes the object.
fn damaged(random: &mut Random, content: &[u8]) -> Option<Vec<u8>> {
    let mut damaged = content.to_vec();
    match random.below(5) {
        0 => {
            let place = usize::try_from(random.below(content.len() as u64)).unwrap();
            damaged[place] ^= 1 << random.below(8);
        }
        1 => damaged.truncate(content.len() / 2),
        2 => damaged.clear(),
        3 => damaged = b"junk".to_vec(),
        _ => return None,
    }
    Some(damaged)
}

fn damage(random: &mut Random, store: &Store) -> ObjectName {
    let all: Vec<(ObjectName, Vec<u8>)> = contents(store).into_iter().collect();
    let place = usize::try_from(random.below(all.len() as u64)).unwrap();
    let (name, content) = &all[place];
    match damaged(random, content) {
        Some(damaged) => overwrite(store, *name, &damaged),
        None => store.delete(&[*name]).unwrap(),
    }
    *name
}

#[test]
fn damage_of_a_copy_is_mended_and_that_of_a_source_is_not_copied() {
    let chain = Chain::new(5, Snapshots::Every(2), &[]);
    chain.compact(Some(3), &[0], false).unwrap();
    for version in [2, 4] {
        let commit = commit_digest(&chain.store, version);
        sign(&chain.store, version, commit, &[key("a-key", 7)]).unwrap();
    }
    let (whole, _) = empty();
    copy(&chain.store, &whole).unwrap();
    let all = contents(&whole);
    let mut random = Random(setting("DAMAGES", 11));
    let mut mended = 0;
    let mut named = 0;
    for round in 0..100 {
        let (copied, _) = empty();
        for (name, content) in &all {
            overwrite(&copied, *name, content);
        }
        let name = damage(&mut random, &copied);
        let is_same = contents(&copied) == all;
        match verify(&chain.store, &copied) {
            Ok(report) if report.problems.is_empty() => {
                assert_eq!(contents(&copied), all, "{round} {name}");
                mended += usize::from(!is_same);
            }
            // The document is valid, but another one: no rule says which is right.
            Ok(report) => {
                assert_eq!(faults(&report)[0].0, name.to_string(), "{round}");
                named += 1;
            }
            Err(error) => {
                assert_eq!(error.file(), Some(&*name.to_string()), "{round} {error}");
                named += 1;
            }
        }
        if contents(&copied) != all {
            copied.delete(&[name]).unwrap();
            assert_clean(&copy(&chain.store, &copied).unwrap());
            assert_eq!(contents(&copied), all, "{round} {name}");
        }
        assert_eq!(check(&copied, None).problems.len(), 0);
    }
    assert!(mended > 60 && named < 25, "{mended} {named}");
    // Damage to the source leaves a whole copy as it is, for `copy` and for `verify`.
    for round in 0..100 {
        let (source, _) = empty();
        for (name, content) in &all {
            overwrite(&source, *name, content);
        }
        let name = damage(&mut random, &source);
        let is_same = contents(&source) == all;
        let answers = [copy(&source, &whole), verify(&source, &whole)];
        assert_eq!(contents(&whole), all, "{round} {name}");
        let is_told = |answer: &Result<MirrorReport>| match answer {
            Ok(report) => !report.problems.is_empty(),
            Err(_) => true,
        };
        // The lists reveal only documents with another size or content.
        if !is_same && matches!(name, ObjectName::Commit(_)) {
            assert!(answers.iter().any(is_told), "{round} {name}");
        }
        // A new copy has no more damage than its source.
        let (new, _) = empty();
        let before = check(&source, None).problems.len();
        if let Ok(report) = copy(&source, &new) {
            let after = check(&new, None).problems.len();
            assert!(after <= before, "{round} {name}");
            let is_lost_file = matches!(name, ObjectName::File(_));
            assert!(
                !is_lost_file || !report.problems.is_empty() || is_same,
                "{round} {name}"
            );
        }
    }
}

#[test]
fn passing_faults_on_both_sides_change_nothing() {
    let chain = Chain::new(4, Snapshots::Every(2), &[]);
    let (whole, _) = empty();
    copy(&chain.store, &whole).unwrap();
    for request in 0..60 {
        let (copied, control) = empty();
        let mut mirror = Mirror::new(chain.store.clone(), &copied, MirrorOptions::default());
        let count = Mutex::new(0);
        control.plan(move |_| {
            let mut count = count.lock().unwrap();
            *count += 1;
            (*count == request + 1).then_some(Fault::FailAfter)
        });
        let first = round(&mut mirror);
        control.heal();
        if let Err(error) = first {
            assert_eq!(error.class(), ErrorClass::Io, "{error}");
        }
        assert_clean(&round(&mut mirror).unwrap());
        assert_eq!(contents(&copied), contents(&whole), "{request}");
    }
}
