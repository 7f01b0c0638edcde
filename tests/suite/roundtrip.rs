//! The link between any two states gives the target bit for bit, in all profiles, however the
//! tensors change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::states::{PROFILES, link, noise, open, special_pair, state, successor};
use deltachain::format::{Header, Index};
use deltachain::tensor::{Dtype, MemoryState, State, StateDigests, TensorInfo};
use deltachain::{
    DiffOptions, ErrorClass, Limits, LinkReader, Profile, Replay, Source, StateTable, apply, diff,
};
use proptest::prelude::*;

/// Returns the raw bytes of a file's index.
fn raw_index(file: &[u8]) -> Vec<u8> {
    let header = Header::parse(&file[..128]).unwrap();
    let stored = &file[128..128 + usize::try_from(header.index_stored).unwrap()];
    if header.index_stored == header.index_raw {
        return stored.to_vec();
    }
    zstd::bulk::decompress(stored, usize::try_from(header.index_raw).unwrap()).unwrap()
}

/// Checks `serialize(parse(x)) == x` for header and index; segments are carried verbatim.
fn check_canonical(file: &[u8]) {
    let header = Header::parse(&file[..128]).unwrap();
    assert_eq!(header.to_bytes(), file[..128]);
    let stored = &file[128..128 + usize::try_from(header.index_stored).unwrap()];
    let index = Index::parse(stored, &header, &Limits::default()).unwrap();
    assert_eq!(index.to_bytes(), raw_index(file));
}

fn check_pair(base: &MemoryState, target: &MemoryState) {
    for profile in PROFILES {
        let file = link(base, target, profile);
        check_canonical(&file);
        let reader = open(&file);
        reader.verify(&()).unwrap();
        assert_eq!(apply(base, &reader).unwrap(), *target);
        if profile == Profile::Direct {
            assert!(reader.is_direct());
        }
        check_patches(base, target, &file);
    }
}

/// Checks that patches written over the base give the target, tensor by tensor.
fn check_patches(base: &MemoryState, target: &MemoryState, file: &[u8]) {
    let reader = open(file);
    let mut built: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for entry in reader
        .index()
        .tensors
        .iter()
        .filter_map(|entry| entry.written())
    {
        let start = match entry.start {
            deltachain::format::Start::Zeros => {
                vec![0; usize::try_from(entry.info.bytes()).unwrap()]
            }
            deltachain::format::Start::Base => base.get(entry.info.name()).unwrap().1.to_vec(),
        };
        built.insert(entry.info.name().to_owned(), start);
    }
    for patch in reader.patches(|_| true, Some(base)) {
        let patch = patch.unwrap();
        let width = patch.dtype().lane_bytes();
        let data = built.get_mut(patch.tensor.name()).unwrap();
        let indices = patch
            .indices
            .clone()
            .unwrap_or_else(|| patch.lanes.clone().collect());
        assert!(indices.is_sorted_by(|a, b| a < b));
        assert_eq!(indices.len(), patch.count());
        for (index, value) in indices.iter().zip(patch.values.chunks_exact(width)) {
            let at = usize::try_from(*index).unwrap() * width;
            data[at..at + width].copy_from_slice(value);
        }
    }
    for (name, data) in built {
        assert_eq!(target.get(&name).unwrap().1, data, "{name:?}");
    }
}

fn part_of(state: &MemoryState, is_taken: impl Fn(&str) -> bool) -> MemoryState {
    let mut part = MemoryState::new();
    for (info, data) in state.iter().filter(|(info, _)| is_taken(info.name())) {
        part.insert(info.name(), info.dtype(), info.shape(), data.to_vec())
            .unwrap();
    }
    part
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_pair_of_states(a in state(), b in state(), seed: u64, rarity in 1_u64..100) {
        check_pair(&a, &b);
        check_pair(&a, &successor(&a, seed, rarity, &b));
    }

    #[test]
    fn a_part_of_the_target_needs_that_part_of_the_base(a in state(), b in state(), seed: u64, chosen: u64) {
        let target = successor(&a, seed, 10, &b);
        let is_taken = |name: &str| (chosen >> (name.bytes().map(u64::from).sum::<u64>() % 64)) & 1 == 1;
        let base_part = part_of(&a, is_taken); let target_part = part_of(&target, is_taken);
        let file = link(&a, &target, Profile::Compact);
        let reader = open(&file);
        let table = |state: &MemoryState| StateTable::of(state, &()).unwrap();
        let base = table(&a);
        let mut replay = Replay::of_part(base.clone(), &is_taken);
        replay.push(&reader).unwrap();
        prop_assert_eq!(replay.table(), &table(&target));
        let mut out = MemoryState::zeros(&replay.tensors()).unwrap();
        prop_assert_eq!(&replay.run(&base_part, &out.writer(), &()).unwrap(), &replay.table().digests);
        prop_assert_eq!(out, target_part);
        prop_assert!(replay.segment_bytes(0) <= file.len() as u64);
        // Another base is refused, and so is a base with other tensors than the selected ones.
        let other = table(&b);
        if other.digests != base.digests {
            let refused = Replay::of_part(other, &is_taken).push(&reader);
            prop_assert_eq!(refused.unwrap_err().rule(), Some("R-APP-01"));
        }
        if base_part != a {
            let refused = replay.prove(&a, &()).unwrap_err();
            prop_assert_eq!(refused.class(), ErrorClass::Usage);
        }
    }

    #[test]
    fn threads_do_not_change_the_bytes(a in state(), seed: u64, b in state()) {
        let target = successor(&a, seed, 10, &b);
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| link(&a, &target, Profile::Compact))
        };
        prop_assert_eq!(with(1), with(4));
    }
}

#[test]
fn special_values_and_all_ways_of_changing() {
    let (base, target) = special_pair();
    check_pair(&base, &target);
    check_pair(&target, &base);
    check_pair(&MemoryState::new(), &target);
    check_pair(&target, &MemoryState::new());
}

#[test]
fn an_unchanged_state_gives_a_tiny_link() {
    let (state, _) = special_pair();
    let file = link(&state, &state, Profile::Compact);
    assert_eq!(file.len(), 131);
    assert_eq!(apply(&state, &open(&file)).unwrap(), state);
    let empty = MemoryState::new();
    assert_eq!(link(&empty, &empty, Profile::Compact).len(), 131);
}

#[test]
fn tensors_of_several_pieces_and_segments() {
    // Three pieces of 8-bit lanes and a few more: several segments, and small tensors that share
    // one.
    let length: usize = 3 * (1 << 24) + 5;
    let mut old: Vec<u8> = noise(5, 1 << 16).repeat(length.div_ceil(1 << 16));
    old.truncate(length);
    let mut new = old.clone();
    new.iter_mut()
        .step_by(1009)
        .for_each(|byte| *byte = byte.wrapping_add(1));
    *new.last_mut().unwrap() ^= 0x80;
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    base.insert("big", Dtype::F8_E4M3, &[length as u64], old)
        .unwrap();
    target
        .insert("big", Dtype::F8_E4M3, &[length as u64], new)
        .unwrap();
    for number in 0..50_u8 {
        base.insert(&format!("small{number}"), Dtype::U8, &[9], vec![number; 9])
            .unwrap();
        target
            .insert(
                &format!("small{number}"),
                Dtype::U8,
                &[9],
                vec![number / 2; 9],
            )
            .unwrap();
    }
    let file = link(&base, &target, Profile::Compact);
    let reader = open(&file);
    assert!(reader.index().segments.len() >= 3);
    assert_eq!(apply(&base, &reader).unwrap(), target);
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| link(&base, &target, Profile::Compact))
    };
    assert_eq!(with(1), file);
    assert_eq!(with(3), file);

    // A range of one tensor gives only the patches of its pieces.
    let direct = link(&base, &target, Profile::Direct);
    let reader = open(&direct);
    let lanes = (1 << 24) - 1010..(1 << 24) + 1010;
    let patches: Vec<_> = reader
        .tensor_patches("big", lanes.clone(), None)
        .map(Result::unwrap)
        .collect();
    assert_eq!(patches.len(), 2);
    let indices: Vec<u64> = patches
        .iter()
        .flat_map(|patch| patch.indices.clone().unwrap())
        .collect();
    let expected: Vec<u64> = (0..length as u64)
        .step_by(1009)
        .filter(|index| lanes.contains(index))
        .collect();
    assert_eq!(indices, expected);
    assert_eq!(reader.tensor_patches("nothing", 0..5, None).count(), 0);
}

#[test]
fn reports_count_what_happened() {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    base.insert("w", Dtype::BF16, &[4], vec![1, 0, 2, 0, 3, 0, 4, 0])
        .unwrap();
    target
        .insert("w", Dtype::BF16, &[4], vec![1, 0, 9, 0, 3, 0, 4, 0])
        .unwrap();
    target
        .insert("new", Dtype::U8, &[3], vec![0, 0, 1])
        .unwrap();
    let mut file = Vec::new();
    let report = diff(&base, &target, &DiffOptions::default(), &mut file).unwrap();
    assert_eq!(
        (report.elements, report.changed, report.tensors),
        (7, 1 + 3, 2)
    );
    assert_eq!(report.bytes, file.len() as u64);
    assert_eq!(report.base, StateDigests::of(&base, &()).unwrap().state);
    assert_eq!(report.target, StateDigests::of(&target, &()).unwrap());
    assert_eq!(target.tensors().len(), 2);
}

/// A state whose bytes must be read, as if it were in a file.
struct NotInMemory(MemoryState);

impl State for NotInMemory {
    fn tensors(&self) -> &[TensorInfo] {
        self.0.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> deltachain::Result<()> {
        self.0.read(tensor, offset, out)
    }
}

#[test]
fn the_link_is_the_same_wherever_states_are_and_whatever_is_known_of_them() {
    let (base, target) = special_pair();
    let expected = link(&base, &target, Profile::Compact);
    let made = |base: &dyn State, target: &dyn State, digests: Option<&StateDigests>| {
        let options = DiffOptions::default().base_digests(digests);
        let mut file = Vec::new();
        diff(base, target, &options, &mut file).map(|_| file)
    };
    let digests = StateDigests::of(&base, &()).unwrap();
    assert_eq!(made(&base, &target, Some(&digests)).unwrap(), expected);
    let old = NotInMemory(base.clone());
    let new = NotInMemory(target.clone());
    assert_eq!(StateDigests::of(&old, &()).unwrap(), digests);
    for (old, new) in [
        (&old as &dyn State, &new as &dyn State),
        (&base, &new),
        (&old, &target),
    ] {
        assert_eq!(made(old, new, None).unwrap(), expected);
        assert_eq!(made(old, new, Some(&digests)).unwrap(), expected);
    }

    // Digests of another state: a wrong number of digests is refused; wrong digests give a link
    // that fits no state.
    let mut wrong = digests;
    wrong.tensors[0] = wrong.state;
    let file = made(&base, &target, Some(&wrong)).unwrap();
    assert_eq!(
        apply(&base, &open(&file)).unwrap_err().rule(),
        Some("R-APP-01")
    );
    wrong.tensors.pop();
    assert_eq!(
        made(&base, &target, Some(&wrong)).unwrap_err().class(),
        ErrorClass::Usage
    );
}

/// A source that counts its reads.
struct Counting<'a>(&'a [u8], AtomicUsize);

impl Source for Counting<'_> {
    fn length(&self) -> deltachain::Result<u64> {
        self.0.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> deltachain::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(offset, out)
    }
}

/// Many small tensors share a segment: it is read and decoded once, not once for each tensor.
#[test]
fn shared_segments_are_read_once() {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    for number in 0..300_u64 {
        // Neighbours by name have different dtypes, and differ in whether all or a few of their
        // lanes change.
        let dtype = [Dtype::U8, Dtype::BF16, Dtype::F32][usize::try_from(number % 3).unwrap()];
        let old = noise(number, 400);
        let step = if number % 2 == 0 { 1 } else { 50 };
        let mut new = old.clone();
        new.iter_mut().step_by(step).for_each(|byte| *byte ^= 0x55);
        let name = format!("{number:03}");
        let elements = 400 / dtype.lane_bytes() as u64;
        base.insert(&name, dtype, &[elements], old).unwrap();
        target.insert(&name, dtype, &[elements], new).unwrap();
    }
    let file = link(&base, &target, Profile::Direct);
    let reader =
        LinkReader::open(Counting(&file, AtomicUsize::new(0)), &Limits::default()).unwrap();
    let reads = || reader.source().1.load(Ordering::Relaxed);
    let opened = reads();
    let segments = reader.index().segments.len();
    assert!(segments >= 4, "{segments}");
    assert_eq!(
        reader.patches(|_| true, None).map(Result::unwrap).count(),
        300
    );
    assert_eq!(reads() - opened, segments);
}
