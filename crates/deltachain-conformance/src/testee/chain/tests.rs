//! Replays chains in folders, made by the library and damaged in ways that only a replay notices.

use std::collections::BTreeMap;

use deltachain::chain::Route;
use deltachain::files::{LAYOUT_KEY, SafetensorsState};
use deltachain::tensor::{Dtype, MemoryState, StateDigests};
use deltachain::{DiffOptions, diff};
use tempfile::TempDir;

use super::*;

/// A folder with a chain of three versions of two shards, and with room for outputs.
struct Folder {
    folder: TempDir,
    /// The shards of each version.
    versions: Vec<[MemoryState; 2]>,
}

fn shard(name: &str, value: u8) -> MemoryState {
    let mut state = MemoryState::new();
    state
        .insert(name, Dtype::U8, &[4], vec![value, 1, 2, 3])
        .unwrap();
    state
}

fn digest(state: &MemoryState) -> Digest {
    StateDigests::of(state, &()).unwrap().state
}

fn union(shards: &[MemoryState]) -> Digest {
    let mut all = MemoryState::new();
    for (info, data) in shards.iter().flat_map(MemoryState::iter) {
        all.insert(info.name(), info.dtype(), info.shape(), data.to_vec())
            .unwrap();
    }
    digest(&all)
}

impl Folder {
    /// Makes the chain: a snapshot leads to version 0, and links lead to the others from the
    /// previous version and from 0.
    fn new() -> Self {
        let versions = (0..3)
            .map(|version| [shard("a", version), shard("b", 10 * version)])
            .collect();
        let mut folder = Self {
            folder: tempfile::tempdir().unwrap(),
            versions,
        };
        folder.put(
            ObjectName::Chain,
            &ChainDocument::new(1).to_bytes().unwrap(),
        );
        for version in 0..3 {
            folder.commit(version, |_| {});
        }
        folder
    }

    fn path(&self, name: ObjectName) -> PathBuf {
        self.folder.path().join("chain").join(name.to_string())
    }

    fn put(&self, name: ObjectName, bytes: &[u8]) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn get(&self, name: ObjectName) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn link(&self, from: Option<u64>, to: u64, shard: usize) -> FileReference {
        let state = |version: u64| &self.versions[usize::try_from(version).unwrap()][shard];
        let mut link = Vec::new();
        let base = from.map_or_else(MemoryState::new, |from| state(from).clone());
        diff(&base, state(to), &DiffOptions::default(), &mut link).unwrap();
        let file = FileReference {
            digest: Digest::of_bytes(&link),
            size: link.len() as u64,
        };
        self.put(file.name(), &link);
        file
    }

    fn commit(&mut self, version: u64, change: impl Fn(&mut Commit)) {
        let parent = version
            .checked_sub(1)
            .map_or(ObjectName::Chain, ObjectName::Commit);
        let shards = &self.versions[usize::try_from(version).unwrap()];
        let from: Vec<Option<u64>> = match version {
            0 => vec![None],
            1 => vec![Some(0)],
            _ => vec![Some(0), Some(version - 1)],
        };
        let route = |from| Route {
            from,
            files: vec![self.link(from, version, 0), self.link(from, version, 1)],
        };
        let mut commit = Commit {
            version,
            parent: Digest::of_bytes(&self.get(parent)),
            state: union(shards),
            shards: shards.iter().map(digest).collect(),
            routes: from.into_iter().map(route).collect(),
            assets: Vec::new(),
            metadata: BTreeMap::new(),
        };
        change(&mut commit);
        self.put(ObjectName::Commit(version), &commit.to_bytes().unwrap());
    }

    fn document(&self, version: u64) -> Commit {
        Commit::parse(&self.get(ObjectName::Commit(version)), &Limits::default()).unwrap()
    }

    fn request(&self, held: Option<u64>) -> Value {
        let held = held.map(|version| {
            let shards = &self.versions[usize::try_from(version).unwrap()];
            let paths: Vec<PathBuf> = (0..2)
                .map(|number| self.folder.path().join(format!("held-{version}-{number}")))
                .collect();
            for (state, path) in shards.iter().zip(&paths) {
                let mut snapshot = Vec::new();
                diff(
                    &MemoryState::new(),
                    state,
                    &DiffOptions::default(),
                    &mut snapshot,
                )
                .unwrap();
                let snapshot = LinkReader::open(snapshot, &Limits::default()).unwrap();
                let made = Shard::empty()
                    .follow(&[snapshot], None, &Take::default(), self.folder.path())
                    .unwrap();
                let _ = fs::remove_file(path);
                made.save(path).unwrap();
            }
            let digest = |name| Digest::of_bytes(&self.get(name)).to_string();
            let commit = digest(ObjectName::Commit(version));
            let chain = digest(ObjectName::Chain);
            json!({ "version": version, "commit": commit, "chain": chain, "shards": paths })
        });
        let chain = self.folder.path().join("chain");
        let output = self.folder.path().join("outputs/out");
        fs::create_dir_all(output.parent().unwrap()).unwrap();
        json!({ "chain": chain, "held": held, "version": null, "output": output })
    }

    /// Answers a request; returns the shards by number, and moves the rest of the output to the
    /// folder `rest`.
    fn ask(&self, request: &Value) -> Result<Vec<(usize, MemoryState)>> {
        let outcome = replay(&Request::new(request));
        let outputs = self.folder.path().join("outputs");
        // No temporary files are left, and there is no output if the answer is a refusal.
        assert_eq!(
            fs::read_dir(&outputs).unwrap().count(),
            usize::from(outcome.is_ok())
        );
        let version = usize::try_from(request["version"].as_u64().unwrap_or(2)).unwrap();
        assert_eq!(
            outcome?,
            json!({ "version": version, "digest": union(&self.versions[version]).to_string() })
        );
        let mut shards = Vec::new();
        for number in 0..2 {
            let path = file_of(&outputs.join("out"), number);
            if path.exists() {
                shards.push((
                    number,
                    MemoryState::copy_of(&SafetensorsState::open(&path).unwrap()).unwrap(),
                ));
                fs::remove_file(path).unwrap();
            }
        }
        let rest = self.folder.path().join("rest");
        let _ = fs::remove_dir_all(&rest);
        fs::rename(outputs.join("out"), rest).unwrap();
        Ok(shards)
    }

    /// Replays the head and compares every shard.
    fn replay(&self, held: Option<u64>) -> Result<()> {
        let shards = self.ask(&self.request(held))?;
        assert!(
            shards
                .into_iter()
                .eq(self.versions[2].iter().cloned().enumerate())
        );
        assert_eq!(self.rest(), Vec::<(String, Vec<u8>)>::new());
        Ok(())
    }

    /// Returns names and contents of the assets.
    fn rest(&self) -> Vec<(String, Vec<u8>)> {
        let assets = self.folder.path().join("rest/assets");
        let files = fs::read_dir(&assets)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap());
        let mut files: Vec<_> = files
            .map(|file| {
                (
                    file.file_name().into_string().unwrap(),
                    fs::read(file.path()).unwrap(),
                )
            })
            .collect();
        files.sort();
        files
    }

    fn refusal(&self, held: Option<u64>) -> (&'static str, String) {
        let error = self.replay(held).unwrap_err();
        (
            error.rule().unwrap(),
            error.file().unwrap_or_default().to_owned(),
        )
    }
}

fn digests(files: &[FileReference]) -> Vec<String> {
    files.iter().map(|file| file.digest.to_string()).collect()
}

#[test]
fn versions_are_replayed_from_nothing_and_from_what_is_held() {
    let folder = Folder::new();
    for held in [None, Some(0), Some(1), Some(2)] {
        folder.replay(held).unwrap();
    }
    let json = folder.request(None);
    let answer = plan(&Request::new(&json)).unwrap();
    let taken = [0, 2].map(|version| folder.document(version).routes[0].files.clone());
    let bytes: u64 = taken.iter().flatten().map(|file| file.size).sum();
    let routes = taken.map(|files| digests(&files));
    assert_eq!(
        answer,
        json!({ "version": 2, "bytes": bytes, "path": [0, 2], "routes": routes })
    );
}

#[test]
fn another_path_is_taken_when_a_file_is_missing_or_damaged() {
    let folder = Folder::new();
    let [short, _] = &folder.document(2).routes[..] else {
        panic!()
    };
    let good = folder.get(short.files[1].name());
    let damaged = [&good[..good.len() - 1], &[good[good.len() - 1] ^ 1]].concat();
    for bytes in [Some(damaged), Some(good[1..].to_vec()), None] {
        match bytes {
            Some(bytes) => folder.put(short.files[1].name(), &bytes),
            None => fs::remove_file(folder.path(short.files[1].name())).unwrap(),
        }
        folder.replay(None).unwrap();
    }
    // Then no path is left.
    let link = folder.document(1).routes[0].files[0].name();
    fs::remove_file(folder.path(link)).unwrap();
    assert_eq!(
        folder.refusal(None),
        ("R-CHN-09", short.files[1].name().to_string())
    );
}

#[test]
fn damage_is_refused() {
    let folder = Folder::new();
    let snapshot = folder.document(0).routes[0].files[0].name();
    folder.put(snapshot, b"something else");
    assert_eq!(folder.refusal(None), ("R-CHN-10", snapshot.to_string()));
    // A reader that holds a version does not need the snapshot.
    folder.replay(Some(0)).unwrap();
}

#[test]
fn links_that_lead_elsewhere_are_refused() {
    let mut folder = Folder::new();
    let other = folder.link(None, 1, 0);
    folder.commit(0, |commit| commit.routes[0].files[0] = other);
    folder.commit(1, |_| {});
    folder.commit(2, |_| {});
    assert_eq!(folder.refusal(None), ("R-CHN-11", other.name().to_string()));
    // A link from another base is refused.
    let mut folder = Folder::new();
    let other = folder.link(Some(1), 2, 1);
    folder.commit(2, |commit| {
        commit.routes.truncate(1);
        commit.routes[0].files[1] = other;
    });
    assert_eq!(folder.refusal(None), ("R-APP-01", other.name().to_string()));
}

#[test]
fn shards_have_to_be_the_state() {
    let mut folder = Folder::new();
    folder.commit(2, |commit| commit.state = Digest([0; 32]));
    assert_eq!(folder.refusal(None).0, "R-CHN-12");
    let mut folder = Folder::new();
    folder.versions[2][1] = shard("a", 7);
    folder.commit(2, |_| {});
    assert_eq!(folder.refusal(None).0, "R-CHN-12");
}

#[test]
fn a_part_is_taken_and_the_rest_of_it_is_proved_by_tables() {
    let mut folder = Folder::new();
    for version in 0..3 {
        let data = vec![u8::try_from(version).unwrap() + 20];
        folder.versions[version][0]
            .insert("c", Dtype::U8, &[1], data)
            .unwrap();
    }
    (0..3).for_each(|version| folder.commit(version, |_| {}));
    let mut only_c = folder.versions[2][0].clone();
    only_c.remove("a");
    for held in [None, Some(0), Some(2)] {
        let mut request = folder.request(held);
        request["shards"] = json!([1]);
        assert_eq!(
            folder.ask(&request).unwrap(),
            [(1, folder.versions[2][1].clone())]
        );
        request["shards"] = json!(null);
        request["tensors"] = json!(["c", "nowhere"]);
        assert_eq!(
            folder.ask(&request).unwrap(),
            [(0, only_c.clone()), (1, MemoryState::new())]
        );
    }
    // A reader of some shards relies on the commit for the others; a reader of some tensors does
    // not.
    folder.commit(2, |commit| commit.state = Digest([0; 32]));
    let mut request = folder.request(None);
    request["tensors"] = json!(["c"]);
    assert_eq!(folder.ask(&request).unwrap_err().rule(), Some("R-CHN-12"));
    request["tensors"] = json!([1]);
    assert_eq!(folder.ask(&request).unwrap_err().class().name(), "USAGE");
}

#[test]
fn what_is_held_must_be_what_the_commit_names() {
    let folder = Folder::new();
    let mut request = folder.request(Some(0));
    let good = request["held"]["shards"].clone();
    // The held shards are wrong, so the path starts from nothing.
    for shards in [
        json!([good[1], good[0]]),
        json!([good[0]]),
        json!([]),
        json!([good[0], good[1], good[0]]),
    ] {
        request["held"]["shards"] = shards;
        assert_eq!(folder.ask(&request).unwrap()[0].1, folder.versions[2][0]);
    }
    fs::remove_file(folder.path(folder.document(0).routes[0].files[0].name())).unwrap();
    assert_eq!(folder.ask(&request).unwrap_err().rule(), Some("R-APP-01"));
    request["held"]["shards"] = good;
    assert_eq!(folder.ask(&request).unwrap()[0].1, folder.versions[2][0]);
}

#[test]
fn a_step_back_has_to_be_accepted() {
    let folder = Folder::new();
    let mut request = folder.request(Some(1));
    request["held"]["chain"] = json!(Digest([1; 32]).to_string());
    assert_eq!(folder.ask(&request).unwrap_err().rule(), Some("R-CHN-13"));
    request["accept"] = json!(Digest::of_bytes(&folder.get(ObjectName::Commit(1))).to_string());
    assert_eq!(folder.ask(&request).unwrap_err().rule(), Some("R-CHN-13"));
    request["accept"] = json!(Digest::of_bytes(&folder.get(ObjectName::Commit(2))).to_string());
    folder.ask(&request).unwrap();
    // A version that is requested by number may be older than the held one.
    let mut request = folder.request(Some(2));
    request["version"] = json!(1);
    folder.ask(&request).unwrap();
}

#[test]
fn assets_are_copied_and_checked() {
    let mut folder = Folder::new();
    let asset = |name: &str, bytes: &[u8]| Asset {
        name: name.to_owned(),
        file: FileReference {
            digest: Digest::of_bytes(bytes),
            size: bytes.len() as u64,
        },
    };
    let assets = vec![
        asset("config.json", b"{}"),
        asset("copy.json", b"{}"),
        asset("empty", b""),
    ];
    folder.commit(2, |commit| commit.assets.clone_from(&assets));
    assert_eq!(
        folder.refusal(None),
        ("R-CHN-15", assets[0].object_name().to_string())
    );
    folder.put(assets[0].object_name(), b"{}");
    folder.put(assets[2].object_name(), b"x");
    assert_eq!(
        folder.refusal(Some(1)),
        ("R-CHN-16", assets[2].object_name().to_string())
    );
    folder.put(assets[2].object_name(), b"");
    folder.ask(&folder.request(Some(2))).unwrap();
    let expected = [("config.json", "{}"), ("copy.json", "{}"), ("empty", "")];
    assert_eq!(
        folder.rest(),
        expected.map(|(name, bytes)| (name.to_owned(), bytes.as_bytes().to_owned()))
    );
}

#[test]
fn layouts_are_checked_and_do_not_matter() {
    let mut folder = Folder::new();
    let layout = |text: &str| BTreeMap::from([(LAYOUT_KEY.to_owned(), text.to_owned())]);
    let two = r#"{"files":[{"name":"a.safetensors","metadata":null,"tensors":["b"]},{"name":"b.safetensors","metadata":null,"tensors":[]}]}"#;
    for (metadata, expected) in [(layout(two), None), (layout("{}"), Some("R-LAY-01"))] {
        let mut link = Vec::new();
        let options = DiffOptions::default().metadata(metadata);
        diff(
            &folder.versions[0][1],
            &folder.versions[2][1],
            &options,
            &mut link,
        )
        .unwrap();
        let file = FileReference {
            digest: Digest::of_bytes(&link),
            size: link.len() as u64,
        };
        folder.put(file.name(), &link);
        folder.commit(2, |commit| {
            commit.routes.truncate(1);
            commit.routes[0].files[1] = file;
        });
        let refusal = folder
            .ask(&folder.request(None))
            .err()
            .and_then(|error| error.rule());
        assert_eq!(refusal, expected);
    }
}

#[cfg(unix)]
#[test]
fn symbolic_links_are_followed() {
    let folder = Folder::new();
    for name in [
        ObjectName::Commit(1),
        ObjectName::Commit(2),
        folder.document(2).routes[0].files[0].name(),
    ] {
        let path = folder.path(name);
        let elsewhere = folder.path(ObjectName::Chain).with_extension("moved");
        fs::create_dir_all(&elsewhere).unwrap();
        let moved = elsewhere.join(path.file_name().unwrap());
        fs::rename(&path, &moved).unwrap();
        std::os::unix::fs::symlink(moved, path).unwrap();
    }
    folder.replay(None).unwrap();
}

#[test]
fn documents_are_checked_by_kind() {
    let folder = Folder::new();
    let path = folder.path(ObjectName::Commit(1));
    let check = |kind: &str| document(&Request::new(&json!({ "file": path, "document": kind })));
    assert_eq!(check("commit").unwrap(), json!({}));
    for kind in ["chain", "routes"] {
        assert_eq!(check(kind).unwrap_err().rule(), Some("R-DOC-03"));
    }
}
