//! Comparing blocks with AVX-512 and AVX2, in 64 bytes at a time.

use std::arch::x86_64::{__m256i, __m512i};

use pulp::x86::{V3, V4};
use pulp::{NullaryFnOnce, cast};

use crate::codec::blocks::{Block, Compare, Portable, Work};
use crate::codec::lane::Lane;

/// Bytes that are compared at once.
const CHUNK: usize = 64;

/// Does the work with the widest instructions that this processor has.
pub(crate) fn dispatch<W: Work>(work: W) -> W::Output {
    if let Some(wide) = V4::try_new() {
        wide.vectorize(For { compare: wide, work })
    } else if let Some(wide) = V3::try_new() {
        wide.vectorize(For { compare: wide, work })
    } else {
        work.run(Portable)
    }
}

/// Work and what does it.
struct For<C, W> {
    compare: C,
    work: W,
}

impl<C: Compare, W: Work> NullaryFnOnce for For<C, W> {
    type Output = W::Output;

    #[inline(always)]
    fn call(self) -> W::Output {
        self.work.run(self.compare)
    }
}

/// Joins what `compare` says of each chunk of a block: a bit per lane.
#[inline(always)]
fn each_chunk<L: Lane>(block: &Block<L>, mut compare: impl FnMut(usize, [u8; CHUNK]) -> u64) -> u64 {
    let mut set = 0;
    for (number, &chunk) in L::flat(block).as_chunks().0.iter().enumerate() {
        set |= compare(number, chunk) << (number * CHUNK / size_of::<L>());
    }
    set
}

#[inline(always)]
fn chunk<L: Lane>(block: &Block<L>, number: usize) -> [u8; CHUNK] {
    L::flat(block).as_chunks().0[number]
}

impl Compare for V4 {
    #[inline(always)]
    fn differing<L: Lane>(self, old: &Block<L>, new: &Block<L>) -> u64 {
        each_chunk::<L>(old, |number, old| {
            let (old, new): (__m512i, __m512i) = (cast(old), cast(chunk::<L>(new, number)));
            match L::BITS {
                8 => self.avx512bw._mm512_cmpneq_epu8_mask(old, new),
                16 => self.avx512bw._mm512_cmpneq_epu16_mask(old, new).into(),
                32 => self.avx512f._mm512_cmpneq_epu32_mask(old, new).into(),
                _ => self.avx512f._mm512_cmpneq_epu64_mask(old, new).into(),
            }
        })
    }

    #[inline(always)]
    fn at_least(self, block: &Block<u8>, least: u8) -> u64 {
        let least = self.avx512f._mm512_set1_epi8(least.cast_signed());
        self.avx512bw._mm512_cmpge_epu8_mask(cast(*block), least)
    }
}

/// Two registers of AVX2.
type Pair = [__m256i; 2];

impl Compare for V3 {
    #[inline(always)]
    fn differing<L: Lane>(self, old: &Block<L>, new: &Block<L>) -> u64 {
        !each_chunk::<L>(old, |number, old| equal::<L>(self, cast(old), cast(chunk::<L>(new, number))))
    }

    #[inline(always)]
    fn at_least(self, block: &Block<u8>, least: u8) -> u64 {
        let least = self.avx._mm256_set1_epi8(least.cast_signed());
        let bytes: Pair = cast(*block);
        equal::<u8>(self, bytes.map(|bytes| self.avx2._mm256_max_epu8(bytes, least)), bytes)
    }
}

/// The lanes of a chunk that are equal.
#[inline(always)]
fn equal<L: Lane>(simd: V3, a: Pair, b: Pair) -> u64 {
    let same = [0, 1].map(|half| match L::BITS {
        8 => simd.avx2._mm256_cmpeq_epi8(a[half], b[half]),
        16 => simd.avx2._mm256_cmpeq_epi16(a[half], b[half]),
        32 => simd.avx2._mm256_cmpeq_epi32(a[half], b[half]),
        _ => simd.avx2._mm256_cmpeq_epi64(a[half], b[half]),
    });
    let bits = |half: usize| match L::BITS {
        8 => simd.avx2._mm256_movemask_epi8(same[half]).cast_unsigned(),
        32 => simd.avx._mm256_movemask_ps(cast(same[half])).cast_unsigned(),
        _ => simd.avx._mm256_movemask_pd(cast(same[half])).cast_unsigned(),
    };
    if L::BITS == 16 {
        // Packing goes by halves of registers, so their quarters come in the order 0, 2, 1, 3.
        let packed = simd.avx2._mm256_packs_epi16(same[0], same[1]);
        let ordered = simd.avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        return simd.avx2._mm256_movemask_epi8(ordered).cast_unsigned().into();
    }
    u64::from(bits(0)) | u64::from(bits(1)) << (CHUNK / 2 / size_of::<L>())
}

/// What the same work gives with each kind of instructions that this processor has.
#[cfg(test)]
pub(crate) fn by_all<W: Work + Clone>(work: &W) -> Vec<W::Output> {
    let v4 = V4::try_new().map(|wide| wide.vectorize(For { compare: wide, work: work.clone() }));
    let v3 = V3::try_new().map(|wide| wide.vectorize(For { compare: wide, work: work.clone() }));
    v4.into_iter().chain(v3).collect()
}
