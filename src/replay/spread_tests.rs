//! Links applied in place by several processes, among which the tensors of a state are spread in
//! every way.

use std::ops::Range;
use std::sync::{Barrier, Mutex};

use proptest::prelude::*;

use super::device_tests::Device;
use super::*;
use crate::Profile;
use crate::diff::{DiffOptions, diff};
use crate::error::ErrorClass;
use crate::limits::{Limits, address};
use crate::memory::places_tests::{Random, scattered, tensor_and_box};
use crate::memory::{
    Changes, Elements, LentState, Peers, PlacedMemory, Places, Region, check_sums, fill,
};
use crate::sums::Sums;
use crate::tensor::{Dtype, PIECE_BYTES, find};

/// Number of the tensor that has another shape at each step, and therefore must be contiguous.
const STEADY: usize = 6;

/// The tensors of one process, and the rows that contain them among other lanes.
#[derive(Debug, Clone, Default)]
struct Layout {
    given: Vec<Region>,
    /// The tensor of each part, and the place of each of the tensor's lanes in it.
    parts: Vec<(usize, Vec<Option<u64>>)>,
    /// Lane width of each row, and its length in lanes.
    rows: Vec<(usize, u64)>,
}

impl Layout {
    fn add(
        &mut self,
        number: usize,
        info: &TensorInfo,
        index: Vec<Range<u64>>,
        random: &mut Random,
    ) {
        let width = info.dtype().lane_bytes();
        let row = self
            .rows
            .iter()
            .position(|row| row.0 == width)
            .filter(|_| random.below(2) == 0);
        let row = row.unwrap_or(self.rows.len());
        if row == self.rows.len() {
            self.rows.push((width, 0));
        }
        let first = self.rows[row].1 + random.below(3);
        let (given, places) = if number == STEADY {
            (
                Region {
                    first,
                    ..Region::whole(info, row)
                },
                (first..first + info.lanes()).map(Some).collect(),
            )
        } else {
            scattered(info, index, (row, first), random)
        };
        let end = places.iter().flatten().max().map_or(first, |last| last + 1);
        self.rows[row].1 = end + random.below(2);
        self.given.push(given);
        self.parts.push((number, places));
    }

    /// Returns the rows with the tensors of a state; the lanes between them stay the same.
    fn filled(&self, mut rows: Vec<Vec<u8>>, state: &MemoryState) -> Vec<Vec<u8>> {
        for (given, (number, places)) in self.given.iter().zip(&self.parts) {
            let Some((info, data)) = state.iter().nth(*number) else {
                continue;
            };
            let width = info.dtype().lane_bytes();
            for (lane, place) in data.chunks_exact(width).zip(places) {
                if let Some(place) = place {
                    rows[given.row][address(*place).unwrap() * width..][..width]
                        .copy_from_slice(lane);
                }
            }
        }
        rows
    }
}

/// Memory with accessible rows.
trait Memory: PlacedMemory {
    fn of(places: Places, rows: Vec<Vec<u8>>) -> Self;
    fn rows(&mut self) -> &mut Vec<Vec<u8>>;
}

impl Memory for Device {
    fn of(places: Places, rows: Vec<Vec<u8>>) -> Self {
        Self::new(places, rows)
    }

    fn rows(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.rows
    }
}

impl Memory for LentState<Vec<u8>> {
    fn of(places: Places, rows: Vec<Vec<u8>>) -> Self {
        Self::placed(places, rows)
    }

    fn rows(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.rows
    }
}

/// Messages between the processes.
struct Table {
    barrier: Barrier,
    told: Mutex<Vec<(Vec<[Sums; 2]>, bool)>>,
}

struct Peer<'a>(&'a Table, usize);

impl Peer<'_> {
    /// Exchanges sums with the other processes; `None` if one of them has failed.
    fn tell(&self, sums: &[[Sums; 2]], is_failed: bool) -> Option<Vec<Vec<[Sums; 2]>>> {
        self.0.told.lock().unwrap()[self.1] = (sums.to_vec(), is_failed);
        self.0.barrier.wait();
        let told = self.0.told.lock().unwrap().clone();
        self.0.barrier.wait();
        let is_failed = told.iter().any(|(_, is_failed)| *is_failed);
        (!is_failed).then(|| told.into_iter().map(|(sums, _)| sums).collect())
    }
}

fn of_another() -> Error {
    Error::usage("another process has failed")
}

impl Peers for Peer<'_> {
    fn add(&self, sums: &mut [[Sums; 2]], error: Option<&Error>) -> Result<()> {
        let all = self.tell(sums, error.is_some()).ok_or_else(of_another)?;
        assert!(
            all.iter().all(|other| other.len() == sums.len()),
            "the processes have different numbers of sums"
        );
        for (at, own) in sums.iter_mut().enumerate() {
            *own = all.iter().fold([Sums::ZERO; 2], |[old, new], other| {
                [old.plus(other[at][0]), new.plus(other[at][1])]
            });
        }
        Ok(())
    }

    fn vote(&self, error: Option<&Error>) -> Result<Option<Error>> {
        Ok(self.tell(&[], error.is_some()).is_none().then(of_another))
    }
}

/// Runs `work` for all processes at the same time, each with its memory.
fn together<M: Send, T: Send>(
    memories: &mut [M],
    work: impl Fn(usize, &mut M, &Peer<'_>) -> T + Sync,
) -> Vec<T> {
    let count = memories.len();
    let table = &Table {
        barrier: Barrier::new(count),
        told: Mutex::new(vec![(Vec::new(), false); count]),
    };
    let work = &work;
    std::thread::scope(|scope| {
        let threads = memories.iter_mut().enumerate();
        let threads: Vec<_> = threads
            .map(|(rank, memory)| scope.spawn(move || work(rank, memory, &Peer(table, rank))))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Spreads tensors among processes. A tied tensor is in the same places as the other one of its
/// pair.
fn spread(
    tensors: &[TensorInfo],
    tied: &[(usize, usize)],
    ranks: usize,
    random: &mut Random,
) -> Vec<Layout> {
    let mut layouts = vec![Layout::default(); ranks];
    let any = |random: &mut Random| usize::try_from(random.below(ranks as u64)).unwrap();
    for (number, info) in tensors.iter().enumerate() {
        if let Some((_, other)) = tied.iter().find(|(tied, _)| *tied == number) {
            for layout in &mut layouts {
                for at in (0..layout.parts.len())
                    .filter(|&at| layout.parts[at].0 == *other)
                    .collect::<Vec<_>>()
                {
                    layout.given.push(Region {
                        name: info.name().to_owned(),
                        ..layout.given[at].clone()
                    });
                    layout.parts.push((number, layout.parts[at].1.clone()));
                }
            }
            continue;
        }
        // Cuts are between lanes, so elements that are not whole lanes are cut in groups of eight.
        let is_lane = info.dtype().bits() == 8 * info.dtype().lane_bytes() as u64;
        let unit = |at: usize| {
            if at + 1 == info.shape().len() && !is_lane {
                8
            } else {
                1
            }
        };
        let lengths = info
            .shape()
            .iter()
            .enumerate()
            .map(|(at, length)| length / unit(at));
        let long: Vec<usize> = lengths
            .enumerate()
            .filter(|(_, length)| *length > 1)
            .map(|(at, _)| at)
            .collect();
        match random.below(4) {
            0 => layouts
                .iter_mut()
                .for_each(|layout| layout.add(number, info, Vec::new(), random)),
            1 => layouts[any(random)].add(number, info, Vec::new(), random),
            _ if long.is_empty() || number == STEADY => {
                layouts
                    .iter_mut()
                    .for_each(|layout| layout.add(number, info, Vec::new(), random));
            }
            _ => {
                let at = long[usize::try_from(random.below(long.len() as u64)).unwrap()];
                let length = info.shape()[at];
                let cut = (1 + random.below(length / unit(at) - 1)) * unit(at);
                for part in [0..cut, cut..length] {
                    let index: Vec<Range<u64>> = info.shape()[..at]
                        .iter()
                        .map(|&length| 0..length)
                        .chain([part])
                        .collect();
                    for _ in 0..=random.below(3) {
                        layouts[any(random)].add(number, info, index.clone(), random);
                    }
                }
            }
        }
    }
    layouts
}

fn noise(length: usize, random: &mut Random) -> Vec<u8> {
    (0..length)
        .map(|_| u8::try_from(random.below(256)).unwrap())
        .collect()
}

/// Makes states in which some lanes change at each step, and a last tensor whose shape changes at
/// each step. Tied tensors are equal.
fn steps(count: usize, random: &mut Random) -> (Vec<MemoryState>, Vec<(usize, usize)>) {
    let mut tensors: Vec<TensorInfo> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| tensor_and_box(name, random).0)
        .collect();
    tensors.push(TensorInfo::new("e", Dtype::BF16, [24, 40]).unwrap());
    tensors.push(TensorInfo::new("f", tensors[0].dtype(), tensors[0].shape()).unwrap());
    tensors.push(TensorInfo::new("g", Dtype::F32, [30]).unwrap());
    let tied = vec![(5, 0)];
    let mut data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|info| noise(address(info.bytes()).unwrap(), random))
        .collect();
    let mut states = Vec::new();
    for step in 0..=count {
        data[5] = data[0].clone();
        let mut state = MemoryState::new();
        for (number, (info, data)) in tensors.iter().zip(&data).enumerate() {
            let shape = if number == STEADY {
                [&[30][..], &[6, 5], &[5, 6]][step % 3]
            } else {
                info.shape()
            };
            state
                .insert(info.name(), info.dtype(), shape, data.clone())
                .unwrap();
        }
        states.push(state);
        for (info, data) in tensors.iter().zip(&mut data) {
            let (width, rarity) = (info.dtype().lane_bytes(), 1 + random.below(20));
            for lane in data.chunks_exact_mut(width) {
                if random.below(rarity) == 0 {
                    lane[0] = lane[0].wrapping_add(u8::try_from(random.below(3)).unwrap());
                }
            }
        }
        data[4][2] ^= 1;
    }
    (states, tied)
}

/// Makes the memories of the processes, with a state, another tensor, and lanes between them.
fn held<M: Memory>(layouts: &[Layout], state: &MemoryState, random: &mut Random) -> Vec<M> {
    let mut infos = state.tensors().to_vec();
    infos.push(TensorInfo::new("zz", Dtype::U8, [3]).unwrap());
    let places = layouts
        .iter()
        .map(|layout| Places::new(infos.clone(), &layout.given).unwrap());
    let mut places: Vec<Places> = places.collect();
    let elements = |places: &Places| -> Vec<Vec<Elements>> {
        let of_tensor = |tensor| {
            places
                .parts(tensor)
                .iter()
                .map(|part| part.elements().into())
                .collect()
        };
        (0..infos.len()).map(of_tensor).collect()
    };
    let all: Vec<Vec<Vec<Elements>>> = places.iter().map(elements).collect();
    for (rank, places) in places.iter_mut().enumerate() {
        places.divide(rank, &all, |name| name != "zz").unwrap();
        assert_eq!(find(places.tensors(), "zz"), Some(infos.len() - 1));
    }
    let with_rows = |(layout, places): (&Layout, Places)| {
        let rows = layout
            .rows
            .iter()
            .map(|&(width, lanes)| noise(address(lanes).unwrap() * width, random));
        let rows = rows.collect();
        M::of(places, layout.filled(rows, state))
    };
    layouts.iter().zip(places).map(with_rows).collect()
}

fn rows_of<M: Memory>(memories: &mut [M]) -> Vec<Vec<Vec<u8>>> {
    memories
        .iter_mut()
        .map(|memory| memory.rows().clone())
        .collect()
}

/// Makes links between states.
fn links_between(states: &[MemoryState], random: &mut Random) -> Vec<LinkReader<Vec<u8>>> {
    let link = |pair: &[MemoryState]| {
        let profile = [Profile::Local, Profile::Direct][usize::from(random.below(3) == 0)];
        let mut file = Vec::new();
        diff(
            &pair[0],
            &pair[1],
            &DiffOptions::default().profile(profile).sums(true),
            &mut file,
        )
        .unwrap();
        LinkReader::open(file, &Limits::default()).unwrap()
    };
    states.windows(2).map(link).collect()
}

type Proven<M> = Vec<Result<Changes<<M as PlacedMemory>::Staged>>>;

fn prove<M: Memory>(replay: &Replay<'_, Vec<u8>>, memories: &mut [M]) -> Proven<M> {
    together(memories, |_, memory, peer| {
        let mut changes = Changes::new(u64::MAX);
        replay
            .in_place(memory, &mut changes, peer, &())
            .map(|()| changes)
    })
}

fn check<M: Memory>(replay: &Replay<'_, Vec<u8>>, memories: &mut [M]) -> Vec<Result<()>> {
    let sums = &replay.sums().unwrap().tensors;
    let sums: Vec<(usize, &[Sums])> = sums
        .iter()
        .enumerate()
        .map(|(tensor, sums)| (tensor, sums.as_deref().unwrap()))
        .collect();
    together(memories, |_, memory, peer| {
        check_sums(memory, &sums, peer, &())
    })
}

/// Writes or undoes the changes of each process.
fn each<M: Memory>(
    memories: &mut [M],
    changes: &mut [Changes<M::Staged>],
    work: impl Fn(&mut Changes<M::Staged>, &mut M) -> Result<()>,
) {
    memories
        .iter_mut()
        .zip(changes)
        .for_each(|(memory, changes)| work(changes, memory).unwrap());
}

/// Applies links in place, undoes them, and checks that wrong bits are noticed.
fn go<M: Memory>(states: &[MemoryState], layouts: &[Layout], random: &mut Random) {
    let links = links_between(states, random);
    let (base, target) = (&states[0], &states[states.len() - 1]);
    let (table, sums) = StateSums::hashed(base, &()).unwrap();
    let mut replay = Replay::new(table).with_sums(sums);
    links.iter().for_each(|link| replay.push(link).unwrap());
    let mut memories: Vec<M> = held(layouts, base, random);
    let before = rows_of(&mut memories);
    let after: Vec<Vec<Vec<u8>>> = layouts
        .iter()
        .zip(&before)
        .map(|(layout, rows)| layout.filled(rows.clone(), target))
        .collect();
    memories[0]
        .places()
        .check_ties(|name| base.get(name).map(|(_, data)| data))
        .unwrap();

    let proven = prove(&replay, &mut memories);
    let mut changes: Vec<_> = proven.into_iter().map(Result::unwrap).collect();
    assert!(
        rows_of(&mut memories) == before,
        "memory has changed before it was written to"
    );
    each(&mut memories, &mut changes, Changes::write);
    assert!(
        rows_of(&mut memories) == after,
        "links lead to another state"
    );
    for (number, done) in check(&replay, &mut memories).into_iter().enumerate() {
        done.unwrap_or_else(|error| panic!("process {number}: {error}"));
    }
    each(&mut memories, &mut changes, Changes::put_back);
    assert!(
        rows_of(&mut memories) == before,
        "undoing does not restore memory"
    );

    // The target is loaded piece by piece.
    let mut loaded: Vec<M> = held(layouts, base, random);
    let rows = rows_of(&mut loaded);
    for memory in &mut loaded {
        let infos: Vec<TensorInfo> = [target.tensors(), &memory.places().tensors()[7..]].concat();
        memory.describe(&infos).unwrap();
        for (tensor, (info, data)) in target.iter().enumerate() {
            for piece in 0..info.pieces() {
                let range = info.piece(piece);
                fill(
                    memory,
                    tensor,
                    piece,
                    &data[address(range.start).unwrap()..address(range.end).unwrap()],
                )
                .unwrap();
            }
        }
    }
    let filled = layouts
        .iter()
        .zip(rows)
        .map(|(layout, rows)| layout.filled(rows, target));
    assert!(filled.eq(rows_of(&mut loaded)), "wrong data was loaded");
    assert!(
        check(&replay, &mut loaded)
            .into_iter()
            .all(|done| done.is_ok())
    );

    // A bit in a lane is wrong.
    for _ in 0..4 {
        let rank = usize::try_from(random.below(layouts.len() as u64)).unwrap();
        let layout = &layouts[rank];
        let lanes = layout
            .given
            .iter()
            .zip(&layout.parts)
            .flat_map(|(given, (tensor, places))| {
                let places = places
                    .iter()
                    .enumerate()
                    .filter_map(|(lane, place)| Some((lane, (*place)?)));
                places.map(|(lane, place)| (given.row, *tensor, lane, address(place).unwrap()))
            });
        let lanes: Vec<_> = lanes.collect();
        if lanes.is_empty() {
            continue;
        }
        let (row, tensor, lane, place) =
            lanes[usize::try_from(random.below(lanes.len() as u64)).unwrap()];
        let width = base.tensors()[tensor].dtype().lane_bytes();
        let value = |state: &MemoryState| {
            let (_, data) = state.iter().nth(tensor).unwrap();
            data[lane * width..][..width].to_vec()
        };
        let is_coded = states
            .windows(2)
            .any(|pair| value(&pair[0]) != value(&pair[1]));
        let bit = usize::try_from(random.below(8 * width as u64)).unwrap();
        memories[rank].rows()[row][place * width + bit / 8] ^= 1 << (bit % 8);
        let flipped = rows_of(&mut memories);
        let proven = prove(&replay, &mut memories);
        let failed = proven.iter().filter(|proven| proven.is_err()).count();
        assert!(
            failed == 0 || failed == layouts.len(),
            "some processes did not notice the wrong bit"
        );
        assert!(
            failed > 0 || !is_coded,
            "a wrong bit in a coded lane was not noticed"
        );
        assert!(rows_of(&mut memories) == flipped);
        let broken = proven
            .iter()
            .filter_map(|proven| proven.as_ref().err())
            .filter_map(Error::rule);
        let broken: Vec<_> = broken.collect();
        assert_eq!(broken.is_empty(), failed == 0);
        assert!(
            broken
                .iter()
                .all(|rule| matches!(*rule, "R-SUM-03" | "R-SUM-04"))
        );
        if failed == 0 {
            let mut changes: Vec<_> = proven.into_iter().map(Result::unwrap).collect();
            each(&mut memories, &mut changes, Changes::write);
            let found = check(&replay, &mut memories);
            assert!(
                found.iter().all(Result::is_err),
                "some processes did not find a wrong bit in another lane"
            );
            assert!(found.iter().any(|found| {
                found
                    .as_ref()
                    .is_err_and(|error| error.rule() == Some("R-SUM-04"))
            }));
            each(&mut memories, &mut changes, Changes::put_back);
        }
        memories[rank].rows()[row][place * width + bit / 8] ^= 1 << (bit % 8);
        assert!(rows_of(&mut memories) == before);
    }
}

/// Makes a device fail at each call in turn, and checks that undoing restores the old content.
fn fail(states: &[MemoryState], layouts: &[Layout], random: &mut Random) {
    let links = links_between(states, random);
    let (table, sums) = StateSums::hashed(&states[0], &()).unwrap();
    let mut replay = Replay::new(table).with_sums(sums);
    links.iter().for_each(|link| replay.push(link).unwrap());
    let mut devices: Vec<Device> = held(layouts, &states[0], random);
    let before = rows_of(&mut devices);
    let rank = usize::try_from(random.below(layouts.len() as u64)).unwrap();
    for call in 0.. {
        devices[rank].failing(call..call + 1);
        let proven = prove(&replay, &mut devices);
        assert!(rows_of(&mut devices) == before);
        if proven.iter().all(Result::is_ok) {
            break;
        }
        assert!(
            proven.iter().all(Result::is_err),
            "some processes do not know of the failure"
        );
        assert_eq!(proven[rank].as_ref().unwrap_err().class(), ErrorClass::Io);
    }
    devices[rank].failing(0..0);
    let proven = prove(&replay, &mut devices);
    let mut changes: Vec<_> = proven.into_iter().map(Result::unwrap).collect();
    for (written, back) in [(0, 4), (1, 2), (2, 1), (3, 3), (4, 0)] {
        for (number, (changes, device)) in changes.iter_mut().zip(&mut devices).enumerate() {
            if number == rank {
                device.failing(0..1).writes(written);
                assert_eq!(changes.write(device).unwrap_err().class(), ErrorClass::Io);
                device.failing(0..1).writes(back);
                assert_eq!(
                    changes.put_back(device).unwrap_err().class(),
                    ErrorClass::Io
                );
                device.failing(0..0);
            } else {
                changes.write(device).unwrap();
            }
        }
        each(&mut devices, &mut changes, Changes::put_back);
        assert!(rows_of(&mut devices) == before);
    }
    devices[rank].failing(0..1);
    assert!(check(&replay, &mut devices).iter().all(Result::is_err));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn links_are_taken_wherever_lanes_lie(seed: u64, count in 1_usize..7, ranks in 1_usize..5, is_device: bool) {
        let random = &mut Random::new(seed);
        let (states, tied) = steps(count, random);
        let layouts = spread(states[0].tensors(), &tied, ranks, random);
        if is_device {
            go::<Device>(&states, &layouts, random);
            fail(&states, &layouts, random);
        } else {
            go::<LentState<Vec<u8>>>(&states, &layouts, random);
        }
    }
}

#[test]
fn pieces_are_divided_too() {
    let random = &mut Random::new(7);
    // There are two pieces, and each process has some columns of both.
    let columns = PIECE_BYTES / 4;
    let state = |step: u8| {
        let mut data = vec![3; address(5 * columns).unwrap()];
        data.iter_mut()
            .step_by(99_991)
            .for_each(|lane| *lane = 100 + step);
        let mut state = MemoryState::new();
        state.insert("t", Dtype::U8, &[5, columns], data).unwrap();
        for name in ["u", "v", "w", "x", "y", "z"] {
            state.insert(name, Dtype::U8, &[2], vec![step, 0]).unwrap();
        }
        state
    };
    let states = [state(1), state(2), state(3)];
    let mut layouts = vec![Layout::default(); 2];
    let cut = columns / 3 + 1;
    layouts[0].add(0, &states[0].tensors()[0], vec![0..5, 0..cut], random);
    layouts[1].add(0, &states[0].tensors()[0], vec![0..5, cut..columns], random);
    (1..7).for_each(|tensor| {
        layouts[tensor % 2].add(tensor, &states[0].tensors()[tensor], Vec::new(), random);
    });
    go::<LentState<Vec<u8>>>(&states, &layouts, random);
}

#[test]
fn parts_of_which_nobody_knows_the_others_are_refused() {
    let random = &mut Random::new(1);
    let state = |value: u8| {
        let mut state = MemoryState::new();
        state
            .insert("t", Dtype::U8, &[4, 2], vec![value; 8])
            .unwrap();
        state
    };
    let states = [state(1), state(2)];
    let links = links_between(&states, random);
    let (table, sums) = StateSums::hashed(&states[0], &()).unwrap();
    let mut replay = Replay::new(table).with_sums(sums);
    replay.push(&links[0]).unwrap();
    let mut layout = Layout::default();
    layout.add(0, &states[0].tensors()[0], vec![0..2, 0..2], random);
    let places = Places::new(states[0].tensors().to_vec(), &layout.given).unwrap();
    let rows = vec![vec![1; address(layout.rows[0].1).unwrap()]];
    let mut memories = [LentState::of(places, rows.clone())];
    let error = prove(&replay, &mut memories).remove(0).unwrap_err();
    assert_eq!(
        (error.class(), error.tensor()),
        (ErrorClass::Usage, Some("t"))
    );
    let error = check(&replay, &mut memories).remove(0).unwrap_err();
    assert_eq!(
        (error.class(), error.tensor()),
        (ErrorClass::Usage, Some("t"))
    );
    assert_eq!(rows_of(&mut memories), [rows]);
}
