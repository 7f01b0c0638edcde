//! Sequences of links in place, good and damaged, on memory that is the base or nearly so: they lead to the target or are
//! refused, whoever executes them.

use arbitrary::{Arbitrary, Unstructured};
use deltachain::StateSums;
use deltachain::sums::Sums;
use deltachain::tensor::{Dtype, MemoryState, State};
use deltachain::{DiffOptions, ErrorClass, Limits, LinkReader, PiecePlan, Profile, Replay, Result, diff};

use crate::memory::single_threaded;
use crate::raw::refused_by_rule;
use crate::seal::Parts;
use crate::states::{Start, Step};

/// What sums belong to is made with this (SPEC section 24.3).
const BINDING: &str = "deltachain 2026-11-25 sums of a link v1";
/// Magic, and kind, checksum and length of the record.
const BEFORE_DATA: usize = 8 + 16;

/// Up to four links in a row.
#[derive(Debug, Arbitrary)]
struct InPlace {
    start: Start,
    steps: Vec<(Step, Kind)>,
    damage: Option<Damage>,
    /// Bits of the memory that are not those of the base: a tensor, a byte, which bits.
    flips: Vec<(u8, u16, u8)>,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Kind {
    Local,
    Direct,
    Compact,
    WithoutSums,
}

/// A number that is added to a byte of a link.
#[derive(Debug, Arbitrary)]
struct Damage {
    link: u8,
    /// Of a segment; otherwise of the extension area.
    segment: Option<u8>,
    place: u16,
    add: u8,
    /// Whether binding and checksum of the sums are right again.
    is_sealed: bool,
}

/// Links that are taken in place.
pub fn in_place(data: &[u8]) {
    single_threaded();
    let Ok(input) = InPlace::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let mut states = vec![input.start.state()];
    let mut files = Vec::new();
    for (step, kind) in input.steps.iter().take(4) {
        let last = &states[states.len() - 1];
        let next = step.after(last);
        files.push(link(last, &next, *kind));
        states.push(next);
    }
    let is_damaged = input.damage.as_ref().is_some_and(|damage| damage.add_to(&mut files));
    let open = |file| LinkReader::open(file, &Limits::default());
    let Ok(links) = files.iter().map(open).collect::<Result<Vec<LinkReader<&Vec<u8>>>>>() else { return };

    let (base, last) = (&states[0], &states[states.len() - 1]);
    let (table, sums) = StateSums::hashed(base, &()).expect("memory can be read");
    let mut replay = Replay::new(table).with_sums(sums);
    if let Err(error) = links.iter().try_for_each(|link| replay.push(link)) {
        assert!(is_damaged, "a written link is refused: {error}");
        return;
    }
    let held = flipped(base, &input.flips);
    let mut memory = held.clone();
    let taken = replay.in_place(&memory, u64::MAX, &());
    refused_by_rule(&taken);
    assert!(memory == held, "memory has changed before anything was proven");
    let planned = elsewhere(&replay, &held);
    let is_right = !is_damaged && held == *base;
    match taken {
        Ok(mut set) => {
            set.fit(&mut memory)
                .expect("the set was made for this memory")
                .apply()
                .expect("nobody else can write to it");
            assert_eq!(memory.tensors(), last.tensors());
            same_but_for_flips(&memory, &held, &states);
            if is_right {
                assert!(memory == *last, "links lead elsewhere");
                let (_, right) = StateSums::hashed(last, &()).expect("memory can be read");
                let sums = &replay.sums().expect("they are followed").tensors;
                let known = sums.iter().zip(&right.tensors).filter(|(sums, _)| sums.is_some());
                known.for_each(|(sums, right)| assert_eq!(sums, right, "other sums than the target has"));
            }
            match planned {
                Planned::Done(tensors) => {
                    assert!(memory.iter().map(|(_, data)| data).eq(&tensors), "plans lead elsewhere");
                }
                Planned::Wrong => panic!("only who executes the plans finds something wrong"),
                Planned::Refused => {}
            }
        }
        Err(error) => {
            assert!(!is_right, "good links are refused: {error}");
            assert!(!matches!(planned, Planned::Done(_)), "who executes the plans does not find {error}");
        }
    }
}

/// The link between two states.
fn link(base: &MemoryState, target: &MemoryState, kind: Kind) -> Vec<u8> {
    let (profile, has_sums) = match kind {
        Kind::Local => (Profile::Local, true),
        Kind::Direct => (Profile::Direct, true),
        Kind::Compact => (Profile::Compact, true),
        Kind::WithoutSums => (Profile::Local, false),
    };
    let mut file = Vec::new();
    diff(base, target, &DiffOptions::default().profile(profile).sums(has_sums), &mut file).expect("a state has a link");
    file
}

impl Damage {
    /// Whether a byte was changed.
    fn add_to(&self, files: &mut [Vec<u8>]) -> bool {
        let count = files.len().max(1);
        let Some(file) = files.get_mut(usize::from(self.link) % count) else { return false };
        let Some(mut parts) = Parts::of(file) else { return false };
        let count = parts.segments.len().max(1);
        let bytes = match self.segment {
            Some(number) => parts.segments.get_mut(usize::from(number) % count),
            None => Some(&mut parts.extension),
        };
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return false };
        let place = usize::from(self.place) % bytes.len();
        bytes[place] = bytes[place].wrapping_add(self.add);
        let joined = parts.join(false);
        // The checksum of the segment has changed in the index.
        if let Some(mut parts) =
            Parts::of(&joined).filter(|parts| self.is_sealed && parts.extension.len() > BEFORE_DATA)
        {
            let (before, data) = parts.extension.split_at_mut(BEFORE_DATA);
            let mut binding = blake3::Hasher::new_derive_key(BINDING);
            binding.update(&parts.header[24..88]).update(&parts.index);
            if let Some(bound) = data.first_chunk_mut::<32>() {
                *bound = *binding.finalize().as_bytes();
            }
            before[12..16].copy_from_slice(&crc32fast::hash(data).to_le_bytes());
            *file = parts.join(false);
        } else {
            *file = joined;
        }
        self.add != 0
    }
}

/// The state with other bits.
fn flipped(state: &MemoryState, flips: &[(u8, u16, u8)]) -> MemoryState {
    let mut tensors: Vec<Vec<u8>> = state.iter().map(|(_, data)| data.to_vec()).collect();
    let count = tensors.len().max(1);
    for &(tensor, byte, bits) in flips.iter().take(8) {
        let Some(data) = tensors.get_mut(usize::from(tensor) % count) else { continue };
        let length = data.len().max(1);
        data.get_mut(usize::from(byte) % length).into_iter().for_each(|old| *old ^= bits);
    }
    let mut flipped = MemoryState::new();
    for ((info, _), data) in state.iter().zip(tensors) {
        flipped.insert(info.name(), info.dtype(), info.shape(), data).expect("the data fits its shape");
    }
    flipped
}

/// The memory holds the last state, but for bits that were flipped in lanes that are the same in all states: nothing reads them.
fn same_but_for_flips(memory: &MemoryState, held: &MemoryState, states: &[MemoryState]) {
    let (base, last) = (&states[0], &states[states.len() - 1]);
    let data_of = |state: &MemoryState, name: &str| {
        state.iter().find(|(info, _)| info.name() == name).map(|(info, data)| (info.dtype(), data.to_vec()))
    };
    for ((info, found), (_, right)) in memory.iter().zip(last.iter()) {
        if found == right {
            continue;
        }
        let name = info.name();
        let (_, old) = data_of(base, name).expect("a tensor that is new is built whole");
        let (_, own) = data_of(held, name).expect("it has the names of the base");
        let all: Vec<_> = states.iter().map(|state| data_of(state, name)).collect();
        let width = info.dtype().lane_bytes();
        for (lane, (found, right)) in found.chunks(width).zip(right.chunks(width)).enumerate() {
            let at = lane * width..lane * width + found.len();
            if found == right {
                continue;
            }
            let is_kept = all.iter().all(|state| {
                state.as_ref().is_some_and(|(dtype, data)| {
                    *dtype == info.dtype() && data.len() == old.len() && data[at.clone()] == *right
                })
            });
            assert!(is_kept && own[at] == *found, "lane {lane} of {name:?} is wrong, and nothing said so");
        }
    }
}

/// What came of the plans.
enum Planned {
    /// Lanes are not enough, or a link is bad.
    Refused,
    /// Lanes have other sums than they should.
    Wrong,
    /// The tensors.
    Done(Vec<Vec<u8>>),
}

/// Executes the plans on tensors apart from the library.
fn elsewhere(replay: &Replay<'_, &Vec<u8>>, held: &MemoryState) -> Planned {
    let mut tensors: Vec<Vec<u8>> = held.iter().map(|(_, data)| data.to_vec()).collect();
    let mut execute_all = || -> Result<bool> {
        for plan in replay.plans()? {
            let plan = plan?;
            if !execute(&plan, held.tensors()[plan.tensor].dtype(), &mut tensors[plan.tensor]) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match execute_all() {
        Ok(true) => Planned::Done(tensors),
        Ok(false) => Planned::Wrong,
        Err(error) => {
            assert!(error.rule().is_some() || error.class() == ErrorClass::Unsupported, "{error}");
            Planned::Refused
        }
    }
}

/// Takes the steps of a plan, as a device would. Whether all sums were right.
fn execute(plan: &PiecePlan, dtype: Dtype, tensor: &mut [u8]) -> bool {
    let width = dtype.lane_bytes();
    let first = usize::try_from(plan.first_lane).expect("it is in memory") * width;
    let all = u32::try_from((tensor.len() - first).min(1 << 24) / width).expect("a piece has no more");
    let lanes = plan.lanes.clone().unwrap_or_else(|| (0..all).collect());
    for step in &plan.steps {
        let lanes: Vec<u32> = match &step.places {
            Some(places) => places.iter().map(|&place| lanes[place as usize]).collect(),
            None => lanes.clone(),
        };
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for (&lane, value) in lanes.iter().zip(step.values.chunks_exact(width)) {
            let own = &mut tensor[first + lane as usize * width..][..width];
            old.extend_from_slice(own);
            let value = if step.is_relative { moved(dtype, wide(own), wide(value)) } else { wide(value) };
            own.copy_from_slice(&value.to_le_bytes()[..width]);
            new.extend_from_slice(own);
        }
        assert_eq!(step.values.len(), lanes.len() * width, "a value for each lane");
        let (old, new) = (Sums::of_lanes(width, &lanes, &old), Sums::of_lanes(width, &lanes, &new));
        if new != step.coded || step.before.minus(old).plus(new) != step.piece {
            return false;
        }
    }
    true
}

fn wide(lane: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..lane.len()].copy_from_slice(lane);
    u64::from_le_bytes(bytes)
}

/// A lane moved by a difference (SPEC section 8.3).
fn moved(dtype: Dtype, lane: u64, difference: u64) -> u64 {
    let mask = u64::MAX >> (64 - 8 * dtype.lane_bytes());
    let sign = mask ^ (mask >> 1);
    let key = |lane: u64| if dtype.is_sign_magnitude() && lane & sign != 0 { lane ^ (sign - 1) } else { lane };
    key(key(lane).wrapping_add(difference) & mask)
}
