//! Sequences of links in place, good and damaged, on memory that is the base or nearly so: the
//! result is the target, or the links are refused, whatever the memory is.

use arbitrary::{Arbitrary, Unstructured};
use deltachain::StateSums;
use deltachain::memory::{
    Alone, Changes, LentState, PartPiece, PlacedMemory, Places, Region, Span, check_sums,
};
use deltachain::sums::Sums;
use deltachain::tensor::{MemoryState, State, TensorInfo};
use deltachain::{
    DiffOptions, Error, ErrorClass, Limits, LinkReader, Profile, Replay, Result, diff,
};

use crate::memory::single_threaded;
use crate::raw::refused_by_rule;
use crate::seal::Parts;
use crate::states::{Start, Step};

/// Context string of the hash that binds sums to their link (SPEC section 24.3).
const BINDING: &str = "deltachain 2026-11-25 sums of a link v1";
/// Magic, and kind, checksum and length of the record.
const BEFORE_DATA: usize = 8 + 16;

/// Up to four links in a row.
#[derive(Debug, Arbitrary)]
struct InPlace {
    start: Start,
    steps: Vec<(Step, Kind)>,
    damage: Option<Damage>,
    /// Bits in which the memory differs from the base: a tensor, a byte, a mask.
    flips: Vec<(u8, u16, u8)>,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Kind {
    Local,
    Direct,
    Compact,
    WithoutSums,
}

/// A number that is added to one byte of a link.
#[derive(Debug, Arbitrary)]
struct Damage {
    link: u8,
    /// Number of the segment to damage; `None` for the extension area.
    segment: Option<u8>,
    place: u16,
    add: u8,
    /// True if the binding and the checksum of the sums are recomputed.
    is_sealed: bool,
}

/// Applies links in place.
pub fn in_place(data: &[u8]) {
    single_threaded();
    let Ok(input) = InPlace::arbitrary_take_rest(Unstructured::new(data)) else {
        return;
    };
    let mut states = vec![input.start.state()];
    let mut files = Vec::new();
    for (step, kind) in input.steps.iter().take(4) {
        let last = &states[states.len() - 1];
        let next = step.after(last);
        files.push(link(last, &next, *kind));
        states.push(next);
    }
    let is_damaged = input
        .damage
        .as_ref()
        .is_some_and(|damage| damage.add_to(&mut files));
    let open = |file| LinkReader::open(file, &Limits::default());
    let Ok(links) = files
        .iter()
        .map(open)
        .collect::<Result<Vec<LinkReader<&Vec<u8>>>>>()
    else {
        return;
    };

    let base = &states[0];
    let last = &states[states.len() - 1];
    let (table, sums) = StateSums::hashed(base, &()).expect("memory can be read");
    let mut replay = Replay::new(table).with_sums(sums);
    if let Err(error) = links.iter().try_for_each(|link| replay.push(link)) {
        assert!(is_damaged, "a written link is refused: {error}");
        return;
    }
    let held = flipped(base, &input.flips);
    let mut own: Vec<Vec<u8>> = held.iter().map(|(_, data)| data.to_vec()).collect();
    let buffers = held
        .tensors()
        .iter()
        .cloned()
        .zip(own.iter_mut().map(Vec::as_mut_slice));
    let mut lent = LentState::new(buffers).expect("a buffer for each tensor");
    let mut slow = SlowMemory::of(&held);
    let taken = take(&replay, &mut lent);
    let is_unsupported =
        |error: &Error| error.class() == ErrorClass::Unsupported && error.rule().is_none();
    if !taken.as_ref().is_err_and(is_unsupported) {
        refused_by_rule(&taken);
    }
    let elsewhere = take(&replay, &mut slow);
    match (&taken, &elsewhere) {
        (Ok(_), Ok(_)) => {}
        (Err(one), Err(other)) => {
            let place =
                |error: &Error| (error.class(), error.rule(), error.link(), error.section());
            assert!(
                place(one) == place(other) && one.tensor() == other.tensor(),
                "{one}, but elsewhere {other}"
            );
        }
        (one, other) => panic!(
            "the results depend on the memory: {:?} {:?}",
            one.as_ref().err(),
            other.as_ref().err()
        ),
    }
    let is_right = !is_damaged && held == *base;
    let (mut changes, mut others) = match taken.and_then(|one| elsewhere.map(|other| (one, other)))
    {
        Ok(changes) => changes,
        Err(error) => {
            assert!(
                !is_right || is_unsupported(&error),
                "good links are refused: {error}"
            );
            let unchanged = MemoryState::copy_of(&lent).expect("memory can be read");
            assert!(
                unchanged == held && slow.state() == held,
                "memory has changed before the links were verified"
            );
            if is_unsupported(&error) {
                whole(&replay, &held, &states, is_right);
            }
            return;
        }
    };
    changes
        .write(&mut lent)
        .expect("nothing else can write to it");
    others
        .write(&mut slow)
        .expect("nothing else can write to it");
    PlacedMemory::describe(&mut lent, last.tensors())
        .expect("the tensors only differ in their shapes");
    let memory = MemoryState::copy_of(&lent).expect("memory can be read");
    assert!(
        slow.data().eq(memory.iter().map(|(_, data)| data)),
        "links lead to another state in other memory"
    );
    same_but_for_flips(&memory, &held, &states);
    let sums = &replay.sums().expect("the sums are followed").tensors;
    let known = sums
        .iter()
        .enumerate()
        .filter_map(|(tensor, sums)| Some((tensor, sums.as_deref()?)));
    let known: Vec<(usize, &[Sums])> = known.collect();
    let found = check_sums(&mut lent, &known, &Alone, &());
    let elsewhere = check_sums(&mut slow, &known, &Alone, &());
    assert_eq!(
        found.as_ref().err().map(|error| error.tensor()),
        elsewhere.as_ref().err().map(|error| error.tensor())
    );
    if is_right {
        assert!(memory == *last, "links lead to another state");
        found.expect("the sums are those of the target");
    }
    changes
        .put_back(&mut lent)
        .expect("memory can be written to");
    others
        .put_back(&mut slow)
        .expect("memory can be written to");
    drop(lent);
    assert!(
        held.iter().map(|(_, data)| data).eq(&own),
        "undoing does not restore memory"
    );
    assert!(slow.data().eq(own), "undoing does not restore memory");
}

fn take<M: PlacedMemory>(
    replay: &Replay<'_, &Vec<u8>>,
    memory: &mut M,
) -> Result<Changes<M::Staged>> {
    let mut changes = Changes::new(u64::MAX);
    replay
        .in_place(memory, &mut changes, &Alone, &())
        .map(|()| changes)
}

/// Applies links that in-place application does not support, in the library's own memory.
fn whole(
    replay: &Replay<'_, &Vec<u8>>,
    held: &MemoryState,
    states: &[MemoryState],
    is_right: bool,
) {
    let mut memory = held.clone();
    let patches = replay.patches(held, held, u64::MAX, &());
    refused_by_rule(&patches);
    assert!(memory == *held, "memory has changed before it was patched");
    match patches {
        Ok(mut set) => {
            set.stage(&mut memory)
                .expect("the set was made for this memory")
                .write()
                .expect("it cannot fail");
            assert!(
                memory.tensors() == states[states.len() - 1].tensors(),
                "links lead to another state"
            );
            same_but_for_flips(&memory, held, states);
        }
        Err(error) => assert!(!is_right, "good links are refused: {error}"),
    }
}

/// Writes the link between two states.
fn link(base: &MemoryState, target: &MemoryState, kind: Kind) -> Vec<u8> {
    let (profile, has_sums) = match kind {
        Kind::Local => (Profile::Local, true),
        Kind::Direct => (Profile::Direct, true),
        Kind::Compact => (Profile::Compact, true),
        Kind::WithoutSums => (Profile::Local, false),
    };
    let mut file = Vec::new();
    diff(
        base,
        target,
        &DiffOptions::default().profile(profile).sums(has_sums),
        &mut file,
    )
    .expect("a state has a link");
    file
}

impl Damage {
    /// Damages a link. Returns true if a byte was changed.
    fn add_to(&self, files: &mut [Vec<u8>]) -> bool {
        let count = files.len().max(1);
        let Some(file) = files.get_mut(usize::from(self.link) % count) else {
            return false;
        };
        let Some(mut parts) = Parts::of(file) else {
            return false;
        };
        let count = parts.segments.len().max(1);
        let bytes = match self.segment {
            Some(number) => parts.segments.get_mut(usize::from(number) % count),
            None => Some(&mut parts.extension),
        };
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else {
            return false;
        };
        let place = usize::from(self.place) % bytes.len();
        bytes[place] = bytes[place].wrapping_add(self.add);
        let joined = parts.join(false);
        // The checksum of the segment in the index has changed, so the binding has, too.
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

/// Returns the state with some bits flipped.
fn flipped(state: &MemoryState, flips: &[(u8, u16, u8)]) -> MemoryState {
    let mut tensors: Vec<Vec<u8>> = state.iter().map(|(_, data)| data.to_vec()).collect();
    let count = tensors.len().max(1);
    for &(tensor, byte, bits) in flips.iter().take(8) {
        let Some(data) = tensors.get_mut(usize::from(tensor) % count) else {
            continue;
        };
        let length = data.len().max(1);
        data.get_mut(usize::from(byte) % length)
            .into_iter()
            .for_each(|old| *old ^= bits);
    }
    let mut flipped = MemoryState::new();
    for ((info, _), data) in state.iter().zip(tensors) {
        flipped
            .insert(info.name(), info.dtype(), info.shape(), data)
            .expect("the data fits its shape");
    }
    flipped
}

/// Checks that the memory holds the last state, except for bits that were flipped in lanes that are
/// the same in all states: nothing reads those.
fn same_but_for_flips(memory: &MemoryState, held: &MemoryState, states: &[MemoryState]) {
    let base = &states[0];
    let last = &states[states.len() - 1];
    let data_of = |state: &MemoryState, name: &str| {
        state
            .iter()
            .find(|(info, _)| info.name() == name)
            .map(|(info, data)| (info.dtype(), data.to_vec()))
    };
    for ((info, found), (_, right)) in memory.iter().zip(last.iter()) {
        if found == right {
            continue;
        }
        let name = info.name();
        let (_, old) = data_of(base, name).expect("a tensor that is new is built whole");
        let (_, own) = data_of(held, name).expect("the memory has the names of the base");
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
            assert!(
                is_kept && own[at] == *found,
                "lane {lane} of {name:?} is wrong, and was not noticed"
            );
        }
    }
}

/// The slowest and simplest memory: it works lane by lane, and the lanes of a tensor are spread
/// over a row with other ones between.
struct SlowMemory {
    places: Places,
    row: Vec<Vec<u8>>,
}

/// A staged change: width of the lanes, their places, old and new values.
type Lanes = (usize, Vec<Span>, Vec<u8>, Vec<u8>);

impl SlowMemory {
    fn of(state: &MemoryState) -> Self {
        let infos = state.tensors();
        // Every third lane belongs to the tensor.
        let given = |(row, info): (usize, &TensorInfo)| {
            let given = Region::whole(info, row);
            let mut strides = vec![3; given.shape.len()];
            for at in (1..strides.len()).rev() {
                strides[at - 1] = strides[at] * given.shape[at].max(1);
            }
            Region {
                first: 1,
                strides: Some(strides),
                ..given
            }
        };
        let given: Vec<Region> = infos.iter().enumerate().map(given).collect();
        let row = state.iter().map(|(info, data)| {
            let width = info.dtype().lane_bytes();
            let lane = |lane: &[u8]| [&vec![0xA5; width], lane, &vec![0x5A; width]].concat();
            data.chunks(width).flat_map(lane).collect()
        });
        Self {
            places: Places::new(infos.to_vec(), &given).expect("lanes in rows"),
            row: row.collect(),
        }
    }

    fn data(&self) -> impl Iterator<Item = Vec<u8>> {
        self.places
            .tensors()
            .iter()
            .zip(&self.row)
            .map(|(info, row)| {
                let width = info.dtype().lane_bytes();
                row.chunks(3 * width)
                    .flat_map(|lanes| lanes[width..2 * width].to_vec())
                    .collect()
            })
    }

    fn state(&self) -> MemoryState {
        let mut state = MemoryState::new();
        for (info, data) in self.places.tensors().iter().zip(self.data()) {
            state
                .insert(info.name(), info.dtype(), info.shape(), data)
                .expect("the data fits its shape");
        }
        state
    }

    /// Calls `work` with each lane of some spans.
    fn each(&mut self, width: usize, spans: &[Span], mut work: impl FnMut(&mut [u8])) {
        for span in spans {
            for number in 0..span.count {
                let place = span
                    .places
                    .as_ref()
                    .map_or(number as u64, |places| places[number].into());
                let place = usize::try_from(span.first + place).expect("it is in memory");
                work(&mut self.row[span.row][place * width..][..width]);
            }
        }
    }

    fn put(&mut self, width: usize, spans: &[Span], values: &[u8]) {
        let mut values = values.chunks_exact(width);
        self.each(width, spans, |lane| {
            lane.copy_from_slice(values.next().expect("a value for each lane"));
        });
        assert!(values.next().is_none(), "a lane for each value");
    }
}

impl PlacedMemory for SlowMemory {
    type Staged = Lanes;

    fn places(&self) -> &Places {
        &self.places
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.places.describe(tensors)
    }

    fn gather(&mut self, width: usize, spans: &[Span], out: &mut [u8]) -> Result<()> {
        let mut values = out.chunks_exact_mut(width);
        self.each(width, spans, |lane| {
            values
                .next()
                .expect("room for each lane")
                .copy_from_slice(lane);
        });
        Ok(())
    }

    fn stage(
        &mut self,
        width: usize,
        spans: Vec<Span>,
        old: Vec<u8>,
        new: Vec<u8>,
    ) -> Result<Lanes> {
        Ok((width, spans, old, new))
    }

    fn write(&mut self, staged: &[Lanes]) -> Result<Option<(usize, usize)>> {
        for (width, spans, old, new) in staged {
            let mut values = old.chunks_exact(*width);
            self.each(*width, spans, |lane| {
                assert!(values.next() == Some(lane), "nothing else can write to it");
            });
            self.put(*width, spans, new);
        }
        Ok(None)
    }

    fn put_back(&mut self, staged: &[Lanes]) -> Result<()> {
        staged
            .iter()
            .for_each(|(width, spans, old, _)| self.put(*width, spans, old));
        Ok(())
    }

    fn fill(&mut self, width: usize, span: &Span, values: &[u8]) -> Result<()> {
        self.put(width, std::slice::from_ref(span), values);
        Ok(())
    }

    fn sums(&mut self, wanted: &[PartPiece]) -> Result<Vec<Sums>> {
        let data: Vec<Vec<u8>> = self.data().collect();
        let sums = wanted.iter().map(|wanted| {
            let range = self.places.tensors()[wanted.tensor].piece(wanted.piece);
            let place = |place| usize::try_from(place).expect("it is in memory");
            Sums::of_bytes(
                0,
                &data[wanted.tensor][place(range.start)..place(range.end)],
            )
        });
        Ok(sums.collect())
    }
}
