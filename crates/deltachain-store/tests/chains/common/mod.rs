//! Handmade chains in a directory, for tests of readers.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use deltachain::chain::{
    ChainDocument, Commit, FileReference, ObjectName, Route, RoutesDocument, union_of,
};
use deltachain::files::LAYOUT_KEY;
use deltachain::memory::{Alone, PlacedMemory};
use deltachain::tensor::{Digest, Dtype, MemoryState, State, StateDigests};
use deltachain::{DiffOptions, Error, diff};
use deltachain_store::{
    Directory, FollowEvent, FollowOptions, Follower, FollowerOptions, InPlace, Observer, Phase,
    PreparedVersion, RawObjects, Store, StoreOptions, SwitchReport,
};
use tempfile::TempDir;

/// Builds a state of these U8 tensors.
pub(crate) fn state(tensors: &[(&str, &[u8])]) -> MemoryState {
    let mut state = MemoryState::new();
    for (name, data) in tensors {
        state
            .insert(name, Dtype::U8, &[data.len() as u64], data.to_vec())
            .unwrap();
    }
    state
}

/// Joins the tensors of all states.
pub(crate) fn union(states: &[MemoryState]) -> MemoryState {
    let mut all = MemoryState::new();
    for (info, data) in states.iter().flat_map(MemoryState::iter) {
        all.insert(info.name(), info.dtype(), info.shape(), data.to_vec())
            .unwrap();
    }
    all
}

type OnSwitch<'a> = dyn FnMut(&Follower<Directory>, &SwitchReport) -> Result<(), Error> + 'a;

/// Follows a chain, and calls `on_switch` after each switch.
pub(crate) fn follow(
    follower: &mut Follower<Directory>,
    options: &FollowOptions,
    observer: &dyn Observer,
    on_switch: &mut OnSwitch<'_>,
) -> Result<(), Error> {
    follower.follow(options, observer, &mut |follower, event| {
        if let FollowEvent::Switched(switched) = event {
            on_switch(follower, &switched)?;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Opens a follower of memory that no other process shares.
pub(crate) fn into_memory<M: PlacedMemory>(
    store: Store,
    memory: M,
    options: FollowerOptions,
) -> Result<Follower<InPlace<M>>, Error> {
    let mut follower = Follower::in_place(store, options)?;
    follower.bind(memory);
    Ok(follower)
}

/// Prepares and proves versions. If the proof fails, loads the version as a whole, as an owner of
/// memory does.
pub(crate) trait PrepareProven<M: PlacedMemory> {
    fn prepare_proven(
        &mut self,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedVersion<InPlace<M>>>, Error>;
}

impl<M: PlacedMemory> PrepareProven<M> for Follower<InPlace<M>> {
    fn prepare_proven(
        &mut self,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedVersion<InPlace<M>>>, Error> {
        let Some(mut prepared) = self.prepare(version, observer)? else {
            return Ok(None);
        };
        let Err(error) = self.prove(&mut prepared, &Alone, observer) else {
            return Ok(Some(prepared));
        };
        let again = if prepared.is_whole() {
            None
        } else {
            self.prepare(version, observer)?
        };
        let Some(mut again) = again.filter(PreparedVersion::is_whole) else {
            return Err(error);
        };
        self.prove(&mut again, &Alone, observer)?;
        Ok(Some(again))
    }
}

/// A chain in a directory.
pub(crate) struct Chain {
    pub(crate) folder: TempDir,
    pub(crate) store: Store,
    /// Shards of each version.
    pub(crate) versions: Vec<Vec<MemoryState>>,
    /// Layout that new links declare from now on.
    pub(crate) layout: Option<&'static str>,
    parent: Digest,
}

impl Chain {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = StoreOptions::default().attempts(1).part_bytes(50);
        let store = Store::open(folder.path().to_str().unwrap(), options).unwrap();
        let document = ChainDocument::new(7).to_bytes().unwrap();
        assert!(store.put_if_absent(ObjectName::Chain, &document).unwrap());
        Self {
            folder,
            store,
            versions: Vec::new(),
            layout: None,
            parent: Digest::of_bytes(&document),
        }
    }

    /// Makes the next version follow the current chain document.
    pub(crate) fn begin_again(&mut self) {
        self.parent = Digest::of_bytes(&fs::read(self.path(ObjectName::Chain)).unwrap());
    }

    /// Adds a version of one shard, with routes from these versions.
    pub(crate) fn add(&mut self, state: MemoryState, from: &[Option<u64>]) -> u64 {
        self.add_shards(vec![state], from)
    }

    pub(crate) fn add_shards(&mut self, shards: Vec<MemoryState>, from: &[Option<u64>]) -> u64 {
        let digests: Vec<StateDigests> = shards
            .iter()
            .map(|shard| StateDigests::of(shard, &()).unwrap())
            .collect();
        let state =
            union_of(shards.iter().map(State::tensors).zip(&digests)).unwrap_or(digests[0].state);
        self.add_as(state, shards, from)
    }

    /// Adds a version whose commit declares this state.
    pub(crate) fn add_as(
        &mut self,
        state: Digest,
        shards: Vec<MemoryState>,
        from: &[Option<u64>],
    ) -> u64 {
        let digests = shards
            .iter()
            .map(|shard| StateDigests::of(shard, &()).unwrap().state)
            .collect();
        self.versions.push(shards);
        let version = self.versions.len() as u64 - 1;
        let routes = from
            .iter()
            .map(|&from| self.make_route(version, from))
            .collect();
        let assets = Vec::new();
        let metadata = BTreeMap::new();
        let commit = Commit {
            version,
            parent: self.parent,
            state,
            shards: digests,
            routes,
            assets,
            metadata,
        };
        let bytes = commit.to_bytes().unwrap();
        self.parent = Digest::of_bytes(&bytes);
        assert!(
            self.store
                .put_if_absent(ObjectName::Commit(version), &bytes)
                .unwrap()
        );
        version
    }

    fn shards(&self, version: u64) -> &[MemoryState] {
        &self.versions[usize::try_from(version).unwrap()]
    }

    /// Builds and stores the links of a route.
    pub(crate) fn make_route(&self, version: u64, from: Option<u64>) -> Route {
        let nothing = MemoryState::new();
        let links = self
            .shards(version)
            .iter()
            .enumerate()
            .map(|(number, target)| {
                self.make_link(
                    from.map_or(&nothing, |from| &self.shards(from)[number]),
                    target,
                )
            });
        Route {
            from,
            files: links.collect(),
        }
    }

    /// Builds and stores a link.
    pub(crate) fn make_link(&self, base: &MemoryState, target: &MemoryState) -> FileReference {
        let layout = self
            .layout
            .map(|layout| (LAYOUT_KEY.to_owned(), layout.to_owned()));
        let options = DiffOptions::default().metadata(layout.into_iter().collect());
        let mut link = Vec::new();
        diff(base, target, &options, &mut link).unwrap();
        self.store_link(&link)
    }

    pub(crate) fn store_link(&self, link: &[u8]) -> FileReference {
        let reference = FileReference {
            digest: Digest::of_bytes(link),
            size: link.len() as u64,
        };
        let path = self.path(reference.name());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, link).unwrap();
        reference
    }

    pub(crate) fn commit(&self, version: u64) -> Commit {
        let bytes = fs::read(self.path(ObjectName::Commit(version))).unwrap();
        Commit::parse(&bytes, &deltachain::Limits::default()).unwrap()
    }

    /// Replaces the routes to a version.
    pub(crate) fn set_routes(&self, version: u64, generation: u64, routes: Vec<Route>) {
        let commit = Digest::of_bytes(&fs::read(self.path(ObjectName::Commit(version))).unwrap());
        let document = RoutesDocument {
            version,
            generation,
            commit,
            routes,
            metadata: BTreeMap::new(),
        };
        let name = ObjectName::Routes {
            version,
            generation,
        };
        assert!(
            self.store
                .put_if_absent(name, &document.to_bytes().unwrap())
                .unwrap()
        );
    }

    pub(crate) fn path(&self, name: ObjectName) -> PathBuf {
        self.folder.path().join(name.to_string())
    }

    /// Files of the route that starts there.
    pub(crate) fn files(&self, version: u64, from: Option<u64>) -> Vec<FileReference> {
        self.commit(version)
            .routes
            .into_iter()
            .find(|route| route.from == from)
            .unwrap()
            .files
    }

    /// All tensors of a version.
    pub(crate) fn whole(&self, version: u64) -> MemoryState {
        union(self.shards(version))
    }
}

/// Records remarks, and aborts at the call with this number, counted from 1.
#[derive(Default)]
pub(crate) struct Notes {
    remarks: Mutex<Vec<String>>,
    pub(crate) stop_at: u64,
    calls: AtomicU64,
}

impl Notes {
    pub(crate) fn stopping_at(stop_at: u64) -> Self {
        Self {
            stop_at,
            ..Self::default()
        }
    }

    pub(crate) fn remarks(&self) -> Vec<String> {
        self.remarks.lock().unwrap().clone()
    }
}

impl Observer for Notes {
    fn begin(&self, _phase: Phase, _bytes: u64) {}

    fn advance(&self, _phase: Phase, _bytes: u64) -> deltachain::Result<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if self.stop_at > 0 && call >= self.stop_at {
            return Err(Error::io(
                "stopped by the test",
                io::ErrorKind::Interrupted.into(),
            ));
        }
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, text: &str) {
        self.remarks.lock().unwrap().push(text.to_owned());
    }
}
