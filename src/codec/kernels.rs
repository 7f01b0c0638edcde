//! Single kernels for `crates/deltachain-bench`, behind the feature `kernels`; no part of the library's interface.

use crate::codec::blocks::{BLOCK, differing, lanes};
use crate::codec::contexts::Contexts;
use crate::codec::decode::Decoded;
use crate::codec::encode::{EncodedSegment, PieceInput, Profile, encode};
use crate::codec::lane::{Kind, Lane, with_lane};
use crate::error::Result;
use crate::format::segment::MAX_CONTEXTS;
use crate::format::stream::Compressor;
use crate::tensor::Dtype;

/// Finds the BF16 elements that differ; returns the sum of their places in their blocks.
pub fn compare(base: &[u8], target: &[u8]) -> u64 {
    let blocks = u16::chunks(base).chunks(BLOCK).zip(u16::chunks(target).chunks(BLOCK));
    blocks.flat_map(|(old, new)| lanes(differing::<u16>(old, new))).map(u64::from).sum()
}

/// Counts the members of sixteen contexts among BF16 elements.
pub fn contexts(base: &[u8]) -> [u32; MAX_CONTEXTS] {
    let thresholds: Vec<u16> = (108..123).collect();
    let contexts = Contexts::new(Kind::<u16>::of(Dtype::BF16), &thresholds);
    let mut members = [0; MAX_CONTEXTS];
    for block in u16::chunks(base).chunks(BLOCK) {
        members.iter_mut().zip(contexts.count(block)).for_each(|(members, count)| *members += count);
    }
    members
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
        let (segments, _) = with_lane!(width, L => encode::<L>(dtype, &input, profile, &mut Compressor::default()))?;
        let lanes = u32::try_from(target.len() / width).unwrap_or(u32::MAX);
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
            self.decoded::<L>()?.iter().map(|decoded| Ok(decoded.patches(0)?.0.len())).sum()
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
