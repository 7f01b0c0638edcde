//! Single kernels for `crates/deltachain-bench`, behind the feature `kernels`; not part of the
//! library's interface.

use crate::codec::blocks::{Compare, STRETCH, Work, dispatch};
use crate::codec::contexts::{Contexts, Members};
use crate::codec::decode::DecodedSegment;
use crate::codec::encode;
use crate::codec::lane::{Lane, LaneKind, with_lane};
use crate::codec::piece::{PieceInput, Profile, differing};
use crate::error::Result;
use crate::format::Coding;
use crate::format::segment::MAX_CONTEXTS;
use crate::format::stream::Compressor;
use crate::tensor::Dtype;

/// Finds the BF16 elements that differ; returns their number.
pub fn compare(base: &[u8], target: &[u8]) -> u64 {
    dispatch(DifferingLanes(u16::chunks(base), u16::chunks(target)))
}

struct DifferingLanes<'a>(&'a [[u8; 2]], &'a [[u8; 2]]);

impl Work for DifferingLanes<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self, compare: impl Compare) -> u64 {
        let stretches = self.0.chunks(STRETCH).zip(self.1.chunks(STRETCH));
        let sets =
            stretches.flat_map(|(base, target)| differing::<u16>(compare, Some(base), target));
        sets.map(|set| u64::from(set.count_ones())).sum()
    }
}

/// Counts the members of sixteen contexts among BF16 elements.
pub fn contexts(base: &[u8]) -> [u32; MAX_CONTEXTS] {
    let thresholds: Vec<u16> = (108..123).collect();
    dispatch(Count(
        &Contexts::new(LaneKind::<u16>::of(Dtype::BF16), &thresholds),
        u16::chunks(base),
    ))
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

/// Encodes one piece; returns coding and bytes of each of its segments.
///
/// # Errors
/// The errors of the encoder.
pub fn encode(
    dtype: Dtype,
    base: &[u8],
    target: &[u8],
    profile: Profile,
) -> Result<Vec<(Coding, Vec<u8>)>> {
    let input = [PieceInput {
        base: Some(base),
        target,
        sparse: false,
    }];
    let (segments, _) = with_lane!(dtype.lane_bytes(), L => {
        encode::encode::<L, ()>(dtype, &input, profile, &mut Compressor::default(), |_| ())
    })?;
    Ok(segments
        .into_iter()
        .map(|segment| (segment.coding, segment.bytes))
        .collect())
}

/// Decodes a segment of one direct part to positions and values; returns the number of values.
///
/// # Errors
/// The errors of the decoder.
pub fn patches(bytes: &[u8], coding: Coding, part: (Dtype, u32)) -> Result<usize> {
    with_lane!(coding.lane_bytes, L => {
        DecodedSegment::<L>::new(bytes, 0, coding, vec![part])?.patches(0).map(|(_, values)| values.len())
    })
}
