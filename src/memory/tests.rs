//! Sets between random states, applied and undone in every way.

use proptest::prelude::*;

use crate::error::{ErrorClass, Result};
use crate::limits::address;
use crate::memory::{
    Changes, LentState, PatchCollector, PatchSet, PieceChanges, PlacedMemory, RunKind, Span,
};
use crate::table::StateTable;
use crate::tensor::{Dtype, MemoryState, PIECE_BYTES, State, StateDigests, TensorInfo};

/// Collects a set as an engine does: piece by piece, in stretches of this many lanes.
fn set_between(
    base: &MemoryState,
    target: &MemoryState,
    stretch: usize,
    budget: u64,
) -> Result<PatchSet> {
    let table = StateTable {
        tensors: target.tensors().to_vec(),
        digests: StateDigests::of(target, &())?,
    };
    let mut collector = PatchCollector::new(base.tensors(), &table, budget)?;
    let mut new = MemoryState::new();
    for (tensor, (info, data)) in target.iter().enumerate() {
        let Some(old) = collector.over(tensor) else {
            new.insert(info.name(), info.dtype(), info.shape(), data.to_vec())?;
            continue;
        };
        let width = info.dtype().lane_bytes();
        for piece in 0..info.pieces() {
            let range = info.piece(piece);
            let old = base
                .bytes(old, range.clone())
                .unwrap()
                .chunks(stretch * width);
            let new = target.bytes(tensor, range).unwrap().chunks(stretch * width);
            let mut changes = PieceChanges::new(width);
            for (begin, (old, new)) in (0..).step_by(stretch * width).zip(old.zip(new)) {
                changes.add(begin, old, new);
            }
            collector.add(tensor, piece, changes)?;
        }
    }
    collector.finish(new)
}

/// Checks that a set has only changed lanes and whole tensors, and that writing these to the base
/// gives the target.
fn check_form(set: &PatchSet, base: &MemoryState, target: &MemoryState) {
    let mut last = None;
    let mut rebuilt = MemoryState::new();
    for (tensor, info) in set.table().tensors.iter().enumerate() {
        let data = set
            .over(tensor)
            .map(|old| base.bytes(old, 0..info.bytes()).unwrap().to_vec());
        let whole = set
            .whole_tensors()
            .find(|(whole, _)| *whole == info)
            .map(|(_, data)| data.to_vec());
        assert_eq!(data.is_some(), whole.is_none());
        rebuilt
            .insert(
                info.name(),
                info.dtype(),
                info.shape(),
                data.or(whole).unwrap(),
            )
            .unwrap();
    }
    for run in set.runs() {
        let info = &set.table().tensors[run.tensor];
        let width = info.dtype().lane_bytes();
        let values = set.values()[run.values.clone()].chunks_exact(width);
        let old = set.old[run.values.clone()].chunks_exact(width);
        let in_base = base
            .bytes(set.over(run.tensor).unwrap(), 0..info.bytes())
            .unwrap();
        assert!(values.len() > 0 && values.remainder().is_empty() && run.values.start % 8 == 0);
        let lanes: Vec<u64> = match &run.kind {
            RunKind::Lanes(range) => set.numbers()[range.clone()]
                .iter()
                .map(|&n| run.first_lane + u64::from(n))
                .collect(),
            RunKind::Whole => (run.first_lane..).take(values.len()).collect(),
        };
        assert_eq!(lanes.len(), values.len());
        for (lane, (value, old)) in lanes.into_iter().zip(values.zip(old)) {
            assert!(last < Some((run.tensor, lane)), "ascending");
            last = Some((run.tensor, lane));
            let at = address(lane).unwrap() * width;
            assert_eq!(old, &in_base[at..at + width]);
            let lane = &mut rebuilt.room(run.tensor)[at..at + width];
            assert!(
                run.kind == RunKind::Whole || lane != value,
                "a lane of the set has not changed"
            );
            lane.copy_from_slice(value);
        }
    }
    assert_eq!(rebuilt, *target);
    let names = |state: &MemoryState| {
        state
            .tensors()
            .iter()
            .map(|info| info.name().to_owned())
            .collect::<Vec<_>>()
    };
    let left = names(target);
    let gone: Vec<_> = names(base)
        .into_iter()
        .filter(|name| !left.contains(name))
        .collect();
    assert_eq!(set.removed().collect::<Vec<_>>(), gone);
}

/// The change of a tensor.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// One lane in this many changes; with 0, none does.
    Changed(u64),
    /// Lanes change in the same way, and the shape changes.
    Reshaped(u64),
    New,
    Removed,
    Retyped,
    Resized,
}

fn fates() -> impl Strategy<Value = Vec<(Fate, Dtype, u64, u64)>> {
    let rarity = || prop_oneof![Just(0_u64), Just(1), Just(2), Just(3), Just(5), Just(40)];
    let fate = prop_oneof![
        6 => rarity().prop_map(Fate::Changed),
        1 => rarity().prop_map(Fate::Reshaped),
        1 => prop::sample::select(vec![Fate::New, Fate::Removed, Fate::Retyped, Fate::Resized]),
    ];
    let dtypes = vec![
        Dtype::U8,
        Dtype::F8_E4M3,
        Dtype::BF16,
        Dtype::F16,
        Dtype::F32,
        Dtype::F64,
        Dtype::C64,
    ];
    let lanes = prop_oneof![Just(0_u64), 1_u64..10, 1_u64..700];
    prop::collection::vec(
        (fate, prop::sample::select(dtypes), lanes, any::<u64>()),
        0..8,
    )
}

fn noise(seed: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; address(length).unwrap()];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Makes base and target.
fn states(fates: &[(Fate, Dtype, u64, u64)]) -> (MemoryState, MemoryState) {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    for (number, &(fate, dtype, lanes, seed)) in fates.iter().enumerate() {
        let name = &format!("tensor {number}");
        let width = dtype.lane_bytes();
        let old = noise(seed, lanes * width as u64);
        let put = |state: &mut MemoryState, dtype: Dtype, shape: &[u64], data: &[u8]| {
            state.insert(name, dtype, shape, data.to_vec()).unwrap();
        };
        if !matches!(fate, Fate::New) {
            put(&mut base, dtype, &[lanes], &old);
        }
        match fate {
            Fate::Removed => {}
            Fate::New => put(&mut target, dtype, &[lanes], &old),
            Fate::Retyped => put(&mut target, Dtype::I8, &[old.len() as u64], &old),
            Fate::Resized => put(
                &mut target,
                dtype,
                &[lanes + 1],
                &noise(seed, (lanes + 1) * width as u64),
            ),
            Fate::Changed(rarity) | Fate::Reshaped(rarity) => {
                let mut new = old.clone();
                for (lane, &chance) in new.chunks_exact_mut(width).zip(&noise(!seed, lanes)) {
                    if u64::from(chance).checked_rem(rarity) == Some(0) {
                        lane[usize::from(chance) % width] ^= chance | 1;
                    }
                }
                let shape: &[u64] = if matches!(fate, Fate::Reshaped(_)) {
                    &[1, lanes]
                } else {
                    &[lanes]
                };
                put(&mut target, dtype, shape, &new);
            }
        }
    }
    (base, target)
}

/// Makes buffers like those of another program, with the tensors that they hold.
fn buffers(state: &MemoryState) -> Vec<(TensorInfo, Vec<u8>)> {
    state
        .iter()
        .map(|(info, data)| (info.clone(), data.to_vec()))
        .collect()
}

fn lend(buffers: &mut [(TensorInfo, Vec<u8>)]) -> LentState<&mut [u8]> {
    LentState::new(
        buffers
            .iter_mut()
            .map(|(info, data)| (info.clone(), data.as_mut_slice())),
    )
    .unwrap()
}

/// Writes and undoes a set, each of them twice.
fn go_back_and_forth(
    set: &mut PatchSet,
    memory: &mut MemoryState,
    holds: &dyn Fn(&MemoryState, bool),
) {
    holds(memory, false);
    for _ in 0..2 {
        set.stage(memory).unwrap().write().unwrap();
        holds(memory, true);
    }
    set.table().check(memory, &()).unwrap();
    let mut ready = set.stage(memory).unwrap();
    ready.write().unwrap();
    ready.put_back().unwrap();
    ready.put_back().unwrap();
    holds(memory, false);
    let mut ready = set.stage(memory).unwrap();
    ready.put_back().unwrap();
    ready.write().unwrap();
    holds(memory, true);
    set.stage(memory).unwrap().put_back().unwrap();
    holds(memory, false);
}

/// Collects the changes between two states of the same tensors for caller-provided memory: each
/// changed lane by its number, or all lanes of a tensor.
fn changes_between(
    base: &MemoryState,
    target: &MemoryState,
    memory: &mut LentState<&mut [u8]>,
    is_whole: impl Fn(usize) -> bool,
    budget: u64,
) -> Result<Changes<<LentState<&'static mut [u8]> as PlacedMemory>::Staged>> {
    let mut changes = Changes::new(budget);
    for (tensor, ((info, old), (_, new))) in base.iter().zip(target.iter()).enumerate() {
        let width = info.dtype().lane_bytes();
        let pairs: Vec<_> = old
            .chunks_exact(width)
            .zip(new.chunks_exact(width))
            .collect();
        let lanes = (0_u32..)
            .zip(&pairs)
            .filter(|(_, (old, new))| is_whole(tensor) || old != new);
        let (numbers, pairs): (Vec<u32>, Vec<_>) = lanes.unzip();
        let count = numbers.len();
        let span = Span {
            row: tensor,
            first: 0,
            places: (!is_whole(tensor)).then_some(numbers),
            count,
        };
        let values = pairs
            .iter()
            .map(|(old, _)| *old)
            .collect::<Vec<_>>()
            .concat();
        let new = pairs
            .iter()
            .map(|(_, new)| *new)
            .collect::<Vec<_>>()
            .concat();
        changes.add(memory, width, (vec![span], vec![tensor]), (values, new))?;
    }
    Ok(changes)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_becomes_the_target_and_the_base_again(
        fates in fates(),
        stretch in 1_usize..300
    ) {
        let (base, target) = states(&fates);
        let mut set = set_between(&base, &target, stretch, u64::MAX).unwrap();
        check_form(&set, &base, &target);

        let mut memory = base.clone();
        go_back_and_forth(&mut set, &mut memory, &|memory, is_target| {
            assert_eq!(*memory, if is_target { target.clone() } else { base.clone() });
        });
        // The set itself is unchanged, too.
        check_form(&set, &base, &target);
    }

    #[test]
    fn memory_of_others_becomes_the_target_and_the_base_again(fates in fates(), whole: u8) {
        let fates: Vec<_> = fates.into_iter().map(|(fate, dtype, lanes, seed)| {
            let fate = if let Fate::Changed(_) | Fate::Reshaped(_) = fate { fate } else { Fate::Changed(3) };
            (fate, dtype, lanes, seed)
        }).collect();
        let (base, target) = states(&fates);
        let mut own = buffers(&base);
        let mut memory = lend(&mut own);
        let is_whole = |tensor: usize| whole >> tensor & 1 > 0;
        let mut changes = changes_between(&base, &target, &mut memory, is_whole, u64::MAX).unwrap();
        let needed = changes.bytes();
        prop_assert!(changes_between(&base, &target, &mut memory, is_whole, needed).is_ok());
        if needed > 0 {
            let error = changes_between(&base, &target, &mut memory, is_whole, needed - 1).unwrap_err();
            prop_assert_eq!(error.class(), ErrorClass::Usage);
            prop_assert!(error.message().contains(&(needed - 1).to_string()), "{}", error);
        }
        for _ in 0..2 {
            prop_assert_eq!(MemoryState::copy_of(&memory).unwrap(), base.clone());
            changes.write(&mut memory).unwrap();
            // Changes that have been written are not written again.
            prop_assert_eq!(changes.write(&mut memory).unwrap_err().class(), ErrorClass::Usage);
            PlacedMemory::describe(&mut memory, target.tensors()).unwrap();
            prop_assert_eq!(MemoryState::copy_of(&memory).unwrap(), target.clone());
            changes.put_back(&mut memory).unwrap();
            changes.put_back(&mut memory).unwrap();
            PlacedMemory::describe(&mut memory, base.tensors()).unwrap();
        }
        drop(memory);
        prop_assert_eq!(buffers(&base), own);
    }

    #[test]
    fn a_budget_is_kept_exactly(fates in fates(), stretch in 1_usize..300) {
        let (base, target) = states(&fates);
        let needed = set_between(&base, &target, stretch, u64::MAX).unwrap().bytes();
        prop_assert_eq!(set_between(&base, &target, stretch, needed).unwrap().bytes(), needed);
        if let Some(short) = needed.checked_sub(1) {
            let error = set_between(&base, &target, stretch, short).unwrap_err();
            prop_assert_eq!(error.class(), ErrorClass::Usage);
            prop_assert!(error.message().contains(&short.to_string()), "{}", error);
        }
    }
}

fn one_tensor(data: Vec<u8>) -> MemoryState {
    let mut state = MemoryState::new();
    state
        .insert("t", Dtype::BF16, &[data.len() as u64 / 2], data)
        .unwrap();
    state
}

#[test]
fn each_stretch_takes_the_shorter_form() {
    // In stretches of 100 lanes, 34 lanes change in the first, 33 in the second, and all in the
    // third.
    let base = one_tensor(vec![0; 600]);
    let mut data = vec![0; 600];
    (0..34)
        .chain(100..133)
        .chain(200..300)
        .for_each(|lane| data[2 * lane] = 1);
    let target = one_tensor(data);
    let set = set_between(&base, &target, 100, u64::MAX).unwrap();
    let forms: Vec<_> = set
        .runs()
        .iter()
        .map(|run| (run.first_lane, run.kind.clone(), run.values.clone()))
        .collect();
    assert_eq!(
        forms,
        [
            (0, RunKind::Whole, 0..200),
            (0, RunKind::Lanes(0..33), 200..266),
            // The values begin at the next multiple of 8.
            (200, RunKind::Whole, 272..472),
        ]
    );
    assert_eq!((set.lanes(), set.bytes()), (233, 4 * 33 + 2 * 472));
    // In one stretch, numbers and values would take 6 * 167 bytes, while all values take 600.
    let set = set_between(&base, &target, 300, u64::MAX).unwrap();
    assert_eq!(
        (set.runs().len(), set.numbers().len(), set.bytes()),
        (1, 0, 2 * 600)
    );
}

#[test]
fn neighbours_become_one_run_across_stretches_and_pieces() {
    let lanes = address(PIECE_BYTES / 2).unwrap();
    let base = one_tensor(vec![0; 2 * lanes + 200]);
    let mut data = vec![0; 2 * lanes + 200];
    [0, 99, 100, lanes - 1, lanes, lanes + 99]
        .iter()
        .for_each(|lane| data[2 * lane + 1] = 7);
    let set = set_between(&base, &one_tensor(data.clone()), 100, u64::MAX).unwrap();
    let number = |lane: usize| u32::try_from(lane).unwrap();
    assert_eq!(
        set.numbers(),
        [
            0,
            99,
            100,
            number(lanes - 1),
            number(lanes),
            number(lanes + 99)
        ]
    );
    assert_eq!(set.runs().len(), 1);
    // All lanes of both pieces change.
    data.fill(1);
    let set = set_between(&base, &one_tensor(data), 1 << 17, u64::MAX).unwrap();
    assert_eq!(
        (set.runs().len(), set.numbers().len(), set.values().len()),
        (1, 0, 2 * lanes + 200)
    );
}

#[test]
fn numbers_of_large_tensors_begin_anew() {
    // Pieces on both sides of lane 2^32; the tensor has no other data.
    let info = TensorInfo::new("t", Dtype::U8, [1_u64 << 33]).unwrap();
    let digests = StateDigests {
        tensors: Vec::new(),
        state: crate::tensor::Digest([0; 32]),
    };
    let table = StateTable {
        tensors: vec![info.clone()],
        digests,
    };
    let mut collector = PatchCollector::new(std::slice::from_ref(&info), &table, u64::MAX).unwrap();
    let block = (1_u64 << 32) / PIECE_BYTES;
    for (piece, lane) in [
        (0, 3),
        (block - 1, PIECE_BYTES - 1),
        (block, 5),
        (2 * block - 1, 9),
    ] {
        let mut changes = PieceChanges::new(1);
        let begin = lane.saturating_sub(60);
        let mut new = vec![0; 64.min(address(PIECE_BYTES - begin).unwrap())];
        new[address(lane - begin).unwrap()] = 1;
        changes.add(begin, &vec![0; new.len()], &new);
        collector.add(0, piece, changes).unwrap();
    }
    let set = collector.finish(MemoryState::new()).unwrap();
    assert_eq!(
        set.numbers(),
        [3, u32::MAX, 5, u32::MAX - address_u32(PIECE_BYTES) + 1 + 9]
    );
    let runs: Vec<_> = set
        .runs()
        .iter()
        .map(|run| (run.first_lane, run.kind.clone()))
        .collect();
    assert_eq!(
        runs,
        [(0, RunKind::Lanes(0..2)), (1 << 32, RunKind::Lanes(2..4))]
    );
}

fn address_u32(size: u64) -> u32 {
    u32::try_from(size).unwrap()
}

#[test]
fn tensors_may_alternate() {
    let state = |byte: u8| {
        let mut state = MemoryState::new();
        for name in ["a", "b"] {
            let mut data = vec![0; address(PIECE_BYTES).unwrap() + 80];
            data[3] = byte;
            data[address(PIECE_BYTES).unwrap()] = byte;
            state
                .insert(name, Dtype::U8, &[data.len() as u64], data)
                .unwrap();
        }
        state
    };
    let base = state(0);
    let target = state(9);
    let table = StateTable {
        tensors: target.tensors().to_vec(),
        digests: StateDigests::of(&target, &()).unwrap(),
    };
    let mut collector = PatchCollector::new(base.tensors(), &table, u64::MAX).unwrap();
    for (tensor, piece) in [(1, 0), (0, 0), (1, 1), (0, 1)] {
        let range = base.tensors()[tensor].piece(piece);
        let mut changes = PieceChanges::new(1);
        changes.add(
            0,
            base.bytes(tensor, range.clone()).unwrap(),
            target.bytes(tensor, range).unwrap(),
        );
        collector.add(tensor, piece, changes).unwrap();
    }
    let mut set = collector.finish(MemoryState::new()).unwrap();
    check_form(&set, &base, &target);
    assert_eq!(
        set.runs().iter().map(|run| run.tensor).collect::<Vec<_>>(),
        [0, 0, 1, 1]
    );
    let mut memory = base.clone();
    set.stage(&mut memory).unwrap().write().unwrap();
    assert_eq!(memory, target);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let base = one_tensor(vec![0; 400]);
    let target = one_tensor(vec![1; 400]);
    let table = StateTable {
        tensors: target.tensors().to_vec(),
        digests: StateDigests::of(&target, &()).unwrap(),
    };
    let collector = || PatchCollector::new(base.tensors(), &table, u64::MAX).unwrap();
    // Lanes of another width, and a stretch beyond the end.
    assert!(collector().add(0, 0, PieceChanges::new(4)).is_err());
    let mut changes = PieceChanges::new(2);
    changes.add(398, &[0; 4], &[1; 4]);
    assert!(collector().add(0, 0, changes).is_err());
    // Changes of a tensor that is new; new data that is missing, or that belongs to no new tensor;
    // and a budget that is too small.
    let mut of_new = PatchCollector::new(&[], &table, 400).unwrap();
    assert!(of_new.add(0, 0, PieceChanges::new(2)).is_err());
    assert!(of_new.finish(MemoryState::new()).is_err());
    assert!(collector().finish(target.clone()).is_err());
    assert!(PatchCollector::new(&[], &table, 399).is_err());

    let mut set = set_between(&base, &target, 100, u64::MAX).unwrap();
    for other in [MemoryState::new(), one_tensor(vec![0; 402])] {
        assert_eq!(
            set.stage(&mut other.clone()).unwrap_err().class(),
            ErrorClass::Usage
        );
    }
    assert_eq!(
        set.table().check(&base, &()).unwrap_err().rule(),
        Some("R-APP-04")
    );
    let info = |length: u64| TensorInfo::new("t", Dtype::U8, [length]).unwrap();
    assert!(LentState::new([(info(3), &mut [0; 4][..])]).is_err());
    assert!(LentState::new([(info(3), &mut [0; 3][..]), (info(3), &mut [0; 3][..])]).is_err());
}
