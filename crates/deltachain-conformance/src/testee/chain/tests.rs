//! Chains in folders, made by the library, and damaged in the ways that only a replay notices.

use std::collections::BTreeMap;

use deltachain::chain::{ObjectName, Route};
use deltachain::tensor::Dtype;
use deltachain::{DiffOptions, diff};
use tempfile::TempDir;

use super::*;

/// A folder with a chain of three versions of two shards, and place for outputs beside it.
struct Folder {
    folder: TempDir,
    /// The shards of each version.
    versions: Vec<[MemoryState; 2]>,
}

fn shard(name: &str, value: u8) -> MemoryState {
    let mut state = MemoryState::new();
    state.insert(name, Dtype::U8, &[4], vec![value, 1, 2, 3]).unwrap();
    state
}

fn digest(state: &MemoryState) -> Digest {
    StateDigests::of(state, &()).unwrap().state
}

fn union(shards: &[MemoryState]) -> Digest {
    let mut all = MemoryState::new();
    for (info, data) in shards.iter().flat_map(MemoryState::iter) {
        all.insert(info.name(), info.dtype(), info.shape(), data.to_vec()).unwrap();
    }
    digest(&all)
}

impl Folder {
    /// Version 0 is reached by a snapshot, the others by links from the one before and from 0.
    fn new() -> Self {
        let versions = (0..3).map(|version| [shard("a", version), shard("b", 10 * version)]).collect();
        let mut folder = Self { folder: tempfile::tempdir().unwrap(), versions };
        folder.put(ObjectName::Chain, &ChainDocument::new(1).to_bytes().unwrap());
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
        let file = FileReference { digest: Digest::of_bytes(&link), size: link.len() as u64 };
        self.put(file.name(), &link);
        file
    }

    fn commit(&mut self, version: u64, change: impl Fn(&mut Commit)) {
        let parent = version.checked_sub(1).map_or(ObjectName::Chain, ObjectName::Commit);
        let shards = &self.versions[usize::try_from(version).unwrap()];
        let from: Vec<Option<u64>> = match version {
            0 => vec![None],
            1 => vec![Some(0)],
            _ => vec![Some(0), Some(version - 1)],
        };
        let route = |from| Route { from, files: vec![self.link(from, version, 0), self.link(from, version, 1)] };
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
            let paths: Vec<PathBuf> =
                (0..2).map(|number| self.folder.path().join(format!("held-{version}-{number}"))).collect();
            for (state, path) in shards.iter().zip(&paths) {
                let mut snapshot = Vec::new();
                diff(&MemoryState::new(), state, &DiffOptions::default(), &mut snapshot).unwrap();
                let snapshot = LinkReader::open(snapshot, &Limits::default()).unwrap();
                Shard::start(None).unwrap().apply(&snapshot, path).unwrap().save(path).unwrap();
            }
            let commit = Digest::of_bytes(&self.get(ObjectName::Commit(version))).to_string();
            json!({ "version": version, "commit": commit, "shards": paths })
        });
        let (chain, output) = (self.folder.path().join("chain"), self.folder.path().join("outputs/out"));
        fs::create_dir_all(output.parent().unwrap()).unwrap();
        json!({ "chain": chain, "held": held, "version": null, "output": output })
    }

    /// Replays the head and compares every shard.
    fn replay(&self, held: Option<u64>) -> Result<()> {
        let json = self.request(held);
        let outcome = replay(&Request::new(&json));
        let outputs = self.folder.path().join("outputs");
        let answer = match outcome {
            Ok(answer) => answer,
            Err(error) => {
                // Nothing is left, neither the output nor what it was made from.
                assert_eq!(fs::read_dir(outputs).unwrap().count(), 0);
                return Err(error);
            }
        };
        assert_eq!(answer, json!({ "version": 2, "digest": union(&self.versions[2]).to_string() }));
        assert_eq!(fs::read_dir(outputs.join("out")).unwrap().count(), 2);
        for (number, state) in self.versions[2].iter().enumerate() {
            let made = SafetensorsState::open(file_of(&outputs.join("out"), number)).unwrap();
            assert_eq!(&MemoryState::copy_of(&made).unwrap(), state);
        }
        assert_eq!(fs::read_dir(&outputs).unwrap().count(), 1);
        fs::remove_dir_all(outputs).unwrap();
        Ok(())
    }

    fn refusal(&self, held: Option<u64>) -> (&'static str, String) {
        let error = self.replay(held).unwrap_err();
        (error.rule().unwrap(), error.file().unwrap_or_default().to_owned())
    }
}

#[test]
fn versions_are_replayed_from_nothing_and_from_what_is_held() {
    let folder = Folder::new();
    for held in [None, Some(0), Some(1), Some(2)] {
        folder.replay(held).unwrap();
    }
    let json = folder.request(None);
    let answer = plan(&Request::new(&json)).unwrap();
    let bytes = |version: u64, route: usize| -> u64 {
        folder.document(version).routes[route].files.iter().map(|file| file.size).sum()
    };
    assert_eq!(answer, json!({ "version": 2, "bytes": bytes(0, 0) + bytes(2, 0), "path": [0, 2] }));
}

#[test]
fn another_path_is_taken_when_a_file_is_missing_or_damaged() {
    let folder = Folder::new();
    let [short, _] = &folder.document(2).routes[..] else { panic!() };
    let good = folder.get(short.files[1].name());
    let damaged = [&good[..good.len() - 1], &[good[good.len() - 1] ^ 1]].concat();
    for bytes in [Some(damaged), Some(good[1..].to_vec()), None] {
        match bytes {
            Some(bytes) => folder.put(short.files[1].name(), &bytes),
            None => fs::remove_file(folder.path(short.files[1].name())).unwrap(),
        }
        folder.replay(None).unwrap();
    }
    // Then there is none left.
    let link = folder.document(1).routes[0].files[0].name();
    fs::remove_file(folder.path(link)).unwrap();
    assert_eq!(folder.refusal(None), ("R-CHN-09", short.files[1].name().to_string()));
}

#[test]
fn damage_is_refused() {
    let folder = Folder::new();
    let snapshot = folder.document(0).routes[0].files[0].name();
    folder.put(snapshot, b"something else");
    assert_eq!(folder.refusal(None), ("R-CHN-10", snapshot.to_string()));
    // Who holds a version does not need it.
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
    // A link from another base.
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
fn documents_are_checked_by_kind() {
    let folder = Folder::new();
    let path = folder.path(ObjectName::Commit(1));
    let check = |kind: &str| document(&Request::new(&json!({ "file": path, "document": kind })));
    assert_eq!(check("commit").unwrap(), json!({}));
    for kind in ["chain", "routes"] {
        assert_eq!(check(kind).unwrap_err().rule(), Some("R-DOC-03"));
    }
}
