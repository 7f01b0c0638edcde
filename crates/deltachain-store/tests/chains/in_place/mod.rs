//! Several profiles at once, and memory that is changed in place: of this process, in another
//! place, and of several processes.

mod elsewhere;
mod memory;
mod shares;
mod whole;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use deltachain::chain::{Commit, FileReference, ObjectName, Route, RoutesDocument};
use deltachain::memory::{Alone, LentState, PlacedMemory, Proof};
use deltachain::tensor::{Digest, Dtype, MemoryState, State, TensorInfo};
use deltachain::{
    DiffOptions, Error, ErrorClass, FileSource, Limits, LinkReader, Profile, Result, diff,
};
use deltachain_store::{
    Base, CompactOptions, Fallback, Follower, FollowerOptions, InPlace, Keep, Model, Observer,
    Phase, PublishOptions, PublishReport, Publisher, RawObjects, Snapshots, Store, StoreOptions,
    SwitchReport, compact, init, plan_prune, prune, show,
};
use tempfile::TempDir;

use crate::common::{Notes, PrepareProven, into_memory, union};
use crate::in_place::elsewhere::Elsewhere;
use crate::support::Random;
use crate::support::verify::{marks, prove};

const ALL: [Profile; 3] = [Profile::Local, Profile::Compact, Profile::Direct];

/// Versions in which only values change, and the chain in which they are published.
struct Chain {
    folder: TempDir,
    store: Store,
    states: Vec<MemoryState>,
    options: PublishOptions,
}

impl Chain {
    /// Creates a chain with a snapshot of every fourth version.
    fn new(profiles: &[Profile]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chain");
        let options = StoreOptions::default().part_bytes(4096);
        let store = Store::create(path.to_str().unwrap(), options).unwrap();
        init(&store).unwrap();
        let options = PublishOptions::default()
            .profiles(profiles.to_vec())
            .snapshots(Snapshots::Every(4));
        Self {
            folder,
            store,
            states: Vec::new(),
            options,
        }
    }

    /// Creates a chain with this many versions.
    fn of(profiles: &[Profile], count: usize) -> Self {
        let mut chain = Self::new(profiles);
        (0..count).for_each(|_| drop(chain.publish()));
        chain
    }

    fn publish(&mut self) -> PublishReport {
        let next = next(self.states.last(), self.states.len() as u64);
        self.publish_state(next)
    }

    fn publish_state(&mut self, next: MemoryState) -> PublishReport {
        let mut publisher = Publisher::open(self.store.clone(), self.options.clone()).unwrap();
        let base = self
            .states
            .last()
            .map_or(Base::Nothing, |last| Base::State(last.into()));
        let published = publisher.publish(&next, base, &()).unwrap();
        self.states.push(next);
        published
    }

    /// Digest of a commit.
    fn published(&self, version: u64) -> Digest {
        Digest::of_bytes(
            &self
                .store
                .get(ObjectName::Commit(version))
                .unwrap()
                .unwrap(),
        )
    }

    fn commit(&self, version: u64) -> Commit {
        Commit::parse(
            &self
                .store
                .get(ObjectName::Commit(version))
                .unwrap()
                .unwrap(),
            &Limits::default(),
        )
        .unwrap()
    }

    fn link(&self, route: &Route) -> LinkReader<FileSource> {
        let path = self
            .folder
            .path()
            .join("chain")
            .join(route.files[0].name().to_string());
        LinkReader::open(FileSource::open(path).unwrap(), &Limits::default()).unwrap()
    }

    /// The route from this version that works in place.
    fn in_place_route(&self, version: u64, from: u64) -> Route {
        let commit = self.commit(version);
        let routes = commit.routes.iter().zip(commit.in_place_routes());
        routes
            .filter(|(route, in_place)| *in_place && route.from == Some(from))
            .map(|(route, _)| route.clone())
            .next()
            .unwrap()
    }

    /// Makes these routes valid, whatever they are.
    fn set_routes(&self, version: u64, routes: Vec<Route>) {
        let commit = Digest::of_bytes(
            &self
                .store
                .get(ObjectName::Commit(version))
                .unwrap()
                .unwrap(),
        );
        let document = RoutesDocument {
            version,
            generation: 1,
            commit,
            routes,
            metadata: BTreeMap::new(),
        };
        let name = ObjectName::Routes {
            version,
            generation: 1,
        };
        assert!(
            self.store
                .put_if_absent(name, &document.to_bytes().unwrap())
                .unwrap()
        );
    }
}

/// The version after this one: about one lane in fifty differs slightly.
fn next(last: Option<&MemoryState>, version: u64) -> MemoryState {
    let mut random = Random(0x1234_5678 ^ version);
    let mut state = last.cloned().unwrap_or_default();
    if last.is_none() {
        let tensors: [(&str, Dtype, &[u64]); 4] = [
            ("a", Dtype::BF16, &[150, 200]),
            ("b", Dtype::F32, &[60, 50]),
            ("c", Dtype::U8, &[500]),
            ("d", Dtype::F16, &[0]),
        ];
        for (name, dtype, shape) in tensors {
            let bytes = usize::try_from(shape.iter().product::<u64>() * dtype.bits() / 8).unwrap();
            state
                .insert(name, dtype, shape, random.bytes(bytes))
                .unwrap();
        }
    }
    let infos: Vec<TensorInfo> = state.tensors().to_vec();
    for info in &infos {
        let mut data = state.get(info.name()).unwrap().1.to_vec();
        let width = info.dtype().lane_bytes();
        let lanes = data.len() / width;
        for _ in 0..lanes / 50 {
            let place = usize::try_from(random.below(lanes as u64)).unwrap() * width;
            data[place] = data[place].wrapping_add(1);
        }
        state
            .insert(info.name(), info.dtype(), info.shape(), data)
            .unwrap();
    }
    state
}

/// Buffers of a caller.
type Buffers = Vec<(TensorInfo, Vec<u8>)>;

fn buffers(state: &MemoryState) -> Buffers {
    state
        .iter()
        .map(|(info, data)| (info.clone(), data.to_vec()))
        .collect()
}

/// Buffers of the same form with other content.
fn scribbled(state: &MemoryState) -> Buffers {
    state
        .iter()
        .map(|(info, data)| (info.clone(), vec![0xA5; data.len()]))
        .collect()
}

fn lend(buffers: &mut Buffers) -> LentState<&mut [u8]> {
    LentState::new(
        buffers
            .iter_mut()
            .map(|(info, data)| (info.clone(), data.as_mut_slice())),
    )
    .unwrap()
}

/// Memory that holds a version, and its follower. The processor can or cannot read the memory.
fn elsewhere(
    chain: &Chain,
    version: usize,
    can_be_read: bool,
    options: FollowerOptions,
) -> (Elsewhere, Follower<InPlace<Elsewhere>>) {
    let memory = Elsewhere::of(&scribbled(&chain.states[version]), can_be_read);
    let mut follower = into_memory(chain.store.clone(), memory.clone(), options).unwrap();
    assert_eq!(go(&mut follower, version as u64).fallback, None);
    assert_eq!(memory.copy(), chain.states[version]);
    (memory, follower)
}

fn go<M: PlacedMemory>(follower: &mut Follower<InPlace<M>>, version: u64) -> SwitchReport<()> {
    let mut prepared = follower
        .prepare_proven(Some(version), &())
        .unwrap()
        .unwrap();
    follower.apply(&mut prepared, &Alone, &()).unwrap()
}

/// Copies the content of readable memory.
fn copy<M: PlacedMemory>(follower: &Follower<InPlace<M>>) -> MemoryState {
    MemoryState::copy_of(follower.memory().unwrap().state().unwrap()).unwrap()
}

/// Finds a lane of the tensor that the version changes, or one that it does not change.
fn lane(chain: &Chain, version: u64, tensor: usize, changes: bool) -> usize {
    let version = usize::try_from(version).unwrap();
    let [before, after] =
        [version - 1, version].map(|version| buffers(&chain.states[version])[tensor].clone());
    let width = before.0.dtype().lane_bytes();
    let mut lanes = before.1.chunks(width).zip(after.1.chunks(width));
    lanes
        .position(|(before, after)| (before != after) == changes)
        .unwrap()
}

#[test]
fn several_profiles_are_several_routes() {
    let chain = Chain::of(&ALL, 3);
    let commit = chain.commit(2);
    assert_eq!(
        commit
            .routes
            .iter()
            .map(|route| route.from)
            .collect::<Vec<_>>(),
        [Some(1); 3]
    );
    // Each route has its profile, and all links have sums, including the snapshot.
    let kinds = commit
        .routes
        .iter()
        .zip(commit.direct_routes())
        .zip(commit.in_place_routes());
    let mut kinds: Vec<_> = kinds
        .map(|((route, direct), in_place)| {
            let link = chain.link(route);
            assert!(link.sums().unwrap().is_some());
            assert_eq!(link.is_direct(), direct);
            (direct, in_place)
        })
        .collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [(false, false), (false, true), (true, true)]);
    assert!(
        chain
            .link(&chain.commit(0).routes[0])
            .sums()
            .unwrap()
            .is_some()
    );
    assert_eq!(marks(&chain.store), (2, 4));
    assert_eq!(prove(&chain.store), chain.states);
    // The path of a late joiner has the shortest links.
    let bytes = |version: u64| {
        chain
            .commit(version)
            .routes
            .iter()
            .map(Route::bytes)
            .min()
            .unwrap()
    };
    assert_eq!(
        commit.metadata["deltachain.path-bytes"],
        format!("{} {}", bytes(0), bytes(0) + bytes(1) + bytes(2))
    );
    // Reports say so, too.
    let shown = show(&chain.store, Some(2), None).unwrap();
    assert!(
        shown
            .routes
            .iter()
            .map(|route| route.is_direct)
            .eq(commit.direct_routes())
    );
    assert!(
        shown
            .routes
            .iter()
            .map(|route| route.is_in_place)
            .eq(commit.in_place_routes())
    );

    // Without local links, no route is marked and no link has sums.
    let chain = Chain::of(&[Profile::Direct], 2);
    assert!(!chain.commit(1).metadata.contains_key("deltachain.in-place"));
    assert!(
        chain
            .link(&chain.commit(1).routes[0])
            .sums()
            .unwrap()
            .is_none()
    );
    // Tensors cannot be added or removed in place.
    let mut chain = Chain::of(&[Profile::Local], 2);
    let mut more = next(chain.states.last(), 2);
    more.insert("e", Dtype::U8, &[1], vec![7]).unwrap();
    let published = chain.publish_state(more.clone());
    assert_eq!(
        published
            .routes
            .iter()
            .map(|route| route.is_in_place)
            .collect::<Vec<_>>(),
        [false]
    );
    more.remove("e");
    assert!(!chain.publish_state(more).routes[0].is_in_place);
    assert!(chain.publish().routes[1].is_in_place);

    for profiles in [&[][..], &[Profile::Local, Profile::Compact, Profile::Local]] {
        let options = PublishOptions::default().profiles(profiles.to_vec());
        assert_eq!(
            Publisher::open(chain.store.clone(), options)
                .unwrap_err()
                .class(),
            ErrorClass::Usage
        );
    }
}

#[test]
fn shards_have_links_of_each_profile() {
    let chain = Chain::new(&[]);
    let shards = |version: u64| {
        let whole = (0..=version)
            .fold(None, |last, version| Some(next(last.as_ref(), version)))
            .unwrap();
        let part = |names: &[&str]| {
            let mut part = MemoryState::new();
            for (info, data) in whole
                .iter()
                .filter(|(info, _)| names.contains(&info.name()))
            {
                part.insert(info.name(), info.dtype(), info.shape(), data.to_vec())
                    .unwrap();
            }
            part
        };
        [part(&["a", "d"]), part(&["b", "c"])]
    };
    // In version 2, the second shard has no local link.
    for (version, second) in [(0, &ALL[..2]), (1, &ALL[..2]), (2, &ALL[1..2])] {
        let [base, target] = [version.max(1) - 1, version].map(shards);
        let parts = [&ALL[..2], second]
            .into_iter()
            .enumerate()
            .map(|(number, profiles)| {
                let options = PublishOptions::default()
                    .profiles(profiles.to_vec())
                    .snapshots(Snapshots::Never);
                let mut publisher = Publisher::open(chain.store.clone(), options).unwrap();
                let base = if version == 0 {
                    Base::Nothing
                } else {
                    Base::State((&base[number]).into())
                };
                let parts = publisher
                    .prepare([(number, (&target[number]).into(), base)], 2, &())
                    .unwrap();
                serde_json::from_str(&serde_json::to_string(&parts[0]).unwrap()).unwrap()
            });
        let parts = parts.collect();
        let mut publisher =
            Publisher::open(chain.store.clone(), PublishOptions::default()).unwrap();
        publisher.commit(parts, BTreeMap::new(), &()).unwrap();
    }
    let marked = |version| {
        let mut marked = chain.commit(version).in_place_routes();
        marked.sort_unstable();
        marked
    };
    assert_eq!(
        [0, 1, 2].map(marked),
        [vec![false], vec![false, true], vec![false]]
    );

    // Both shards are updated in place, in one memory.
    let both = |version| union(&shards(version));
    let mut own = scribbled(&both(0));
    let mut follower = into_memory(
        chain.store.clone(),
        lend(&mut own),
        FollowerOptions::default(),
    )
    .unwrap();
    for version in 0..3 {
        let switched = go(&mut follower, version);
        // In the last version, one shard has no sums and is proven by digests.
        assert_eq!((switched.version, switched.fallback), (version, None));
        follower.check(&Alone, &()).unwrap();
        follower.verify(&()).unwrap();
        assert_eq!(copy(&follower), both(version));
    }
    drop(follower);
    assert_eq!(own, buffers(&both(2)));
    // Unreadable memory loads the last version as a whole. A follower of one shard touches nothing
    // else.
    let memory = Elsewhere::of(&scribbled(&both(0)), false);
    let mut follower = into_memory(
        chain.store.clone(),
        memory.clone(),
        FollowerOptions::default(),
    )
    .unwrap();
    let fallbacks = [0, 1, 2].map(|version| go(&mut follower, version).fallback);
    assert_eq!(
        (fallbacks, memory.copy()),
        ([None, None, Some(Fallback::NoRoute)], both(2))
    );
    let [first, _] = shards(0);
    let memory = Elsewhere::of(&scribbled(&first), false);
    let options = FollowerOptions::default().shards(Some(vec![0]));
    let mut follower = into_memory(chain.store.clone(), memory.clone(), options).unwrap();
    for version in 0..3 {
        // All links of this shard are local.
        assert_eq!(
            (go(&mut follower, version).fallback, memory.copy()),
            (None, shards(version)[0].clone())
        );
        assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
    }
}

#[test]
fn a_compaction_leaves_what_is_taken_in_place() {
    let mut chain = Chain::of(&ALL[..2], 4);
    let scratch = tempfile::tempdir().unwrap();
    let options = CompactOptions::new(scratch.path())
        .from(vec![2, 1])
        .snapshot(true);
    let compacted = compact(
        &chain.store,
        &options.clone().profiles(ALL[1..].to_vec()),
        &(),
    )
    .unwrap();
    let kinds: Vec<_> = compacted
        .routes
        .iter()
        .map(|route| (route.from, route.is_in_place))
        .collect();
    assert_eq!(
        kinds,
        [
            (None, false),
            (Some(1), false),
            (Some(1), false),
            (Some(2), false),
            (Some(2), false)
        ]
    );
    // The commit's compact link has been replaced; the local one is still there.
    let shown = show(&chain.store, None, None).unwrap();
    let in_place: Vec<_> = shown
        .routes
        .iter()
        .filter(|route| route.is_in_place)
        .collect();
    let route = chain.in_place_route(3, 2);
    assert_eq!(
        (in_place.len(), in_place[0].from, &in_place[0].files),
        (1, route.from, &route.files)
    );
    assert_eq!((shown.routes.len(), marks(&chain.store).0), (6, 2));
    // A prune keeps the links from a kept version to the next.
    chain.publish();
    let keep = Keep {
        last: 3,
        ..Keep::default()
    };
    prune(&chain.store, &plan_prune(&chain.store, &keep).unwrap(), &()).unwrap();
    let (memory, mut follower) = elsewhere(&chain, 2, false, FollowerOptions::default());
    let switched = go(&mut follower, 4);
    assert_eq!(
        (switched.routes, switched.fallback),
        (vec![(Some(2), 3), (Some(3), 4)], None)
    );
    assert_eq!(memory.copy(), chain.states[4]);
    for profiles in [vec![], vec![Profile::Local; 2]] {
        assert_eq!(
            compact(&chain.store, &options.clone().profiles(profiles), &())
                .unwrap_err()
                .class(),
            ErrorClass::Usage
        );
    }
}
