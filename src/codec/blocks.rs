//! Blocks of 64 lanes and sets of their lanes as the bits of a `u64`: what lets whole blocks be passed over, and single
//! lanes be found without looking at each.

use crate::codec::lane::Lane;

/// Lanes of a block. The last block of a part may be shorter.
pub(crate) const BLOCK: usize = 64;

/// The lanes in which two blocks of equal length differ.
#[inline]
pub(crate) fn differing<L: Lane>(old: &[L::Bytes], new: &[L::Bytes]) -> u64 {
    let mut flags = [0; BLOCK];
    for (flag, (old, new)) in flags.iter_mut().zip(old.iter().zip(new)) {
        *flag = u8::from(old != new);
    }
    bits(&flags)
}

/// Bytes of 0 or 1 as bits.
#[inline]
pub(crate) fn bits(flags: &[u8; BLOCK]) -> u64 {
    let mut bits = 0;
    for (number, eight) in flags.as_chunks().0.iter().enumerate() {
        // Moves the lowest bit of byte i to bit 56 + i.
        bits |= u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56 << (8 * number);
    }
    bits
}

/// The place of the bit with this rank, counted from the lowest; there is one.
#[inline]
pub(crate) fn select(mut set: u64, rank: u32) -> u32 {
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
