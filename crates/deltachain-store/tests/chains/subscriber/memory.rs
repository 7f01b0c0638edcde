//! Bringing memory to versions of a chain: a follower's own memory from every start, and the
//! caller's buffers from nothing.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use deltachain::ErrorClass;
use deltachain::chain::ObjectName;
use deltachain::files::SafetensorsState;
use deltachain::memory::{Alone, LentState, PlacedMemory, Proof, RunKind};
use deltachain::tensor::{Digest, Dtype, MemoryState, State, TensorInfo};
use deltachain_store::{
    Directory, Fallback, FollowOptions, Follower, FollowerOptions, InPlace, Memory, Poller,
    SwitchReport,
};

use crate::common::{Chain, Notes, PrepareProven, into_memory, state, union};

fn noise(seed: u32) -> Vec<u8> {
    (seed..seed + 2000)
        .map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[2])
        .collect()
}

/// Creates a chain of one or two shards in which only values change. Version 3 also has a snapshot,
/// and a link from 0.
fn steady(of: usize) -> Chain {
    let mut chain = Chain::new();
    let mut first = noise(1);
    let mut second = noise(2);
    for version in 0..5_u8 {
        first[usize::from(version) * 7] ^= 1;
        second[..usize::from(version) * 100]
            .iter_mut()
            .for_each(|byte| *byte = byte.wrapping_add(version));
        let mut shards = vec![
            state(&[("a", &first), ("c", &[version, 3])]),
            state(&[("b", &second)]),
        ];
        shards[1]
            .insert("bias", Dtype::BF16, &[2], vec![0, version / 2, 2, 3])
            .unwrap();
        if of == 1 {
            shards = vec![union(&shards)];
        }
        let from = match version {
            0 => vec![None],
            3 => vec![None, Some(0), Some(2)],
            _ => vec![Some(u64::from(version) - 1)],
        };
        chain.add_shards(shards, &from);
    }
    chain
}

/// Creates a chain of one or two shards in which tensors are added, removed and changed.
fn changing(of: usize) -> Chain {
    let mut chain = Chain::new();
    let mut all = state(&[("a", &noise(1)), ("b", &[1, 2]), ("c", &[7; 3])]);
    let mut add = |all: &MemoryState, from: &[Option<u64>]| {
        let mut shards = vec![MemoryState::new(); of];
        for (number, (info, data)) in all.iter().enumerate() {
            shards[number % of]
                .insert(info.name(), info.dtype(), info.shape(), data.to_vec())
                .unwrap();
        }
        chain.add_shards(shards, from);
    };
    add(&all, &[None]);
    all.insert("b", Dtype::U8, &[2], vec![1, 3]).unwrap();
    all.insert("d", Dtype::F32, &[], vec![0, 0, 128, 63])
        .unwrap();
    add(&all, &[Some(0)]);
    all.remove("c");
    all.insert("b", Dtype::BF16, &[1], vec![1, 3]).unwrap();
    add(&all, &[Some(1)]);
    all.insert("c", Dtype::U8, &[0], Vec::new()).unwrap();
    add(&all, &[None, Some(0), Some(2)]);
    all.insert("b", Dtype::BF16, &[1, 1], vec![0, 128]).unwrap();
    add(&all, &[None, Some(3)]);
    chain
}

fn options(tensors: Option<&[&str]>) -> FollowerOptions {
    FollowerOptions::default().tensors(
        tensors.map(|patterns| patterns.iter().map(|&pattern| pattern.to_owned()).collect()),
    )
}

/// The selected tensors of a state.
fn part(whole: &MemoryState, tensors: Option<&[&str]>) -> MemoryState {
    let mut part = MemoryState::new();
    for (info, data) in whole
        .iter()
        .filter(|(info, _)| tensors.is_none_or(|taken| taken.contains(&info.name())))
    {
        part.insert(info.name(), info.dtype(), info.shape(), data.to_vec())
            .unwrap();
    }
    part
}

/// Buffers of a caller.
type Buffers = Vec<(TensorInfo, Vec<u8>)>;

fn buffers(state: &MemoryState) -> Buffers {
    state
        .iter()
        .map(|(info, data)| (info.clone(), data.to_vec()))
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

/// Creates a follower that holds a version.
fn at(chain: &Chain, version: u64) -> Follower<Memory> {
    let mut subscriber = Follower::in_memory(chain.store.clone(), options(None)).unwrap();
    let mut prepared = subscriber.prepare(Some(version), &()).unwrap().unwrap();
    subscriber.apply(&mut prepared).unwrap();
    subscriber
}

fn copy(subscriber: &Follower<Memory>) -> MemoryState {
    MemoryState::copy_of(&subscriber.state()).unwrap()
}

/// A directory that follows the same versions as the memory.
struct Beside {
    folder: tempfile::TempDir,
    follower: Follower<Directory>,
}

impl Beside {
    fn new(chain: &Chain, tensors: Option<&[&str]>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let follower =
            Follower::in_directory(chain.store.clone(), folder.path(), options(tensors)).unwrap();
        Self { folder, follower }
    }

    fn pull(&mut self, version: u64) -> (SwitchReport, MemoryState) {
        let prepared = self.follower.prepare(Some(version), &()).unwrap().unwrap();
        let switched = self.follower.apply(prepared).unwrap();
        let shown = SafetensorsState::open(self.folder.path().join("current")).unwrap();
        (switched, MemoryState::copy_of(&shown).unwrap())
    }
}

/// Goes to versions, and compares the memory with a directory.
fn go(
    chain: &Chain,
    subscriber: &mut Follower<Memory>,
    tensors: Option<&[&str]>,
    versions: impl Iterator<Item = u64>,
) {
    let mut directory = Beside::new(chain, tensors);
    if let Some(held) = subscriber.held() {
        directory.pull(held.version);
        assert!(
            subscriber
                .prepare(Some(held.version), &())
                .unwrap()
                .is_none()
        );
    }
    for version in versions {
        let before = copy(subscriber);
        let held = subscriber.held().cloned();
        let mut prepared = subscriber.prepare(Some(version), &()).unwrap().unwrap();
        assert_eq!(
            (copy(subscriber), subscriber.held()),
            (before, held.as_ref())
        );
        let (expected, state) = directory.pull(version);
        assert_eq!(
            (prepared.held().version, prepared.held().state),
            (version, expected.state)
        );

        let switched = subscriber.apply(&mut prepared).unwrap();
        assert_eq!(copy(subscriber), state);
        assert_eq!(
            (
                switched.from,
                switched.version,
                switched.commit,
                &switched.routes
            ),
            (expected.from, version, expected.commit, &expected.routes)
        );
        assert_eq!(
            (switched.downloaded, switched.from_cache),
            (expected.downloaded, expected.from_cache)
        );
        assert_eq!((switched.fallback, switched.proof), (None, Proof::Hashed));
        assert_eq!(
            expected.written,
            state.tensors().iter().map(TensorInfo::bytes).sum::<u64>()
        );
        subscriber.verify(&()).unwrap();
        assert!(subscriber.apply(&mut prepared).is_err());
        assert_eq!(
            (copy(subscriber), subscriber.held().unwrap().version),
            (state, version)
        );
    }
}

type Lent<'a> = Follower<InPlace<LentState<&'a mut [u8]>>>;

fn copy_lent(subscriber: &Lent<'_>) -> MemoryState {
    MemoryState::copy_of(subscriber.memory().unwrap().state().unwrap()).unwrap()
}

/// Creates a follower of the caller's memory that holds a version.
fn lent_at<'a>(
    chain: &Chain,
    version: u64,
    own: &'a mut Buffers,
    tensors: Option<&[&str]>,
) -> Lent<'a> {
    own.iter_mut().for_each(|(_, data)| data.fill(0xA5));
    let mut subscriber = into_memory(chain.store.clone(), lend(own), options(tensors)).unwrap();
    let mut prepared = subscriber
        .prepare_proven(Some(version), &())
        .unwrap()
        .unwrap();
    let switched = subscriber.apply(&mut prepared, &Alone, &()).unwrap();
    assert_eq!(
        (switched.from, switched.version, switched.fallback),
        (None, version, None)
    );
    assert_eq!(copy_lent(&subscriber), part(&chain.whole(version), tensors));
    subscriber
}

/// Like [`go`], for the caller's memory.
fn go_lent(
    chain: &Chain,
    subscriber: &mut Lent<'_>,
    tensors: Option<&[&str]>,
    versions: impl Iterator<Item = u64>,
) {
    let mut directory = Beside::new(chain, tensors);
    directory.pull(subscriber.held().unwrap().version);
    for version in versions {
        let before = copy_lent(subscriber);
        let held = subscriber.held().cloned();
        let mut prepared = subscriber
            .prepare_proven(Some(version), &())
            .unwrap()
            .unwrap();
        assert_eq!(
            (copy_lent(subscriber), subscriber.held()),
            (before, held.as_ref())
        );
        let (expected, state) = directory.pull(version);
        assert_eq!(
            (prepared.held().version, prepared.held().state),
            (version, expected.state)
        );
        let switched = subscriber.apply(&mut prepared, &Alone, &()).unwrap();
        assert_eq!(copy_lent(subscriber), state);
        assert_eq!(
            (switched.from, switched.version, switched.commit),
            (expected.from, version, expected.commit)
        );
        // A directory may use a shorter snapshot, which is never used in place, and memory in place
        // always downloads whole files.
        if switched.routes == expected.routes && tensors.is_none() {
            assert_eq!(
                (switched.downloaded, switched.from_cache),
                (expected.downloaded, expected.from_cache)
            );
        }
        let is_whole = switched.routes[0].0.is_none();
        assert_eq!(switched.fallback, is_whole.then_some(Fallback::NoRoute));
        subscriber.verify(&()).unwrap();
        assert!(subscriber.apply(&mut prepared, &Alone, &()).is_err());
    }
}

#[test]
fn memory_goes_where_a_directory_goes() {
    for (of, is_steady) in [(1, true), (2, true), (1, false), (2, false)] {
        let chain = if is_steady { steady(of) } else { changing(of) };
        for tensors in [None, Some(&["a", "b", "d"][..])] {
            let options = || options(tensors);
            for step in [1, 2, 4] {
                let later = || (step..5).step_by(usize::try_from(step).unwrap());
                let mut from_nothing = Follower::in_memory(chain.store.clone(), options()).unwrap();
                assert_eq!(from_nothing.held(), None);
                go(&chain, &mut from_nothing, tensors, (0..1).chain(later()));
                if is_steady {
                    let mut own = buffers(&part(&chain.whole(0), tensors));
                    let mut lent = lent_at(&chain, 0, &mut own, tensors);
                    go_lent(&chain, &mut lent, tensors, later());
                    drop(lent);
                    assert_eq!(own, buffers(&part(&chain.whole(4), tensors)));
                }
            }
        }
    }
}

#[test]
fn some_shards_are_taken() {
    for chain in [steady(2), changing(2)] {
        let mut options = FollowerOptions::default().shards(Some(vec![1]));
        let mut subscriber = Follower::in_memory(chain.store.clone(), options.clone()).unwrap();
        for version in 0..5 {
            let mut prepared = subscriber
                .prepare(Some(version as u64), &())
                .unwrap()
                .unwrap();
            subscriber.apply(&mut prepared).unwrap();
            assert_eq!(copy(&subscriber), chain.versions[version][1]);
        }
        // The caller's memory has just these tensors.
        let mut own = buffers(&chain.versions[0][1]);
        let mut lent = into_memory(chain.store.clone(), lend(&mut own), options.clone()).unwrap();
        for version in 0..5 {
            let same = chain.versions[version][1].tensors() == chain.versions[0][1].tensors();
            match lent.prepare_proven(Some(version as u64), &()) {
                Ok(prepared) => {
                    lent.apply(&mut prepared.unwrap(), &Alone, &()).unwrap();
                    assert_eq!(copy_lent(&lent), chain.versions[version][1]);
                    lent.verify(&()).unwrap();
                }
                Err(error) => assert_eq!((error.class(), same), (ErrorClass::Usage, false)),
            }
        }
        options = options.shards(Some(vec![2]));
        let mut subscriber = Follower::in_memory(chain.store.clone(), options).unwrap();
        assert_eq!(
            subscriber.prepare(None, &()).unwrap_err().rule(),
            Some("R-CHN-17")
        );
    }
}

#[test]
fn patches_are_shown() {
    let chain = steady(1);
    let mut subscriber = Follower::in_memory(chain.store.clone(), options(None)).unwrap();
    let mut first = subscriber.prepare(Some(0), &()).unwrap().unwrap();
    let [set] = first.patch_sets() else {
        panic!("one shard")
    };
    let whole: Vec<_> = set
        .whole_tensors()
        .map(|(info, data)| (info.clone(), data.to_vec()))
        .collect();
    assert_eq!((whole, set.runs().len()), (buffers(&chain.whole(0)), 0));
    subscriber.apply(&mut first).unwrap();

    let next = subscriber.prepare(Some(1), &()).unwrap().unwrap();
    let [set] = next.patch_sets() else {
        panic!("one shard")
    };
    let tensor = |run: &deltachain::memory::Run| set.table().tensors[run.tensor].name();
    let a = set.runs().iter().find(|run| tensor(run) == "a").unwrap();
    assert_eq!(
        (a.kind.clone(), &set.numbers()[..1]),
        (RunKind::Lanes(0..1), &[7][..])
    );
    assert_eq!(
        set.values()[a.values.clone()],
        chain.whole(1).get("a").unwrap().1[7..8]
    );
    assert_eq!(set.whole_tensors().count(), 0);
}

/// Damages an object in several ways, and calls `check` with the expected rule each time.
fn damage(path: &Path, check: &mut dyn FnMut(&str)) {
    let whole = fs::read(path).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    fs::write(path, changed).unwrap();
    check("R-CHN-10");
    fs::remove_file(path).unwrap();
    check("R-CHN-09");
    fs::write(path, whole).unwrap();
}

#[test]
fn another_way_is_taken_past_a_damaged_file() {
    for of in [1, 2] {
        let chain = steady(of);
        // First the link from 0 is broken, then that from 2 as well: only a snapshot is left, for
        // memory that holds another version.
        for (broken, route) in [
            (vec![Some(0)], (Some(0), 1)),
            (vec![Some(0), Some(2)], (None, 3)),
        ] {
            let (last, others) = broken.split_last().unwrap();
            let kept: Vec<_> = others
                .iter()
                .map(|&from| chain.path(chain.files(3, from)[0].name()))
                .map(|path| (fs::read(&path).unwrap(), fs::remove_file(&path), path))
                .collect();
            damage(
                &chain.path(chain.files(3, *last)[of - 1].name()),
                &mut |rule| {
                    let notes = Notes::default();
                    let mut subscriber = at(&chain, 0);
                    let mut prepared = subscriber.prepare(Some(3), &notes).unwrap().unwrap();
                    assert!(
                        notes.remarks().iter().any(|remark| remark.contains(rule)),
                        "{:?}",
                        notes.remarks()
                    );
                    assert!(
                        prepared
                            .patch_sets()
                            .iter()
                            .all(|set| set.whole_tensors().count() == 0)
                    );
                    let switched = subscriber.apply(&mut prepared).unwrap();
                    assert_eq!((switched.routes[0], switched.fallback), (route, None));
                    assert_eq!(copy(&subscriber), chain.whole(3));

                    let mut own = buffers(&chain.whole(0));
                    let mut subscriber = lent_at(&chain, 0, &mut own, None);
                    let notes = Notes::default();
                    let mut prepared = subscriber.prepare_proven(Some(3), &notes).unwrap().unwrap();
                    assert!(
                        notes.remarks().iter().any(|remark| remark.contains(rule)),
                        "{:?}",
                        notes.remarks()
                    );
                    // A snapshot is loaded as a whole.
                    let fallback = route.0.is_none().then_some(Fallback::NoRoute);
                    assert_eq!(prepared.is_whole(), fallback.is_some());
                    let switched = subscriber.apply(&mut prepared, &Alone, &()).unwrap();
                    assert_eq!((switched.routes[0], switched.fallback), (route, fallback));
                    assert_eq!(copy_lent(&subscriber), chain.whole(3));
                },
            );
            kept.into_iter()
                .for_each(|(bytes, _, path)| fs::write(path, bytes).unwrap());
        }
    }
}

#[test]
fn what_fails_leaves_everything_as_it_was() {
    for chain in [steady(2), changing(1)] {
        let mut subscriber = at(&chain, 3);
        let path = chain.path(chain.files(4, Some(3))[0].name());
        let snapshots = chain
            .commit(4)
            .routes
            .into_iter()
            .filter(|route| route.from.is_none());
        let snapshots = snapshots
            .flat_map(|route| route.files)
            .map(|file| chain.path(file.name()));
        let hidden: Vec<_> = snapshots
            .map(|path| (fs::read(&path).unwrap(), fs::remove_file(&path), path))
            .collect();
        damage(&path, &mut |_| {
            let error = subscriber.prepare(None, &()).unwrap_err();
            assert!(
                matches!(error.rule(), Some("R-CHN-09" | "R-CHN-10")),
                "{error}"
            );
            assert_eq!(
                (copy(&subscriber), subscriber.held().unwrap().version),
                (chain.whole(3), 3)
            );
        });
        hidden
            .into_iter()
            .for_each(|(bytes, _, path)| fs::write(path, bytes).unwrap());
        // Stopped at every moment.
        let mut stop_at = 1;
        while let Err(error) = subscriber.prepare(None, &Notes::stopping_at(stop_at)) {
            assert_eq!(error.message(), "stopped by the test");
            assert_eq!(
                (copy(&subscriber), subscriber.held().unwrap().version),
                (chain.whole(3), 3)
            );
            stop_at += 1;
        }
        assert!(stop_at > 3);
    }
}

#[test]
fn lent_buffers_have_no_room_for_what_comes_or_goes() {
    for (chain, base) in [(changing(1), 0), (changing(1), 1), (changing(2), 0)] {
        let mut own = buffers(&chain.whole(base));
        let mut subscriber = lent_at(&chain, base, &mut own, None);
        assert_eq!(
            subscriber
                .prepare_proven(Some(base + 1), &())
                .unwrap_err()
                .class(),
            ErrorClass::Usage
        );
        assert_eq!(
            (subscriber.held().unwrap().version, subscriber.is_torn()),
            (base, false)
        );
        subscriber.verify(&()).unwrap();
        drop(subscriber);
        assert_eq!(own, buffers(&chain.whole(base)));
    }
}

#[test]
fn shards_come_and_go() {
    let mut chain = steady(2);
    chain.add_shards(
        vec![
            state(&[("a", &[1])]),
            state(&[("b", &[2])]),
            state(&[("c", &[3])]),
        ],
        &[None],
    );
    let mut subscriber = at(&chain, 4);
    go(&chain, &mut subscriber, None, 5..6);
    let mut prepared = subscriber.prepare(Some(3), &()).unwrap().unwrap();
    subscriber.apply(&mut prepared).unwrap();
    assert_eq!(copy(&subscriber), chain.whole(3));

    let mut own = buffers(&chain.whole(4));
    let mut subscriber = lent_at(&chain, 4, &mut own, None);
    assert_eq!(
        subscriber.prepare_proven(None, &()).unwrap_err().class(),
        ErrorClass::Usage
    );
    assert_eq!(copy_lent(&subscriber), chain.whole(4));
    // All tensors are in one memory, so their division into shards may change.
    let mut chain = steady(1);
    let whole = chain.whole(4);
    let halves = [&["a", "b"][..], &["bias", "c"]].map(|taken| part(&whole, Some(taken)));
    chain.add_shards(halves.to_vec(), &[None]);
    let mut own = buffers(&whole);
    let mut subscriber = lent_at(&chain, 4, &mut own, None);
    let mut prepared = subscriber.prepare_proven(None, &()).unwrap().unwrap();
    let switched = subscriber.apply(&mut prepared, &Alone, &()).unwrap();
    assert_eq!(switched.fallback, Some(Fallback::NoRoute));
    assert_eq!(copy_lent(&subscriber), whole);
    subscriber.verify(&()).unwrap();
}

#[test]
fn a_commit_that_says_something_else_of_the_union_is_refused() {
    let mut chain = steady(2);
    let shards = chain.versions[4].clone();
    chain.add_as(Digest::of_bytes(b"else"), shards.clone(), &[Some(4)]);
    let mut subscriber = at(&chain, 4);
    assert_eq!(
        subscriber.prepare(None, &()).unwrap_err().rule(),
        Some("R-CHN-12")
    );
}

#[test]
fn what_was_prepared_for_another_version_is_refused() {
    let chain = steady(1);
    let mut subscriber = at(&chain, 0);
    let mut first = subscriber.prepare(Some(1), &()).unwrap().unwrap();
    let mut second = subscriber.prepare(Some(2), &()).unwrap().unwrap();
    subscriber.apply(&mut first).unwrap();
    assert_eq!(
        subscriber.apply(&mut second).unwrap_err().class(),
        ErrorClass::Usage
    );
    let mut third = subscriber.prepare(Some(3), &()).unwrap().unwrap();
    subscriber.apply(&mut third).unwrap();
    for old in [&mut first, &mut second, &mut third] {
        assert_eq!(
            subscriber.apply(old).unwrap_err().class(),
            ErrorClass::Usage
        );
    }
    assert_eq!(copy(&subscriber), chain.whole(3));
}

#[test]
fn links_are_kept_where_the_caller_says() {
    let chain = steady(1);
    let folder = tempfile::tempdir().unwrap();
    let fetched = |cache: Option<PathBuf>| {
        let options = options(None).cache(cache);
        let mut subscriber = Follower::in_memory(chain.store.clone(), options).unwrap();
        let mut prepared = subscriber.prepare(Some(0), &()).unwrap().unwrap();
        let switched = subscriber.apply(&mut prepared).unwrap();
        (switched.downloaded, switched.from_cache)
    };
    let size = chain.files(0, None)[0].size;
    assert_eq!(
        [fetched(Some(folder.path().to_owned())), fetched(None)],
        [(size, 0); 2]
    );
    assert_eq!(fetched(Some(folder.path().to_owned())), (0, size));
}

#[test]
fn a_chain_is_followed_as_it_grows() {
    let mut chain = changing(1);
    let mut subscriber = Follower::in_memory(chain.store.clone(), options(None)).unwrap();
    let mut poller = Poller::new(&FollowOptions::default().poll(Duration::ZERO));
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let mut prepared = poller.poll(&mut subscriber, &()).unwrap().unwrap();
        let switched = subscriber.apply(&mut prepared).unwrap();
        seen.push((switched.from, switched.version));
        assert_eq!(copy(&subscriber), chain.whole(switched.version));
        assert!(poller.poll(&mut subscriber, &()).unwrap().is_none());
        let next = state(&[("b", &[u8::try_from(switched.version).unwrap()])]);
        chain.add(next, &[Some(switched.version)]);
        assert!(
            poller
                .wait(&(), || Ok(ControlFlow::Continue(())))
                .unwrap()
                .is_continue()
        );
    }
    assert_eq!(seen, [(None, 4), (Some(4), 5), (Some(5), 6)]);
    assert!(chain.path(ObjectName::Commit(7)).exists());
}
