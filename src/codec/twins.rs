//! Tests of what works on blocks of lanes at once: each function beside a slow and obvious one.

use crate::codec::blocks::{BLOCK, bits, differing, lanes, select};
use crate::codec::contexts::Contexts;
use crate::codec::lane::{Kind, Lane};
use crate::codec::tests::{Generator, pieces};
use crate::tensor::Dtype;

/// Sets of lanes: few, many, all, none, and each alone.
fn sets() -> Vec<u64> {
    let mut random = Generator(1);
    let mut next = || random.next() << 32 ^ random.next();
    let mut sets = vec![0, u64::MAX, 1, 1 << 63, 0x8000_0000_0000_0001];
    sets.extend((0..64).map(|lane| 1 << lane));
    sets.extend((0..50).map(|_| next()));
    sets.extend((0..50).map(|_| next() & next() & next()));
    sets.extend((0..50).map(|_| next() | next() | next()));
    sets
}

fn members(set: u64) -> Vec<u32> {
    (0..64).filter(|lane| set >> lane & 1 == 1).collect()
}

#[test]
fn sets_hold_their_lanes() {
    for set in sets() {
        let members = members(set);
        assert_eq!(lanes(set).collect::<Vec<_>>(), members);
        for (rank, &lane) in (0..).zip(&members) {
            assert_eq!(select(set, rank), lane, "{set:x}, {rank}");
        }
        let mut flags = [0; BLOCK];
        members.iter().for_each(|&lane| flags[lane as usize] = 1);
        assert_eq!(bits(&flags), set);
    }
}

#[test]
fn lanes_that_differ_are_found() {
    for set in sets() {
        for length in [0, 1, 7, 8, 9, 63, 64] {
            // The other byte of each lane stays.
            let old: Vec<[u8; 2]> = (0..length).map(|lane| [lane, lane ^ 5]).collect();
            let mut new = old.clone();
            let expected: Vec<u32> = members(set).into_iter().filter(|&lane| lane < u32::from(length)).collect();
            expected.iter().for_each(|&lane| new[lane as usize][usize::from(lane % 3 == 0)] ^= 0x80);
            assert_eq!(members(differing::<u16>(&old, &new)), expected);
        }
    }
}

#[test]
fn members_of_contexts_are_those_lanes() {
    contexts_of_blocks::<u8>(Dtype::F8_E4M3, &[&[], &[0], &[8], &[3, 9, 9, 16]]);
    contexts_of_blocks::<u16>(Dtype::BF16, &[&[], &[0], &[256], &[0, 0, 100, 100, 120, 256], &[120; 15]]);
    contexts_of_blocks::<u32>(Dtype::F32, &[&[100, 120, 121, 130]]);
}

fn contexts_of_blocks<L: Lane>(dtype: Dtype, thresholds: &[&[u16]]) {
    let kind = Kind::<L>::of(dtype);
    for thresholds in thresholds {
        let contexts = Contexts::new(kind, thresholds);
        assert_eq!(contexts.len(), thresholds.len() + 1);
        for (seed, length) in (0..40).flat_map(|seed| [(seed, 64), (seed, 63), (seed, 1), (seed, 0)]) {
            let (block, _) = pieces::<L>(seed, length, 1, 1);
            let block = L::chunks(&block);
            for (context, count) in contexts.count(block).into_iter().enumerate().take(contexts.len()) {
                let is_member = |lane: &L::Bytes| contexts.of(L::load(*lane)) == context;
                let expected: Vec<u32> =
                    (0..).zip(block).filter(|(_, lane)| is_member(lane)).map(|(number, _)| number).collect();
                assert_eq!(members(contexts.members(context, block)), expected);
                assert_eq!(count as usize, expected.len());
            }
        }
    }
}
