//! Followers that select some tensors.

use std::fs;
use std::path::Path;

use deltachain::chain::{FileReference, Route};
use deltachain::format::{HEADER_BYTES, Header, Index, Start, TensorEntry};
use deltachain::tensor::{Digest, Dtype, MemoryState, StateDigests, TensorInfo};
use deltachain::{ErrorClass, Limits, LinkReader};
use deltachain_store::{Directory, Follower, FollowerOptions};

use super::{files, long_chain, names, noise, pull, shown};
use crate::common::{Chain, Notes, state, union};

fn options(patterns: &[&str]) -> FollowerOptions {
    FollowerOptions::default().tensors(Some(
        patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
    ))
}

fn open(chain: &Chain, directory: &Path, patterns: &[&str]) -> Follower<Directory> {
    Follower::in_directory(chain.store.clone(), directory, options(patterns)).unwrap()
}

/// Tensors of a version with these names.
fn part(chain: &Chain, version: u64, taken: &[&str]) -> MemoryState {
    let mut part = chain.whole(version);
    let names: Vec<String> = part
        .iter()
        .map(|(info, _)| info.name().to_owned())
        .collect();
    names
        .iter()
        .filter(|name| !taken.contains(&name.as_str()))
        .for_each(|name| assert!(part.remove(name)));
    part
}

#[test]
fn only_what_is_taken_is_there() {
    let chain = long_chain();
    for taken in [&["a"][..], &["b", "d"], &["a", "b", "c", "d"]] {
        for first in 0..5 {
            for second in first + 1..5 {
                let folder = tempfile::tempdir().unwrap();
                let mut subscriber = open(&chain, folder.path(), taken);
                for version in [first, second] {
                    let switched = pull(&mut subscriber, Some(version));
                    assert_eq!(shown(folder.path()), part(&chain, version, taken));
                    assert_eq!(
                        (switched.version, switched.state),
                        (version, chain.commit(version).state)
                    );
                }
                // The directory is still valid when it is opened again.
                let mut subscriber = {
                    drop(subscriber);
                    open(&chain, folder.path(), taken)
                };
                let notes = Notes::default();
                assert!(subscriber.prepare(Some(second), &notes).unwrap().is_none());
                assert_eq!(notes.remarks(), [""; 0]);
            }
        }
    }
}

#[test]
fn only_what_is_taken_is_fetched() {
    let chain = long_chain();
    let snapshot = chain.files(0, None)[0].size;
    let fetched = |patterns: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let switched = pull(&mut open(&chain, folder.path(), patterns), Some(0));
        (switched.downloaded, switched.from_cache)
    };
    // All tensors of version 0 are bytes, and share a segment.
    assert_eq!(fetched(&["c"]), (snapshot, 0));

    let mut chain = Chain::new();
    let mut two = state(&[("a", &noise())]);
    two.insert("b", Dtype::I8, &[100], noise()[..100].to_vec())
        .unwrap();
    chain.add(two.clone(), &[None]);
    two.insert("b", Dtype::I8, &[100], noise()[100..200].to_vec())
        .unwrap();
    chain.add(two, &[Some(0)]);
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path(), &["b"]);
    let switched = pull(&mut subscriber, Some(0));
    let snapshot = chain.files(0, None)[0].size;
    assert!(
        (100..snapshot / 2).contains(&switched.downloaded),
        "{} of {snapshot}",
        switched.downloaded
    );
    assert_eq!(shown(folder.path()), part(&chain, 0, &["b"]));
    drop(subscriber);
    assert_eq!(
        fs::read_dir(folder.path().join("cache")).unwrap().count(),
        0,
        "incomplete files are not cached"
    );

    // With parts as long as the file, one request downloads all of it.
    let large_parts = deltachain_store::StoreOptions::default().part_bytes(snapshot);
    let store =
        deltachain_store::Store::open(chain.folder.path().to_str().unwrap(), large_parts).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = Follower::in_directory(store, folder.path(), options(&["b"])).unwrap();
    assert_eq!(pull(&mut subscriber, Some(0)).downloaded, snapshot);
    drop(subscriber);
    // The cached file serves another selection, too.
    let mut subscriber = open(&chain, folder.path(), &["a"]);
    let switched = pull(&mut subscriber, Some(0));
    assert_eq!((switched.downloaded, switched.from_cache), (0, snapshot));
    assert_eq!(shown(folder.path()), part(&chain, 0, &["a"]));
}

#[test]
fn without_tensors_only_indexes_are_fetched() {
    let mut chain = Chain::new();
    chain.add(state(&[("a", &noise())]), &[None]);
    let mut next = noise();
    next[..1000].reverse();
    chain.add(state(&[("a", &next)]), &[None, Some(0)]);
    let first = chain.files(0, None)[0].size;
    let second = chain.files(1, Some(0))[0].size;
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path(), &[]);
    for (version, size) in [(0, first), (1, second)] {
        let switched = pull(&mut subscriber, Some(version));
        assert!(
            switched.downloaded < size / 2,
            "{} of {size}",
            switched.downloaded
        );
        assert_eq!(
            fs::read_dir(folder.path().join("current")).unwrap().count(),
            0
        );
    }
    // The held version is known, also to a new process.
    drop(subscriber);
    let subscriber = open(&chain, folder.path(), &[]);
    assert_eq!(subscriber.held().unwrap().version, 1);
    drop(subscriber);
    // Memory without tensors could not follow anything.
    let error = Follower::in_memory(chain.store.clone(), options(&[])).unwrap_err();
    assert_eq!(
        (error.class(), error.message()),
        (
            ErrorClass::Usage,
            "no tensor is selected: give at least one pattern"
        )
    );
}

#[test]
fn a_version_without_any_of_them_is_refused() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path(), &["c*"]);
    pull(&mut subscriber, Some(1));
    let error = subscriber.prepare(Some(2), &()).unwrap_err();
    assert_eq!(
        (error.class(), error.message()),
        (
            ErrorClass::Usage,
            "version 2 has none of the selected tensors: check the patterns"
        )
    );
    assert_eq!(shown(folder.path()), part(&chain, 1, &["c"]));
    // A later version has a selected tensor again.
    pull(&mut subscriber, Some(3));
    assert_eq!(shown(folder.path()), part(&chain, 3, &["c"]));
}

#[test]
fn another_selection_is_made_anew() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path(), &["a"]), Some(4));
    for (patterns, taken) in [
        (Some(&["{a,b}"][..]), &["a", "b"][..]),
        (Some(&["d"]), &["d"]),
        (None, &["a", "b", "c", "d"]),
    ] {
        let notes = Notes::default();
        let options = patterns.map_or_else(FollowerOptions::default, options);
        let mut subscriber =
            Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
        let prepared = subscriber.prepare(None, &notes).unwrap().unwrap();
        assert!(
            notes.remarks()[0].contains("other shards or tensors"),
            "{:?}",
            notes.remarks()
        );
        subscriber.apply(prepared).unwrap();
        assert_eq!(shown(folder.path()), part(&chain, 4, taken));
    }
}

#[test]
fn files_keep_their_names() {
    const LAYOUT: &str = r#"{"files":[{"name":"x-1.safetensors","metadata":{"format":"pt"},"tensors":["b","c"]},{"name":"x-2.safetensors","metadata":null,"tensors":["a"]},{"name":"x-3.safetensors","metadata":null,"tensors":[]}]}"#;
    let mut chain = Chain::new();
    let old = state(&[("a", &[1, 2]), ("b", &[3]), ("c", &[])]);
    chain.layout = Some(LAYOUT);
    chain.add(old, &[None]);
    chain.layout = None;
    chain.add(
        state(&[("a", &[1, 2]), ("b", &[4]), ("d", &[5])]),
        &[Some(0)],
    );

    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path(), &["b", "d"]);
    let first = pull(&mut subscriber, Some(0)).directory;
    assert_eq!(names(&first), ["x-1.safetensors"]);
    let second = pull(&mut subscriber, Some(1)).directory;
    // A new tensor goes to the last file, which held no selected tensor before.
    assert_eq!(
        names(&second),
        [
            "model.safetensors.index.json",
            "x-1.safetensors",
            "x-3.safetensors"
        ]
    );
    let index = String::from_utf8(
        files(&second)
            .remove("model.safetensors.index.json")
            .unwrap(),
    )
    .unwrap();
    assert!(
        index.contains("\"d\"") && !index.contains("\"a\""),
        "{index}"
    );
    assert_eq!(shown(folder.path()), part(&chain, 1, &["b", "d"]));
}

#[test]
fn tensors_are_taken_from_some_shards() {
    let mut chain = Chain::new();
    let shards = |value: u8| {
        vec![
            state(&[("a", &[value]), ("b", &[1])]),
            state(&[("c", &[value]), ("d", &[2, value])]),
        ]
    };
    chain.add_shards(shards(1), &[None]);
    chain.add_shards(shards(2), &[Some(0)]);
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path(), &["b", "d"]);
    for version in [0, 1] {
        pull(&mut subscriber, Some(version));
        assert_eq!(shown(folder.path()), part(&chain, version, &["b", "d"]));
    }
    drop(subscriber);
    let options = options(&["b", "d"]).shards(Some(vec![1]));
    let mut subscriber =
        Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap();
    pull(&mut subscriber, Some(0));
    assert_eq!(pull(&mut subscriber, Some(1)).routes, [(Some(0), 1)]);
    assert_eq!(shown(folder.path()), part(&chain, 1, &["d"]));
}

/// Offset of the index in a link.
const INDEX: usize = 128;

/// Prepares the only version of a chain after a change of its link. Returns the rule and the file
/// of the error.
fn refusal(
    change: impl Fn(&mut Vec<u8>),
    taken: &str,
) -> Result<(), (Option<&'static str>, Option<String>)> {
    let mut chain = Chain::new();
    let mut two = state(&[("a", &noise())]);
    two.insert("b", Dtype::I8, &[100], noise()[..100].to_vec())
        .unwrap();
    chain.add(two, &[None]);
    let file: FileReference = chain.files(0, None)[0];
    let path = chain.path(file.name());
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let prepared = open(&chain, folder.path(), &[taken]).prepare(None, &());
    assert!(!folder.path().join("current").exists());
    prepared
        .map(drop)
        .map_err(|error| (error.rule(), error.file().map(str::to_owned)))
}

#[test]
fn damage_is_noticed_where_it_matters() {
    // The segment of `b` is the last one.
    let end = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(refusal(end, "a"), Ok(()));
    let (rule, file) = refusal(end, "b").unwrap_err();
    assert_eq!(rule, Some("R-SEG-01"));
    assert!(file.unwrap().starts_with("files/"));
    for taken in ["a", "b"] {
        assert_eq!(
            refusal(|bytes| bytes[INDEX + 2] ^= 1, taken).unwrap_err().0,
            Some("R-IDX-01")
        );
        assert_eq!(
            refusal(|bytes| bytes.push(0), taken).unwrap_err().0,
            Some("R-CHN-10")
        );
        assert_eq!(
            refusal(|bytes| bytes.truncate(100), taken).unwrap_err().0,
            Some("R-CHN-10")
        );
        assert_eq!(refusal(Vec::clear, taken).unwrap_err().0, Some("R-CHN-10"));
    }
}

#[test]
fn a_missing_file_and_a_link_from_elsewhere_are_refused() {
    let mut chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path(), &["b"]);
    pull(&mut subscriber, Some(0));
    // Another path is used as long as there is one.
    let direct = chain.files(3, Some(0))[0];
    fs::remove_file(chain.path(direct.name())).unwrap();
    let notes = Notes::default();
    let prepared = subscriber.prepare(Some(3), &notes).unwrap().unwrap();
    assert!(
        notes
            .remarks()
            .iter()
            .any(|remark| remark.contains("R-CHN-09")),
        "{:?}",
        notes.remarks()
    );
    subscriber.apply(prepared).unwrap();
    assert_eq!(shown(folder.path()), part(&chain, 3, &["b"]));

    let other = chain.make_link(&chain.whole(1), &chain.whole(4));
    chain.versions.truncate(5);
    chain.set_routes(
        4,
        1,
        vec![deltachain::chain::Route {
            from: Some(3),
            files: vec![other],
        }],
    );
    assert_eq!(
        subscriber.prepare(Some(4), &()).unwrap_err().rule(),
        Some("R-APP-01")
    );
    assert_eq!(shown(folder.path()), part(&chain, 3, &["b"]));
}

#[test]
fn changes_in_the_directory_are_noticed() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let file = pull(&mut open(&chain, folder.path(), &["b"]), Some(0))
        .directory
        .join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let mut subscriber = open(&chain, folder.path(), &["b"]);
    let notes = Notes::default();
    let prepared = subscriber.prepare(Some(1), &notes).unwrap().unwrap();
    assert!(
        notes.remarks()[0].contains("\"b\" has changed"),
        "{:?}",
        notes.remarks()
    );
    assert_eq!(subscriber.apply(prepared).unwrap().from, None);
    assert_eq!(shown(folder.path()), part(&chain, 1, &["b"]));
}

#[test]
fn patterns_are_looked_at_first() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let refused = Follower::in_directory(chain.store.clone(), folder.path(), options(&["[a"]));
    assert_eq!(refused.unwrap_err().class(), ErrorClass::Usage);
}

/// A link that differs from `link` only in the index that `change` edits. Nothing else reveals the
/// change.
fn changed(link: &[u8], change: impl Fn(&mut Index)) -> Vec<u8> {
    let opened = LinkReader::open(link, &Limits::default()).unwrap();
    let segments = &link[usize::try_from(HEADER_BYTES + opened.header().index_stored).unwrap()..];
    let mut index = opened.index().clone();
    change(&mut index);
    let index = index.to_bytes();
    let header = Header {
        index_stored: index.len() as u64,
        index_raw: index.len() as u64,
        index_crc: crc32fast::hash(&index),
        ..opened.header().clone()
    };
    [&header.to_bytes(), index.as_slice(), segments].concat()
}

#[test]
fn what_is_not_taken_is_proven_as_far_as_the_index_says() {
    let shards = |a: u8, c: u8| vec![state(&[("a", &[a]), ("b", &[a])]), state(&[("c", &[c])])];
    let mut chain = Chain::new();
    chain.add_shards(shards(1, 1), &[None]);
    chain.add_shards(shards(2, 2), &[Some(0)]);
    let right = chain.files(1, Some(0));
    let link = fs::read(chain.path(right[0].name())).unwrap();
    let entry = |index: &mut Index, name: &str| {
        index
            .tensors
            .iter()
            .position(|entry| entry.name() == name)
            .unwrap()
    };
    let digest = changed(&link, |index| {
        let place = entry(index, "a");
        if let TensorEntry::Write(written) = &mut index.tensors[place] {
            written.digests = vec![Digest::of_bytes(b"another")];
        }
    });
    let longer = changed(&link, |index| {
        let place = entry(index, "a");
        if let TensorEntry::Write(written) = &mut index.tensors[place] {
            written.info = TensorInfo::new("a", Dtype::U8, [2]).unwrap();
            written.start = Start::Base;
        }
    });
    for (link, rule) in [(digest, "R-APP-05"), (longer, "R-APP-02")] {
        let file = chain.store_link(&link);
        let routes = [Route {
            from: Some(0),
            files: vec![file, right[1]],
        }];
        let generation = if rule == "R-APP-05" { 1 } else { 2 };
        chain.set_routes(1, generation, routes.to_vec());
        // No tensor of shard 0 is selected, and all tensors of shard 1 are: the tables are complete
        // anyway.
        let folder = tempfile::tempdir().unwrap();
        let mut subscriber = open(&chain, folder.path(), &["c"]);
        pull(&mut subscriber, Some(0));
        let error = subscriber.prepare(Some(1), &()).unwrap_err();
        assert_eq!(error.rule(), Some(rule), "{error}");
        assert_eq!(shown(folder.path()), part(&chain, 0, &["c"]));
    }
}

#[test]
fn all_shards_are_together_the_state_whatever_is_taken_of_them() {
    let a = state(&[("a", &[1])]);
    let b = state(&[("b", &[2])]);
    let digest = |state: &MemoryState| StateDigests::of(state, &()).unwrap().state;
    let mut chain = Chain::new();
    chain.add_as(digest(&a), vec![a.clone(), b.clone()], &[None]);
    chain.add_as(digest(&a), vec![a.clone(), union(&[a, b])], &[None]);
    for version in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let refused = open(&chain, folder.path(), &["b"]).prepare(Some(version), &());
        assert_eq!(refused.unwrap_err().rule(), Some("R-CHN-12"));
        // A follower of some shards cannot notice it.
        let options = options(&["b"]).shards(Some(vec![1]));
        pull(
            &mut Follower::in_directory(chain.store.clone(), folder.path(), options).unwrap(),
            Some(version),
        );
    }
}

#[test]
fn a_record_that_is_not_that_of_the_commit_is_of_no_use() {
    let chain = long_chain();
    // The tensor is not in the directory, so only the table reveals the change.
    for (old, new) in [
        ("\"name\":\"a\"", "\"name\":\"A\""),
        ("\"shape\":[3]", "\"shape\":[4]"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let model = pull(&mut open(&chain, folder.path(), &["b"]), Some(0)).directory;
        let path = model.parent().unwrap().join("held.json");
        let record = fs::read_to_string(&path).unwrap();
        assert!(record.contains(old), "{record}");
        // The edited record gets a matching digest.
        let (_, record) = record
            .strip_suffix('}')
            .unwrap()
            .split_once(",\"record\":")
            .unwrap();
        let record = record.replace(old, new);
        let digest = Digest::of_bytes(record.as_bytes());
        fs::write(
            &path,
            format!("{{\"digest\":\"{digest}\",\"record\":{record}}}"),
        )
        .unwrap();
        let mut subscriber = open(&chain, folder.path(), &["b"]);
        let notes = Notes::default();
        let prepared = subscriber.prepare(Some(1), &notes).unwrap().unwrap();
        assert!(
            notes.remarks()[0].contains("R-APP-01"),
            "{:?}",
            notes.remarks()
        );
        assert_eq!(
            subscriber.apply(prepared).unwrap().routes,
            [(None, 0), (Some(0), 1)]
        );
        assert_eq!(shown(folder.path()), part(&chain, 1, &["b"]));
    }
}
