//! Comparison of blocks with AVX-512 and AVX2, 64 bytes at a time.

use std::arch::x86_64::{__m256i, __m512i};

use pulp::x86::{V3, V4};
use pulp::{NullaryFnOnce, cast};

use crate::codec::blocks::{Block, Compare, Factors, Portable, Work};
use crate::codec::lane::Lane;

/// Bytes that are compared at once.
const CHUNK: usize = 64;

/// Runs the work with the widest instructions that this processor has.
pub(crate) fn dispatch<W: Work>(work: W) -> W::Output {
    if let Some(wide) = V4::try_new() {
        wide.vectorize(For {
            compare: wide,
            work,
        })
    } else if let Some(wide) = V3::try_new() {
        wide.vectorize(For {
            compare: wide,
            work,
        })
    } else {
        work.run(Portable)
    }
}

/// Work, and the instructions that do it.
pub(super) struct For<C, W> {
    pub(super) compare: C,
    pub(super) work: W,
}

impl<C: Compare, W: Work> NullaryFnOnce for For<C, W> {
    type Output = W::Output;

    #[inline(always)]
    fn call(self) -> W::Output {
        self.work.run(self.compare)
    }
}

/// Joins the results of `compare` for each chunk of a block: a bit per lane.
#[inline(always)]
fn each_chunk<L: Lane>(
    block: &Block<L>,
    mut compare: impl FnMut(usize, [u8; CHUNK]) -> u64,
) -> u64 {
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

    #[inline(always)]
    fn products<const ROWS: usize>(
        self,
        rows: [&[Block<u8>]; ROWS],
        factors: &[Factors],
    ) -> [[u64; 2]; ROWS] {
        let even: __m512i = cast([EVEN; 8]);
        let product = |a, b| self.avx512f._mm512_mul_epu32(a, b);
        let sum = |a, b| self.avx512f._mm512_add_epi64(a, b);
        let upper = |a| self.avx512f._mm512_srli_epi64::<32>(a);
        let rows = rows.map(|row| &row[..factors.len()]);
        let mut sums: [[__m512i; 2]; ROWS] = [[cast([0_u64; 8]); 2]; ROWS];
        for (number, [[a, b], [c, d]]) in factors.iter().enumerate() {
            let [a, b, c, d]: [__m512i; 4] = [cast(*a), cast(*b), cast(*c), cast(*d)];
            let [a1, b1, c1, d1] = [upper(a), upper(b), upper(c), upper(d)];
            for (sums, row) in sums.iter_mut().zip(rows) {
                let units: __m512i = cast(row[number]);
                let (even, odd) = (
                    self.avx512f._mm512_and_si512(units, even),
                    self.avx512f._mm512_srli_epi32::<16>(units),
                );
                let (even1, odd1) = (upper(even), upper(odd));
                let evens = [
                    sum(product(even, a), product(even1, a1)),
                    sum(product(even, c), product(even1, c1)),
                ];
                let odds = [
                    sum(product(odd, b), product(odd1, b1)),
                    sum(product(odd, d), product(odd1, d1)),
                ];
                sums[0] = sum(sums[0], sum(evens[0], odds[0]));
                sums[1] = sum(sums[1], sum(evens[1], odds[1]));
            }
        }
        sums.map(|both| both.map(|sum| cast::<_, [u64; 8]>(sum).iter().sum()))
    }
}

/// Mask of the lower of the two units in 32 bits, twice.
const EVEN: u64 = 0x0000_FFFF_0000_FFFF;

/// Two registers of AVX2.
type Pair = [__m256i; 2];

impl Compare for V3 {
    #[inline(always)]
    fn differing<L: Lane>(self, old: &Block<L>, new: &Block<L>) -> u64 {
        !each_chunk::<L>(old, |number, old| {
            equal::<L>(self, cast(old), cast(chunk::<L>(new, number)))
        })
    }

    #[inline(always)]
    fn at_least(self, block: &Block<u8>, least: u8) -> u64 {
        let least = self.avx._mm256_set1_epi8(least.cast_signed());
        let bytes: Pair = cast(*block);
        equal::<u8>(
            self,
            bytes.map(|bytes| self.avx2._mm256_max_epu8(bytes, least)),
            bytes,
        )
    }

    #[inline(always)]
    fn products<const ROWS: usize>(
        self,
        rows: [&[Block<u8>]; ROWS],
        factors: &[Factors],
    ) -> [[u64; 2]; ROWS] {
        let even: __m256i = cast([EVEN; 4]);
        let product = |a, b| self.avx2._mm256_mul_epu32(a, b);
        let sum = |a, b| self.avx2._mm256_add_epi64(a, b);
        let upper = |a| self.avx2._mm256_srli_epi64::<32>(a);
        let rows = rows.map(|row| &row[..factors.len()]);
        let mut sums: [[__m256i; 2]; ROWS] = [[cast([0_u64; 4]); 2]; ROWS];
        for (number, [[a, b], [c, d]]) in factors.iter().enumerate() {
            let [a, b, c, d]: [Pair; 4] = [cast(*a), cast(*b), cast(*c), cast(*d)];
            for half in 0..2 {
                let [a, b, c, d] = [a[half], b[half], c[half], d[half]];
                let [a1, b1, c1, d1] = [upper(a), upper(b), upper(c), upper(d)];
                for (sums, row) in sums.iter_mut().zip(rows) {
                    let units = cast::<_, Pair>(row[number])[half];
                    let (even, odd) = (
                        self.avx2._mm256_and_si256(units, even),
                        self.avx2._mm256_srli_epi32::<16>(units),
                    );
                    let (even1, odd1) = (upper(even), upper(odd));
                    let evens = [
                        sum(product(even, a), product(even1, a1)),
                        sum(product(even, c), product(even1, c1)),
                    ];
                    let odds = [
                        sum(product(odd, b), product(odd1, b1)),
                        sum(product(odd, d), product(odd1, d1)),
                    ];
                    sums[0] = sum(sums[0], sum(evens[0], odds[0]));
                    sums[1] = sum(sums[1], sum(evens[1], odds[1]));
                }
            }
        }
        sums.map(|both| both.map(|sum| cast::<_, [u64; 4]>(sum).iter().sum()))
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
        32 => simd
            .avx
            ._mm256_movemask_ps(cast(same[half]))
            .cast_unsigned(),
        _ => simd
            .avx
            ._mm256_movemask_pd(cast(same[half]))
            .cast_unsigned(),
    };
    if L::BITS == 16 {
        // Packing goes by halves of registers, so their quarters come in the order 0, 2, 1, 3.
        let packed = simd.avx2._mm256_packs_epi16(same[0], same[1]);
        let ordered = simd.avx2._mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        return simd
            .avx2
            ._mm256_movemask_epi8(ordered)
            .cast_unsigned()
            .into();
    }
    u64::from(bits(0)) | u64::from(bits(1)) << (CHUNK / 2 / size_of::<L>())
}
