//! Bringing a directory to versions of a chain: by every path, past every kind of damage, and after
//! every kind of crash.

mod directories;
mod going_back;
mod memory;
mod selection;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deltachain::chain::{ObjectName, Route};
use deltachain::files::SafetensorsState;
use deltachain::format::{HEADER_BYTES, Header, Index};
use deltachain::tensor::{Dtype, MemoryState, State, StateDigests};
use deltachain::{ErrorClass, Limits, LinkReader};
use deltachain_store::{
    Directory, FollowEvent, FollowOptions, FollowStatus, Follower, FollowerOptions, Observer,
    OtherFiles, SwitchReport,
};

use crate::common::{Chain, Notes, follow, state, union};

fn open(chain: &Chain, directory: &Path) -> Follower<Directory> {
    Follower::in_directory(chain.store.clone(), directory, FollowerOptions::default()).unwrap()
}

fn pull(subscriber: &mut Follower<Directory>, version: Option<u64>) -> SwitchReport {
    let prepared = subscriber.prepare(version, &()).unwrap().unwrap();
    subscriber.apply(prepared).unwrap()
}

/// Tensors of the current version in a directory.
fn shown(directory: &Path) -> MemoryState {
    MemoryState::copy_of(&SafetensorsState::open(directory.join("current")).unwrap()).unwrap()
}

/// Names and contents of the files in a directory.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap_or_default(),
            )
        })
        .collect()
}

fn names(directory: &Path) -> Vec<String> {
    files(directory).into_keys().collect()
}

/// Incompressible bytes.
fn noise() -> Vec<u8> {
    (0..2000_u32)
        .map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[2])
        .collect()
}

/// Five versions with a snapshot of 0, links from each to the next, and one from 0 to 3. Tensors
/// are added, removed and changed. Snapshots of 3 and 4 are too long to be chosen.
fn long_chain() -> Chain {
    let mut chain = Chain::new();
    let noise = noise();
    let mut state = state(&[("a", &noise), ("b", &[1, 2]), ("c", &[7; 3])]);
    chain.add(state.clone(), &[None]);
    state.insert("b", Dtype::U8, &[2], vec![1, 3]).unwrap();
    state
        .insert("d", Dtype::F32, &[], vec![0, 0, 128, 63])
        .unwrap();
    chain.add(state.clone(), &[Some(0)]);
    state.remove("c");
    state.insert("b", Dtype::BF16, &[1], vec![1, 3]).unwrap();
    chain.add(state.clone(), &[Some(1)]);
    state.insert("c", Dtype::U8, &[0], Vec::new()).unwrap();
    chain.add(state.clone(), &[None, Some(0), Some(2)]);
    state.insert("b", Dtype::BF16, &[1], vec![0, 128]).unwrap();
    chain.add(state, &[None, Some(3)]);
    chain
}

#[test]
fn every_way_leads_to_the_same_state() {
    let chain = long_chain();
    for first in 0..5 {
        for second in first + 1..5 {
            let folder = tempfile::tempdir().unwrap();
            let mut subscriber = open(&chain, folder.path());
            assert_eq!(subscriber.held(), None);
            let switched = pull(&mut subscriber, Some(first));
            assert_eq!((switched.from, switched.version), (None, first));
            assert_eq!(shown(folder.path()), chain.whole(first));
            let switched = pull(&mut subscriber, Some(second));
            assert_eq!((switched.from, switched.version), (Some(first), second));
            assert_eq!(switched.state, chain.commit(second).state);
            assert_eq!(
                switched.routes[0].0,
                Some(first),
                "links are shorter than snapshots"
            );
            assert_eq!(shown(folder.path()), chain.whole(second));
            assert_eq!(subscriber.held().unwrap().directory, switched.directory);
            assert_eq!(
                fs::canonicalize(folder.path().join("current")).unwrap(),
                fs::canonicalize(&switched.directory).unwrap()
            );
            // Back to the first version, with a snapshot.
            assert_eq!(pull(&mut subscriber, Some(first)).routes[0].0, None);
            assert_eq!(shown(folder.path()), chain.whole(first));
        }
    }
}

#[test]
fn the_cheapest_way_is_taken_and_nothing_is_fetched_twice() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    let switched = pull(&mut subscriber, None);
    assert_eq!(switched.routes, [(Some(0), 3), (Some(3), 4)]);
    let bytes = chain.files(3, Some(0))[0].size + chain.files(4, Some(3))[0].size;
    assert_eq!((switched.downloaded, switched.from_cache), (bytes, 0));
    assert!(subscriber.prepare(None, &()).unwrap().is_none());
    assert!(subscriber.prepare(Some(4), &()).unwrap().is_none());
    drop(subscriber);

    // A new process finds the cached files, and knows the held version.
    let mut subscriber = open(&chain, folder.path());
    assert_eq!(subscriber.held().unwrap().version, 4);
    assert!(subscriber.prepare(None, &()).unwrap().is_none());
    let switched = pull(&mut subscriber, Some(0));
    assert_eq!(
        (switched.downloaded, switched.from_cache),
        (0, chain.files(0, None)[0].size)
    );
}

#[test]
fn a_damaged_file_in_the_cache_is_fetched_again() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    let reference = chain.files(0, None)[0];
    let path = folder
        .path()
        .join("cache")
        .join(format!("{}.dcf", reference.digest));
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    pull(&mut subscriber, Some(1));
    let switched = pull(&mut subscriber, Some(0));
    assert_eq!(
        (switched.downloaded, switched.from_cache),
        (reference.size, 0)
    );
    assert_eq!(
        deltachain::tensor::Digest::of_bytes(&fs::read(&path).unwrap()),
        reference.digest
    );
}

#[cfg(target_os = "linux")]
#[test]
fn links_are_not_kept_in_memory() {
    let chain = long_chain();
    // Unless the user asks for a cache.
    for (cache_bytes, is_kept) in [(None, false), (Some(1 << 20), true)] {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let options = FollowerOptions::default().cache_bytes(cache_bytes);
        let mut subscriber =
            Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
        pull(&mut subscriber, Some(0));
        pull(&mut subscriber, Some(1));
        assert_eq!(shown(folder.path()), chain.whole(1));
        assert_eq!(!names(&folder.path().join("cache")).is_empty(), is_kept);
    }
}

#[test]
fn the_cache_is_kept_small() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let options = FollowerOptions::default().cache_bytes(Some(chain.files(1, Some(0))[0].size));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
    pull(&mut subscriber, Some(0));
    assert_eq!(names(&folder.path().join("cache")), [""; 0]);
    pull(&mut subscriber, Some(1));
    assert_eq!(
        names(&folder.path().join("cache")),
        [format!("{}.dcf", chain.files(1, Some(0))[0].digest)]
    );
}

/// Damages an object in several ways, and calls `check` with the expected rule each time.
fn damage(path: &Path, check: &dyn Fn(&str)) {
    let whole = fs::read(path).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    let mut longer = whole.clone();
    longer.push(0);
    for bytes in [
        &changed,
        &longer,
        &whole[..whole.len() - 1].to_vec(),
        &whole[..1].to_vec(),
        &Vec::new(),
    ] {
        fs::write(path, bytes).unwrap();
        check("R-CHN-10");
    }
    fs::remove_file(path).unwrap();
    check("R-CHN-09");
    fs::write(path, whole).unwrap();
}

#[test]
fn another_way_is_taken_past_a_damaged_file() {
    let chain = long_chain();
    for (from, version) in [(Some(0), 3), (Some(3), 4)] {
        let reference = chain.files(version, from)[0];
        damage(&chain.path(reference.name()), &|rule| {
            let folder = tempfile::tempdir().unwrap();
            let mut subscriber = open(&chain, folder.path());
            pull(&mut subscriber, Some(0));
            let notes = Notes::default();
            let prepared = subscriber.prepare(None, &notes).unwrap().unwrap();
            let switched = subscriber.apply(prepared).unwrap();
            assert!(!switched.routes.contains(&(from, version)));
            assert_eq!(shown(folder.path()), chain.whole(4));
            let remarks = notes.remarks();
            assert_eq!(remarks.len(), 1, "{remarks:?}");
            assert!(
                remarks[0].contains(rule) && remarks[0].contains(&reference.name().to_string()),
                "{remarks:?}"
            );
        });
    }
}

#[test]
fn without_another_way_the_version_held_stays() {
    let mut chain = Chain::new();
    let data: Vec<u8> = (0..=255).collect();
    chain.add(state(&[("a", &data)]), &[None]);
    chain.add(state(&[("a", &data), ("b", &data)]), &[Some(0)]);
    let reference = chain.files(1, Some(0))[0];
    damage(&chain.path(reference.name()), &|rule| {
        let folder = tempfile::tempdir().unwrap();
        let mut subscriber = open(&chain, folder.path());
        pull(&mut subscriber, Some(0));
        let error = subscriber.prepare(None, &()).unwrap_err();
        assert_eq!(
            (error.rule(), error.file()),
            (Some(rule), Some(&*reference.name().to_string()))
        );
        assert_eq!(shown(folder.path()), chain.whole(0));
        assert_eq!(subscriber.held().unwrap().version, 0);
        assert_eq!(
            names(folder.path()),
            [
                "cache",
                "current",
                "deltachain.directory",
                "lock",
                "versions"
            ]
        );
    });
}

/// Tries a route to version 1 by this link; a snapshot exists, too, but costs more.
fn refused(
    chain: &Chain,
    link: deltachain::chain::FileReference,
) -> (Vec<String>, deltachain::Error) {
    let others = vec![chain.make_route(1, None)];
    let bad = Route {
        from: Some(0),
        files: vec![link],
    };
    let generation = |number: u64| ObjectName::Routes {
        version: 1,
        generation: number,
    };
    chain.set_routes(1, 1, others.into_iter().chain([bad.clone()]).collect());
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(chain, folder.path());
    pull(&mut subscriber, Some(0));
    let notes = Notes::default();
    let prepared = subscriber.prepare(None, &notes).unwrap().unwrap();
    assert_eq!(subscriber.apply(prepared).unwrap().routes, [(None, 1)]);
    assert_eq!(shown(folder.path()), chain.whole(1));

    // The same without another path.
    chain.set_routes(1, 2, vec![bad]);
    pull(&mut subscriber, Some(0));
    let error = subscriber.prepare(None, &()).unwrap_err();
    assert_eq!(error.file(), Some(&*link.name().to_string()));
    assert_eq!(shown(folder.path()), chain.whole(0));
    assert!(
        !names(folder.path())
            .iter()
            .any(|name| name.starts_with(".tmp-"))
    );
    for number in [1, 2] {
        fs::remove_file(chain.path(generation(number))).unwrap();
    }
    (notes.remarks(), error)
}

#[test]
fn another_way_is_taken_past_a_link_that_is_refused() {
    let mut chain = Chain::new();
    let noise = noise();
    chain.add(state(&[("a", &noise), ("b", &[1])]), &[None]);
    chain.add(state(&[("a", &noise), ("b", &[2])]), &[Some(0)]);
    let other = state(&[("a", &noise), ("b", &[3])]);
    let right = fs::read(chain.path(chain.files(1, Some(0))[0].name())).unwrap();

    let elsewhere = chain.make_link(&chain.whole(0), &other);
    let from_elsewhere = chain.make_link(&other, &chain.whole(1));
    let mut damaged = right.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = chain.store_link(&damaged);
    let no_link = chain.store_link(b"no link");
    for (link, rule) in [
        (elsewhere, "R-CHN-11"),
        (from_elsewhere, "R-APP-01"),
        (damaged, "R-SEG-01"),
        (no_link, "R-HDR-01"),
    ] {
        let (remarks, error) = refused(&chain, link);
        assert_eq!(error.rule(), Some(rule), "{error}");
        assert!(
            remarks.len() == 1 && remarks[0].contains(rule),
            "{remarks:?}"
        );
    }

    chain.layout = Some("{}");
    let without_layout = chain.make_link(&chain.whole(0), &chain.whole(1));
    chain.layout = None;
    assert_eq!(refused(&chain, without_layout).1.rule(), Some("R-LAY-01"));
}

/// A link that promises the result of `promising`, but builds that of `building`; both change the
/// same tensors of the same base.
fn lying(promising: &[u8], building: &[u8]) -> Vec<u8> {
    let limits = Limits::default();
    let promises = LinkReader::open(promising, &limits).unwrap();
    let builds = LinkReader::open(building, &limits).unwrap();
    let segments =
        &building[usize::try_from(HEADER_BYTES + builds.header().index_stored).unwrap()..];
    let index = Index {
        segments: builds.index().segments.clone(),
        metadata: builds.index().metadata.clone(),
        tensors: promises.index().tensors.clone(),
    };
    let index = index.to_bytes();
    let header = Header {
        index_stored: index.len() as u64,
        index_raw: index.len() as u64,
        segments_length: segments.len() as u64,
        index_crc: crc32fast::hash(&index),
        ..promises.header().clone()
    };
    [&header.to_bytes(), index.as_slice(), segments].concat()
}

#[test]
fn a_link_on_the_way_that_builds_something_else_is_the_one_that_is_blamed() {
    let noise = noise();
    let version =
        |a: u8, b: u8| state(&[("a", &noise), ("b", &[a, 0, 0, 0]), ("c", &[b, 0, 0, 0])]);
    // The last link changes the wrong tensor again, or another one.
    for last in [version(3, 1), version(2, 2)] {
        let mut chain = Chain::new();
        chain.add(version(1, 1), &[None]);
        chain.add(version(2, 1), &[Some(0)]);
        chain.add(last, &[Some(1)]);
        let link = |target: &MemoryState| {
            fs::read(chain.path(chain.make_link(&chain.whole(0), target).name())).unwrap()
        };
        let liar = chain.store_link(&lying(&link(&chain.whole(1)), &link(&version(7, 1))));
        chain.set_routes(
            1,
            1,
            vec![Route {
                from: Some(0),
                files: vec![liar],
            }],
        );

        let folder = tempfile::tempdir().unwrap();
        let mut subscriber = open(&chain, folder.path());
        let error = subscriber.prepare(None, &()).unwrap_err();
        assert_eq!(
            (error.rule(), error.tensor()),
            (Some("R-APP-04"), Some("b")),
            "{error}"
        );
        assert!(
            error.file().unwrap().contains(&liar.digest.to_string()),
            "{error:?}"
        );
        assert_eq!(subscriber.held(), None);

        // The other links are not doubted.
        chain.set_routes(
            1,
            2,
            vec![Route {
                from: Some(0),
                files: chain.files(1, Some(0)),
            }],
        );
        assert_eq!(
            pull(&mut subscriber, None).routes,
            [(None, 0), (Some(0), 1), (Some(1), 2)]
        );
        assert_eq!(shown(folder.path()), chain.whole(2));
    }
}

#[test]
fn shards_stand_in_one_directory() {
    let mut chain = Chain::new();
    let shards = |value: u8| {
        vec![
            state(&[("b", &[value, 1])]),
            state(&[("a", &[value]), ("c", &[0, value])]),
            MemoryState::new(),
        ]
    };
    chain.add_shards(shards(1), &[None]);
    chain.add_shards(shards(2), &[Some(0)]);
    chain.add_shards(shards(3), &[Some(1)]);
    chain.add_shards(vec![state(&[("a", &[1])]), state(&[("b", &[2])])], &[None]);

    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    let numbered = |of: u32| -> Vec<String> {
        let files = (1..=of).map(|number| format!("model-{number:05}-of-{of:05}.safetensors"));
        files
            .chain(["model.safetensors.index.json".to_owned()])
            .collect()
    };
    for version in [0, 2, 3] {
        let switched = pull(&mut subscriber, Some(version));
        assert_eq!(shown(folder.path()), chain.whole(version));
        assert_eq!(
            names(&switched.directory),
            numbered(if version == 3 { 2 } else { 3 })
        );
    }
    drop(subscriber);

    // Only some of the shards.
    let mut options = FollowerOptions::default().shards(Some(vec![1, 0, 1]));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options.clone()).unwrap();
    let notes = Notes::default();
    assert!(
        subscriber.prepare(Some(3), &notes).unwrap().is_none(),
        "no shard of that version is missing"
    );
    options = options.shards(Some(vec![1]));
    drop(subscriber);
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options.clone()).unwrap();
    let prepared = subscriber.prepare(Some(3), &notes).unwrap().unwrap();
    assert!(
        notes.remarks()[0].contains("other shards"),
        "{:?}",
        notes.remarks()
    );
    let switched = subscriber.apply(prepared).unwrap();
    assert_eq!(switched.state, chain.commit(3).state);
    assert_eq!(shown(folder.path()), state(&[("b", &[2])]));
    assert_eq!(names(&switched.directory), ["model.safetensors"]);
    let switched = pull(&mut subscriber, Some(1));
    assert_eq!(
        switched.downloaded + switched.from_cache,
        chain.files(0, None)[1].size + chain.files(1, Some(0))[1].size
    );
    assert_eq!(shown(folder.path()), shards(2)[1]);
    assert_eq!(pull(&mut subscriber, Some(2)).routes, [(Some(1), 2)]);
    assert_eq!(shown(folder.path()), shards(3)[1]);
    drop(subscriber);

    options = options.shards(Some(vec![1, 2]));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options.clone()).unwrap();
    let error = subscriber.prepare(None, &()).unwrap_err();
    assert_eq!(error.rule(), Some("R-CHN-17"));
    assert!(error.message().contains("shard 2"), "{error}");
    pull(&mut subscriber, Some(2));
    assert_eq!(shown(folder.path()), union(&shards(3)[1..]));
    drop(subscriber);
    options = options.shards(Some(Vec::new()));
    assert!(Follower::in_directory(chain.store.clone(), folder.path(), options).is_err());
}

#[test]
fn shards_that_are_not_together_the_state_are_refused() {
    let mut chain = Chain::new();
    let a = state(&[("a", &[1])]);
    let b = state(&[("b", &[2])]);
    let digest = |state: &MemoryState| StateDigests::of(state, &()).unwrap().state;
    chain.add_shards(vec![a.clone(), b.clone()], &[None]);
    chain.add_as(digest(&a), vec![a.clone(), b.clone()], &[Some(0)]);
    chain.add_as(digest(&a), vec![a.clone(), a.clone()], &[None]);
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    for version in [1, 2] {
        assert_eq!(
            subscriber.prepare(Some(version), &()).unwrap_err().rule(),
            Some("R-CHN-12")
        );
    }
    assert_eq!(shown(folder.path()), union(&[a, b]));
}

#[test]
fn the_layout_is_that_of_the_chain() {
    const LAYOUT: &str = r#"{"files":[{"name":"x-1.safetensors","metadata":{"format":"pt"},"tensors":["b","c"]},{"name":"x-2.safetensors","metadata":null,"tensors":["a"]}]}"#;
    let mut chain = Chain::new();
    let first = state(&[("a", &[1, 2]), ("b", &[3]), ("c", &[])]);
    let second = state(&[("a", &[1, 2]), ("b", &[4]), ("d", &[5])]);
    chain.layout = Some(LAYOUT);
    chain.add(first.clone(), &[None]);
    chain.layout = None;
    chain.add(second.clone(), &[Some(0)]);
    chain.add(second.clone(), &[Some(1)]);

    // Files of a publisher, in the safetensors crate's own order of tensors.
    let published = tempfile::tempdir().unwrap();
    let save = |name: &str, state: &MemoryState, layout: &deltachain::files::Layout| {
        use deltachain::files::StagedSafetensors;
        use deltachain::tensor::StateWriter;
        let out = published.path().join(name);
        let staged = StagedSafetensors::create(&out, state.tensors(), layout, None, false).unwrap();
        for (number, (_, data)) in state.iter().enumerate() {
            staged.write(number, 0, data).unwrap();
        }
        staged.commit().unwrap();
        out
    };
    let layout = deltachain::files::Layout::parse(LAYOUT, first.tensors()).unwrap();
    let first_files = files(&save("0", &first, &layout));
    let second_files = files(&save(
        "1",
        &second,
        &layout.carried_over(second.tensors()).unwrap(),
    ));

    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    assert_eq!(
        files(&pull(&mut subscriber, Some(0)).directory),
        first_files
    );
    assert_eq!(
        files(&pull(&mut subscriber, Some(1)).directory),
        second_files
    );
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    // Also through states in between.
    assert_eq!(
        files(&pull(&mut subscriber, Some(2)).directory),
        second_files
    );
}

#[test]
fn other_files_come_from_a_directory() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let others = tempfile::tempdir().unwrap();
    fs::write(others.path().join("config.json"), "{}").unwrap();
    fs::write(others.path().join("pretrained.safetensors"), "not that").unwrap();
    let mut options =
        FollowerOptions::default().other_files(OtherFiles::Directory(others.path().to_owned()));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options.clone()).unwrap();
    let switched = pull(&mut subscriber, Some(0));
    assert_eq!(
        names(&switched.directory),
        ["config.json", "model.safetensors"]
    );
    fs::remove_file(others.path().join("config.json")).unwrap();
    fs::write(others.path().join("config.json"), "{\"a\":1}").unwrap();
    let switched = pull(&mut subscriber, Some(1));
    assert_eq!(files(&switched.directory)["config.json"], b"{\"a\":1}");
    drop(subscriber);
    // Changed, added and removed files are applied to the held version.
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options.clone()).unwrap();
    assert!(subscriber.prepare(Some(1), &()).unwrap().is_none());
    let replace = |text: &str| {
        fs::remove_file(others.path().join("config.json")).unwrap();
        fs::write(others.path().join("config.json"), text).unwrap();
    };
    replace("{\"a\":1}");
    assert!(
        subscriber.prepare(Some(1), &()).unwrap().is_none(),
        "the same content"
    );
    replace("{\"a\":2}");
    let switched = pull(&mut subscriber, Some(1));
    assert_eq!((switched.downloaded, switched.routes.len()), (0, 0));
    assert_eq!(files(&switched.directory)["config.json"], b"{\"a\":2}");
    assert_eq!(shown(folder.path()), chain.whole(1));
    fs::write(others.path().join("tokenizer.json"), "[]").unwrap();
    fs::create_dir(others.path().join("checkpoint-1")).unwrap();
    let notes = Notes::default();
    let prepared = subscriber.prepare(Some(1), &notes).unwrap().unwrap();
    assert!(
        notes
            .remarks()
            .iter()
            .any(|remark| remark.contains("checkpoint-1 (a trainer's")),
        "{:?}",
        notes.remarks()
    );
    let switched = subscriber.apply(prepared).unwrap();
    assert_eq!(
        names(&switched.directory),
        ["config.json", "model.safetensors", "tokenizer.json"]
    );
    fs::remove_file(others.path().join("tokenizer.json")).unwrap();
    assert_eq!(
        names(&pull(&mut subscriber, Some(1)).directory),
        ["config.json", "model.safetensors"]
    );
    assert!(subscriber.prepare(Some(1), &()).unwrap().is_none());
    drop(subscriber);
    // No file of the version before is kept.
    let switched = pull(&mut open(&chain, folder.path()), Some(2));
    assert_eq!(names(&switched.directory), ["model.safetensors"]);

    options = options.other_files(OtherFiles::Directory(others.path().join("missing")));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
    assert_eq!(
        subscriber.prepare(None, &()).unwrap_err().class(),
        ErrorClass::Io
    );
    assert_eq!(shown(folder.path()), chain.whole(2));
}

#[test]
fn a_second_process_is_refused() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let subscriber = open(&chain, folder.path());
    let error = Follower::in_directory(
        chain.store.clone(),
        folder.path(),
        FollowerOptions::default(),
    )
    .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage);
    assert!(error.is_in_use(), "{error}");
    drop(subscriber);
    open(&chain, folder.path());
}

#[test]
fn what_a_crash_leaves_behind_is_in_nobodys_way() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let mut subscriber = open(&chain, directory);
    pull(&mut subscriber, Some(0));
    // A crash before the switch leaves a complete version.
    let prepared = subscriber.prepare(Some(1), &()).unwrap().unwrap();
    assert_eq!(
        (prepared.held().version, prepared.held().state),
        (1, chain.commit(1).state)
    );
    drop((prepared, subscriber));
    assert_eq!(names(&directory.join("versions")).len(), 2);
    // Remains of crashes during a build, a download, a switch, and the removal of an old version.
    let unfinished = directory.join(".tmp-deltachain-abcdefABCDEF");
    fs::create_dir_all(unfinished.join("version/model")).unwrap();
    fs::write(unfinished.join("version/model/model.safetensors"), "half").unwrap();
    fs::write(
        unfinished.join("deltachain.directory"),
        r#"{"deltachain_dir"#,
    )
    .unwrap();
    fs::create_dir_all(directory.join(".tmp-deltachain-0123456789ab")).unwrap();
    fs::write(directory.join("cache/.tmp-deltachain-0123456789ab"), "half").unwrap();
    let old = directory.join("versions/00000000000000000009-0123456789abcdef");
    fs::create_dir_all(old.join("model")).unwrap();
    fs::copy(
        version_directory(directory).join("held.json"),
        old.join("held.json"),
    )
    .unwrap();
    fs::create_dir_all(directory.join("versions/00000000000000000008-0123456789abcdef")).unwrap();
    assert_eq!(shown(directory), chain.whole(0));

    let mut subscriber = open(&chain, directory);
    assert_eq!(subscriber.held().unwrap().version, 0);
    assert_eq!(
        names(directory),
        [
            "cache",
            "current",
            "deltachain.directory",
            "lock",
            "versions"
        ]
    );
    assert!(
        !names(&directory.join("cache"))
            .iter()
            .any(|name| name.starts_with('.'))
    );
    let switched = pull(&mut subscriber, Some(1));
    assert_eq!(switched.downloaded, 0);
    assert_eq!(shown(directory), chain.whole(1));
    // The previous version stays until the next one is built.
    assert_eq!(names(&directory.join("versions")).len(), 2);
    pull(&mut subscriber, Some(2));
    assert_eq!(names(&directory.join("versions")).len(), 2);
    assert_eq!(shown(directory), chain.whole(2));
}

/// Directory of the current version.
fn version_directory(directory: &Path) -> PathBuf {
    fs::canonicalize(directory.join("current"))
        .unwrap()
        .parent()
        .unwrap()
        .to_owned()
}

/// Damage to the directory of a version.
type Damage<'a> = (&'a str, &'a dyn Fn(&Path));

#[test]
fn a_version_that_is_damaged_is_made_anew() {
    let chain = long_chain();
    let damages: [Damage<'_>; 8] = [
        ("is gone", &|version| fs::remove_dir_all(version).unwrap()),
        ("has no record", &|version| {
            fs::remove_file(version.join("held.json")).unwrap();
        }),
        ("has another record", &|version| {
            fs::write(version.join("held.json"), "{}").unwrap();
        }),
        ("has no model", &|version| {
            fs::remove_dir_all(version.join("model")).unwrap();
        }),
        ("missing files", &|version| {
            fs::remove_file(version.join("model/model.safetensors")).unwrap();
        }),
        ("has a short file", &|version| {
            let path = version.join("model/model.safetensors");
            let bytes = fs::read(&path).unwrap();
            fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        }),
        ("has another bit", &|version| {
            let path = version.join("model/model.safetensors");
            let mut bytes = fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("is not where the link leads", &|version| {
            let current = version.join("../../current");
            fs::remove_file(&current).unwrap();
            #[cfg(unix)]
            std::os::unix::fs::symlink("versions/nothing/model", current).unwrap();
        }),
    ];
    for (what, act) in damages {
        for wanted in [3, 4] {
            let folder = tempfile::tempdir().unwrap();
            pull(&mut open(&chain, folder.path()), Some(3));
            act(&version_directory(folder.path()));
            let mut subscriber = open(&chain, folder.path());
            let notes = Notes::default();
            let prepared = subscriber.prepare(Some(wanted), &notes).unwrap().unwrap();
            assert_eq!(subscriber.held(), None);
            let switched = subscriber.apply(prepared).unwrap();
            assert_eq!(
                (switched.from, switched.routes[0].0),
                (None, None),
                "{what}"
            );
            assert_eq!(shown(folder.path()), chain.whole(wanted), "{what}");
            assert!(
                notes
                    .remarks()
                    .iter()
                    .any(|remark| remark.contains("recreat")),
                "{what}: {:?}",
                notes.remarks()
            );
            // A second attempt, and a new process, find the rebuilt version.
            assert!(subscriber.prepare(Some(wanted), &()).unwrap().is_none());
            drop(subscriber);
            assert!(
                open(&chain, folder.path())
                    .prepare(Some(wanted), &())
                    .unwrap()
                    .is_none()
            );
        }
    }
}

#[test]
fn a_directory_can_be_trusted() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), Some(3));
    let path = folder.path().join("current/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    // The damage is in a tensor that the link does not change.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let options = FollowerOptions::default().trust_directory(true);
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
    assert_eq!(pull(&mut subscriber, Some(4)).routes, [(Some(3), 4)]);
    assert_ne!(shown(folder.path()), chain.whole(4));
    drop(subscriber);
    // Without trust, the damage is found.
    pull(&mut open(&chain, folder.path()), Some(4));
    assert_eq!(shown(folder.path()), chain.whole(4));
}

#[test]
fn only_a_link_is_replaced() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let current = folder.path().join("current");
    fs::create_dir(&current).unwrap();
    let open = || {
        let options = FollowerOptions::default();
        Follower::in_directory(chain.store.clone(), folder.path(), options)
    };
    let error = open().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io);
    assert!(error.file().unwrap().ends_with("current"));
    assert!(error.advice().contains("remove it"), "{error}");
    fs::remove_dir(current).unwrap();
    drop(open().unwrap());
    fs::remove_dir(folder.path().join("versions")).unwrap();
    // A link in the place of a directory is not followed, either.
    let versions = folder.path().join("versions");
    std::os::unix::fs::symlink(chain.folder.path(), &versions).unwrap();
    let error = open().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io);
    assert!(error.advice().contains("remove the link"), "{error}");
}

#[test]
fn work_can_be_stopped_at_any_time() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    drop(subscriber);
    let mut stop_at = 0;
    let prepared = loop {
        stop_at += 1;
        let mut subscriber = open(&chain, folder.path());
        match subscriber.prepare(Some(2), &Notes::stopping_at(stop_at)) {
            Ok(prepared) => break (subscriber, prepared),
            Err(error) => assert_eq!(error.message(), "stopped by the test"),
        }
        assert_eq!(shown(folder.path()), chain.whole(0));
        assert_eq!(subscriber.held().unwrap().version, 0);
        assert_eq!(
            names(folder.path()),
            [
                "cache",
                "current",
                "deltachain.directory",
                "lock",
                "versions"
            ]
        );
        assert!(
            !names(&folder.path().join("cache"))
                .iter()
                .any(|name| name.starts_with('.'))
        );
    };
    assert!(stop_at > 6, "{stop_at}");
    let (mut subscriber, prepared) = prepared;
    subscriber.apply(prepared.unwrap()).unwrap();
    assert_eq!(shown(folder.path()), chain.whole(2));
}

#[test]
fn only_the_last_version_prepared_can_be_applied() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    let early = subscriber.prepare(Some(1), &()).unwrap().unwrap();
    let late = subscriber.prepare(Some(2), &()).unwrap().unwrap();
    assert_eq!(subscriber.apply(early).unwrap_err().class(), ErrorClass::Io);
    assert_eq!(shown(folder.path()), chain.whole(0));
    subscriber.apply(late).unwrap();
    assert_eq!(shown(folder.path()), chain.whole(2));
}

#[test]
fn what_lies_below_is_listed_when_it_is_needed() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let options = FollowerOptions::default().cache_bytes(Some(0));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
    pull(&mut subscriber, Some(2));
    // No link leads on from 2, but one from 1, which has a snapshot that only its routes document
    // names.
    chain.set_routes(1, 1, vec![chain.make_route(1, None)]);
    chain.set_routes(3, 1, vec![chain.make_route(3, Some(1))]);
    fs::remove_file(chain.path(chain.files(0, None)[0].name())).unwrap();
    let switched = pull(&mut subscriber, Some(3));
    assert_eq!(switched.routes, [(None, 1), (Some(1), 3)]);
    assert_eq!(shown(folder.path()), chain.whole(3));
}

#[test]
fn a_pruned_version_is_told_from_a_missing_one() {
    let chain = long_chain();
    chain.set_routes(1, 1, Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    assert_eq!(
        subscriber.prepare(Some(1), &()).unwrap_err().rule(),
        Some("R-CHN-08")
    );
    assert_eq!(
        subscriber.prepare(Some(5), &()).unwrap_err().rule(),
        Some("R-CHN-03")
    );
    assert_eq!(
        names(folder.path()),
        ["cache", "deltachain.directory", "lock", "versions"]
    );
}

#[test]
fn routes_documents_of_versions_below_the_one_held_count() {
    let noise = noise();
    // The first bytes are incompressible, so a link costs as many.
    let version = |bytes: usize, number: u8| state(&[("a", &noise[..bytes]), ("b", &[number])]);
    let mut chain = Chain::new();
    chain.add(version(300, 0), &[None]);
    chain.add(version(300, 1), &[None, Some(0)]);
    chain.add(version(300, 2), &[Some(1)]);
    chain.add(version(300, 3), &[Some(1), Some(2)]);
    // Version 1 was pruned later, and the link from the held version is lost.
    chain.set_routes(1, 3, Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    let withdrawn = chain.path(ObjectName::Routes {
        version: 1,
        generation: 3,
    });
    let bytes = fs::read(&withdrawn).unwrap();
    fs::remove_file(&withdrawn).unwrap();
    pull(&mut subscriber, Some(2));
    fs::write(&withdrawn, bytes).unwrap();
    fs::remove_file(chain.path(chain.files(3, Some(2))[0].name())).unwrap();
    assert_eq!(
        subscriber.prepare(None, &()).unwrap_err().rule(),
        Some("R-CHN-09")
    );
    assert_eq!(shown(folder.path()), chain.whole(2));
    let fresh = tempfile::tempdir().unwrap();
    assert_eq!(
        open(&chain, fresh.path())
            .prepare(None, &())
            .unwrap_err()
            .rule(),
        Some("R-CHN-08")
    );

    // With the former routes of 0, a path over 0 looks cheaper than the path from the held version.
    let mut chain = Chain::new();
    chain.add(version(0, 0), &[None]);
    for (number, from) in [(1, Some(0)), (2, Some(1)), (3, Some(2))] {
        chain.add(version(0, number), &[from]);
    }
    chain.add(version(500, 4), &[Some(3)]);
    chain.add(version(0, 5), &[Some(0), Some(4)]);
    let dear = chain.make_link(&MemoryState::new(), &version(2000, 0));
    chain.set_routes(
        0,
        1,
        vec![Route {
            from: None,
            files: vec![dear],
        }],
    );
    let cost = |version, from| chain.files(version, from)[0].size;
    assert!(cost(0, None) + cost(5, Some(0)) < cost(4, Some(3)) + cost(5, Some(4)));
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    let document = chain.path(ObjectName::Routes {
        version: 0,
        generation: 1,
    });
    let bytes = fs::read(&document).unwrap();
    fs::remove_file(&document).unwrap();
    pull(&mut subscriber, Some(3));
    fs::write(&document, bytes).unwrap();
    assert_eq!(
        pull(&mut subscriber, None).routes,
        [(Some(3), 4), (Some(4), 5)]
    );
}

#[test]
fn a_small_file_cannot_ask_for_a_large_state() {
    let mut chain = Chain::new();
    let mut large = MemoryState::new();
    large
        .insert("zeros", Dtype::U8, &[1 << 20], vec![0; 1 << 20])
        .unwrap();
    chain.add(large, &[None]);
    let folder = tempfile::tempdir().unwrap();
    let options = FollowerOptions::default().limits(Limits::default().set_bytes(1 << 19));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
    assert_eq!(
        subscriber.prepare(None, &()).unwrap_err().class(),
        ErrorClass::Limit
    );
    drop(subscriber);
    pull(&mut open(&chain, folder.path()), None);
}

fn quick(until: Option<u64>) -> FollowOptions {
    FollowOptions::default()
        .poll(Duration::ZERO)
        .poll_longest(Duration::from_millis(1))
        .until(until)
}

#[test]
fn a_chain_is_followed_as_it_grows() {
    let mut chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    let mut seen = Vec::new();
    follow(&mut subscriber, &quick(Some(6)), &(), &mut |_, switched| {
        seen.push((switched.from, switched.version));
        let lag = switched.lag.unwrap();
        assert_eq!(lag.versions, 0);
        assert!(lag.seconds.unwrap() >= 0.0);
        assert_eq!(shown(folder.path()), chain.whole(switched.version));
        let next = state(&[("b", &[u8::try_from(switched.version).unwrap()])]);
        chain.add(next, &[Some(switched.version)]);
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, [(Some(0), 4), (Some(4), 5), (Some(5), 6)]);
    // The directory holds a later version already, and the newest is version 7.
    let mut versions = Vec::new();
    let mut note = |_: &Follower<Directory>, switched: &SwitchReport| {
        versions.push(switched.version);
        Ok(())
    };
    follow(&mut subscriber, &quick(Some(2)), &(), &mut note).unwrap();
    follow(&mut subscriber, &quick(Some(2)), &(), &mut note).unwrap();
    assert_eq!(versions, [7]);
}

#[test]
fn a_directory_that_is_removed_is_made_anew_at_the_next_look() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("model");
    let mut subscriber = open(&chain, &directory);
    let mut switches = 0;
    let mut looks = 0;
    subscriber
        .follow(&quick(None), &(), &mut |_, event| {
            match event {
                FollowEvent::Switched(_) => {
                    switches += 1;
                    if switches == 1 {
                        fs::remove_dir_all(&directory).unwrap();
                    }
                }
                FollowEvent::Newest => looks += 1,
                _ => {}
            }
            assert!(looks < 2, "the missing directory was not noticed");
            Ok(if switches == 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })
        .unwrap();
    assert_eq!(shown(&directory), chain.whole(4));
}

/// Repairs the chain when a failure is reported, and stops the work after enough reports.
struct Mending<'a> {
    mend: &'a (dyn Fn() + Sync),
    notes: Notes,
}

impl Observer for Mending<'_> {
    fn begin(&self, _phase: deltachain_store::Phase, _bytes: u64) {}

    fn advance(&self, phase: deltachain_store::Phase, bytes: u64) -> deltachain::Result<()> {
        self.notes.advance(phase, bytes)
    }

    fn end(&self, _phase: deltachain_store::Phase) {}

    fn remark(&self, text: &str) {
        self.notes.remark(text);
        (self.mend)();
    }
}

#[test]
fn what_fails_is_tried_again() {
    let mut chain = Chain::new();
    chain.add(state(&[("a", &[1])]), &[None]);
    chain.add(state(&[("a", &[2])]), &[Some(0)]);
    let path = chain.path(chain.files(1, Some(0))[0].name());
    let bytes = fs::read(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    fs::remove_file(&path).unwrap();
    let mend = || fs::write(&path, &bytes).unwrap();
    let observer = Mending {
        mend: &mend,
        notes: Notes::default(),
    };
    follow(&mut subscriber, &quick(Some(1)), &observer, &mut |_, _| {
        Ok(())
    })
    .unwrap();
    assert_eq!(shown(folder.path()), chain.whole(1));
    assert!(
        observer.notes.remarks()[0].contains("R-CHN-09"),
        "{:?}",
        observer.notes.remarks()
    );
}

#[test]
fn what_lies_in_the_cache_ends_no_follower() {
    let mut chain = Chain::new();
    chain.add(state(&[("a", &[1])]), &[None]);
    chain.add(state(&[("a", &[2])]), &[Some(0)]);
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    assert_eq!(subscriber.newest(), Some(0));
    let link = chain.files(1, Some(0))[0].digest;
    let place = folder.path().join(format!("cache/{link}.dcf"));
    fs::create_dir(&place).unwrap();
    let failures = AtomicUsize::new(0);
    subscriber
        .follow(&quick(Some(1)), &(), &mut |follower, event| {
            if let FollowEvent::Failed(error) = event {
                failures.fetch_add(1, Ordering::Relaxed);
                assert_eq!(
                    (error.class(), error.advice()),
                    (ErrorClass::Io, "remove it")
                );
                // A version that cannot be built still counts as the newest.
                assert_eq!(follower.newest(), Some(1));
                for (listed, head) in [(0, 1), (7, 7)] {
                    let mut status = FollowStatus::default();
                    status.found(0, "state", listed);
                    status.observe(follower);
                    assert_eq!(status.head, Some(head));
                }
                fs::remove_dir(&place).unwrap();
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    assert_eq!(failures.into_inner(), 1);
    assert_eq!(shown(folder.path()), chain.whole(1));
}

#[test]
fn following_ends_when_it_is_to() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    // The observer ends it: while building, and while waiting.
    for stop_at in [3, 500] {
        let error = follow(
            &mut subscriber,
            &quick(None),
            &Notes::stopping_at(stop_at),
            &mut |_, _| Ok(()),
        )
        .unwrap_err();
        assert_eq!(error.message(), "stopped by the test");
    }
    assert_eq!(shown(folder.path()), chain.whole(4));
    // The callback for switches ends it.
    fs::remove_file(folder.path().join("current")).unwrap();
    drop(subscriber);
    let mut subscriber = open(&chain, folder.path());
    let mut refuse =
        |_: &Follower<Directory>, _: &SwitchReport| Err(deltachain::Error::usage("enough"));
    let error = follow(&mut subscriber, &quick(None), &(), &mut refuse).unwrap_err();
    assert_eq!(error.message(), "enough");
    assert_eq!(shown(folder.path()), chain.whole(4));
    drop(subscriber);
    // A failure that no retry can repair ends it.
    let options = FollowerOptions::default().shards(Some(vec![1]));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
    let error = follow(&mut subscriber, &quick(None), &(), &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.rule(), Some("R-CHN-17"));
}
