//! Hostile names in documents and layouts: none of them leads out of the chain or out of the
//! directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use deltachain::chain::{ChainDocument, Commit, FileReference, ObjectName, Route, RoutesDocument};
use deltachain::files::LAYOUT_KEY;
use deltachain::tensor::{Digest, Dtype, MemoryState, StateDigests};
use deltachain::{DiffOptions, ErrorClass, Limits, Result, diff};
use deltachain_store::{Follower, FollowerOptions, Observer, Phase, RawObjects, Snapshots, Store};

use crate::maintenance::{Chain, commit_of};
use crate::support::faulty::Operation;
use crate::support::quick;
use crate::support::verify::shown;

/// Text of a commit of one version, and the digest of its file as text.
fn commit() -> (String, String) {
    let digest = Digest::of_bytes(b"link");
    let commit = Commit {
        version: 0,
        parent: Digest::of_bytes(&ChainDocument::new(1).to_bytes().unwrap()),
        state: Digest::of_empty_state(),
        shards: vec![Digest::of_empty_state()],
        routes: vec![Route {
            from: None,
            files: vec![FileReference { digest, size: 4 }],
        }],
        assets: Vec::new(),
        metadata: [("step".to_owned(), "1".to_owned())].into(),
    };
    (
        String::from_utf8(commit.to_bytes().unwrap()).unwrap(),
        digest.to_string(),
    )
}

/// Texts in place of a digest.
fn names(digest: &str) -> Vec<String> {
    let padded = |text: &str| format!("{text}{}", &digest[text.len()..]);
    let mut names = vec![
        String::new(),
        "../x".to_owned(),
        "/etc/passwd".to_owned(),
        r"C:\\x".to_owned(),
        r"..\\..\\x".to_owned(),
        "http://127.0.0.1/x".to_owned(),
        "file:///etc/passwd".to_owned(),
        // Texts as long as a digest.
        padded("../../"),
        padded("/etc/"),
        padded("http://"),
        padded("%2e%2e%2f"),
        padded(" "),
        padded("G"),
        padded("é"),
        padded(r"\u0061"),
        digest.to_uppercase(),
        format!("{digest}0"),
        format!("{digest}.dcf"),
        format!("../{digest}"),
        digest[1..].to_owned(),
        digest.repeat(1000),
    ];
    // A single capital letter is enough.
    let place = digest
        .find(|digit: char| digit.is_ascii_lowercase())
        .unwrap();
    names.push(format!(
        "{}{}{}",
        &digest[..place],
        digest[place..=place].to_uppercase(),
        &digest[place + 1..]
    ));
    names
}

#[test]
fn no_reference_is_anything_but_a_digest() {
    let (text, digest) = commit();
    assert!(Commit::parse(text.as_bytes(), &Limits::default()).is_ok());
    let routes = RoutesDocument {
        version: 0,
        generation: 1,
        commit: Digest::of_bytes(text.as_bytes()),
        routes: Commit::parse(text.as_bytes(), &Limits::default())
            .unwrap()
            .routes,
        metadata: BTreeMap::new(),
    };
    let routes = String::from_utf8(routes.to_bytes().unwrap()).unwrap();
    for name in names(&digest) {
        let error =
            Commit::parse(text.replace(&digest, &name).as_bytes(), &Limits::default()).unwrap_err();
        assert_eq!(
            (error.class(), error.rule()),
            (ErrorClass::Malformed, Some("R-DOC-03")),
            "{name}"
        );
        let error = RoutesDocument::parse(
            routes.replace(&digest, &name).as_bytes(),
            &Limits::default(),
        )
        .unwrap_err();
        assert_eq!(
            (error.class(), error.rule()),
            (ErrorClass::Malformed, Some("R-DOC-03")),
            "{name}"
        );
    }
}

#[test]
fn a_reference_says_nothing_more() {
    let (text, digest) = commit();
    let file = format!("\"digest\":\"{digest}\",\"size\":4");
    let others = [
        format!("{file},\"path\":\"../x\""),
        format!("{file},\"url\":\"http://127.0.0.1/x\""),
        format!("\"name\":\"../x\",{file}"),
        format!("\"digest\":\"{digest}\",\"digest\":\"{digest}\",\"size\":4"),
        format!("\"digest\":\"{digest}\",\"size\":0"),
        format!("\"digest\":\"{digest}\",\"size\":-4"),
        format!("\"digest\":\"{digest}\",\"size\":9007199254740992"),
        format!("\"digest\":\"{digest}\",\"size\":\"4\""),
        "\"digest\":null,\"size\":4".to_owned(),
    ];
    for other in others {
        assert!(text.contains(&file));
        let error =
            Commit::parse(text.replace(&file, &other).as_bytes(), &Limits::default()).unwrap_err();
        assert_eq!(
            (error.class(), error.rule()),
            (ErrorClass::Malformed, Some("R-DOC-03")),
            "{other}"
        );
    }
}

/// A state of two tensors, different in each version.
fn state(version: u8) -> MemoryState {
    let mut state = MemoryState::new();
    state
        .insert("a", Dtype::U8, &[4], vec![version; 4])
        .unwrap();
    state.insert("b", Dtype::U8, &[2], vec![7; 2]).unwrap();
    state
}

/// Commits a version whose link has this layout, from the version before or from nothing.
fn commit_with_layout(store: &Store, version: u8, layout: Option<&str>) {
    let (base, parent) = match version.checked_sub(1) {
        None => (MemoryState::new(), ObjectName::Chain),
        Some(before) => (state(before), ObjectName::Commit(before.into())),
    };
    let metadata = layout
        .map(|layout| (LAYOUT_KEY.to_owned(), layout.to_owned()))
        .into_iter()
        .collect();
    let options = DiffOptions::default().metadata(metadata);
    let mut link = Vec::new();
    diff(&base, &state(version), &options, &mut link).unwrap();
    let reference = FileReference {
        digest: Digest::of_bytes(&link),
        size: link.len() as u64,
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &link).unwrap();
    store
        .upload(file.path(), reference.name(), reference.size, &())
        .unwrap();
    let digest = StateDigests::of(&state(version), &()).unwrap().state;
    let commit = Commit {
        version: version.into(),
        parent: Digest::of_bytes(&store.get(parent).unwrap().unwrap()),
        state: digest,
        shards: vec![digest],
        routes: vec![Route {
            from: version.checked_sub(1).map(u64::from),
            files: vec![reference],
        }],
        assets: Vec::new(),
        metadata: BTreeMap::new(),
    };
    assert!(
        store
            .put_if_absent(
                ObjectName::Commit(version.into()),
                &commit.to_bytes().unwrap()
            )
            .unwrap()
    );
}

/// Creates a chain whose last version has this layout.
fn chain(versions: u8, layout: &str) -> Store {
    let store = Store::from_objects(
        std::sync::Arc::new(object_store::memory::InMemory::new()),
        "",
        quick(),
    )
    .unwrap();
    store
        .put_if_absent(
            ObjectName::Chain,
            &ChainDocument::new(1).to_bytes().unwrap(),
        )
        .unwrap();
    for version in 0..versions {
        commit_with_layout(&store, version, (version + 1 == versions).then_some(layout));
    }
    store
}

/// Paths below a directory, with the content of files. Downloads of a follower and its lock are
/// left out.
fn everything_in(directory: &Path) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap().map(|entry| entry.unwrap()) {
            let name = entry
                .path()
                .strip_prefix(directory)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            let kind = entry.file_type().unwrap();
            let content = if kind.is_symlink() {
                Some(
                    fs::read_link(entry.path())
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .into(),
                )
            } else {
                kind.is_file().then(|| fs::read(entry.path()).unwrap())
            };
            if kind.is_dir() {
                left.push(entry.path());
            }
            if !name.contains("/cache") && !name.ends_with("/lock") {
                found.insert(name, content);
            }
        }
    }
    found
}

/// The layout of a directory with one file.
fn one_file(name: &str) -> String {
    let name = serde_json::to_string(name).unwrap();
    format!(r#"{{"files":[{{"name":{name},"metadata":null,"tensors":null}}]}}"#)
}

#[test]
fn no_file_of_a_layout_leads_out_of_the_directory() {
    let long = format!("{}.safetensors", "x".repeat(244));
    let names = [
        "../evil.safetensors",
        "..",
        "../../evil.safetensors",
        "/tmp/evil.safetensors",
        "below/evil.safetensors",
        r"..\evil.safetensors",
        r"C:\evil.safetensors",
        "C:evil.safetensors",
        "evil.safetensors:stream",
        ".evil.safetensors",
        "",
        ".safetensors",
        "evil",
        "held.json",
        "evil.safetensors/",
        "http://127.0.0.1/evil.safetensors",
        "CON.safetensors",
        "lpt1.safetensors",
        "evil\u{0}.safetensors",
        "evil\n.safetensors",
        &long,
    ];
    let mut layouts: Vec<String> = names.iter().map(|name| one_file(name)).collect();
    let twins = |first: &str, second: &str| {
        format!(
            r#"{{"files":[{{"name":"{first}","metadata":null,"tensors":["a"]}},{{"name":"{second}","metadata":null,"tensors":["b"]}}]}}"#
        )
    };
    layouts.push(twins("Model.safetensors", "model.safetensors"));
    layouts.push(twins("model.safetensors", "model.safetensors"));
    layouts.push(twins("../evil.safetensors", "fine.safetensors"));
    layouts.push(r#"{"files":[]}"#.to_owned());
    layouts.push(
        r#"{"files":[{"name":"x.safetensors","metadata":null,"tensors":null,"path":"/tmp"}]}"#
            .to_owned(),
    );
    layouts.push("../evil".to_owned());
    for layout in layouts {
        for versions in [1, 2] {
            let store = chain(versions, &layout);
            let place = tempfile::tempdir().unwrap();
            let directory = place.path().join("outer/model");
            let mut follower =
                Follower::in_directory(store, &directory, FollowerOptions::default()).unwrap();
            if versions == 2 {
                let prepared = follower.prepare(Some(0), &()).unwrap().unwrap();
                follower.apply(prepared).unwrap();
            }
            let before = everything_in(place.path());
            let error = follower.prepare(None, &()).unwrap_err();
            assert_eq!(
                (error.class(), error.rule()),
                (ErrorClass::Malformed, Some("R-LAY-01")),
                "{layout}: {error:?}"
            );
            assert!(
                error.file().is_some_and(|file| file.contains("files/")),
                "{layout}: {error:?}"
            );
            drop(follower);
            assert_eq!(everything_in(place.path()), before, "{layout}");
            assert_eq!(shown(&directory), (versions == 2).then(|| state(0)));
        }
    }
    // The longest allowed name, and other scripts.
    for name in [&long[1..], "模型 é.safetensors"] {
        let place = tempfile::tempdir().unwrap();
        let store = chain(2, &one_file(name));
        let mut follower =
            Follower::in_directory(store, place.path(), FollowerOptions::default()).unwrap();
        let prepared = follower.prepare(None, &()).unwrap().unwrap();
        let switched = follower.apply(prepared).unwrap();
        assert!(switched.directory.join(name).is_file());
        assert_eq!(shown(place.path()), Some(state(1)));
    }
}

/// Records remarks.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Observer for Told {
    fn begin(&self, _phase: Phase, _bytes: u64) {}

    fn advance(&self, _phase: Phase, _bytes: u64) -> Result<()> {
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[test]
fn a_commit_of_many_routes_that_lead_nowhere_costs_little() {
    let chain = Chain::new(1, Snapshots::Never, &[]);
    let mut commit = commit_of(&chain.store, 0);
    let good = commit.routes.remove(0);
    let route = |number: u64| {
        let files = vec![FileReference {
            digest: Digest::of_bytes(&number.to_le_bytes()),
            size: 1,
        }];
        Route { from: None, files }
    };
    let mut nowhere: Vec<Route> = (0..500).map(route).collect();
    nowhere.sort_by_key(|route| route.files[0].digest);
    for (count, works) in [(20, true), (500, false)] {
        commit.routes = nowhere[..count]
            .iter()
            .cloned()
            .chain([good.clone()])
            .collect();
        chain.store.delete(&[ObjectName::Commit(0)]).unwrap();
        assert!(
            chain
                .store
                .put_if_absent(ObjectName::Commit(0), &commit.to_bytes().unwrap())
                .unwrap()
        );
        let told = Told::default();
        let mut follower =
            Follower::in_memory(chain.store.clone(), FollowerOptions::default()).unwrap();
        let prepared = follower.prepare(None, &told);
        assert_eq!(prepared.is_ok(), works);
        assert!(prepared.is_ok() || prepared.err().unwrap().breaks(&["R-CHN-09"]));
        assert!(
            told.0.lock().unwrap().len() <= 22,
            "{}",
            told.0.lock().unwrap().len()
        );
        let is_tried = |route: &Route| {
            chain
                .control
                .calls(Operation::Get, &route.files[0].name().to_string())
                > 0
        };
        assert!(nowhere.iter().filter(|route| is_tried(route)).count() <= 64);
    }
}
