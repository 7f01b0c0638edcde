//! Blocks of 64 lanes and sets of their lanes as the bits of a `u64`: what lets whole blocks be passed over, and single
//! lanes be found without looking at each.
//!
//! Loops over blocks are written once, as a [`Work`], and compiled for each kind of processor that can compare many lanes
//! at once; [`dispatch`] chooses when the program runs. All kinds give the same sets, so the same bytes come out.

use crate::codec::lane::Lane;
#[cfg(target_arch = "x86_64")]
use crate::codec::x86;

/// Lanes of a block. The last block of a part may be shorter.
pub(crate) const BLOCK: usize = 64;

/// A whole block.
pub(crate) type Block<L> = [<L as Lane>::Bytes; BLOCK];

/// Comparing blocks with the instructions of one kind of processor.
pub(crate) trait Compare: Copy {
    /// The lanes in which two blocks differ.
    fn differing<L: Lane>(self, old: &Block<L>, new: &Block<L>) -> u64;

    /// The lanes that are `least` or more.
    fn at_least<L: Lane>(self, block: &Block<L>, least: L) -> u64;
}

/// A loop over blocks.
pub(crate) trait Work {
    type Output;

    /// Does it. To be `#[inline(always)]`, so that it is compiled for the processor that `compare` stands for.
    fn run(self, compare: impl Compare) -> Self::Output;
}

/// Lets the instructions of this machine do the work.
pub(crate) fn dispatch<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    return x86::dispatch(work);
    #[cfg(not(target_arch = "x86_64"))]
    return work.run(Portable);
}

/// What the work gives with each kind of instructions that this machine has.
#[cfg(test)]
pub(crate) fn by_all<W: Work + Clone>(work: &W) -> Vec<W::Output> {
    let mut outputs = vec![work.clone().run(Portable)];
    #[cfg(target_arch = "x86_64")]
    outputs.extend(x86::by_all(work));
    outputs
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
    fn at_least<L: Lane>(self, block: &Block<L>, least: L) -> u64 {
        let mut flags = [0; BLOCK];
        for (flag, &lane) in flags.iter_mut().zip(block) {
            *flag = u8::from(L::load(lane) >= least);
        }
        bits(&flags)
    }
}

/// Bytes of 0 or 1 as bits.
#[inline(always)]
fn bits(flags: &[u8; BLOCK]) -> u64 {
    let mut bits = 0;
    for (number, eight) in flags.as_chunks().0.iter().enumerate() {
        // Moves the lowest bit of byte i to bit 56 + i.
        bits |= u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56 << (8 * number);
    }
    bits
}

/// A whole block from at most as many lanes, filled up with zeros.
#[inline(always)]
pub(crate) fn padded<L: Lane>(lanes: &[L::Bytes]) -> Block<L> {
    lanes.try_into().unwrap_or_else(|_| {
        let mut block = [L::default().store(); BLOCK];
        block[..lanes.len()].copy_from_slice(lanes);
        block
    })
}

/// The set of the first lanes, as many as `length`, which is at most [`BLOCK`].
#[inline(always)]
pub(crate) fn first(length: usize) -> u64 {
    u64::MAX.checked_shr(u32::try_from(BLOCK - length).unwrap_or(0)).unwrap_or(0)
}

/// The place of the bit with this rank, counted from the lowest; there is one.
#[inline]
pub(crate) fn select(mut set: u64, rank: u64) -> u32 {
    for _ in 0..rank {
        set &= set.wrapping_sub(1);
    }
    set.trailing_zeros()
}

/// The numbers of the lanes of a set, ascending.
#[inline]
pub(crate) fn lanes(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lane = (set != 0).then(|| set.trailing_zeros());
        set &= set.wrapping_sub(1);
        lane
    })
}
