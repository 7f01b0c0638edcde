//! Local links, in which each part of a patched tensor can be decoded from its own lanes; and the
//! sums that a link carries.

use deltachain::format::{Positions, Start};
use deltachain::sums::Sums;
use deltachain::tensor::{Dtype, MemoryState, State};
use deltachain::{DiffOptions, Profile, apply, diff};
use proptest::prelude::*;

use crate::states::{PROFILES, noise, open, special_pair, state, successor};

fn link_with_sums(base: &MemoryState, target: &MemoryState, profile: Profile) -> Vec<u8> {
    let mut file = Vec::new();
    diff(
        base,
        target,
        &DiffOptions::default().profile(profile).sums(true),
        &mut file,
    )
    .unwrap();
    file
}

/// Checks that every part of a patched tensor is local (SPEC section 24.5).
fn assert_local(file: &[u8]) {
    let link = open(file);
    for (number, segment) in link.index().segments.iter().enumerate() {
        let is_patched = link.parts(number).iter().any(|part| {
            link.index().tensors[part.entry]
                .written()
                .is_some_and(|written| written.start == Start::Base)
        });
        let contexts = link.segment(number).unwrap().table().contexts;
        let is_local = contexts == 1
            && (segment.coding.positions == Positions::Sparse || !segment.coding.is_relative());
        assert!(
            is_local || !is_patched,
            "{}, {contexts} contexts",
            segment.coding.describe()
        );
    }
}

/// Checks the sums of a link: those of a piece are the sums of the target's bytes, those of its
/// coded lanes are the sums of the target's values in the lanes of its part. The latter only for
/// parts with one context.
fn assert_sums(file: &[u8], target: &MemoryState) {
    let link = open(file);
    let sums = link.sums().unwrap().unwrap();
    let bytes = |entry: usize, piece: u64| {
        let info = &link.index().tensors[entry].written().unwrap().info;
        let range = info.piece(piece);
        let tensor = target
            .tensors()
            .iter()
            .position(|own| own.name() == info.name())
            .unwrap();
        target.bytes(tensor, range).unwrap()
    };
    for (entry, pieces) in sums.entries.iter().enumerate() {
        for (piece, sums) in (0..).zip(pieces) {
            assert_eq!(sums.piece, Sums::of_bytes(0, bytes(entry, piece)));
            let written = link.index().tensors[entry].written().unwrap();
            assert!(
                written.pieces[usize::try_from(piece).unwrap()].is_some()
                    || sums.coded == Sums::ZERO
            );
        }
    }
    for number in 0..link.index().segments.len() {
        let segment = link.segment(number).unwrap();
        if segment.table().contexts > 1 {
            continue;
        }
        let width = link.index().segments[number].coding.lane_bytes;
        for (place, part) in link.parts(number).iter().enumerate() {
            let bytes = bytes(part.entry, part.piece);
            let lanes: Vec<u32> = segment
                .ranks(place)
                .remove(0)
                .map(|(rank, _)| u32::try_from(rank).unwrap())
                .collect();
            let values: Vec<u8> = lanes
                .iter()
                .flat_map(|&lane| &bytes[lane as usize * width..][..width])
                .copied()
                .collect();
            let coded = sums.entries[part.entry][usize::try_from(part.piece).unwrap()].coded;
            assert_eq!(coded, Sums::of_lanes(width, &lanes, &values));
        }
    }
}

fn check_pair(base: &MemoryState, target: &MemoryState) {
    for profile in PROFILES {
        let file = link_with_sums(base, target, profile);
        assert!(apply(base, &open(&file)).unwrap() == *target);
        assert_sums(&file, target);
        if profile != Profile::Compact {
            assert_local(&file);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_states(base in state(), other in state(), seed: u64, rarity in 1_u64..300) {
        check_pair(&base, &successor(&base, seed, rarity, &other));
        check_pair(&base, &other);
    }
}

#[test]
fn special_values() {
    let (base, target) = special_pair();
    check_pair(&base, &target);
    check_pair(&target, &base);
}

/// Lanes of these dtypes change rarely, mostly or all, a little or to any value.
#[test]
fn all_densities_and_lengths() {
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    let mut number = 0;
    for dtype in [
        Dtype::U8,
        Dtype::F8_E4M3,
        Dtype::BF16,
        Dtype::I16,
        Dtype::F32,
        Dtype::C64,
        Dtype::F64,
    ] {
        let width = dtype.lane_bytes();
        for every in [1, 2, 3, 20, 500] {
            for is_far in [false, true] {
                number += 1;
                let old = noise(number, 9000 * width);
                let mut new = old.clone();
                let changed = noise(number + 1000, new.len());
                for (lane, other) in new
                    .chunks_exact_mut(width)
                    .zip(changed.chunks_exact(width))
                    .step_by(every)
                {
                    if is_far {
                        lane.copy_from_slice(other);
                    } else {
                        lane[0] ^= 1;
                    }
                }
                let name = format!("{dtype} {every} {is_far}");
                base.insert(&name, dtype, &[9000], old)
                    .unwrap_or_else(|_| panic!("{name}"));
                target.insert(&name, dtype, &[9000], new).unwrap();
            }
        }
    }
    check_pair(&base, &target);
    let file = link_with_sums(&base, &target, Profile::Local);
    let described: Vec<String> = open(&file)
        .index()
        .segments
        .iter()
        .map(|s| s.coding.describe().to_owned())
        .collect();
    for coding in [
        "sparse relative",
        "sparse relative (planes)",
        "dense absolute",
    ] {
        assert!(
            described.iter().any(|described| described == coding),
            "{coding}: {described:?}"
        );
    }
}

/// Lanes beyond the first piece count from the beginning of their piece, and the number of threads
/// does not change the bytes.
#[test]
fn several_pieces() {
    let bytes: u32 = (16 << 20) + 30_002;
    let old: Vec<u8> = (0..bytes)
        .map(|byte| (byte * 7 % 251).to_le_bytes()[0])
        .collect();
    let mut new = old.clone();
    new.iter_mut()
        .step_by(1003)
        .for_each(|byte| *byte = byte.wrapping_add(3));
    new[(16 << 20) + 20_000..]
        .iter_mut()
        .for_each(|byte| *byte = byte.wrapping_mul(91));
    let mut base = MemoryState::new();
    let mut target = MemoryState::new();
    for (name, dtype, lanes) in [
        ("a", Dtype::U8, bytes.into()),
        ("b", Dtype::BF16, u64::from(bytes) / 2),
    ] {
        base.insert(name, dtype, &[lanes], old.clone()).unwrap();
        target.insert(name, dtype, &[lanes], new.clone()).unwrap();
    }
    check_pair(&base, &target);
    let by_threads = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| link_with_sums(&base, &target, Profile::Local))
    };
    assert!(by_threads(1) == by_threads(3));
}
