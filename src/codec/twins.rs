//! Tests of what works on blocks of lanes at once: each function beside a slow and obvious one.

use crate::codec::blocks::{BLOCK, Block, Compare, Work, by_all, first, lanes, padded, select};
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
    }
    for length in 0..=BLOCK {
        assert_eq!(members(first(length)).len(), length);
        assert_eq!(first(length).trailing_ones() as usize, length);
    }
}

/// Compares two blocks, and one of them with a magnitude.
#[derive(Clone)]
struct Both<L: Lane> {
    old: Block<L>,
    new: Block<L>,
    least: L,
}

impl<L: Lane> Work for Both<L> {
    type Output = (u64, u64);

    #[inline(always)]
    fn run(self, compare: impl Compare) -> (u64, u64) {
        (compare.differing::<L>(&self.old, &self.new), compare.at_least(&self.new, self.least))
    }
}

#[test]
fn every_processor_compares_alike() {
    blocks_are_compared::<u8>();
    blocks_are_compared::<u16>();
    blocks_are_compared::<u32>();
    blocks_are_compared::<u64>();
}

fn blocks_are_compared<L: Lane>() {
    let mut random = Generator(5);
    let mut lane = || L::from_u64(random.next() << 32 ^ random.next());
    for (number, set) in sets().into_iter().enumerate() {
        let old: Vec<L> = (0..BLOCK).map(|_| lane()).collect();
        let mut new = old.clone();
        // One bit differs: the lowest, the highest, another one.
        let bit = |lane: u32| L::from_u64(1 << [0, L::BITS - 1, lane % L::BITS][number % 3]);
        members(set).into_iter().for_each(|lane| new[lane as usize] = new[lane as usize].xor(bit(lane)));
        for least in [lane(), new[number % BLOCK], L::default(), L::from_u64(u64::MAX)] {
            let at_least = (0..).zip(&new).filter(|(_, lane)| **lane >= least);
            let at_least: Vec<u32> = at_least.map(|(number, _)| number).collect();
            let block = |lanes: &[L]| padded::<L>(&lanes.iter().map(|lane| lane.store()).collect::<Vec<_>>());
            let all = by_all(&Both { old: block(&old), new: block(&new), least });
            for found in all {
                assert_eq!(found.0, set);
                assert_eq!(members(found.1), at_least);
            }
        }
    }
}

/// The sets of members of each context.
#[derive(Clone)]
struct Members<'a, L: Lane>(&'a Contexts<L>, &'a [L::Bytes]);

impl<L: Lane> Work for Members<'_, L> {
    type Output = Vec<u64>;

    #[inline(always)]
    fn run(self, compare: impl Compare) -> Vec<u64> {
        let mut sets = Vec::new();
        self.0.each(compare, &padded::<L>(self.1), first(self.1.len()), |context, set| {
            assert_eq!(context, sets.len());
            sets.push(set);
        });
        sets
    }
}

#[test]
fn members_of_contexts_are_those_lanes() {
    contexts_of_blocks::<u8>(Dtype::F8_E4M3, &[&[], &[0], &[8], &[3, 9, 9, 16]]);
    contexts_of_blocks::<u16>(Dtype::BF16, &[&[], &[0], &[256], &[0, 0, 100, 100, 120, 256], &[120; 15]]);
    contexts_of_blocks::<u32>(Dtype::F32, &[&[100, 120, 121, 130]]);
    contexts_of_blocks::<u64>(Dtype::F64, &[&[1000, 1020, 1021, 2000]]);
    contexts_of_blocks::<u16>(Dtype::I16, &[&[], &[0], &[1]]);
}

fn contexts_of_blocks<L: Lane>(dtype: Dtype, thresholds: &[&[u16]]) {
    let kind = Kind::<L>::of(dtype);
    for thresholds in thresholds {
        let contexts = Contexts::new(kind, thresholds);
        for (seed, length) in (0..40).flat_map(|seed| [(seed, 64), (seed, 63), (seed, 1), (seed, 0)]) {
            let (block, _) = pieces::<L>(seed, length, 1, 1);
            let block = L::chunks(&block);
            let of = |lane: &L::Bytes| {
                let exponent = kind.exponent(L::load(*lane));
                thresholds.iter().filter(|&&threshold| usize::from(threshold) <= exponent).count()
            };
            let lanes = |context| (0..).zip(block).filter(move |(_, lane)| of(lane) == context);
            for sets in by_all(&Members(&contexts, block)) {
                assert_eq!(sets.len(), thresholds.len() + 1);
                for (context, set) in sets.into_iter().enumerate() {
                    assert_eq!(members(set), lanes(context).map(|(number, _)| number).collect::<Vec<u32>>());
                }
            }
        }
    }
}
