//! Versions that are loaded as a whole, changes that are too long for lanes, and tensors that share
//! memory.

use std::sync::Mutex;

use deltachain::memory::{Places, Region};
use deltachain::tensor::PIECE_BYTES;

use super::*;

/// Counts the bytes of each phase.
#[derive(Default)]
struct Counting {
    begun: Mutex<BTreeMap<&'static str, u64>>,
    done: Mutex<BTreeMap<&'static str, u64>>,
}

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Build => "build",
        Phase::Hash => "hash",
        _ => "other",
    }
}

impl Observer for Counting {
    fn begin(&self, phase: Phase, bytes: u64) {
        *self.begun.lock().unwrap().entry(name(phase)).or_default() += bytes;
    }

    fn advance(&self, phase: Phase, bytes: u64) -> Result<()> {
        *self.done.lock().unwrap().entry(name(phase)).or_default() += bytes;
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, _text: &str) {}
}

/// A version of a state with many small tensors.
fn many(version: u8) -> MemoryState {
    let mut state = MemoryState::new();
    for number in 0..3000_u16 {
        let [low, high] = number.to_le_bytes();
        state
            .insert(
                &format!("layer.{number:04}"),
                Dtype::BF16,
                &[2],
                vec![low, high, low ^ version, 7],
            )
            .unwrap();
    }
    state
}

#[test]
fn a_whole_version_is_built_in_one_pass() {
    let mut chain = Chain::new(&ALL[..1]);
    chain.options = chain.options.snapshots(Snapshots::Never);
    (0..3).for_each(|version| drop(chain.publish_state(many(version))));
    // From a snapshot, and with links after it.
    for version in [0, 2] {
        let memory = Elsewhere::of(&scribbled(&chain.states[0]), false);
        let mut follower = into_memory(
            chain.store.clone(),
            memory.clone(),
            FollowerOptions::default(),
        )
        .unwrap();
        let mut prepared = follower
            .prepare_proven(Some(version), &())
            .unwrap()
            .unwrap();
        assert!(memory.seen.lock().unwrap().fills.is_empty());
        let counts = Counting::default();
        follower.apply(&mut prepared, &Alone, &counts).unwrap();
        // Each byte is built once, and each piece is filled once.
        let bytes = BTreeMap::from([("build", 12_000), ("hash", 12_000)]);
        assert_eq!(
            (
                &*counts.done.lock().unwrap(),
                &*counts.begun.lock().unwrap()
            ),
            (&bytes, &bytes)
        );
        let seen = memory.seen.lock().unwrap();
        assert_eq!(
            (
                seen.fills.len(),
                seen.fills.values().all(|times| *times == 1)
            ),
            (3000, true)
        );
        assert_eq!(
            (seen.gathered, seen.written, seen.summed.len()),
            (0, 0, 3000)
        );
        drop(seen);
        assert_eq!(
            memory.copy(),
            chain.states[usize::try_from(version).unwrap()]
        );
    }
}

/// Two shards: one with a tensor of several pieces, and both with empty tensors.
fn large(version: u8) -> [MemoryState; 2] {
    let mut shards = [MemoryState::new(), MemoryState::new()];
    let bytes = usize::try_from(2 * PIECE_BYTES + 6).unwrap();
    let mut data = vec![1; bytes];
    data.iter_mut()
        .step_by(1000)
        .for_each(|byte| *byte = version);
    shards[0]
        .insert(
            "large",
            Dtype::F32,
            &[bytes as u64 / 4 / 2, 2],
            data.clone(),
        )
        .unwrap_err();
    data.truncate(bytes - 2);
    shards[0]
        .insert("large", Dtype::F32, &[data.len() as u64 / 4], data)
        .unwrap();
    shards[0]
        .insert("empty", Dtype::BF16, &[0, 7], Vec::new())
        .unwrap();
    shards[0]
        .insert("small", Dtype::U8, &[], vec![version])
        .unwrap();
    shards[1]
        .insert("none", Dtype::F32, &[0], Vec::new())
        .unwrap();
    shards[1]
        .insert("zeros", Dtype::BF16, &[3], vec![0; 6])
        .unwrap();
    shards[1]
        .insert("other", Dtype::BF16, &[1], vec![version, 1])
        .unwrap();
    shards
}

#[test]
fn each_tensor_comes_once() {
    // Links without sums.
    let mut chain = crate::common::Chain::new();
    chain.add_shards(large(0).to_vec(), &[None]);
    chain.add_shards(large(1).to_vec(), &[Some(0)]);
    // A snapshot that no commit names.
    let snapshot = chain.make_route(1, None);
    chain.set_routes(1, 1, vec![snapshot]);
    let patterns: [Option<Vec<String>>; 2] = [
        None,
        Some(["[ez]*", "large", "none"].map(str::to_owned).to_vec()),
    ];
    for ((version, tensors), shards) in
        [(0, None), (1, None), (1, Some(1))]
            .into_iter()
            .flat_map(|(version, shard)| {
                patterns
                    .clone()
                    .into_iter()
                    .map(move |tensors| ((version, tensors), shard))
            })
    {
        let options = FollowerOptions::default()
            .tensors(tensors.clone())
            .shards(shards.map(|shard| vec![shard]));
        let takes = |name: &str| tensors.is_none() || !["small", "other"].contains(&name);
        let states: Vec<MemoryState> = large(version)
            .into_iter()
            .skip(shards.unwrap_or(0))
            .collect();
        let mut expected: Buffers = states.iter().flat_map(buffers).collect();
        expected.retain(|(info, _)| takes(info.name()));
        expected.sort_by(|(left, _), (right, _)| left.name().cmp(right.name()));

        let mut follower =
            Follower::<InPlace<LentState<&mut [u8]>>>::in_place(chain.store.clone(), options)
                .unwrap();
        let prepared = follower
            .prepare(Some(u64::from(version)), &())
            .unwrap()
            .unwrap();
        let infos: Vec<TensorInfo> = prepared
            .tensors()
            .into_iter()
            .map(|(info, _)| info.clone())
            .collect();
        assert!(infos.iter().eq(expected.iter().map(|(info, _)| info)));
        for _ in 0..2 {
            let mut seen = Vec::new();
            let counts = Counting::default();
            let mut take = |info: &TensorInfo, data: Vec<u8>| {
                seen.push((info.clone(), data));
                Ok(())
            };
            prepared.each_tensor(&mut take, &counts).unwrap();
            seen.sort_by(|(left, _), (right, _)| left.name().cmp(right.name()));
            assert!(seen == expected);
            let bytes: u64 = expected.iter().map(|(_, data)| data.len() as u64).sum();
            assert_eq!(counts.done.lock().unwrap()["build"], bytes);
        }
        // An error of the caller ends the iteration.
        let mut refuse = |_: &TensorInfo, _: Vec<u8>| Err(Error::usage("no more"));
        assert_eq!(
            prepared
                .each_tensor(&mut refuse, &())
                .unwrap_err()
                .message(),
            "no more"
        );
        // The sums come from the hashed tensors.
        let mut own = expected.clone();
        follower.bind(lend(&mut own));
        follower.begin(&prepared).unwrap();
        follower.finish(&prepared).unwrap();
        assert_eq!(follower.check(&Alone, &()).unwrap(), Some(Proof::Memory));
    }
}

#[test]
fn large_tensors_and_several_shards_are_filled() {
    let mut chain = crate::common::Chain::new();
    chain.add_shards(large(0).to_vec(), &[None]);
    chain.add_shards(large(1).to_vec(), &[Some(0)]);
    chain.add_shards(large(2).to_vec(), &[None]);
    let both = |version| crate::common::union(&large(version));
    let mut own = scribbled(&both(0));
    let mut follower = into_memory(
        chain.store.clone(),
        lend(&mut own),
        FollowerOptions::default(),
    )
    .unwrap();
    // By digests, and as a whole.
    for (version, fallback) in [(0, None), (1, None), (2, Some(Fallback::NoRoute))] {
        let switched = go(&mut follower, u64::from(version));
        assert_eq!(switched.fallback, fallback);
        assert!(copy(&follower) == both(version));
        follower.check(&Alone, &()).unwrap();
    }
    drop(follower);
    assert!(own == buffers(&both(2)));
}

#[test]
fn what_takes_more_memory_than_the_model_is_loaded_as_a_whole() {
    let mut chain = Chain::new(&ALL[..1]);
    for version in 0..2 {
        let mut state = MemoryState::new();
        state
            .insert("a", Dtype::U8, &[40 << 20], vec![version; 40 << 20])
            .unwrap();
        chain.publish_state(state);
    }
    let mut own = scribbled(&chain.states[0]);
    let mut follower = into_memory(
        chain.store.clone(),
        lend(&mut own),
        FollowerOptions::default(),
    )
    .unwrap();
    go(&mut follower, 0);
    let notes = Notes::default();
    let mut prepared = follower.prepare_proven(None, &notes).unwrap().unwrap();
    assert!(
        notes
            .remarks()
            .iter()
            .any(|remark| remark.contains(&Fallback::Budget.to_string())),
        "{:?}",
        notes.remarks()
    );
    // That the budget is too small says nothing about the memory.
    assert_eq!(
        (
            follower.held().unwrap().version,
            follower.check(&Alone, &()).unwrap()
        ),
        (0, Some(Proof::Memory))
    );
    let switched = follower.apply(&mut prepared, &Alone, &()).unwrap();
    assert_eq!(
        (switched.from, switched.fallback, switched.written),
        (Some(0), Some(Fallback::Budget), 0)
    );
    drop(follower);
    assert!(own == buffers(&chain.states[1]));
}

/// A version of two tensors that share memory, and of one that does not. In version 3 the two
/// differ.
fn tied(version: u8) -> MemoryState {
    let mut state = MemoryState::new();
    let data = |seed: u8| {
        (0..2000_u32)
            .map(|at| {
                if at % 50 == 0 {
                    version
                } else {
                    seed ^ at.to_le_bytes()[0]
                }
            })
            .collect()
    };
    let head = if version == 3 { data(8) } else { data(7) };
    for (name, data) in [("embed", data(7)), ("head", head), ("norm", data(9))] {
        state.insert(name, Dtype::BF16, &[10, 100], data).unwrap();
    }
    state
}

#[test]
fn what_lies_in_the_same_memory_is_written_once() {
    for profile in [Profile::Local, Profile::Compact] {
        let mut chain = Chain::new(&[profile]);
        (0..4).for_each(|version| drop(chain.publish_state(tied(version))));
        for can_be_read in [true, false] {
            let infos = chain.states[0].tensors().to_vec();
            let mut memory = Elsewhere::of(&scribbled(&chain.states[0]), can_be_read);
            let given: Vec<Region> = infos
                .iter()
                .zip([0, 0, 1])
                .map(|(info, row)| Region::whole(info, row))
                .collect();
            memory.places = Places::new(infos, &given).unwrap();
            memory.rows.lock().unwrap().remove(1);
            let mut follower = into_memory(
                chain.store.clone(),
                memory.clone(),
                FollowerOptions::default(),
            )
            .unwrap();
            go(&mut follower, 0);
            {
                let mut seen = memory.seen.lock().unwrap();
                assert_eq!(seen.fills, BTreeMap::from([((0, 0), 1), ((1, 0), 1)]));
                // Each tensor is compared with its own sums.
                assert_eq!(std::mem::take(&mut *seen).summed, [0, 1, 2]);
            }
            let in_place = profile == Profile::Local || can_be_read;
            for version in 1..3_u8 {
                let switched = go(&mut follower, u64::from(version));
                assert_eq!(switched.fallback, (!in_place).then_some(Fallback::NoRoute));
                assert_eq!(memory.copy(), chain.states[usize::from(version)]);
                let seen = std::mem::take(&mut *memory.seen.lock().unwrap());
                if in_place {
                    // 40 lanes in each of the two rows.
                    assert_eq!((seen.written, seen.fills.len()), (80, 0));
                }
                if profile == Profile::Local {
                    // Each tensor is proven by its own sums.
                    assert_eq!(seen.gathered, 120);
                }
                assert!(follower.check(&Alone, &()).unwrap().is_some());
                memory.seen.lock().unwrap().summed.clear();
            }
            // One place in memory cannot hold two values.
            let held = follower.held().cloned();
            let error = follower.prepare_proven(Some(3), &()).unwrap_err();
            assert_eq!(
                (error.class(), error.tensor()),
                (ErrorClass::Usage, Some("head"))
            );
            assert!(error.message().contains("embed"), "{error}");
            assert_eq!(
                (follower.held(), memory.copy()),
                (held.as_ref(), chain.states[2].clone())
            );
            // A wrong lane is found in either tensor.
            memory.flip(1, lane(&chain, 2, 1, false));
            assert_eq!(
                follower.check(&Alone, &()).unwrap_err().class(),
                ErrorClass::StateMismatch
            );
        }
    }
}
