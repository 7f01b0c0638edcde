//! Blocks of 64 lanes, and sets of their lanes as the bits of a `u64`. With these sets, whole
//! blocks are skipped and single lanes are found without a test of every lane.
//!
//! Loops over blocks are written once, as a [`Work`], and compiled for each kind of processor that
//! can compare many lanes at once; [`dispatch`] chooses one at run time. All of them give the same
//! sets, and so the same bytes.

use crate::codec::lane::Lane;
#[cfg(target_arch = "x86_64")]
use crate::codec::x86;

/// Lanes of a block. The last block of a part may be shorter.
pub(crate) const BLOCK: usize = 64;

/// Number of blocks in a stretch; a stretch is scanned in one go.
pub(crate) const BLOCKS: usize = 64;

/// Lanes of a stretch. The last stretch of a part may be shorter.
pub(crate) const STRETCH: usize = BLOCKS * BLOCK;

/// A whole block.
pub(crate) type Block<L> = [<L as Lane>::Bytes; BLOCK];

/// Comparison of blocks with the instructions of one kind of processor.
pub(crate) trait Compare: Copy {
    /// The lanes in which two blocks differ.
    fn differing<L: Lane>(self, old: &Block<L>, new: &Block<L>) -> u64;

    /// The bytes that are `least` or more.
    fn at_least(self, block: &Block<u8>, least: u8) -> u64;

    /// Multiplies each unit of some rows, or of equal parts of them, by two numbers. Returns both
    /// sums of the products of each row, which must fit in 64 bits. A row has as many blocks as
    /// there are factors.
    fn products<const ROWS: usize>(
        self,
        rows: [&[Block<u8>]; ROWS],
        factors: &[Factors],
    ) -> [[u64; 2]; ROWS];
}

/// The numbers by which the 16-bit units of a block are multiplied: for each sum, the numbers for
/// even places, then the numbers for odd places, two in each `u64`.
pub(crate) type Factors = [[[u64; 8]; 2]; 2];

/// [`Compare::products`] with the instructions of this machine.
pub(crate) fn products<const ROWS: usize>(
    rows: [&[Block<u8>]; ROWS],
    factors: &[Factors],
) -> [[u64; 2]; ROWS] {
    dispatch(Products { rows, factors })
}

/// Rows to multiply.
#[derive(Clone)]
pub(crate) struct Products<'a, const ROWS: usize> {
    pub(crate) rows: [&'a [Block<u8>]; ROWS],
    pub(crate) factors: &'a [Factors],
}

impl<const ROWS: usize> Work for Products<'_, ROWS> {
    type Output = [[u64; 2]; ROWS];

    #[inline(always)]
    fn run(self, compare: impl Compare) -> Self::Output {
        compare.products(self.rows, self.factors)
    }
}

/// A loop over blocks.
pub(crate) trait Work {
    type Output;

    /// Runs the loop. Must be `#[inline(always)]`, so that it is compiled for the processor that
    /// `compare` stands for.
    fn run(self, compare: impl Compare) -> Self::Output;
}

/// Runs the work with the instructions of this machine.
pub(crate) fn dispatch<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    return x86::dispatch(work);
    #[cfg(not(target_arch = "x86_64"))]
    return work.run(Portable);
}

/// Any processor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

impl Compare for Portable {
    #[inline(always)]
    fn differing<L: Lane>(self, old: &Block<L>, new: &Block<L>) -> u64 {
        let mut flags = [0; BLOCK];
        for (flag, (old, new)) in flags.iter_mut().zip(old.iter().zip(new)) {
            *flag = u8::from(old != new);
        }
        bits(&flags)
    }

    #[inline(always)]
    fn at_least(self, block: &Block<u8>, least: u8) -> u64 {
        let mut flags = [0; BLOCK];
        for (flag, &[byte]) in flags.iter_mut().zip(block) {
            *flag = u8::from(byte >= least);
        }
        bits(&flags)
    }

    #[inline(always)]
    fn products<const ROWS: usize>(
        self,
        rows: [&[Block<u8>]; ROWS],
        factors: &[Factors],
    ) -> [[u64; 2]; ROWS] {
        let product = |units: u64, factors: u64| {
            let [low, high] =
                [0, 32].map(|shift| (units >> shift & 0xFFFF) * (factors >> shift & 0xFFFF_FFFF));
            low + high
        };
        rows.map(|row| {
            let mut sums = [0; 2];
            for (block, factors) in row.iter().zip(factors) {
                for (number, units) in block.as_flattened().as_chunks().0.iter().enumerate() {
                    let units = u64::from_le_bytes(*units);
                    for (sum, [even, odd]) in sums.iter_mut().zip(factors) {
                        *sum += product(units, even[number]) + product(units >> 16, odd[number]);
                    }
                }
            }
            sums
        })
    }
}

/// Bytes of 0 or 1 as bits.
#[inline(always)]
fn bits(flags: &[u8; BLOCK]) -> u64 {
    let mut bits = 0;
    for (number, eight) in flags.as_chunks().0.iter().enumerate() {
        // Moves the lowest bit of byte i to bit 56 + i.
        bits |=
            u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56 << (8 * number);
    }
    bits
}

/// A whole block from at most [`BLOCK`] lanes, padded with zeros.
#[inline(always)]
pub(crate) fn padded<L: Lane>(lanes: &[L::Bytes]) -> Block<L> {
    lanes.try_into().unwrap_or_else(|_| {
        let mut block = [L::default().store(); BLOCK];
        block[..lanes.len()].copy_from_slice(lanes);
        block
    })
}

/// The set of the first `length` lanes; `length` is at most [`BLOCK`]. A shift by 64 bits gives the
/// empty set.
#[inline(always)]
pub(crate) fn first(length: usize) -> u64 {
    u64::MAX
        .checked_shr(u32::try_from(BLOCK - length).unwrap_or(0))
        .unwrap_or(0)
}

/// The place of the bit with this rank, counted from the lowest; the set must have it. Has no
/// branches, since they would depend on the data.
#[inline(always)]
pub(crate) fn select(set: u64, rank: u64) -> u32 {
    const EACH: u64 = u64::MAX / 255;
    // Number of bits set up to and including each byte.
    let pairs = set - (set >> 1 & (EACH * 0x55));
    let nibbles = (pairs & (EACH * 0x33)) + (pairs >> 2 & (EACH * 0x33));
    let sums = ((nibbles + (nibbles >> 4)) & (EACH * 0x0F)).wrapping_mul(EACH);
    // A bit for each byte whose sum is at most the rank.
    let passed = (((rank * EACH) | (EACH << 7)) - sums) & (EACH << 7);
    let place = 8 * passed.count_ones();
    let rank = rank - (sums << 8 >> place & 0xFF);
    let [byte, ..] = (set >> place).to_le_bytes();
    place + u32::from(IN_BYTE[(rank % 8) as usize][usize::from(byte)])
}

/// For each rank and byte the place of the bit with this rank.
static IN_BYTE: [[u8; 256]; 8] = {
    let mut places = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let (mut place, mut rank) = (0, 0);
        while place < 8 {
            if byte >> place & 1 == 1 {
                places[rank][byte] = place;
                rank += 1;
            }
            place += 1;
        }
        byte += 1;
    }
    places
};

/// The lanes of a stretch that are of interest, by their numbers, ascending.
pub(crate) struct LanePlaces {
    /// Has room for lanes that are written ahead.
    lanes: [u16; STRETCH + AHEAD],
    count: usize,
}

/// This many lanes are written for each block, even if it has fewer: most blocks have no more, so
/// no branch is needed.
const AHEAD: usize = 4;

impl LanePlaces {
    pub(crate) fn new() -> Self {
        Self {
            lanes: [0; STRETCH + AHEAD],
            count: 0,
        }
    }

    /// The lanes of these sets, which are of at most [`BLOCKS`] blocks.
    #[inline(always)]
    pub(crate) fn of(&mut self, sets: &[u64]) -> &[u16] {
        self.count = 0;
        for (&set, begin) in sets.iter().take(BLOCKS).zip((0_u16..).step_by(BLOCK)) {
            let mut left = set;
            let mut next = || {
                // At most 64.
                let lane = u16::try_from(left.trailing_zeros()).unwrap_or(0);
                left &= left.wrapping_sub(1);
                begin + lane
            };
            let count = set.count_ones() as usize;
            let lanes = &mut self.lanes[self.count..];
            lanes[..AHEAD].iter_mut().for_each(|lane| *lane = next());
            if count > AHEAD {
                lanes[AHEAD..count]
                    .iter_mut()
                    .for_each(|lane| *lane = next());
            }
            self.count += count;
        }
        &self.lanes[..self.count]
    }
}
