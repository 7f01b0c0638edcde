//! Publishing: bases, policies, shards, races, and the remains of a crash.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use deltachain::chain::{Commit, ObjectName};
use deltachain::files::{Layout, LayoutFile, SafetensorsState, StagedSafetensors};
use deltachain::tensor::{Digest, Dtype, MemoryState, State, StateDigests, StateWriter};
use deltachain::{Error, ErrorClass, Limits, LinkReader, Profile, Result};
use deltachain_store::{
    Base, CompactOptions, Follower, FollowerOptions, Observer, Phase, PublishOptions,
    PublishReport, Publisher, RawObjects, ShardPart, Snapshots, Store, StoreOptions, compact, init,
    log, show,
};
use object_store::memory::InMemory;

use crate::common::Notes;
use crate::support::faulty::{Fault, FaultyStore, Operation};
use crate::support::models::{Models, save};
use crate::support::quick;
use crate::support::shards::{commit_shards, publish_shard};
use crate::support::verify::{marks, prove, rebuild};

fn store(directory: &Path) -> Store {
    let path = directory.join("chain");
    Store::create(path.to_str().unwrap(), StoreOptions::default()).unwrap()
}

fn options(snapshots: Snapshots, skips: &[u64]) -> PublishOptions {
    PublishOptions::default()
        .snapshots(snapshots)
        .skips(skips.to_vec())
}

fn publish(store: &Store, state: &SafetensorsState, base: Base<'_>) -> Result<PublishReport> {
    Publisher::open(store.clone(), PublishOptions::default())?.publish(state, base, &())
}

fn from(published: &PublishReport) -> Vec<Option<u64>> {
    published.routes.iter().map(|route| route.from).collect()
}

fn commit_of(store: &Store, version: u64) -> Commit {
    let bytes = store.get(ObjectName::Commit(version)).unwrap().unwrap();
    Commit::parse(&bytes, &Limits::default()).unwrap()
}

fn assert_rule(error: &Error, rule: &str) {
    assert_eq!(
        (error.rule(), error.class()),
        (Some(rule), ErrorClass::Chain),
        "{error}"
    );
}

#[test]
fn a_chain_is_begun_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let error = Publisher::open(store.clone(), PublishOptions::default()).unwrap_err();
    assert_rule(&error, "R-CHN-01");
    let chain = init(&store).unwrap().unwrap();
    assert_eq!(
        store.get(ObjectName::Chain).unwrap().unwrap(),
        chain.to_bytes().unwrap()
    );
    assert_eq!(init(&store).unwrap(), None);
    assert_eq!(
        store.get(ObjectName::Chain).unwrap().unwrap(),
        chain.to_bytes().unwrap()
    );
    assert!(log(&store, None, None).unwrap().is_empty());
    assert_rule(&show(&store, None, None).unwrap_err(), "R-CHN-03");
}

#[test]
fn versions_are_made_from_the_head_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let mut models = Models::new(1, 40);
    init(&store).unwrap();
    let states: Vec<SafetensorsState> = (0..4)
        .map(|version| models.save(version, directory.path()))
        .collect();
    // The chain has no version yet from which a link could start.
    assert_rule(
        &publish(&store, &states[1], Base::State((&states[0]).into())).unwrap_err(),
        "R-PUB-01",
    );
    let first = publish(&store, &states[0], Base::Nothing).unwrap();
    assert_eq!(
        (first.version, from(&first), first.unchanged_state),
        (0, vec![None], false)
    );
    assert_eq!(first.changed, first.elements);

    let second = publish(&store, &states[1], Base::State((&states[0]).into())).unwrap();
    assert_eq!((second.version, from(&second)), (1, vec![Some(0)]));
    assert!(second.changed > 0 && second.changed < second.elements);
    let error = publish(&store, &states[2], Base::State((&states[0]).into())).unwrap_err();
    assert_rule(&error, "R-PUB-01");
    let digest = |state| StateDigests::of(state, &()).unwrap().state.to_string();
    assert!(
        error.message().contains(&digest(&states[0]))
            && error.message().contains(&digest(&states[1]))
    );

    // A snapshot of the head needs no base, and nothing need have changed.
    let third = publish(&store, &states[2], Base::Nothing).unwrap();
    assert_eq!(from(&third), [None]);
    let fourth = publish(&store, &states[2], Base::State((&states[2]).into())).unwrap();
    assert_eq!(
        (
            fourth.version,
            fourth.changed,
            fourth.unchanged_state,
            fourth.state
        ),
        (3, 0, true, third.state)
    );

    let proven = prove(&store);
    for (state, version) in proven.iter().zip([0, 1, 2, 2]) {
        assert_eq!(state, models.state(version));
    }
    assert_eq!(proven.len(), 4);
}

#[test]
fn metadata_and_order_are_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let mut models = Models::new(2, 10);
    init(&store).unwrap();
    for version in 0..5 {
        let options = options(Snapshots::Never, &[]).metadata(BTreeMap::from([(
            "step".to_owned(),
            (100 * version).to_string(),
        )]));
        let state = models.save(version, directory.path());
        let work = directory.path().join("work");
        Publisher::open(store.clone(), options)
            .unwrap()
            .publish(&state, Base::Work(&work), &())
            .unwrap();
    }
    let entries = log(&store, None, None).unwrap();
    assert_eq!(
        entries
            .iter()
            .map(|entry| entry.version)
            .collect::<Vec<_>>(),
        [4, 3, 2, 1, 0]
    );
    assert_eq!(entries[1].metadata["step"], "300");
    assert_eq!(entries[1].parent, entries[2].commit);
    assert!(
        entries
            .iter()
            .all(|entry| entry.stored.is_some() && entry.routes.len() == 1)
    );
    assert_eq!(log(&store, Some(2), None).unwrap(), entries[..2]);
    assert_eq!(log(&store, Some(9), None).unwrap(), entries);
    assert_eq!(show(&store, None, None).unwrap(), entries[0]);
    assert_eq!(show(&store, Some(1), None).unwrap(), entries[3]);
    assert_rule(&show(&store, Some(5), None).unwrap_err(), "R-CHN-03");
}

/// Counts bytes by phase.
#[derive(Default)]
struct Counter(Mutex<BTreeMap<String, u64>>);

impl Counter {
    fn of(&self, phase: Phase) -> u64 {
        self.0
            .lock()
            .unwrap()
            .get(&format!("{phase:?}"))
            .copied()
            .unwrap_or_default()
    }
}

impl Observer for Counter {
    fn begin(&self, _phase: Phase, _bytes: u64) {}

    fn advance(&self, phase: Phase, bytes: u64) -> Result<()> {
        *self
            .0
            .lock()
            .unwrap()
            .entry(format!("{phase:?}"))
            .or_default() += bytes;
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, text: &str) {
        panic!("{text}");
    }
}

#[test]
fn a_policy_says_which_routes_a_version_gets() {
    const VERSIONS: u64 = 40;
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let mut models = Models::new(3, 20);
    init(&store).unwrap();
    let work = directory.path().join("work");
    let counter = Counter::default();
    for version in 0..VERSIONS {
        // A restarted publisher knows as much as any other.
        let mut publisher =
            Publisher::open(store.clone(), options(Snapshots::Every(10), &[4, 16])).unwrap();
        let state = models.save(version, directory.path());
        let published = publisher
            .publish(&state, Base::Work(&work), &counter)
            .unwrap();
        let mut expected = Vec::new();
        if version % 10 == 0 {
            expected.push(None);
        }
        if version > 0 && version % 16 == 0 {
            expected.push(Some(version - 16));
        }
        if version > 0 && version % 4 == 0 {
            expected.push(Some(version - 4));
        }
        expected.extend(version.checked_sub(1).map(Some));
        assert_eq!(from(&published), expected);
    }
    let proven = prove(&store);
    assert_eq!(proven.len() as u64, VERSIONS);
    for (version, state) in (0..).zip(&proven) {
        assert_eq!(state, models.state(version));
    }
    assert!(counter.of(Phase::Upload) > 0 && counter.of(Phase::Compare) > 0);
}

#[test]
fn snapshots_come_when_late_joiners_would_read_too_much() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let mut models = Models::new(4, 10);
    init(&store).unwrap();
    let mut path = 0;
    let mut snapshot = 0;
    let mut snapshots = 0;
    for version in 0..40 {
        let state = models.save(version, directory.path());
        let base = version
            .checked_sub(1)
            .map(|before| models.save(before, directory.path()));
        let base = base
            .as_ref()
            .map_or(Base::Nothing, |base| Base::State(base.into()));
        let mut publisher =
            Publisher::open(store.clone(), options(Snapshots::Cost(1.5), &[])).unwrap();
        let published = publisher.publish(&state, base, &()).unwrap();
        let bytes = |from| {
            published
                .routes
                .iter()
                .find(|route| route.from == from)
                .map(|route| route.bytes)
        };
        if version > 0 {
            path += bytes(Some(version - 1)).unwrap();
            assert_eq!(
                bytes(None).is_some(),
                2 * path > 3 * snapshot,
                "version {version}"
            );
        }
        if let Some(bytes) = bytes(None) {
            (path, snapshot, snapshots) = (bytes, bytes, snapshots + 1);
        }
    }
    assert!((2..20).contains(&snapshots), "{snapshots} snapshots");
}

#[test]
fn the_work_directory_holds_what_was_published() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let mut models = Models::new(5, 40);
    init(&store).unwrap();
    let work = directory.path().join("work");
    for version in 0..8 {
        let state = models.save(version, directory.path());
        let counter = Counter::default();
        let mut publisher = Publisher::open(store.clone(), options(Snapshots::Never, &[])).unwrap();
        publisher
            .publish(&state, Base::Work(&work), &counter)
            .unwrap();
        // The publisher's own versions need not be downloaded.
        assert_eq!(counter.of(Phase::Download), 0, "version {version}");
        let held = SafetensorsState::open(work.join("current")).unwrap();
        assert_eq!(&MemoryState::copy_of(&held).unwrap(), models.state(version));
        assert_eq!(held.layout(), state.layout());
    }
    // Without its work directory, the publisher gets everything from the chain.
    let other = directory.path().join("other");
    let state = models.save(8, directory.path());
    let published = publish(&store, &state, Base::Work(&other)).unwrap();
    assert_eq!(
        (published.version, from(&published).contains(&Some(7))),
        (8, true)
    );
    assert_eq!(&rebuild(&store, None).unwrap(), models.state(8));
}

#[test]
fn of_two_publishers_one_wins() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let mut models = Models::new(6, 4);
    init(&store).unwrap();
    let states: Vec<SafetensorsState> = (0..3)
        .map(|version| models.save(version, directory.path()))
        .collect();
    publish(&store, &states[0], Base::Nothing).unwrap();
    let mut last = 0;
    let rounds = crate::support::setting("DELTACHAIN_RACES", 60);
    for round in 1..=rounds {
        // Neither rival publishes the state of the head: otherwise the loser would have the right
        // base for one more version.
        let rivals: Vec<usize> = (0..states.len()).filter(|&state| state != last).collect();
        let results: Vec<Result<PublishReport>> = thread::scope(|scope| {
            let race = |&rival: &usize| {
                let store = store.clone();
                let rival = &states[rival];
                let last = &states[last];
                scope.spawn(move || publish(&store, rival, Base::State(last.into())))
            };
            let racing: Vec<_> = rivals.iter().map(race).collect();
            racing
                .into_iter()
                .map(|racer| racer.join().unwrap())
                .collect()
        });
        let winner = results.iter().position(Result::is_ok).expect("a winner");
        assert_eq!(results[winner].as_ref().unwrap().version, round);
        // A rival that is too late to lose the race finds another head.
        let error = results[1 - winner].as_ref().unwrap_err();
        assert!(
            matches!(error.rule(), Some("R-PUB-03" | "R-PUB-01")),
            "{error}"
        );
        assert_eq!(error.class(), ErrorClass::Chain);
        assert_eq!(
            commit_of(&store, round).state,
            results[winner].as_ref().unwrap().state
        );
        last = rivals[winner];
    }
    assert_eq!(prove(&store).len() as u64, rounds + 1);
}

#[test]
fn who_comes_second_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let mut models = Models::new(7, 4);
    init(&store).unwrap();
    let states: Vec<SafetensorsState> = (0..3)
        .map(|version| models.save(version, directory.path()))
        .collect();
    publish(&store, &states[0], Base::Nothing).unwrap();
    let part = |state| {
        publish_shard(
            &store,
            state,
            Base::State((&states[0]).into()),
            0,
            1,
            &PublishOptions::default(),
            &(),
        )
    };
    let slow = part(&states[1]).unwrap();
    let fast = part(&states[2]).unwrap();
    let commit = |part: &ShardPart| {
        commit_shards(
            &store,
            std::slice::from_ref(part),
            &PublishOptions::default(),
            &(),
        )
    };
    let published = commit(&fast).unwrap();
    let error = commit(&slow).unwrap_err();
    assert_rule(&error, "R-PUB-03");
    assert!(error.message().contains("version 1"));
    assert_eq!(error.file(), Some("commits/00000000000000000001.json"));
    // The winner's own bytes are there, so a publisher that does not know whether it has won may
    // retry.
    assert_eq!(commit(&fast).unwrap(), published);
}

#[test]
fn a_publisher_that_stops_anywhere_leaves_a_chain_that_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut models = Models::new(8, 10);
    let states: Vec<SafetensorsState> = (0..5)
        .map(|version| models.save(version, directory.path()))
        .collect();
    let every = options(Snapshots::Every(1), &[4]);
    // Three links and a commit.
    for stop in 0..=4 {
        let (objects, control) = FaultyStore::new(std::sync::Arc::new(InMemory::new()));
        let store = Store::from_objects(objects, "", quick()).unwrap();
        init(&store).unwrap();
        let publish = |version: usize| {
            let base = version.checked_sub(1).map_or(Base::Nothing, |before| {
                Base::State((&states[before]).into())
            });
            Publisher::open(store.clone(), every.clone())?.publish(&states[version], base, &())
        };
        for version in 0..4 {
            publish(version).unwrap();
        }
        control.stop_after(stop);
        let result = publish(4);
        assert_eq!(result.is_ok(), stop >= 4);
        control.heal();
        let head = prove(&store).len();
        assert_eq!(head, if stop < 4 { 4 } else { 5 });
        if stop < 4 {
            assert_eq!(from(&publish(4).unwrap()), [None, Some(0), Some(3)]);
        }
        assert_eq!(prove(&store).len(), 5);
        assert_eq!(&rebuild(&store, None).unwrap(), models.state(4));
    }
}

/// Writes a model in parts without a common tensor.
fn shards(version: u8, count: u8, below: &Path) -> Vec<SafetensorsState> {
    let part = |shard: u8| {
        let mut state = MemoryState::new();
        for number in (0..12_u8).filter(|number| number % count == shard) {
            let data = (0..200)
                .map(|place| if place == version { 0 } else { place ^ number })
                .collect();
            state
                .insert(&format!("tensor.{number}"), Dtype::U8, &[200], data)
                .unwrap();
        }
        let path = below.join(format!("{version} {shard} of {count}"));
        if !path.exists() {
            save(&state, &path, false);
        }
        SafetensorsState::open(&path).unwrap()
    };
    (0..count).map(part).collect()
}

#[test]
fn shards_become_a_version_together() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let store = store(place);
    let options = options(Snapshots::Every(2), &[2]);
    init(&store).unwrap();
    let part = |state: &SafetensorsState, base: Base<'_>, shard: usize, of: usize| {
        let part = publish_shard(&store, state, base, shard, of, &options, &()).unwrap();
        // The part goes from process to process as JSON.
        let text = serde_json::to_string(&part).unwrap();
        let read: ShardPart = serde_json::from_str(&text).unwrap();
        assert_eq!(read, part);
        read
    };
    for (version, of) in [(0_u8, 3_u8), (1, 3), (2, 3), (3, 2)] {
        let states = shards(version, of, place);
        let before = version
            .checked_sub(1)
            .map(|before| shards(before, of, place));
        let mut parts = Vec::new();
        for (shard, state) in states.iter().enumerate() {
            let work = place.join(format!("work {shard}"));
            // One process has the files of the base, another keeps a work directory.
            let base = match &before {
                Some(before) if shard == 0 => Base::State((&before[shard]).into()),
                Some(_) if of == 3 => Base::Work(&work),
                _ => Base::Nothing,
            };
            parts.push(part(state, base, shard, usize::from(of)));
        }
        assert!(
            store
                .get(ObjectName::Commit(version.into()))
                .unwrap()
                .is_none()
        );
        parts.rotate_left(1);
        let published = commit_shards(&store, &parts, &options, &()).unwrap();
        let expected: &[Option<u64>] = match version {
            0 | 3 => &[None],
            1 => &[Some(0)],
            _ => &[None, Some(0), Some(1)],
        };
        assert_eq!(from(&published), expected);
        let whole = shards(version, 1, place);
        assert_eq!(
            published.state,
            StateDigests::of(&whole[0], &()).unwrap().state
        );
        let digests: Vec<_> = states
            .iter()
            .map(|state| StateDigests::of(state, &()).unwrap().state)
            .collect();
        assert_eq!(commit_of(&store, version.into()).shards, digests);
    }
}

#[test]
fn a_route_is_direct_if_the_links_of_all_shards_are() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let store = store(place);
    init(&store).unwrap();
    for (version, profiles) in [
        (0, [Profile::Compact; 2]),
        (1, [Profile::Compact; 2]),
        (2, [Profile::Direct, Profile::Compact]),
        (3, [Profile::Direct; 2]),
    ] {
        let part = |shard: usize| {
            let options = options(Snapshots::Never, &[]).profiles(vec![profiles[shard]]);
            let mut state = MemoryState::new();
            // Small changes, which compact links store as differences.
            let data = (0..4000_u16)
                .flat_map(|value| (0x3F00 + value % 128 + version % 2).to_le_bytes())
                .collect();
            state
                .insert(&format!("tensor.{shard}"), Dtype::BF16, &[4000], data)
                .unwrap();
            let path = place.join(format!("{version} {shard}"));
            save(&state, &path, false);
            let state = SafetensorsState::open(&path).unwrap();
            let base = if version == 0 {
                Base::Nothing
            } else {
                Base::Chain
            };
            let part = publish_shard(&store, &state, base, shard, 2, &options, &()).unwrap();
            serde_json::from_str(&serde_json::to_string(&part).unwrap()).unwrap()
        };
        let parts: Vec<ShardPart> = (0..2).map(part).collect();
        commit_shards(&store, &parts, &options(Snapshots::Never, &[]), &()).unwrap();
    }
    assert_eq!(marks(&store), (1, 2));
    let marked = |version| {
        commit_of(&store, version)
            .metadata
            .get("deltachain.direct")
            .cloned()
    };
    assert_eq!(
        [0, 1, 2, 3].map(marked),
        [None, None, None, Some("0".to_owned())]
    );
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let store = store(place);
    let options = PublishOptions::default();
    init(&store).unwrap();
    let part = |version, of: u8, shard: u8, as_shard: usize| {
        let states = shards(version, of, place);
        publish_shard(
            &store,
            &states[usize::from(shard)],
            Base::Nothing,
            as_shard,
            usize::from(of),
            &options,
            &(),
        )
    };
    let commit = |parts: &[&ShardPart]| {
        let parts: Vec<ShardPart> = parts.iter().map(|&part| part.clone()).collect();
        commit_shards(&store, &parts, &options, &())
    };
    let first = part(0, 2, 0, 0).unwrap();
    let second = part(0, 2, 1, 1).unwrap();
    assert_eq!(part(0, 2, 1, 2).unwrap_err().class(), ErrorClass::Usage);
    let same = part(0, 2, 0, 1).unwrap();
    let of_three = part(0, 3, 1, 1).unwrap();
    for (parts, message) in [
        (&[][..], "no shard"),
        (&[&first], "shard 1 of 2 is missing"),
        (&[&second], "shard 0 of 2 is missing"),
        (&[&first, &second, &second], "3 parts"),
        (&[&first, &of_three], "was made for"),
    ] {
        let error = commit(parts).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage);
        assert!(error.message().contains(message), "{error}");
    }
    assert_eq!(
        commit(&[&first, &same]).unwrap_err().rule(),
        Some("R-CHN-12")
    );
    assert_eq!(log(&store, None, None).unwrap(), []);

    // A missing file.
    let file = store
        .objects()
        .unwrap()
        .into_iter()
        .find(|object| matches!(object.name, ObjectName::File(_)))
        .unwrap();
    store.delete(&[file.name]).unwrap();
    let all = [part(0, 2, 0, 0), part(0, 2, 1, 1)].map(Result::unwrap);
    commit(&[&all[0], &all[1]]).unwrap();
    // A part of an older head.
    let late = part(1, 2, 0, 0).unwrap();
    assert_eq!(
        commit(&[&late, &second]).unwrap_err().class(),
        ErrorClass::Usage
    );
    let rule = |error: Error| error.rule().map(str::to_owned);
    let others = [part(1, 2, 0, 0), part(1, 2, 1, 1)].map(Result::unwrap);
    store
        .delete(
            &store
                .objects()
                .unwrap()
                .iter()
                .map(|object| object.name)
                .filter(is_file)
                .collect::<Vec<_>>(),
        )
        .unwrap();
    assert_eq!(
        commit(&[&others[0], &others[1]])
            .map_err(rule)
            .unwrap_err()
            .as_deref(),
        Some("R-CHN-09")
    );
    assert_eq!(log(&store, None, None).unwrap().len(), 1);
}

fn is_file(name: &ObjectName) -> bool {
    matches!(name, ObjectName::File(_))
}

#[test]
fn damaged_parts_are_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    init(&store).unwrap();
    let state = &shards(0, 2, directory.path())[0];
    let part = publish_shard(
        &store,
        state,
        Base::Nothing,
        0,
        2,
        &PublishOptions::default(),
        &(),
    )
    .unwrap();
    let text = serde_json::to_string(&part).unwrap();
    let digest = serde_json::to_value(&part).unwrap()["state"]
        .as_str()
        .unwrap()
        .to_owned();
    for (old, new) in [
        ("\"deltachain_part\":3", "\"deltachain_part\":2"),
        ("\"U8\"", "\"U9\""),
        ("[200]", "[201]"),
        ("\"tensor.0\"", "\"tensor.9\""),
        (
            &*digest,
            &*digest.replace(|digit: char| digit.is_ascii_digit(), "a"),
        ),
        ("\"shard\":0", "\"shard\":-1"),
        ("\"shard\":0", "\"shards\":0"),
    ] {
        assert!(text.contains(old));
        assert!(
            serde_json::from_str::<ShardPart>(&text.replacen(old, new, 1)).is_err(),
            "{new}"
        );
    }
}

#[test]
fn guards_keep_a_version_from_being_made() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::create(place.path().join("chain").to_str().unwrap(), quick()).unwrap();
    init(&store).unwrap();
    let mut models = Models::new(31, 10);
    let first = models.state(0).clone();
    let second = models.state(1).clone();
    for is_last in [false, true] {
        let options = PublishOptions::default()
            .if_changed(true)
            .max_changed(Some(0.5));
        let mut publisher = Publisher::open(store.clone(), options).unwrap();
        let base = if is_last { Base::Chain } else { Base::Nothing };
        let before = publisher.publish(&first, base, &()).unwrap();
        assert!(before.is_new);
        let objects = store.objects().unwrap();
        let base = if is_last {
            Base::Last((&first).into())
        } else {
            Base::State((&first).into())
        };
        let again = publisher.publish(&first, base, &()).unwrap();
        assert_eq!(
            (again.is_new, again.version, again.state),
            (false, before.version, before.state)
        );
        assert_eq!(
            (again.commit, again.shards, again.changed),
            (before.commit, before.shards, 0)
        );

        let mut other = MemoryState::new();
        for (info, data) in first.iter() {
            other
                .insert(
                    info.name(),
                    info.dtype(),
                    info.shape(),
                    data.iter().map(|byte| byte ^ 1).collect(),
                )
                .unwrap();
        }
        let error = publisher.publish(&other, base, &()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage);
        assert!(error.message().contains("100.00 %"), "{error}");
        assert_eq!(store.objects().unwrap(), objects);
        assert_eq!(
            publisher.publish(&second, base, &()).unwrap().version,
            before.version + 1
        );
    }
}

/// Builds a state with this many tensors of ten bytes each.
fn of_tens(tensors: usize) -> MemoryState {
    let mut state = MemoryState::new();
    for number in 0..tensors {
        state
            .insert(
                &format!("tensor.{number:02}"),
                Dtype::U8,
                &[10],
                vec![1; 10],
            )
            .unwrap();
    }
    state
}

#[test]
fn tensors_that_come_and_go_count_as_changed() {
    let few = of_tens(5);
    let many = of_tens(100);
    let mut resized = of_tens(99);
    resized
        .insert("tensor.99", Dtype::U8, &[1], vec![1])
        .unwrap();
    for (before, after, expected) in [
        (&many, &few, Some("95.00 %")),
        (&few, &many, Some("95.00 %")),
        (&many, &resized, None),
        (&many, &MemoryState::new(), Some("100.00 %")),
        (&many, &many, None),
    ] {
        let place = tempfile::tempdir().unwrap();
        let store = store(place.path());
        init(&store).unwrap();
        let options = PublishOptions::default()
            .max_changed(Some(0.1))
            .allow_empty(true);
        let mut publisher = Publisher::open(store, options).unwrap();
        publisher.publish(before, Base::Nothing, &()).unwrap();
        for base in [
            Base::Chain,
            Base::State(before.into()),
            Base::Last(before.into()),
        ] {
            let result = publisher.publish(after, base, &());
            match expected {
                Some(share) => {
                    let error = result.unwrap_err();
                    assert_eq!(error.class(), ErrorClass::Usage);
                    assert!(error.message().contains(share), "{error}");
                }
                None => {
                    result.unwrap();
                    break;
                }
            }
        }
    }
}

#[test]
fn a_version_without_tensors_is_made_only_if_that_is_wanted() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    init(&store).unwrap();
    let nothing = MemoryState::new();
    let some = of_tens(2);
    let wanted = PublishOptions::default().allow_empty(true);
    let is_refused = |error: Error| {
        assert_eq!(error.class(), ErrorClass::Usage, "{error}");
        assert!(error.message().contains("no tensors"), "{error}");
    };
    let mut publisher = Publisher::open(store.clone(), PublishOptions::default()).unwrap();
    is_refused(publisher.publish(&nothing, Base::Chain, &()).unwrap_err());
    assert_eq!(store.objects().unwrap().len(), 1);
    publisher.publish(&some, Base::Chain, &()).unwrap();
    let before = store.objects().unwrap();
    is_refused(
        publisher
            .publish(&nothing, Base::Last((&some).into()), &())
            .unwrap_err(),
    );
    assert_eq!(store.objects().unwrap(), before);
    let mut asked = Publisher::open(store.clone(), wanted.clone()).unwrap();
    assert_eq!(
        asked.publish(&nothing, Base::Chain, &()).unwrap().elements,
        0
    );

    // A shard may have no tensors if another one has some.
    let parts = |states: [&MemoryState; 2]| -> Vec<ShardPart> {
        let part = |shard: usize| {
            publish_shard(
                &store,
                states[shard],
                Base::Nothing,
                shard,
                2,
                &PublishOptions::default(),
                &(),
            )
            .unwrap()
        };
        vec![part(0), part(1)]
    };
    commit_shards(
        &store,
        &parts([&nothing, &some]),
        &PublishOptions::default(),
        &(),
    )
    .unwrap();
    let none = parts([&nothing, &nothing]);
    is_refused(commit_shards(&store, &none, &PublishOptions::default(), &()).unwrap_err());
    assert_eq!(log(&store, None, None).unwrap().len(), 3);
    assert_eq!(
        commit_shards(&store, &none, &wanted, &()).unwrap().version,
        3
    );
}

/// Names of the files that a follower has of the head.
fn followed(store: &Store, place: &Path) -> Vec<String> {
    let directory = tempfile::tempdir_in(place).unwrap();
    let mut follower =
        Follower::in_directory(store.clone(), directory.path(), FollowerOptions::default())
            .unwrap();
    let prepared = follower.prepare(None, &()).unwrap().unwrap();
    follower.apply(prepared).unwrap();
    let mut names: Vec<String> = fs::read_dir(directory.path().join("current"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The given base has the chain's tensors, but its files may differ.
#[test]
fn a_version_has_the_files_that_were_published_whatever_the_base() {
    let place = tempfile::tempdir().unwrap();
    let states = [of_tens(3), of_tens(4)];
    let file = |name: &str, numbers: Range<usize>| LayoutFile {
        name: Some(format!("{name}.safetensors")),
        metadata: None,
        tensors: numbers
            .map(|number| format!("tensor.{number:02}"))
            .collect(),
    };
    let saved = |version: usize, is_spread: bool| -> SafetensorsState {
        let path = place.path().join(format!("{version} {is_spread}"));
        let tensors = states[version].tensors();
        let files = if is_spread {
            vec![file("a", 0..1), file("b", 1..tensors.len())]
        } else {
            Vec::new()
        };
        let single = Layout::single_file(tensors);
        let layout = if is_spread {
            Layout::joined(files.iter()).unwrap()
        } else {
            single
        };
        let staged = StagedSafetensors::create(&path, tensors, &layout, None, true).unwrap();
        for (number, (_, data)) in states[version].iter().enumerate() {
            staged.write(number, 0, data).unwrap();
        }
        staged.commit().unwrap();
        SafetensorsState::open(&path).unwrap()
    };
    for (number, (in_chain, given)) in [(true, false), (false, true), (true, true), (false, false)]
        .iter()
        .enumerate()
    {
        let chain = place.path().join(format!("chain {number}"));
        let store = Store::create(chain.to_str().unwrap(), StoreOptions::default()).unwrap();
        init(&store).unwrap();
        let options = options(Snapshots::Never, &[2]);
        let open = || Publisher::open(store.clone(), options.clone()).unwrap();
        open()
            .publish(&saved(0, *in_chain), Base::Nothing, &())
            .unwrap();
        let base = saved(0, *given);
        let target = saved(1, *given);
        open()
            .publish(&target, Base::State((&base).into()), &())
            .unwrap();
        let expected = if *given {
            &[
                "a.safetensors",
                "b.safetensors",
                "model.safetensors.index.json",
            ][..]
        } else {
            &["model.safetensors"]
        };
        assert_eq!(
            followed(&store, place.path()),
            expected,
            "{in_chain} {given}"
        );
        // The same with a skip over that version, with the base from the chain, and with the
        // publisher's own last version.
        let mut publisher = open();
        let last = saved(0, *given);
        publisher.publish(&last, Base::Chain, &()).unwrap();
        assert_eq!(
            followed(&store, place.path()),
            expected,
            "{in_chain} {given}"
        );
        publisher
            .publish(&target, Base::Last((&last).into()), &())
            .unwrap();
        assert_eq!(
            followed(&store, place.path()),
            expected,
            "{in_chain} {given}"
        );
        let scratch = place.path().join(format!("scratch {number}"));
        compact(
            &store,
            &CompactOptions::new(&scratch).from(vec![0]).snapshot(true),
            &(),
        )
        .unwrap();
        assert_eq!(
            followed(&store, place.path()),
            expected,
            "{in_chain} {given}"
        );
        // A link states its layout only if the given base has other files than the chain
        // (R-PUB-12).
        let stated = |version: u64| {
            let file = commit_of(&store, version).routes.last().unwrap().files[0];
            let link =
                LinkReader::open(store.get(file.name()).unwrap().unwrap(), &Limits::default())
                    .unwrap();
            link.index().metadata.contains_key("deltachain.layout")
        };
        assert_eq!([1, 2, 3].map(stated), [in_chain != given, false, false]);
    }
}

/// Shards whose files have no names get numbers when they are joined. A base that is built from the
/// chain must not hide that.
#[test]
fn shards_have_the_files_that_were_published_too() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    init(&store).unwrap();
    let state = |shard: usize, value: u8| {
        let mut state = MemoryState::new();
        state
            .insert(&format!("tensor.{shard}"), Dtype::U8, &[3], vec![value; 3])
            .unwrap();
        state
    };
    let options = options(Snapshots::Never, &[]);
    let plain = |value: u8| -> Vec<ShardPart> {
        let base = if value == 0 {
            Base::Nothing
        } else {
            Base::Chain
        };
        let part = |shard: usize| {
            publish_shard(&store, &state(shard, value), base, shard, 2, &options, &()).unwrap()
        };
        vec![part(0), part(1)]
    };
    commit_shards(&store, &plain(0), &options, &()).unwrap();
    let numbered = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ];
    assert_eq!(followed(&store, place.path()), numbered);
    let named = |shard: usize| {
        let path = place.path().join(format!("shard {shard}"));
        save(&state(shard, 1), &path, false);
        SafetensorsState::open(&path).unwrap()
    };
    let part = |shard: usize| {
        publish_shard(&store, &named(shard), Base::Chain, shard, 2, &options, &()).unwrap()
    };
    commit_shards(&store, &[part(0), part(1)], &options, &()).unwrap();
    assert_eq!(followed(&store, place.path()), ["model.safetensors"]);
    commit_shards(&store, &plain(2), &options, &()).unwrap();
    assert_eq!(followed(&store, place.path()), numbered);
    let scratch = place.path().join("scratch");
    compact(&store, &CompactOptions::new(&scratch).snapshot(true), &()).unwrap();
    assert_eq!(followed(&store, place.path()), numbered);
}

/// A publisher that knows that a version's number was used never uses it again.
#[test]
fn a_publisher_does_not_go_back() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    let mut models = Models::new(33, 4);
    init(&store).unwrap();
    let states: Vec<MemoryState> = (0..6)
        .map(|version| models.state(version).clone())
        .collect();
    let open = |vouch| {
        let options = options(Snapshots::Never, &[]).vouch(vouch);
        Publisher::open(store.clone(), options).unwrap()
    };
    let publish = |publisher: &mut Publisher, version: usize| {
        let base = version.checked_sub(1).map_or(Base::Nothing, |before| {
            Base::State((&states[before]).into())
        });
        publisher.publish(&states[version], base, &())
    };
    let refused = |result: Result<PublishReport>, lost: u64| {
        let error = result.unwrap_err();
        assert_rule(&error, "R-PUB-11");
        assert_eq!(error.file(), Some(&*ObjectName::Commit(lost).to_string()));
        assert!(
            error
                .message()
                .contains(&format!("version {lost} was published")),
            "{error}"
        );
    };
    let mut own = open(None);
    let mut follows = open(None);
    let commits: Vec<_> = (0..4)
        .map(|version| publish(&mut own, version).unwrap().commit)
        .collect();
    assert_eq!(follows.head().unwrap().unwrap().version, 3);
    let before = store.objects().unwrap();
    let lost = store.get(ObjectName::Commit(3)).unwrap().unwrap();
    store.delete(&[ObjectName::Commit(3)]).unwrap();
    let left = store.objects().unwrap();
    for publisher in [&mut own, &mut follows] {
        refused(publish(publisher, 3), 3);
        assert_eq!(publisher.head().unwrap_err().rule(), Some("R-PUB-11"));
        // Nor does it commit parts of other processes.
        let part = publish_shard(
            &store,
            &states[3],
            Base::Nothing,
            0,
            1,
            &options(Snapshots::Never, &[]),
            &(),
        )
        .unwrap();
        refused(publisher.commit(vec![part], BTreeMap::new(), &()), 3);
    }
    let commits_of = |store: &Store| log(store, None, None).unwrap().len();
    assert_eq!((commits_of(&store), left.len() + 1), (3, before.len()));
    // Once the commit is restored, the publishers continue.
    assert!(store.put_if_absent(ObjectName::Commit(3), &lost).unwrap());
    assert_eq!(publish(&mut follows, 4).unwrap().version, 4);
    assert_eq!(publish(&mut own, 5).unwrap().version, 5);

    // A new process notices the loss by a routes document. So does one that commits.
    let scratch = place.path().join("scratch");
    compact(&store, &CompactOptions::new(&scratch).snapshot(true), &()).unwrap();
    store.delete(&[3, 4, 5].map(ObjectName::Commit)).unwrap();
    refused(publish(&mut open(None), 3), 5);
    let part = publish_shard(
        &store,
        &states[3],
        Base::Nothing,
        0,
        1,
        &options(Snapshots::Never, &[]),
        &(),
    );
    assert_rule(&part.unwrap_err(), "R-PUB-11");
    refused(publish(&mut open(Some(commits[1])), 3), 5);
    // The versions are lost for good, so the operator vouches for the last remaining one.
    let mut vouching = open(Some(commits[2]));
    assert_eq!(publish(&mut vouching, 3).unwrap().version, 3);
    assert_eq!(publish(&mut vouching, 4).unwrap().version, 4);
    // Publishers that have seen the lost versions do not continue.
    refused(publish(&mut own, 5), 5);
    refused(publish(&mut follows, 5), 4);

    // If no version is left, the operator vouches for the chain document.
    let all: Vec<ObjectName> = (0..5).map(ObjectName::Commit).collect();
    store.delete(&all).unwrap();
    refused(publish(&mut vouching, 0), 4);
    refused(publish(&mut open(None), 0), 5);
    let chain = Digest::of_bytes(&store.get(ObjectName::Chain).unwrap().unwrap());
    assert_eq!(publish(&mut open(Some(chain)), 0).unwrap().version, 0);
}

/// A new process does not build on a head whose files are missing.
#[test]
fn a_head_without_files_is_followed_by_a_snapshot() {
    let place = tempfile::tempdir().unwrap();
    let store = store(place.path());
    let mut models = Models::new(34, 4);
    init(&store).unwrap();
    let options = options(Snapshots::Never, &[]);
    let open = || Publisher::open(store.clone(), options.clone()).unwrap();
    let work = place.path().join("work");
    let mut publish = |version: u64, base: Base<'_>| {
        let published = open().publish(models.state(version), base, &()).unwrap();
        assert_eq!(published.version, version);
        from(&published)
    };
    assert_eq!(publish(0, Base::Chain), [None]);
    assert_eq!(publish(1, Base::Work(&work)), [Some(0)]);
    let file = commit_of(&store, 1).routes[0].files[0].name();
    store.delete(&[file]).unwrap();
    // A publisher that has the version makes a link from it anyway.
    assert_eq!(publish(2, Base::Work(&work)), [None, Some(1)]);
    let file = commit_of(&store, 2).routes[0].files[0].name();
    // One complete route is enough.
    store.delete(&[file]).unwrap();
    assert_eq!(publish(3, Base::Work(&work)), [Some(2)]);
    let file = commit_of(&store, 3).routes[0].files[0].name();
    store.delete(&[file]).unwrap();
    assert_eq!(publish(4, Base::Chain), [None]);
    assert_eq!(publish(5, Base::Chain), [Some(4)]);
    assert_eq!(&rebuild(&store, None).unwrap(), models.state(5));
}

#[test]
fn a_publisher_does_not_go_on_beyond_a_gap() {
    let place = tempfile::tempdir().unwrap();
    let store = Store::create(place.path().join("chain").to_str().unwrap(), quick()).unwrap();
    init(&store).unwrap();
    let mut models = Models::new(32, 10);
    let state = models.state(0).clone();
    Publisher::open(store.clone(), PublishOptions::default())
        .unwrap()
        .publish(&state, Base::Nothing, &())
        .unwrap();
    let commit = store.get(ObjectName::Commit(0)).unwrap().unwrap();
    let text = String::from_utf8(commit).unwrap();
    for far in [7, 9_007_199_254_740_991] {
        let rogue = text.replace("\"version\":0", &format!("\"version\":{far}"));
        assert!(
            store
                .put_if_absent(ObjectName::Commit(far), rogue.as_bytes())
                .unwrap()
        );
        let mut publisher = Publisher::open(store.clone(), PublishOptions::default()).unwrap();
        let error = publisher.publish(&state, Base::Nothing, &()).unwrap_err();
        assert_eq!(
            (error.rule(), error.class()),
            (Some("R-PUB-09"), ErrorClass::Chain)
        );
        assert_eq!(error.file(), Some(&*ObjectName::Commit(far).to_string()));
    }
}

/// Probable mistakes are published, but reported.
#[test]
fn another_model_and_the_first_values_that_are_not_finite_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    init(&store).unwrap();
    let model = |name: &str, values: &[f32]| {
        let bytes = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let mut state = MemoryState::new();
        state
            .insert(name, Dtype::F32, &[values.len() as u64], bytes)
            .unwrap();
        state
    };
    let names = "have no tensor name in common";
    let nonfinite = r#"new values are not finite (NaN or infinite): "b" (1)"#;
    let steps = [
        (model("a", &[1.0, 2.0]), &[][..]),
        (model("a", &[1.0, 3.0]), &[]),
        (model("b", &[1.0, f32::NAN]), &[names, nonfinite]),
        // The tensor had such values before.
        (model("b", &[2.0, f32::INFINITY]), &[]),
        (model("b", &[2.0, 2.0]), &[]),
        (model("b", &[2.0, f32::NEG_INFINITY]), &[nonfinite]),
        (MemoryState::new(), &[]),
        (model("c", &[1.0]), &[]),
    ];
    let profiles = vec![Profile::Local, Profile::Compact];
    let options = PublishOptions::default()
        .profiles(profiles)
        .allow_empty(true);
    let mut one = Publisher::open(store.clone(), options.clone()).unwrap();
    for (version, (state, expected)) in steps.iter().enumerate() {
        let notes = Notes::default();
        // One publisher continues from its own memory, and others build the head.
        let published = if version % 2 == 0 {
            let base = match version {
                0 => Base::Chain,
                _ => Base::State((&steps[version - 1].0).into()),
            };
            one.publish(state, base, &notes)
        } else {
            let mut another = Publisher::open(store.clone(), options.clone()).unwrap();
            another.publish(state, Base::Chain, &notes)
        };
        assert_eq!(published.unwrap().version, version as u64);
        let remarks = notes.remarks();
        assert_eq!(remarks.len(), expected.len(), "{version}: {remarks:?}");
        for (remark, expected) in remarks.iter().zip(*expected) {
            assert!(remark.contains(expected), "{version}: {remarks:?}");
        }
    }
}

/// A request that fails after the commit does not change that the version is visible.
#[test]
fn a_version_that_is_visible_is_no_failure_of_the_store() {
    let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
    let store = Store::from_objects(objects, "", quick()).unwrap();
    init(&store).unwrap();
    let publish = |value: u8| {
        let mut state = MemoryState::new();
        state.insert("a", Dtype::U8, &[1], vec![value]).unwrap();
        let mut publisher = Publisher::open(store.clone(), PublishOptions::default())?;
        publisher.publish(&state, Base::Chain, &())
    };
    publish(0).unwrap();
    // The store is read after the commit has been stored.
    control.plan(|call| {
        let is_asked =
            call.operation == Operation::Get && call.path.contains("commits/0000000000000000000");
        let fails = is_asked && call.path.ends_with("1.json");
        fails.then_some(Fault::FailBefore)
    });
    let error = publish(1).unwrap_err();
    assert_rule(&error, "R-PUB-08");
    assert!(error.message().contains("version 1 is visible"), "{error}");
    control.heal();
    assert_eq!(log(&store, None, None).unwrap().len(), 2);
    assert_eq!(publish(2).unwrap().version, 2);
}
