//! Links taken in place: against links applied one by one, in memory that is wrong, that others write to, or that fails.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::tests::{Random, found, states};
use super::*;
use crate::codec::lane::{Kind, Lane, with_lane};
use crate::diff::{DiffOptions, diff};
use crate::error::ErrorClass;
use crate::limits::{Limits, address};
use crate::memory::LentState;
use crate::sums::Sums;
use crate::tensor::{DescribedDtype, Dtype, Lanes, PIECE_BYTES};
use crate::{Profile, Section};

type Link = LinkReader<Vec<u8>>;

fn file(base: &MemoryState, target: &MemoryState, profile: Profile, sums: bool) -> Vec<u8> {
    let mut file = Vec::new();
    diff(base, target, &DiffOptions::default().profile(profile).sums(sums), &mut file).unwrap();
    file
}

fn open(file: Vec<u8>) -> Link {
    LinkReader::open(file, &Limits::default()).unwrap()
}

fn link(base: &MemoryState, target: &MemoryState, profile: Profile) -> Link {
    open(file(base, target, profile, true))
}

/// From a base, whose sums are known, over links.
fn replay<'a>(base: &MemoryState, links: &'a [Link]) -> Replay<'a, Vec<u8>> {
    let (table, sums) = StateSums::hashed(base, &()).unwrap();
    let mut replay = Replay::new(table).with_sums(sums);
    links.iter().for_each(|link| replay.push(link).unwrap());
    replay
}

/// One tensor; its lanes are what `lane` says of their numbers.
fn tensor(dtype: Dtype, lanes: u64, lane: impl Fn(u64) -> u64) -> MemoryState {
    let width = dtype.lane_bytes();
    let data: Vec<u8> = (0..lanes).flat_map(|number| lane(number).to_le_bytes().into_iter().take(width)).collect();
    let mut state = MemoryState::new();
    let elements = 8 * data.len() as u64 / dtype.bits();
    state.insert("t", dtype, &[elements], data).unwrap();
    state
}

/// As another, but some lanes are other ones.
fn changed(dtype: Dtype, lanes: u64, lane: impl Fn(u64) -> u64, every: u64, by: u64) -> MemoryState {
    tensor(dtype, lanes, |number| if number % every == 1 { lane(number).wrapping_add(by) } else { lane(number) })
}

fn lane(number: u64) -> u64 {
    0x3C3C_3C3C_3C3C_3C00 + number % 200
}

/// The same memory with a flipped bit.
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
            let expected = if profile == Profile::Local { "R-SUM-03" } else { "R-SUM-04" };
            for bit in 0..bits {
                // The second of the coded lanes.
                let memory = flipped(&base, 51 * bits + bit);
                let error = replay.in_place(&memory, u64::MAX, &()).unwrap_err();
                let place = (Some(0), Some(expected), Some(Section::Segment(0)), Some("t".to_owned()));
                assert_eq!(found(&error), place, "{dtype} {bit}");
                assert_eq!(error.class(), ErrorClass::StateMismatch);

                let mut memory = flipped(&base, 52 * bits + bit);
                let mut set = replay.in_place(&memory, u64::MAX, &()).unwrap();
                assert_eq!((set.proof(), set.lanes()), (Proof::ChangedLanes, 8));
                set.fit(&mut memory).unwrap().apply().unwrap();
                assert_eq!(memory, flipped(&target, 52 * bits + bit));
                let error = replay.sums().unwrap().check(&memory, &()).unwrap_err();
                assert_eq!((error.rule(), error.tensor()), (Some("R-SUM-04"), Some("t")));
                assert_eq!(replay.table().check(&memory, &()).unwrap_err().rule(), Some("R-APP-04"));
            }
        }
    }
}

#[test]
fn errors_of_two_links_that_cancel_are_noticed() {
    for dtype in WIDTHS {
        let (base, target) = (tensor(dtype, 400, lane), changed(dtype, 400, lane, 50, 3));
        let links = [link(&base, &target, Profile::Local), link(&target, &base, Profile::Local)];
        let replay = replay(&base, &links);
        let mut memory = base.clone();
        let mut set = replay.in_place(&memory, u64::MAX, &()).unwrap();
        set.fit(&mut memory).unwrap().apply().unwrap();
        assert_eq!(memory, base);
        // There and back: the lane is what it was, and it was wrong.
        let memory = flipped(&base, 51 * 8 * dtype.lane_bytes());
        let error = replay.in_place(&memory, u64::MAX, &()).unwrap_err();
        assert_eq!((error.rule(), error.link()), (Some("R-SUM-03"), Some(0)));
    }
}

/// The file of a link with one part, with another number among its sums, behind a good checksum: the one that begins this many
/// bytes before the end.
fn with_wrong_sum(mut file: Vec<u8>, before_end: usize) -> Vec<u8> {
    let end = file.len();
    file[end - before_end] ^= 1;
    let data = end - (32 + 2 * 8);
    let crc = crc32fast::hash(&file[data..]);
    file[data - 12..data - 8].copy_from_slice(&crc.to_le_bytes());
    file
}

/// What is done to the file of the link with this number.
type Edit<'a> = (usize, &'a dyn Fn(Vec<u8>) -> Vec<u8>);

#[test]
fn the_first_fault_is_told_whatever_the_order_of_work() {
    let states: Vec<_> = (0..4).map(|step| changed(Dtype::BF16, 400, lane, 7, step)).collect();
    let files: Vec<_> = states.windows(2).map(|pair| file(&pair[0], &pair[1], Profile::Local, true)).collect();
    let faults = |edits: &[Edit<'_>]| {
        let mut files = files.clone();
        for (number, edit) in edits {
            files[*number] = edit(std::mem::take(&mut files[*number]));
        }
        let links: Vec<Link> = files.into_iter().map(open).collect();
        let replay = replay(&states[0], &links);
        let planned = replay.plans().and_then(|mut plans| plans.try_for_each(|plan| plan.map(drop)));
        let error = replay.in_place(&states[0], u64::MAX, &()).unwrap_err();
        (error.link().unwrap(), error.rule().unwrap(), planned.err().and_then(|error| error.rule()))
    };
    let coded = |file| with_wrong_sum(file, 8);
    let piece = |file| with_wrong_sum(file, 16);
    let segment = |mut file: Vec<u8>| {
        let link = open(file.clone());
        let end = address(link.header().file_length() - link.header().extension_length).unwrap();
        file[end - 1] ^= 1;
        file
    };
    assert_eq!(faults(&[(1, &coded)]), (1, "R-SUM-03", None));
    assert_eq!(faults(&[(1, &piece)]), (1, "R-SUM-04", None));
    assert_eq!(faults(&[(1, &piece), (2, &coded)]), (1, "R-SUM-04", None));
    assert_eq!(faults(&[(2, &piece), (0, &coded)]), (0, "R-SUM-03", None));
    // What is wrong with a file comes before all sums.
    assert_eq!(faults(&[(0, &coded), (2, &segment)]), (2, "R-SEG-01", Some("R-SEG-01")));
    assert_eq!(faults(&[(1, &segment), (2, &segment)]), (1, "R-SEG-01", Some("R-SEG-01")));
}

#[test]
fn pieces_without_a_part_keep_their_sums() {
    let piece = address(PIECE_BYTES).unwrap();
    let state = |byte: u8| {
        let mut data = vec![7; 2 * piece + 100];
        data[piece - 1] = 7 + byte % 2;
        data[2 * piece + 50] = byte;
        let mut state = MemoryState::new();
        state.insert("t", Dtype::U8, &[data.len() as u64], data).unwrap();
        state
    };
    let states = [state(2), state(4), state(5)];
    let links: Vec<Link> = states.windows(2).map(|pair| link(&pair[0], &pair[1], Profile::Local)).collect();
    let good = replay(&states[0], &links);
    let plans: Vec<PiecePlan> = good.plans().unwrap().map(Result::unwrap).collect();
    let places: Vec<_> = plans.iter().map(|plan| (plan.piece, plan.first_lane, plan.steps.len())).collect();
    assert_eq!(places, [(0, 0, 1), (2, 2 * PIECE_BYTES, 2)]);
    let mut memory = states[0].clone();
    let mut set = good.in_place(&memory, u64::MAX, &()).unwrap();
    assert_eq!(set.lanes(), 2);
    set.fit(&mut memory).unwrap().apply().unwrap();
    assert_eq!(memory, states[2]);
    // Of a base with another piece between.
    let mut wrong = good.sums.as_ref().unwrap().base.clone();
    wrong.tensors[0].as_mut().unwrap()[1] = Sums::ZERO;
    let mut replay = Replay::new(StateTable::of(&states[0], &()).unwrap()).with_sums(wrong);
    links.iter().for_each(|link| replay.push(link).unwrap());
    let error = replay.in_place(&states[0], u64::MAX, &()).unwrap_err();
    assert_eq!(found(&error), (Some(0), Some("R-SUM-04"), Some(Section::Index), Some("t".to_owned())));
    // Told after all plans: what lanes are not enough for would come before it.
    let planned: Vec<_> = replay.plans().unwrap().map(|plan| plan.err().and_then(|error| error.rule())).collect();
    assert_eq!(planned, [None, None, Some("R-SUM-04")]);
}

#[test]
fn where_lanes_are_not_enough_plans_are_refused_and_pieces_are_taken_whole() {
    // The smaller a lane, the more likely it changes.
    let lanes = |by: u64| {
        move |number: u64| {
            let drawn = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let drawn = (drawn ^ drawn >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40;
            let exponent = drawn % 8;
            let changes = (drawn >> 10).is_multiple_of(8 << exponent);
            (((100 + exponent) << 7) | (drawn / 8 % 128)) + if changes { by } else { 0 }
        }
    };
    let (base, target) = (tensor(Dtype::BF16, 70_000, lanes(0)), tensor(Dtype::BF16, 70_000, lanes(1)));
    let mut more = target.clone();
    more.insert("u", Dtype::U8, &[1], vec![1]).unwrap();
    let compact = link(&base, &target, Profile::Compact);
    assert!(!compact.segment(0).unwrap().has_one_context());
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
        let refused = match replay.plans() {
            Ok(plans) => plans.last().unwrap().unwrap_err(),
            Err(error) => error,
        };
        assert_eq!((refused.class(), refused.rule()), (ErrorClass::Unsupported, None), "{refused}");
        let mut memory = base.clone();
        let mut set = replay.in_place(&memory, u64::MAX, &()).unwrap();
        assert_eq!(set.proof(), if number < 2 { Proof::Hashed } else { Proof::ChangedLanes });
        set.fit(&mut memory).unwrap().apply().unwrap();
        assert_eq!(memory, *target);
    }
    // The sums of the base are not known, or not followed.
    let links = [link(&base, &target, Profile::Local)];
    let mut unknown = Replay::new(StateTable::of(&base, &()).unwrap()).with_sums(StateSums { tensors: vec![None] });
    unknown.push(&links[0]).unwrap();
    assert_eq!(unknown.plans().map(drop).unwrap_err().class(), ErrorClass::Unsupported);
    assert_eq!(unknown.in_place(&base, u64::MAX, &()).unwrap().proof(), Proof::Hashed);
    assert!(unknown.sums().unwrap().check(&target, &()).is_ok());
    let mut none = Replay::new(StateTable::of(&base, &()).unwrap());
    none.push(&links[0]).unwrap();
    assert_eq!(none.plans().map(drop).unwrap_err().class(), ErrorClass::Usage);
    assert_eq!(none.in_place(&base, u64::MAX, &()).unwrap_err().class(), ErrorClass::Usage);
}

/// Memory that lies elsewhere, and fails: at the calls with these numbers.
struct Device {
    state: MemoryState,
    calls: AtomicUsize,
    fails: Range<usize>,
}

impl Device {
    fn of(state: &MemoryState) -> Self {
        Self { state: state.clone(), calls: AtomicUsize::new(0), fails: 0..0 }
    }

    /// Fails from now on at these calls.
    fn failing(&mut self, fails: Range<usize>) -> &mut Self {
        (self.calls, self.fails) = (AtomicUsize::new(0), fails);
        self
    }

    fn call(&self) -> Result<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if self.fails.contains(&call) { Err(Error::resource("the device is gone")) } else { Ok(()) }
    }
}

impl State for Device {
    fn tensors(&self) -> &[TensorInfo] {
        self.state.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.call()?;
        self.state.read(tensor, offset, out)
    }
}

impl StateMemory for Device {
    fn scatter(&mut self, tensor: usize, lanes: &Lanes<'_>, values: &[u8]) -> Result<()> {
        let half = Lanes { numbers: lanes.numbers.map(|n| &n[..n.len() / 2]), count: lanes.count / 2, ..*lanes };
        let of_half = values.len() / lanes.count.max(1) * half.count;
        self.state.scatter(tensor, &half, &values[..of_half])?;
        // Half of them are written then.
        self.call()?;
        self.state.scatter(tensor, lanes, values)
    }
}

#[test]
fn memory_that_fails_is_left_as_it_was_or_said_to_be_torn() {
    let (base, target) = (tensor(Dtype::BF16, 40_000, lane), changed(Dtype::BF16, 40_000, lane, 5, 1));
    let links = [link(&base, &target, Profile::Local)];
    let replay = replay(&base, &links);
    let mut device = Device::of(&base);
    assert_eq!(replay.in_place(device.failing(0..1), u64::MAX, &()).unwrap_err().class(), ErrorClass::Io);
    let mut set = replay.in_place(device.failing(0..0), u64::MAX, &()).unwrap();
    let mut failed = 0;
    loop {
        let one = failed..failed + 1;
        let applied = set.fit(device.failing(one)).unwrap().apply();
        if applied.is_ok() {
            break;
        }
        failed += 1;
        assert_eq!(applied.unwrap_err().class(), ErrorClass::Io);
        assert!(!set.is_torn());
        assert_eq!(device.state, base, "{failed}");
    }
    // 8000 lanes, in steps of 2048.
    assert_eq!((failed, &device.state), (8, &target));
    set.fit(device.failing(0..0)).unwrap().undo().unwrap();
    assert_eq!(device.state, base);
    // And the way back fails, too.
    for first in 0..failed {
        let applied = set.fit(device.failing(first..usize::MAX)).unwrap().apply();
        assert_eq!(applied.unwrap_err().class(), ErrorClass::Io);
        // With the first call nothing has been written.
        assert_eq!(set.is_torn(), first > 0);
        assert!(set.is_torn() || device.state == base);
        if set.is_torn() {
            let error = set.fit(device.failing(0..0)).unwrap().apply().unwrap_err();
            assert_eq!(error.class(), ErrorClass::Usage);
            assert!(set.fit(device.failing(0..1)).unwrap().undo().is_err() && set.is_torn());
        }
        set.fit(device.failing(0..0)).unwrap().undo().unwrap();
        assert!(!set.is_torn());
        assert_eq!(device.state, base);
    }
}

/// A buffer with the tensor of a state.
fn lend<'a>(state: &MemoryState, own: &'a mut [u8]) -> LentState<'a> {
    LentState::new([(state.tensors()[0].clone(), own)]).unwrap()
}

#[test]
fn a_write_between_proof_and_pause_is_noticed() {
    let (base, target) = (tensor(Dtype::F32, 40_000, lane), changed(Dtype::F32, 40_000, lane, 5, 1));
    let links = [link(&base, &target, Profile::Local)];
    let replay = replay(&base, &links);
    let mut own = base.iter().map(|(_, data)| data.to_vec()).next().unwrap();
    let mut set = replay.in_place(&lend(&base, &mut own), u64::MAX, &()).unwrap();
    // The first and the last of the coded lanes, and the first of the second step.
    for lane in [1, 39_996, 5 * 2048 + 1] {
        for slice in [u64::MAX, 100, 2048] {
            own[4 * lane] ^= 1;
            let written = own.clone();
            let mut memory = lend(&base, &mut own);
            let mut ready = set.fit(&mut memory).unwrap();
            let error = loop {
                match ready.exchange(slice) {
                    Ok(is_done) => assert!(!is_done),
                    Err(error) => break error,
                }
            };
            assert_eq!((error.rule(), error.tensor()), (Some("R-APP-01"), Some("t")));
            assert_eq!(error.class(), ErrorClass::WrongBase);
            assert!(!set.is_torn());
            assert_eq!(own, written, "{lane} {slice}");
            own[4 * lane] ^= 1;
        }
    }
    // Of a lane that nobody has coded nothing is said.
    own[4 * 7] ^= 1;
    set.fit(&mut lend(&base, &mut own)).unwrap().apply().unwrap();
    own[4 * 7] ^= 1;
    assert_eq!(own, target.get("t").unwrap().1);
    // Slices, and back from wherever.
    for lanes in [1, 777, 2048, 5000] {
        set.fit(&mut lend(&base, &mut own)).unwrap().undo().unwrap();
        assert_eq!(own, base.get("t").unwrap().1);
        assert!(!set.fit(&mut lend(&base, &mut own)).unwrap().exchange(lanes).unwrap());
    }
}

#[test]
fn a_target_is_loaded_into_memory_that_holds_something_else() {
    let (base, target) = (tensor(Dtype::BF16, 9000, lane), changed(Dtype::BF16, 9000, lane, 5, 1));
    let zeros = tensor(Dtype::BF16, 9000, |_| 0);
    for target in [&target, &zeros] {
        let links = [link(&MemoryState::new(), target, Profile::Local)];
        let replay = replay(&MemoryState::new(), &links);
        let nothing = MemoryState::new();
        let mut own = tensor(Dtype::F32, 3, lane);
        replay.load(&nothing, &mut own, &()).unwrap();
        assert_eq!(own, *target);
        let mut own = base.clone();
        replay.load(&nothing, &mut own, &()).unwrap();
        assert_eq!(own, *target);
        // Also with another shape.
        let mut lent = base.iter().map(|(_, data)| data.to_vec()).next().unwrap();
        let info = TensorInfo::new("t", Dtype::BF16, [90, 100]).unwrap();
        let mut memory = LentState::new([(info, &mut lent[..])]).unwrap();
        let digests = replay.load(&nothing, &mut memory, &()).unwrap();
        assert_eq!((memory.tensors(), &digests), (target.tensors(), &replay.table().digests));
        replay.table().check(&memory, &()).unwrap();
        replay.sums().unwrap().check(&memory, &()).unwrap();
        let mut device = Device::of(&base);
        replay.load(&nothing, &mut device, &()).unwrap();
        assert_eq!(device.state, *target);
        assert_eq!(replay.load(&nothing, device.failing(0..1), &()).unwrap_err().class(), ErrorClass::Io);
        // Memory of others with other tensors.
        let mut device = Device::of(&tensor(Dtype::BF16, 9001, lane));
        assert_eq!(replay.load(&nothing, &mut device, &()).unwrap_err().class(), ErrorClass::Usage);
        assert_eq!(device.state, tensor(Dtype::BF16, 9001, lane));
    }
}

#[test]
fn lanes_of_every_kind_are_brought_through() {
    let described = Dtype::Described(DescribedDtype::new("ODD", 24, 2, None).unwrap());
    let dtypes =
        [Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64, Dtype::I64, described];
    for dtype in dtypes {
        let bits = 8 * dtype.lane_bytes();
        // Zeros of both signs, the least and the greatest, infinities, NaN with and without a payload.
        let special =
            [0, 1 << (bits - 1), 1, u64::MAX, 0x7C00, 0x7F80, 0x7F81, 0x7F80_0001, 0x7FF0_0000_0000_0001, 0x80];
        let at =
            |step: u64| move |number: u64| special[address(number * 7 + number % 3 * step).unwrap() % special.len()];
        for profile in [Profile::Local, Profile::Direct] {
            let states: Vec<_> = (0..4).map(|step| tensor(dtype, 4 * 300, at(step))).collect();
            let links: Vec<Link> = states.windows(2).map(|pair| link(&pair[0], &pair[1], profile)).collect();
            let mut memory = states[0].clone();
            let mut set = replay(&memory, &links).in_place(&memory, u64::MAX, &()).unwrap();
            set.fit(&mut memory).unwrap().apply().unwrap();
            assert_eq!(memory, states[3]);
        }
    }
}

/// Plans followed word by word: what becomes of a state.
fn follow(base: &MemoryState, replay: &Replay<'_, Vec<u8>>) -> Result<MemoryState> {
    let mut state = base.clone();
    for plan in replay.plans()? {
        let plan = plan?;
        let info = &base.tensors()[plan.tensor];
        let width = info.dtype().lane_bytes();
        let piece = info.piece(plan.piece);
        assert_eq!(plan.first_lane * width as u64, piece.start);
        let all: Vec<u32> = (0..).take(address(piece.end - piece.start).unwrap() / width).collect();
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
                        L::chunks_mut(lane)[0] = Kind::<L>::of(info.dtype()).moved(old, value).store();
                    });
                } else {
                    lane.copy_from_slice(value);
                }
                new.extend_from_slice(lane);
            }
            assert_eq!(Sums::of_lanes(width, &numbers, &new), step.coded);
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
        match follow(&states[0], &replay) {
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
        let mut set = replay.in_place(&memory, u64::MAX, &()).unwrap();
        let needed = set.bytes();
        set.fit(&mut memory).unwrap().apply().unwrap();
        prop_assert!(memory == states[count]);
        let known = replay.sums().unwrap();
        prop_assert_eq!(known.check(&memory, &()).is_ok(), known.tensors.iter().all(Option::is_some));
        prop_assert_eq!(replay.in_place(&states[0], needed, &()).unwrap().bytes(), needed);
        if needed > 0 {
            prop_assert_eq!(replay.in_place(&states[0], needed - 1, &()).unwrap_err().class(), ErrorClass::Usage);
        }

        // A wrong bit is noticed, or it is in a lane that no link has coded, and stays.
        let mut memory = states[0].clone();
        let tensors: Vec<usize> = (0..memory.tensors().len()).filter(|&n| memory.tensors()[n].bytes() > 0).collect();
        if tensors.is_empty() {
            return Ok(());
        }
        let tensor = tensors[places[0] as usize % tensors.len()];
        let bit = places[1] as usize % (8 * memory.room(tensor).len());
        memory.room(tensor)[bit / 8] ^= 1 << (bit % 8);
        let name = memory.tensors()[tensor].name().to_owned();
        match replay.in_place(&memory, u64::MAX, &()) {
            Err(error) => {
                prop_assert!(matches!(error.rule(), Some("R-SUM-03" | "R-SUM-04" | "R-APP-04" | "R-POS-01" | "R-POS-02")));
                prop_assert_eq!(error.tensor(), Some(name.as_str()));
            }
            Ok(mut set) => {
                set.fit(&mut memory).unwrap().apply().unwrap();
                let differing: BTreeMap<_, usize> = memory.iter().zip(states[count].iter()).map(|(own, other)| {
                    assert_eq!(own.0, other.0);
                    let bits = |(own, other): (&u8, &u8)| (own ^ other).count_ones() as usize;
                    (own.0.name().to_owned(), own.1.iter().zip(other.1).map(bits).sum())
                }).filter(|(_, bits)| *bits > 0).collect();
                // None if the tensor is gone or has been set again.
                prop_assert!(differing.is_empty() || differing == BTreeMap::from([(name, 1)]));
            }
        }
    }
}

/// States of the same tensors, some lanes of which change at each step.
fn steps(random: &mut Random, count: usize) -> Vec<MemoryState> {
    let mut state = MemoryState::new();
    for (name, dtype) in
        [("a", Dtype::BF16), ("b", Dtype::F32), ("c", Dtype::U8), ("d", Dtype::BF16), ("e", Dtype::F64)]
    {
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
        // One link changes something.
        state.room(0)[0] ^= 1;
        states.push(state.clone());
    }
    states
}
