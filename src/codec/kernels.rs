//! Single kernels for `crates/deltachain-bench`, behind the feature `kernels`; no part of the library's interface.

use crate::codec::blocks::{Compare, STRETCH, Work, dispatch};
use crate::codec::contexts::{Contexts, Members};
use crate::codec::decode::Decoded;
use crate::codec::encode::{EncodedSegment, encode};
use crate::codec::lane::{Kind, Lane, with_lane};
use crate::codec::piece::differing;
use crate::codec::piece::{PieceInput, Profile};
use crate::error::{Error, Result};
use crate::format::segment::MAX_CONTEXTS;
use crate::format::stream::Compressor;
use crate::tensor::Dtype;

/// Finds the BF16 elements that differ; returns how many there are.
pub fn compare(base: &[u8], target: &[u8]) -> u64 {
    dispatch(Differing(u16::chunks(base), u16::chunks(target)))
}

struct Differing<'a>(&'a [[u8; 2]], &'a [[u8; 2]]);

impl Work for Differing<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self, compare: impl Compare) -> u64 {
        let stretches = self.0.chunks(STRETCH).zip(self.1.chunks(STRETCH));
        let sets = stretches.flat_map(|(base, target)| differing::<u16>(compare, Some(base), target));
        sets.map(|set| u64::from(set.count_ones())).sum()
    }
}

/// Counts the members of sixteen contexts among BF16 elements.
pub fn contexts(base: &[u8]) -> [u32; MAX_CONTEXTS] {
    let thresholds: Vec<u16> = (108..123).collect();
    dispatch(Count(&Contexts::new(Kind::<u16>::of(Dtype::BF16), &thresholds), u16::chunks(base)))
}

struct Count<'a>(&'a Contexts<u16>, &'a [[u8; 2]]);

impl Work for Count<'_> {
    type Output = [u32; MAX_CONTEXTS];

    #[inline(always)]
    fn run(self, compare: impl Compare) -> Self::Output {
        let (mut found, mut counts) = (Members::new(), [0; MAX_CONTEXTS]);
        for stretch in self.1.chunks(STRETCH) {
            self.0.find(compare, stretch, &mut found);
            for (context, count) in counts.iter_mut().enumerate() {
                *count += found.count(context);
            }
        }
        counts
    }
}

/// A piece that has been encoded.
#[derive(Debug)]
pub struct Piece {
    dtype: Dtype,
    lanes: u32,
    segments: Vec<EncodedSegment>,
}

impl Piece {
    /// Encodes one piece: at most 2^24 lanes.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn encode(dtype: Dtype, base: &[u8], target: &[u8], profile: Profile) -> Result<Self> {
        let input = [PieceInput { base: Some(base), target, sparse: false }];
        let width = dtype.lane_bytes();
        let (segments, _) =
            with_lane!(width, L => encode::<L, ()>(dtype, &input, profile, &mut Compressor::default(), |_| ()))?;
        let lanes = u32::try_from(target.len() / width).map_err(|_| Error::usage("a piece has at most 2^24 lanes"))?;
        Ok(Self { dtype, lanes, segments })
    }

    /// Decodes streams to gaps and values; returns how many there are.
    ///
    /// # Errors
    /// Those of the decoder.
    pub fn decode(&self) -> Result<u64> {
        with_lane!(self.dtype.lane_bytes(), L => self.decoded::<L>()?.iter().map(|decoded| Ok(decoded.coded(0))).sum())
    }

    /// The same, then positions and values, which only direct parts have; returns how many there are.
    ///
    /// # Errors
    /// Those of the decoder.
    pub fn patches(&self) -> Result<usize> {
        with_lane!(self.dtype.lane_bytes(), L => {
            self.decoded::<L>()?.iter().map(|decoded| Ok(decoded.patches(0)?.1.len())).sum()
        })
    }

    /// The same, then changes the base's bytes to the target's.
    ///
    /// # Errors
    /// Those of the decoder.
    pub fn apply(&self, bytes: &mut [u8]) -> Result<()> {
        with_lane!(self.dtype.lane_bytes(), L => {
            self.decoded::<L>()?.iter().try_for_each(|decoded| decoded.apply(0, bytes))
        })
    }

    fn decoded<L: Lane>(&self) -> Result<Vec<Decoded<L>>> {
        let parts = || vec![(self.dtype, self.lanes)];
        self.segments.iter().map(|segment| Decoded::new(&segment.bytes, 0, segment.coding, parts())).collect()
    }
}
