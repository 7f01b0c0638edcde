//! Compares the functions that work on blocks of lanes at once with slow and obvious ones.

use crate::codec::blocks::{
    BLOCK, BLOCKS, Block, Compare, Factors, LanePlaces, Portable, Products, STRETCH, Work, first,
    padded, select,
};
use crate::codec::contexts::{Contexts, Members};
use crate::codec::lane::{Lane, LaneKind};
use crate::codec::tests::{Generator, pieces};
use crate::format::segment::MAX_CONTEXTS;
use crate::tensor::{DescribedDtype, Dtype};

/// Does the work with each kind of instructions that this machine has; returns the outputs.
fn by_all<W: Work + Clone>(work: &W) -> Vec<W::Output> {
    let mut outputs = vec![work.clone().run(Portable)];
    #[cfg(target_arch = "x86_64")]
    {
        use pulp::x86::{V3, V4};

        use crate::codec::x86::For;

        outputs.extend(V4::try_new().map(|wide| {
            wide.vectorize(For {
                compare: wide,
                work: work.clone(),
            })
        }));
        outputs.extend(V3::try_new().map(|wide| {
            wide.vectorize(For {
                compare: wide,
                work: work.clone(),
            })
        }));
    }
    outputs
}

/// Makes sets of lanes: few, many, all, none, and each lane alone.
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
fn places_are_those_of_the_sets() {
    let mut places = LanePlaces::new();
    let sets = sets();
    for sets in sets
        .chunks(BLOCKS)
        .chain(sets.chunks(1))
        .chain([&[u64::MAX; BLOCKS][..], &[]])
    {
        let members =
            |(set, begin): (&u64, u32)| members(*set).into_iter().map(move |lane| begin + lane);
        let expected: Vec<u32> = sets
            .iter()
            .zip((0..).step_by(BLOCK))
            .flat_map(members)
            .collect();
        assert_eq!(
            places
                .of(sets)
                .iter()
                .copied()
                .map(u32::from)
                .collect::<Vec<_>>(),
            expected
        );
    }
}

#[test]
fn sets_hold_their_lanes() {
    for set in sets() {
        let members = members(set);
        for (rank, &lane) in (0..).zip(&members) {
            assert_eq!(select(set, rank), lane, "{set:x}, {rank}");
        }
    }
    for length in 0..=BLOCK {
        assert_eq!(members(first(length)).len(), length);
        assert_eq!(first(length).trailing_ones() as usize, length);
    }
}

/// Compares two blocks.
#[derive(Clone)]
struct Differing<L: Lane> {
    old: Block<L>,
    new: Block<L>,
}

impl<L: Lane> Work for Differing<L> {
    type Output = u64;

    #[inline(always)]
    fn run(self, compare: impl Compare) -> u64 {
        compare.differing::<L>(&self.old, &self.new)
    }
}

/// Compares the bytes of a block with a number.
#[derive(Clone)]
struct AtLeast(Block<u8>, u8);

impl Work for AtLeast {
    type Output = u64;

    #[inline(always)]
    fn run(self, compare: impl Compare) -> u64 {
        compare.at_least(&self.0, self.1)
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
        // One bit differs: the lowest, the highest, or another one.
        let bit = |lane: u32| L::from_u64(1 << [0, L::BITS - 1, lane % L::BITS][number % 3]);
        members(set)
            .into_iter()
            .for_each(|lane| new[lane as usize] = new[lane as usize] ^ bit(lane));
        let block =
            |lanes: &[L]| padded::<L>(&lanes.iter().map(|lane| lane.store()).collect::<Vec<_>>());
        for found in by_all(&Differing::<L> {
            old: block(&old),
            new: block(&new),
        }) {
            assert_eq!(found, set);
        }
    }
}

#[test]
fn every_processor_multiplies_alike() {
    rows_are_multiplied::<1>();
    rows_are_multiplied::<2>();
    rows_are_multiplied::<8>();
}

fn rows_are_multiplied<const ROWS: usize>() {
    let mut random = Generator(8);
    for blocks in [0, 1, 2, 128] {
        for full in [false, true] {
            // Units and factors are all as large as possible, or random.
            let mut next = || {
                if full {
                    u64::MAX
                } else {
                    random.next() << 32 ^ random.next()
                }
            };
            let rows = [(); ROWS].map(|()| {
                let mut block = || std::array::from_fn(|_| [next().to_le_bytes()[0]]);
                (0..blocks).map(|_| block()).collect::<Vec<Block<u8>>>()
            });
            let mut factor = || next() & 0x7FFF_FFFF_7FFF_FFFF;
            let mut factors =
                || [(); 2].map(|()| [(); 2].map(|()| std::array::from_fn(|_| factor())));
            let factors: Vec<Factors> = (0..blocks).map(|_| factors()).collect();
            let expected = rows.each_ref().map(|row| {
                [0, 1].map(|sum| {
                    let block = |(block, factors): (&Block<u8>, &Factors)| {
                        let units = block.as_flattened().as_chunks().0.iter().enumerate();
                        let product = |(place, unit): (usize, &[u8; 2])| {
                            let factor = factors[sum][place % 2][place / 4]
                                >> (32 * (place / 2 % 2))
                                & 0xFFFF_FFFF;
                            u64::from(u16::from_le_bytes(*unit)) * factor
                        };
                        units.map(product).sum::<u64>()
                    };
                    row.iter().zip(&factors).map(block).sum::<u64>()
                })
            });
            for found in by_all(&Products {
                rows: rows.each_ref().map(Vec::as_slice),
                factors: &factors,
            }) {
                assert_eq!(found, expected);
            }
        }
    }
}

#[test]
fn every_processor_finds_the_same_bytes() {
    let mut random = Generator(6);
    for round in 0..100 {
        let bytes = [(); BLOCK].map(|()| [u8::try_from(random.next() % 256).unwrap()]);
        for least in [bytes[round % BLOCK][0], 0, 1, 127, 128, 255] {
            let expected = (0..)
                .zip(&bytes)
                .filter(|(_, byte)| byte[0] >= least)
                .map(|(number, _)| number);
            let expected: Vec<u32> = expected.collect();
            for found in by_all(&AtLeast(bytes, least)) {
                assert_eq!(members(found), expected);
            }
        }
    }
}

/// The lanes of each context's members, with the rank that [`Members`] returns for each.
#[derive(Clone)]
struct Ranked<'a, L: Lane>(&'a Contexts<L>, &'a [L::Bytes]);

impl<L: Lane> Work for Ranked<'_, L> {
    type Output = Vec<Vec<(usize, u32)>>;

    #[inline(always)]
    fn run(self, compare: impl Compare) -> Self::Output {
        let mut found = Members::new();
        // Members from the previous search must not remain.
        self.0
            .find(compare, &[L::default().store(); STRETCH], &mut found);
        self.0.find(compare, self.1, &mut found);
        let members = |context| {
            let ranks = 0..u16::try_from(found.count(context)).unwrap();
            let mut own = found.of(context);
            let lanes: Vec<usize> = ranks.clone().map(|rank| own.lane(rank)).collect();
            assert!(
                lanes
                    .iter()
                    .all(|&lane| self.0.of(compare, L::load(self.1[lane])) == context)
            );
            // Each member is also found alone, without asking for those before it.
            ranks
                .zip(&lanes)
                .for_each(|(rank, &lane)| assert_eq!(found.of(context).lane(rank), lane));
            lanes
                .into_iter()
                .map(|lane| (lane, found.rank(context, lane)))
                .collect()
        };
        (0..MAX_CONTEXTS).map(members).collect()
    }
}

#[test]
fn members_of_contexts_are_those_lanes() {
    contexts_of_blocks::<u8>(Dtype::F8_E4M3, &[&[], &[0], &[8], &[3, 9, 9, 16]]);
    contexts_of_blocks::<u16>(
        Dtype::BF16,
        &[&[], &[0], &[256], &[0, 0, 100, 100, 120, 256], &[120; 15]],
    );
    contexts_of_blocks::<u32>(Dtype::F32, &[&[100, 120, 121, 130]]);
    contexts_of_blocks::<u64>(Dtype::F64, &[&[1000, 1020, 1021, 2000]]);
    contexts_of_blocks::<u16>(Dtype::I16, &[&[], &[0], &[1]]);
    // Described exponents, most of them longer than a byte, in lanes of every width that may have
    // them.
    contexts_of_blocks::<u16>(described(2, 9), &[&[], &[256, 257, 384], &[512]]);
    contexts_of_blocks::<u16>(described(2, 11), &[&[0], &[1024, 1025, 1032, 2048]]);
    contexts_of_blocks::<u32>(described(4, 11), &[&[1, 2, 3], &[1024; 15]]);
    contexts_of_blocks::<u64>(described(8, 8), &[&[128, 129, 192]]);
}

fn described(lane_bytes: u8, exponent_bits: u8) -> Dtype {
    let bits = 8 * u32::from(lane_bytes);
    Dtype::Described(DescribedDtype::new("FLOAT", bits, lane_bytes, Some(exponent_bits)).unwrap())
}

fn contexts_of_blocks<L: Lane>(dtype: Dtype, thresholds: &[&[u16]]) {
    let kind = LaneKind::<L>::of(dtype);
    for thresholds in thresholds {
        let contexts = Contexts::new(kind, thresholds);
        for (seed, length) in (0..).zip([0, 1, 63, 64, 65, 1000, 4032, 4033, STRETCH - 1, STRETCH])
        {
            let (base, _) = pieces::<L>(seed, length, 1, 1);
            let base = L::chunks(&base);
            let of = |lane: &L::Bytes| {
                let exponent = kind.exponent(L::load(*lane));
                thresholds
                    .iter()
                    .filter(|&&threshold| usize::from(threshold) <= exponent)
                    .count()
            };
            let of_blocks = base
                .chunks(BLOCK)
                .flat_map(|block| contexts.of_block(&padded::<L>(block)));
            assert!(
                of_blocks
                    .zip(base)
                    .all(|(context, lane)| usize::from(context) == of(lane))
            );
            for ranked in by_all(&Ranked(&contexts, base)) {
                for (context, members) in ranked.into_iter().enumerate() {
                    let lanes = (0..base.len()).filter(|&lane| of(&base[lane]) == context);
                    assert_eq!(members, lanes.zip(0..).collect::<Vec<_>>());
                }
            }
        }
    }
}
