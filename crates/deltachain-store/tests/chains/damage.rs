//! Each object of a chain is changed, cut short and removed in turn: a reader finds another path,
//! or names the object at fault and keeps the version that it has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use deltachain::chain::ObjectName;
use deltachain::tensor::MemoryState;
use deltachain::{Error, Result};
use deltachain_store::{
    Base, CompactOptions, Follower, FollowerOptions, FsckOptions, Observer, PublishOptions,
    Publisher, RawObjects, Snapshots, Store, compact, fsck, init,
};

use object_store::local::LocalFileSystem;

use crate::common::Notes;
use crate::support::faulty::{Call, Fault, FaultyStore, Operation};
use crate::support::models::Models;
use crate::support::verify::{prove, shown};
use crate::support::{Random, quick};

const HEAD: u64 = 7;

fn store(directory: &Path) -> Store {
    Store::create(directory.to_str().unwrap(), quick()).unwrap()
}

/// Creates a chain with a snapshot of version 0, skipping links, and a version that got more routes
/// later.
fn chain(scratch: &Path) -> (Store, Models) {
    let store = store(&scratch.join("store"));
    let mut models = Models::new(9, 30);
    init(&store).unwrap();
    let options = PublishOptions::default()
        .skips(vec![3])
        .snapshots(Snapshots::Never);
    for version in 0..=HEAD {
        let state = models.save(version, scratch);
        let before = version
            .checked_sub(1)
            .map(|before| models.save(before, scratch));
        let base = before
            .as_ref()
            .map_or(Base::Nothing, |base| Base::State(base.into()));
        Publisher::open(store.clone(), options.clone())
            .unwrap()
            .publish(&state, base, &())
            .unwrap();
    }
    let options = CompactOptions::new(scratch.join("compact"))
        .version(Some(5))
        .from(vec![1])
        .snapshot(true);
    compact(&store, &options, &()).unwrap();
    prove(&store);
    (store, models)
}

/// Brings a new reader to a version if one is given, then calls `damage`, and lets the reader
/// continue to the head.
fn read(
    store: &Store,
    held: Option<u64>,
    damage: impl FnOnce(),
) -> (Result<()>, Option<MemoryState>) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = FollowerOptions::default();
    // Without a cache, the reader downloads every file.
    options = options.cache_bytes(Some(0));
    let mut reader = Follower::in_directory(store.clone(), directory.path(), options).unwrap();
    let mut go = |version| match reader.prepare(version, &())? {
        Some(prepared) => reader.apply(prepared).map(drop),
        None => Ok(()),
    };
    if held.is_some() {
        go(held).unwrap();
    }
    damage();
    let result = go(None);
    (result, shown(directory.path()))
}

#[derive(Debug, Clone, Copy)]
enum Damage {
    Flip,
    Truncate,
    Remove,
}

/// Damages a file, and returns the function that restores it.
fn damage(path: &Path, damage: Damage) -> impl FnOnce() {
    let content = fs::read(path).unwrap();
    let mut other = content.clone();
    match damage {
        // No document contains such a byte.
        Damage::Flip => other[content.len() / 2] ^= 0x80,
        Damage::Truncate => other.truncate(content.len() / 2),
        Damage::Remove => {}
    }
    match damage {
        Damage::Remove => fs::remove_file(path).unwrap(),
        _ => fs::write(path, other).unwrap(),
    }
    let path = path.to_owned();
    move || fs::write(path, content).unwrap()
}

/// True if an error is about an object: it names the object, or says that the version after it does
/// not follow.
fn is_about(error: &Error, name: ObjectName) -> bool {
    let names = |name: ObjectName| error.file() == Some(name.to_string().as_str());
    let next = match name {
        ObjectName::Chain => Some(0),
        ObjectName::Commit(version) => Some(version + 1),
        _ => None,
    };
    names(name)
        || next
            .is_some_and(|next| error.rule() == Some("R-CHN-04") && names(ObjectName::Commit(next)))
}

#[test]
fn each_object_damaged_in_turn() {
    let scratch = tempfile::tempdir().unwrap();
    let (store, mut models) = chain(scratch.path());
    let (mut outcomes, mut objects) = (BTreeMap::<String, u64>::new(), 0);
    for object in store.objects().unwrap() {
        objects += 1;
        let path = scratch.path().join("store").join(object.name.to_string());
        for kind in [Damage::Flip, Damage::Truncate, Damage::Remove] {
            for held in [None, Some(4)] {
                let mut undo = None;
                let (result, shows) = read(&store, held, || undo = Some(damage(&path, kind)));
                let case = format!("{} {kind:?}, held {held:?}", object.name);
                let outcome = match result {
                    // Without the head's commit, the version before is the head.
                    Ok(()) if shows.as_ref() == Some(models.state(HEAD - 1)) => {
                        assert!(
                            object.name == ObjectName::Commit(HEAD)
                                && matches!(kind, Damage::Remove),
                            "{case}"
                        );
                        "the version before".to_owned()
                    }
                    Ok(()) => {
                        assert_eq!(shows.as_ref(), Some(models.state(HEAD)), "{case}");
                        "the head".to_owned()
                    }
                    Err(error) => {
                        assert!(is_about(&error, object.name), "{case}: {error:?}");
                        assert_eq!(
                            shows,
                            held.map(|version| models.state(version).clone()),
                            "{case}"
                        );
                        format!("{} {}", error.class(), error.rule().unwrap())
                    }
                };
                *outcomes.entry(outcome).or_default() += 1;
                undo.unwrap()();
            }
            // fsck reads everything and finds the damage, unless the chain without this commit is
            // only shorter.
            let undo = damage(&path, kind);
            let report = fsck(&store, &FsckOptions::default(), &());
            let found = match &report {
                Ok(report) => report
                    .problems
                    .iter()
                    .any(|problem| is_about(problem, object.name)),
                Err(error) => is_about(error, object.name),
            };
            let shorter = object.name == ObjectName::Commit(HEAD) && matches!(kind, Damage::Remove);
            let withdrawn = matches!(
                (object.name, kind),
                (ObjectName::Routes { .. }, Damage::Remove)
            );
            assert!(
                found || shorter || withdrawn,
                "{} {kind:?}: {report:?}",
                object.name
            );
            undo();
        }
    }
    // A reader can do without many files, but not without all.
    for outcome in ["the head", "CORRUPT R-CHN-10", "CHAIN R-CHN-09"] {
        assert!(outcomes.contains_key(outcome), "{outcomes:?}");
    }
    println!(
        "{objects} objects, each changed, cut short and removed, for readers of nothing and of \
         version 4: {outcomes:?}"
    );
    assert_eq!(
        fsck(&store, &FsckOptions::default(), &())
            .unwrap()
            .problems
            .len(),
        0
    );
}

/// Collects all files below a directory.
fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Flips bits in each file of a publisher's directory, including files of older versions: the
/// publisher rebuilds damaged files, and never reports a wrong base.
#[test]
fn a_damaged_work_directory_is_built_again() {
    let mut random = Random(5);
    let mut tried = 0;
    let mut rebuilt = 0;
    let rounds = crate::support::setting("DELTACHAIN_DAMAGES", 2);
    for round in 0..rounds {
        let scratch = tempfile::tempdir().unwrap();
        let store = store(&scratch.path().join("store"));
        let mut models = Models::new(10, 20);
        init(&store).unwrap();
        let work = scratch.path().join("work");
        let mut publish = |version: u64, observer: &dyn Observer| {
            let state = models.save(version, scratch.path());
            let options = PublishOptions::default()
                .skips(vec![2])
                .snapshots(Snapshots::Never);
            let mut publisher = Publisher::open(store.clone(), options).unwrap();
            publisher.publish(&state, Base::Work(&work), observer)
        };
        for version in 0..=4 {
            publish(version, &()).unwrap();
        }
        for version in 5..25 {
            let mut files = Vec::new();
            for directory in [work.clone(), work.join("skip-2")] {
                files_below(
                    directory
                        .join("current")
                        .canonicalize()
                        .unwrap()
                        .parent()
                        .unwrap(),
                    &mut files,
                );
                files_below(&directory.join("cache"), &mut files);
            }
            files.sort();
            // Spread the damage over all files.
            let path = &files[usize::try_from(version).unwrap() * 5 % files.len()];
            let mut bytes = fs::read(path).unwrap();
            // In even rounds the flip hits the header, if the file has one.
            let most = if round % 2 == 0 {
                bytes.len().min(200)
            } else {
                bytes.len()
            };
            bytes[usize::try_from(random.below(most as u64)).unwrap()] ^= 1 << random.below(8);
            fs::write(path, bytes).unwrap();
            let remarks = Notes::default();
            let published =
                publish(version, &remarks).unwrap_or_else(|error| panic!("{path:?}: {error:#}"));
            let routes = if version.is_multiple_of(2) { 2 } else { 1 };
            assert_eq!(
                (published.version, published.routes.len()),
                (version, routes),
                "{path:?}"
            );
            tried += 1;
            rebuilt += u64::from(
                remarks
                    .remarks()
                    .iter()
                    .any(|text| text.contains("recreated")),
            );
        }
        // All routes, including the skipping ones.
        let proven = prove(&store);
        (0..)
            .zip(&proven)
            .for_each(|(version, state)| assert_eq!(state, models.state(version)));
    }
    assert!(rebuilt > rounds, "{rebuilt} of {tried}");
}

#[test]
fn one_damaged_read_of_a_document_is_not_final() {
    let scratch = tempfile::tempdir().unwrap();
    let (clean, mut models) = chain(scratch.path());
    let inner = LocalFileSystem::new_with_prefix(scratch.path().join("store")).unwrap();
    let (objects, control) = FaultyStore::new(Arc::new(inner));
    let store = Store::from_objects(objects, "", quick()).unwrap();
    let is_document =
        |name: &ObjectName| !matches!(name, ObjectName::File(_) | ObjectName::Asset(_));
    let documents: Vec<_> = clean
        .objects()
        .unwrap()
        .into_iter()
        .map(|object| object.name)
        .filter(is_document)
        .collect();
    let mut damaged = 0;
    for held in [None, Some(2), Some(HEAD - 1)] {
        for (number, name) in documents.iter().enumerate() {
            // The damage may hit anything: a brace, a digit of a digest.
            for fault in [Fault::Flip, Fault::Truncate] {
                let path = name.to_string();
                let first = AtomicBool::new(true);
                let plan = move |call: &Call<'_>| {
                    let hit = call.operation == Operation::Get && call.path == path;
                    (hit && first.swap(false, Ordering::Relaxed)).then_some(fault)
                };
                let (result, shown) = read(&store, held, || control.plan(plan));
                result.unwrap_or_else(|error| {
                    panic!("{fault:?} of {name} ({number}), held {held:?}: {error:?}")
                });
                assert_eq!(shown.as_ref(), Some(models.state(HEAD)));
                damaged += 1;
                control.heal();
            }
        }
    }
    println!("{damaged} damaged reads");
}
