//! Compares links applied in place with links applied one by one, in memory that is wrong, that
//! other code writes to, or that fails.

use proptest::prelude::*;
use std::collections::BTreeMap;

use super::device_tests::Device;
use super::tests::{Random, found, states};
use super::*;
use crate::Profile;
use crate::codec::lane::{Lane, LaneKind, with_lane};
use crate::diff::{DiffOptions, diff};
use crate::error::ErrorClass;
use crate::limits::{Limits, address};
use crate::memory::{Alone, Changes, LentState, PlacedMemory, check_sums, fill};
use crate::replay::plan::{PiecePlan, PiecePlanner};
use crate::replay::segments::Segments;
use crate::sums::Sums;
use crate::tensor::{DescribedDtype, Dtype, PIECE_BYTES};

type Link = LinkReader<Vec<u8>>;

fn file(base: &MemoryState, target: &MemoryState, profile: Profile, sums: bool) -> Vec<u8> {
    let mut file = Vec::new();
    diff(
        base,
        target,
        &DiffOptions::default().profile(profile).sums(sums),
        &mut file,
    )
    .unwrap();
    file
}

fn open(file: Vec<u8>) -> Link {
    LinkReader::open(file, &Limits::default()).unwrap()
}

fn link(base: &MemoryState, target: &MemoryState, profile: Profile) -> Link {
    open(file(base, target, profile, true))
}

/// Makes a replay of links from a base with known sums.
fn replay<'a>(base: &MemoryState, links: &'a [Link]) -> Replay<'a, Vec<u8>> {
    let (table, sums) = StateSums::hashed(base, &()).unwrap();
    let mut replay = Replay::new(table).with_sums(sums);
    links.iter().for_each(|link| replay.push(link).unwrap());
    replay
}

/// Caller-provided buffers with the tensors of a state.
struct Own(Vec<(TensorInfo, Vec<u8>)>);

impl Own {
    fn of(state: &MemoryState) -> Self {
        Self(
            state
                .iter()
                .map(|(info, data)| (info.clone(), data.to_vec()))
                .collect(),
        )
    }

    fn lend(&mut self) -> LentState<&mut [u8]> {
        LentState::new(
            self.0
                .iter_mut()
                .map(|(info, data)| (info.clone(), data.as_mut_slice())),
        )
        .unwrap()
    }

    /// Returns the content of the buffers, as these tensors.
    fn state(&self, tensors: &[TensorInfo]) -> MemoryState {
        let mut state = MemoryState::new();
        for (info, (_, data)) in tensors.iter().zip(&self.0) {
            state
                .insert(info.name(), info.dtype(), info.shape(), data.clone())
                .unwrap();
        }
        state
    }
}

/// Verifies links in place, without writing.
fn prove<M: PlacedMemory>(
    replay: &Replay<'_, Vec<u8>>,
    memory: &mut M,
    budget: u64,
) -> Result<Changes<M::Staged>> {
    let mut changes = Changes::new(budget);
    replay.in_place(memory, &mut changes, &Alone, &())?;
    Ok(changes)
}

/// Applies links to memory that holds a state; returns its content and the number of lanes that
/// were written. A failure leaves the memory unchanged.
fn taken(replay: &Replay<'_, Vec<u8>>, state: &MemoryState) -> Result<(MemoryState, u64)> {
    let mut own = Own::of(state);
    let mut changes = Changes::new(u64::MAX);
    let proven = replay.in_place(&mut own.lend(), &mut changes, &Alone, &());
    assert!(
        own.state(state.tensors()) == *state,
        "memory has changed before it was written to"
    );
    // Changes that were not verified cannot be written.
    let mark = changes.mark();
    assert!(proven.is_ok() || (mark.staged, mark.lanes, mark.bytes) == (0, 0, 0));
    proven?;
    let lanes = changes.lanes();
    changes.write(&mut own.lend())?;
    Ok((own.state(&replay.tensors()), lanes))
}

/// Returns the plans of all pieces, or the reason why there are none.
fn plans(replay: &Replay<'_, Vec<u8>>) -> Result<Vec<(u64, PiecePlan)>> {
    let planner = PiecePlanner {
        course: &replay.course(),
        sums: replay.followed_sums()?,
    };
    if let Some(refused) = replay.why_not(&planner)? {
        return Err(refused);
    }
    let groups = planner.course.grouped(planner.items())?;
    let segments = Segments::of(&replay.links, &groups);
    let mut plans = Vec::new();
    for group in &groups {
        plans.extend(
            planner
                .plan(group, &segments)?
                .into_iter()
                .map(|plan| (plan.item.1, plan)),
        );
    }
    Ok(plans)
}

/// Makes a state of one tensor, whose lanes are calculated from their numbers.
fn tensor(dtype: Dtype, lanes: u64, lane: impl Fn(u64) -> u64) -> MemoryState {
    let width = dtype.lane_bytes();
    let data: Vec<u8> = (0..lanes)
        .flat_map(|number| lane(number).to_le_bytes().into_iter().take(width))
        .collect();
    let mut state = MemoryState::new();
    let elements = 8 * data.len() as u64 / dtype.bits();
    state.insert("t", dtype, &[elements], data).unwrap();
    state
}

/// Makes such a state in which one lane in `every` is larger by `by`.
fn changed(
    dtype: Dtype,
    lanes: u64,
    lane: impl Fn(u64) -> u64,
    every: u64,
    by: u64,
) -> MemoryState {
    tensor(dtype, lanes, |number| {
        if number % every == 1 {
            lane(number).wrapping_add(by)
        } else {
            lane(number)
        }
    })
}

fn lane(number: u64) -> u64 {
    0x3C3C_3C3C_3C3C_3C00 + number % 200
}

/// Returns the state with a flipped bit.
fn flipped(state: &MemoryState, bit: usize) -> MemoryState {
    let mut state = state.clone();
    state.room(0)[bit / 8] ^= 1 << (bit % 8);
    state
}

const WIDTHS: [Dtype; 4] = [Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64];

#[test]
fn a_wrong_bit_in_a_coded_lane_is_refused_and_one_elsewhere_is_found_by_a_check() {
    for dtype in WIDTHS {
        let (base, target) = (tensor(dtype, 400, lane), changed(dtype, 400, lane, 50, 3));
        let bits = 8 * dtype.lane_bytes();
        for profile in [Profile::Local, Profile::Direct] {
            let links = [link(&base, &target, profile)];
            let replay = replay(&base, &links);
            let expected = if profile == Profile::Local {
                "R-SUM-03"
            } else {
                "R-SUM-04"
            };
            for bit in 0..bits {
                // The bit is in the second of the coded lanes.
                let memory = flipped(&base, 51 * bits + bit);
                let error = taken(&replay, &memory).unwrap_err();
                let place = (
                    Some(0),
                    Some(expected),
                    Some("segment 0".to_owned()),
                    Some("t".to_owned()),
                );
                assert_eq!(found(&error), place, "{dtype} {bit}");
                assert_eq!(error.class(), ErrorClass::StateMismatch);

                let (memory, lanes) = taken(&replay, &flipped(&base, 52 * bits + bit)).unwrap();
                assert_eq!((&memory, lanes), (&flipped(&target, 52 * bits + bit), 8));
                let error = replay.sums().unwrap().check(&memory, &()).unwrap_err();
                assert_eq!(
                    (error.rule(), error.tensor()),
                    (Some("R-SUM-04"), Some("t"))
                );
                let sums = replay.sums().unwrap().tensors[0].as_deref().unwrap();
                let error = check_sums(&mut Own::of(&memory).lend(), &[(0, sums)], &Alone, &())
                    .unwrap_err();
                assert_eq!(
                    (error.rule(), error.tensor()),
                    (Some("R-SUM-04"), Some("t"))
                );
                check_sums(&mut Own::of(&target).lend(), &[(0, sums)], &Alone, &()).unwrap();
                // The sums are for fewer pieces than the tensor has.
                let error =
                    check_sums(&mut Own::of(&target).lend(), &[(0, &[])], &Alone, &()).unwrap_err();
                assert_eq!(error.rule(), Some("R-SUM-04"));
                assert_eq!(
                    replay.table().check(&memory, &()).unwrap_err().rule(),
                    Some("R-APP-04")
                );
            }
        }
    }
}

#[test]
fn errors_of_two_links_that_cancel_are_noticed() {
    for dtype in WIDTHS {
        let (base, target) = (tensor(dtype, 400, lane), changed(dtype, 400, lane, 50, 3));
        let links = [
            link(&base, &target, Profile::Local),
            link(&target, &base, Profile::Local),
        ];
        let replay = replay(&base, &links);
        assert_eq!(taken(&replay, &base).unwrap().0, base);
        // The second link restores the lane, but its value was wrong in between.
        let memory = flipped(&base, 51 * 8 * dtype.lane_bytes());
        let error = taken(&replay, &memory).unwrap_err();
        assert_eq!((error.rule(), error.link()), (Some("R-SUM-03"), Some(0)));
    }
}

/// Changes one number among the sums of a link with one part, `before_end` bytes before the end of
/// its file, and corrects the checksum.
fn with_wrong_sum(mut file: Vec<u8>, before_end: usize) -> Vec<u8> {
    let end = file.len();
    file[end - before_end] ^= 1;
    let data = end - (32 + 2 * 8);
    let crc = crc32fast::hash(&file[data..]);
    file[data - 12..data - 8].copy_from_slice(&crc.to_le_bytes());
    file
}

/// A change of the file of the link with this number.
type Edit<'a> = (usize, &'a dyn Fn(Vec<u8>) -> Vec<u8>);

#[test]
fn the_first_fault_is_told_whatever_the_order_of_work() {
    let states: Vec<_> = (0..4)
        .map(|step| changed(Dtype::BF16, 400, lane, 7, step))
        .collect();
    let files: Vec<_> = states
        .windows(2)
        .map(|pair| file(&pair[0], &pair[1], Profile::Local, true))
        .collect();
    let faults = |edits: &[Edit<'_>]| {
        let mut files = files.clone();
        for (number, edit) in edits {
            files[*number] = edit(std::mem::take(&mut files[*number]));
        }
        let links: Vec<Link> = files.into_iter().map(open).collect();
        let replay = replay(&states[0], &links);
        let error = taken(&replay, &states[0]).unwrap_err();
        (error.link().unwrap(), error.rule().unwrap())
    };
    let coded = |file| with_wrong_sum(file, 8);
    let piece = |file| with_wrong_sum(file, 16);
    let segment = |mut file: Vec<u8>| {
        let link = open(file.clone());
        let end = address(link.header().file_length() - link.header().extension_length).unwrap();
        file[end - 1] ^= 1;
        file
    };
    assert_eq!(faults(&[(1, &coded)]), (1, "R-SUM-03"));
    assert_eq!(faults(&[(1, &piece)]), (1, "R-SUM-04"));
    assert_eq!(faults(&[(1, &piece), (2, &coded)]), (1, "R-SUM-04"));
    assert_eq!(faults(&[(2, &piece), (0, &coded)]), (0, "R-SUM-03"));
    // Faults of files come before all faults of sums.
    assert_eq!(faults(&[(0, &coded), (2, &segment)]), (2, "R-SEG-01"));
    assert_eq!(faults(&[(1, &segment), (2, &segment)]), (1, "R-SEG-01"));
}

#[test]
fn pieces_without_a_part_keep_their_sums() {
    let piece = address(PIECE_BYTES).unwrap();
    let state = |byte: u8| {
        let mut data = vec![7; 2 * piece + 100];
        data[piece - 1] = 7 + byte % 2;
        data[2 * piece + 50] = byte;
        let mut state = MemoryState::new();
        state
            .insert("t", Dtype::U8, &[data.len() as u64], data)
            .unwrap();
        state
    };
    let states = [state(2), state(4), state(5)];
    let links: Vec<Link> = states
        .windows(2)
        .map(|pair| link(&pair[0], &pair[1], Profile::Local))
        .collect();
    let good = replay(&states[0], &links);
    let plans = plans(&good).unwrap();
    let places: Vec<_> = plans
        .iter()
        .map(|(piece, plan)| (*piece, plan.first_lane, plan.steps.len()))
        .collect();
    assert_eq!(
        places,
        [(0, 0, 1), (1, PIECE_BYTES, 0), (2, 2 * PIECE_BYTES, 2)]
    );
    assert!(taken(&good, &states[0]).unwrap() == (states[2].clone(), 2));
    // The sums of the base are wrong for the unchanged piece in the middle.
    let mut wrong = good.sums.as_ref().unwrap().base.clone();
    wrong.tensors[0].as_mut().unwrap()[1] = Sums::ZERO;
    let mut replay = Replay::new(StateTable::of(&states[0], &()).unwrap()).with_sums(wrong);
    links.iter().for_each(|link| replay.push(link).unwrap());
    let error = taken(&replay, &states[0]).unwrap_err();
    assert_eq!(
        found(&error),
        (
            Some(0),
            Some("R-SUM-04"),
            Some("index".to_owned()),
            Some("t".to_owned())
        )
    );
}

#[test]
fn where_lanes_are_not_enough_links_are_refused_and_taken_as_patches() {
    // The smaller a lane, the more often it changes.
    let lanes = |by: u64| {
        move |number: u64| {
            let drawn = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let drawn = (drawn ^ drawn >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40;
            let exponent = drawn % 8;
            let changes = (drawn >> 10).is_multiple_of(8 << exponent);
            (((100 + exponent) << 7) | (drawn / 8 % 128)) + if changes { by } else { 0 }
        }
    };
    let (base, target) = (
        tensor(Dtype::BF16, 70_000, lanes(0)),
        tensor(Dtype::BF16, 70_000, lanes(1)),
    );
    let mut more = target.clone();
    more.insert("u", Dtype::U8, &[1], vec![1]).unwrap();
    let compact = link(&base, &target, Profile::Compact);
    assert!(compact.segment(0).unwrap().table().contexts > 1);
    let cases: [(&MemoryState, Link); 4] = [
        (&target, compact),
        (&target, open(file(&base, &target, Profile::Local, false))),
        (&more, link(&base, &more, Profile::Local)),
        (&base, link(&more, &base, Profile::Local)),
    ];
    for (number, (target, link)) in cases.into_iter().enumerate() {
        let base = if number == 3 { &more } else { &base };
        let links = [link];
        let replay = replay(base, &links);
        let refused = taken(&replay, base).unwrap_err();
        assert_eq!(
            (refused.class(), refused.rule()),
            (ErrorClass::Unsupported, None),
            "{refused}"
        );
        let tensor = [Some("t"), None, Some("u"), Some("u")][number];
        assert_eq!(
            (refused.link(), refused.tensor()),
            (if number == 0 { None } else { Some(0) }, tensor)
        );
        let mut memory = base.clone();
        let mut set = replay.patches(base, base, u64::MAX, &()).unwrap();
        set.stage(&mut memory).unwrap().write().unwrap();
        assert_eq!(memory, *target);
    }
    // The sums of the base are unknown, or are not followed.
    let links = [link(&base, &target, Profile::Local)];
    let mut unknown = Replay::new(StateTable::of(&base, &()).unwrap()).with_sums(StateSums {
        tensors: vec![None],
    });
    unknown.push(&links[0]).unwrap();
    assert_eq!(
        taken(&unknown, &base).unwrap_err().class(),
        ErrorClass::Unsupported
    );
    assert!(unknown.sums().unwrap().check(&target, &()).is_ok());
    let mut none = Replay::new(StateTable::of(&base, &()).unwrap());
    none.push(&links[0]).unwrap();
    assert_eq!(taken(&none, &base).unwrap_err().class(), ErrorClass::Usage);
    // A fault of the file comes first.
    let mut damaged = file(&base, &target, Profile::Local, false);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let links = [open(damaged)];
    assert_eq!(
        taken(&self::replay(&base, &links), &base)
            .unwrap_err()
            .rule(),
        Some("R-SEG-01")
    );
}

#[test]
fn memory_that_fails_is_left_as_it_was_or_known_to_be_torn() {
    // There are more lanes than one call gathers, so the work takes two.
    let lanes = 1_400_000;
    let (base, target) = (
        tensor(Dtype::BF16, lanes, lane),
        changed(Dtype::BF16, lanes, lane, 5, 1),
    );
    let two = |state: &MemoryState| {
        let mut two = state.clone();
        let (info, data) = state.get("t").unwrap();
        two.insert("u", info.dtype(), info.shape(), data.to_vec())
            .unwrap();
        two
    };
    let (base, target) = (two(&base), two(&target));
    let links = [link(&base, &target, Profile::Local)];
    let replay = replay(&base, &links);
    let mut device = Device::of(&base);
    // The calls gather and stage, twice.
    for call in 0..4 {
        assert_eq!(
            prove(&replay, device.failing(call..call + 1), u64::MAX)
                .unwrap_err()
                .class(),
            ErrorClass::Io
        );
        assert!(device.state() == base);
    }
    let mut changes = prove(&replay, device.failing(4..5), u64::MAX).unwrap();
    let mark = changes.mark();
    assert_eq!((mark.staged, mark.lanes), (2, 2 * lanes / 5));
    // Nothing has been written, so there is nothing to undo.
    changes.put_back(device.failing(0..1)).unwrap();
    for done in 0..5 {
        // The write fails after some lanes.
        device.failing(0..1).writes(done);
        assert_eq!(
            changes.write(&mut device).unwrap_err().class(),
            ErrorClass::Io
        );
        assert_eq!(device.state() == base, done == 0);
        device.failing(0..0);
        assert_eq!(
            changes.write(&mut device).unwrap_err().class(),
            ErrorClass::Usage
        );
        // Undoing fails, too, and is repeated.
        device.failing(0..1).writes(4 - done);
        assert_eq!(
            changes.put_back(&mut device).unwrap_err().class(),
            ErrorClass::Io
        );
        assert_eq!(
            changes.write(&mut device).unwrap_err().class(),
            ErrorClass::Usage
        );
        changes.put_back(device.failing(0..0)).unwrap();
        assert!(device.state() == base);
        changes.write(&mut device).unwrap();
        assert!(device.state() == target);
        changes.put_back(&mut device).unwrap();
        assert!(device.state() == base);
    }
}

#[test]
fn a_write_between_proof_and_pause_is_noticed() {
    let (base, target) = (
        tensor(Dtype::F32, 40_000, lane),
        changed(Dtype::F32, 40_000, lane, 5, 1),
    );
    let links = [link(&base, &target, Profile::Local)];
    let replay = replay(&base, &links);
    let mut own = Own::of(&base);
    let mut changes = prove(&replay, &mut own.lend(), u64::MAX).unwrap();
    // The first and the last coded lane, and the first lane that is compared after others were
    // written.
    for lane in [1, 39_996, 5 * 2048 + 1] {
        own.0[0].1[4 * lane] ^= 1;
        let written = own.0[0].1.clone();
        let error = changes.write(&mut own.lend()).unwrap_err();
        assert_eq!(
            (error.rule(), error.tensor()),
            (Some("R-APP-01"), Some("t"))
        );
        assert_eq!(error.class(), ErrorClass::WrongBase);
        // The failed write has been undone already.
        changes.put_back(&mut own.lend()).unwrap();
        assert!(own.0[0].1 == written, "{lane}");
        own.0[0].1[4 * lane] ^= 1;
    }
    // A change in a lane that no link codes is not noticed.
    own.0[0].1[4 * 7] ^= 1;
    changes.write(&mut own.lend()).unwrap();
    own.0[0].1[4 * 7] ^= 1;
    assert_eq!(own.state(target.tensors()), target);
    changes.put_back(&mut own.lend()).unwrap();
    assert_eq!(own.state(base.tensors()), base);
}

/// Fills memory with the state that links lead to from nothing.
fn load<M: PlacedMemory>(replay: &Replay<'_, Vec<u8>>, memory: &mut M) -> Result<()> {
    memory.describe(&replay.tensors())?;
    replay.pieces(
        &MemoryState::new(),
        &mut |tensor, piece, bytes| fill(memory, tensor, piece, &bytes),
        &(),
    )
}

#[test]
fn a_target_is_loaded_into_memory_that_holds_something_else() {
    let (base, target) = (
        tensor(Dtype::BF16, 9000, lane),
        changed(Dtype::BF16, 9000, lane, 5, 1),
    );
    let zeros = tensor(Dtype::BF16, 9000, |_| 0);
    for target in [&target, &zeros] {
        let links = [link(&MemoryState::new(), target, Profile::Local)];
        let replay = replay(&MemoryState::new(), &links);
        // The memory has another shape.
        let mut lent = Own::of(&base).0.remove(0).1;
        let info = TensorInfo::new("t", Dtype::BF16, [90, 100]).unwrap();
        let mut memory = LentState::new([(info, &mut lent[..])]).unwrap();
        load(&replay, &mut memory).unwrap();
        assert_eq!(memory.tensors(), target.tensors());
        replay.table().check(&memory, &()).unwrap();
        replay.sums().unwrap().check(&memory, &()).unwrap();
        let mut device = Device::of(&base);
        load(&replay, &mut device).unwrap();
        assert_eq!(device.state(), *target);
        assert_eq!(
            load(&replay, device.failing(0..1)).unwrap_err().class(),
            ErrorClass::Io
        );
        // The memory has other tensors.
        let mut device = Device::of(&tensor(Dtype::BF16, 9001, lane));
        assert_eq!(
            load(&replay, &mut device).unwrap_err().class(),
            ErrorClass::Usage
        );
        assert_eq!(device.state(), tensor(Dtype::BF16, 9001, lane));
        let mut memory = Own::of(&base);
        assert_eq!(
            fill(&mut memory.lend(), 1, 0, &vec![0; 18_000])
                .unwrap_err()
                .class(),
            ErrorClass::Usage
        );
        assert_eq!(
            fill(&mut memory.lend(), 0, 0, &vec![0; 17_998])
                .unwrap_err()
                .class(),
            ErrorClass::Usage
        );
    }
}

#[test]
fn lanes_of_every_kind_are_brought_through() {
    let described = Dtype::Described(DescribedDtype::new("ODD", 24, 2, None).unwrap());
    let dtypes = [
        Dtype::F8_E4M3,
        Dtype::F8_E5M2,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F32,
        Dtype::F64,
        Dtype::I64,
        described,
    ];
    for dtype in dtypes {
        let bits = 8 * dtype.lane_bytes();
        // Zeros of both signs, the smallest and the largest number, infinities, NaN with and
        // without a payload.
        let special = [
            0,
            1 << (bits - 1),
            1,
            u64::MAX,
            0x7C00,
            0x7F80,
            0x7F81,
            0x7F80_0001,
            0x7FF0_0000_0000_0001,
            0x80,
        ];
        let at = |step: u64| {
            move |number: u64| {
                special[address(number * 7 + number % 3 * step).unwrap() % special.len()]
            }
        };
        for profile in [Profile::Local, Profile::Direct] {
            let states: Vec<_> = (0..4)
                .map(|step| tensor(dtype, 4 * 300, at(step)))
                .collect();
            let links: Vec<Link> = states
                .windows(2)
                .map(|pair| link(&pair[0], &pair[1], profile))
                .collect();
            assert_eq!(
                taken(&replay(&states[0], &links), &states[0]).unwrap().0,
                states[3]
            );
        }
    }
}

/// Follows the plans word by word; returns the resulting state.
fn follow(base: &MemoryState, replay: &Replay<'_, Vec<u8>>) -> Result<MemoryState> {
    let mut state = base.clone();
    for (piece, plan) in plans(replay)? {
        let info = &base.tensors()[plan.tensor];
        let width = info.dtype().lane_bytes();
        let piece = info.piece(piece);
        assert_eq!(plan.first_lane * width as u64, piece.start);
        let all: Vec<u32> = (0..)
            .take(address(piece.end - piece.start).unwrap() / width)
            .collect();
        let lanes = plan.lanes.unwrap_or_else(|| all.clone());
        assert!(lanes.is_sorted_by(|left, right| left < right));
        let mut coded: Vec<u32> = Vec::new();
        for step in &plan.steps {
            let numbers: Vec<u32> = match &step.places {
                Some(places) => places.iter().map(|&place| lanes[place as usize]).collect(),
                None => lanes.clone(),
            };
            coded.extend(&numbers);
            let mut new = Vec::new();
            for (&number, value) in numbers.iter().zip(step.values.chunks_exact(width)) {
                let at = (address(plan.first_lane).unwrap() + number as usize) * width;
                let lane = &mut state.room(plan.tensor)[at..at + width];
                if step.is_relative {
                    with_lane!(width, L => {
                        let (old, value) = (L::load(L::chunks(lane)[0]), L::load(L::chunks(value)[0]));
                        L::chunks_mut(lane)[0] = LaneKind::<L>::of(info.dtype()).moved(old, value).store();
                    });
                } else {
                    lane.copy_from_slice(value);
                }
                new.extend_from_slice(lane);
            }
            assert_eq!(Sums::of_lanes(width, &numbers, &new), step.sums.coded);
        }
        coded.sort_unstable();
        coded.dedup();
        assert_eq!(coded, lanes);
    }
    Ok(state)
}

proptest! {
    #[test]
    fn in_place_is_what_applying_is(seed: u64, count in 1_usize..7, places: [u32; 2], all_fit: bool) {
        let mut random = Random::new(seed);
        let states = if all_fit { steps(&mut random, count) } else { states(&mut random, count) };
        let links: Vec<Link> = states.windows(2).map(|pair| {
            let profile = if all_fit { Profile::Local } else { Profile::Compact };
            let profile = [profile, Profile::Local, Profile::Local, Profile::Direct][random.below(4)];
            open(file(&pair[0], &pair[1], profile, all_fit || random.below(5) > 0))
        }).collect();
        let replay = replay(&states[0], &links);
        let followed = follow(&states[0], &replay);
        let is_local = followed.is_ok();
        match followed {
            Ok(state) => {
                let data = |state: &MemoryState| state.iter().map(|(_, data)| data.to_vec()).collect::<Vec<_>>();
                prop_assert!(data(&state) == data(&states[count]));
            }
            Err(error) => {
                prop_assert_eq!((error.class(), error.rule()), (ErrorClass::Unsupported, None));
                prop_assert!(!all_fit);
            }
        }
        let mut memory = states[0].clone();
        let proven = prove(&replay, &mut Own::of(&memory).lend(), u64::MAX);
        prop_assert_eq!(proven.is_ok(), is_local, "{:?}", proven.as_ref().err());
        let mut set = replay.patches(&memory, &memory, u64::MAX, &()).unwrap();
        set.stage(&mut memory).unwrap().write().unwrap();
        prop_assert!(memory == states[count]);
        let known = replay.sums().unwrap();
        prop_assert_eq!(known.check(&memory, &()).is_ok(), known.tensors.iter().all(Option::is_some));
        let Ok(proven) = proven else {
            let error = proven.unwrap_err();
            prop_assert_eq!((error.class(), error.rule()), (ErrorClass::Unsupported, None));
            return Ok(());
        };
        prop_assert!(taken(&replay, &states[0]).unwrap() == (states[count].clone(), proven.lanes()));
        let (needed, mut base) = (proven.bytes(), Own::of(&states[0]));
        prop_assert_eq!(prove(&replay, &mut base.lend(), needed).unwrap().bytes(), needed);
        if needed > 0 {
            let error = prove(&replay, &mut base.lend(), needed - 1).unwrap_err();
            prop_assert_eq!(error.class(), ErrorClass::Usage);
        }

        // A wrong bit is noticed, unless it is in a lane that no link codes, where it stays.
        let mut memory = states[0].clone();
        let tensors: Vec<usize> = (0..memory.tensors().len()).filter(|&n| memory.tensors()[n].bytes() > 0).collect();
        if tensors.is_empty() {
            return Ok(());
        }
        let tensor = tensors[places[0] as usize % tensors.len()];
        let bit = places[1] as usize % (8 * memory.room(tensor).len());
        memory.room(tensor)[bit / 8] ^= 1 << (bit % 8);
        let name = memory.tensors()[tensor].name().to_owned();
        match taken(&replay, &memory) {
            Err(error) => {
                prop_assert!(matches!(error.rule(), Some("R-SUM-03" | "R-SUM-04")));
                prop_assert_eq!(error.tensor(), Some(name.as_str()));
            }
            Ok((memory, _)) => {
                let differing: BTreeMap<_, usize> = memory.iter().zip(states[count].iter()).map(|(own, other)| {
                    assert_eq!(own.0, other.0);
                    let bits = |(own, other): (&u8, &u8)| (own ^ other).count_ones() as usize;
                    (own.0.name().to_owned(), own.1.iter().zip(other.1).map(bits).sum())
                }).filter(|(_, bits)| *bits > 0).collect();
                prop_assert!(differing == BTreeMap::from([(name, 1)]));
            }
        }
    }
}

/// Makes states of the same tensors, some lanes of which change at each step.
fn steps(random: &mut Random, count: usize) -> Vec<MemoryState> {
    let mut state = MemoryState::new();
    for (name, dtype) in [
        ("a", Dtype::BF16),
        ("b", Dtype::F32),
        ("c", Dtype::U8),
        ("d", Dtype::BF16),
        ("e", Dtype::F64),
    ] {
        let lanes = [1, 3000, 9000][random.below(3)];
        let data = random.data(lanes * dtype.lane_bytes());
        state.insert(name, dtype, &[lanes as u64], data).unwrap();
    }
    let mut states = vec![state.clone()];
    while states.len() <= count {
        for tensor in 0..5 {
            let width = state.tensors()[tensor].dtype().lane_bytes();
            let step = width * [1, 2, 17, 300, 5000][random.below(5)];
            let (begin, by) = (random.below(2), u8::try_from(random.below(3)).unwrap());
            state
                .room(tensor)
                .iter_mut()
                .skip(begin * width)
                .step_by(step)
                .for_each(|byte| *byte = byte.wrapping_add(by));
        }
        // Each link changes at least one lane.
        state.room(0)[0] ^= 1;
        states.push(state.clone());
    }
    states
}
