//! Encodes and decodes with every coding on every lane width, and compares the result with that of
//! a slow and simple decoder.

use proptest::prelude::*;

use crate::codec::blocks::{BLOCK, STRETCH};
use crate::codec::decode::{DecodedSegment, PartChanges};
use crate::codec::encode::{SEGMENT_LANES, encode, encode_as};
use crate::codec::lane::{Lane, LaneKind, with_lane};
use crate::codec::piece::{PieceInput, PieceSink, Profile};
use crate::format::coding::{Coding, Positions, Values};
use crate::format::segment::{PositionCoding, Table, join};
use crate::format::stream::Compressor;
use crate::tensor::{DescribedDtype, Dtype};

/// A small random number generator, so that the tests do not depend on a library's algorithm.
pub(super) struct Generator(pub(super) u64);

impl Generator {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) ^ (self.0 << 17)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Makes a pair of pieces: lanes of all magnitudes, about one in `rarity` of which changes by up to
/// `reach`.
pub(super) fn pieces<L: Lane>(
    seed: u64,
    lanes: usize,
    rarity: u64,
    reach: u64,
) -> (Vec<u8>, Vec<u8>) {
    let mut generator = Generator(seed);
    let (mut base, mut target) = (Vec::new(), Vec::new());
    for _ in 0..lanes {
        // Most lanes have few high bits set, so that exponents differ.
        let shift = generator.below(u64::from(L::BITS));
        let old =
            L::from_u64((generator.next() << 32 ^ generator.next()) >> (64 - L::BITS) >> shift);
        let step = L::from_u64(generator.below(reach) + 1);
        let new = match generator.below(2 * rarity) {
            0 => old.wrapping_add(step),
            1 => old.wrapping_sub(step),
            _ => old,
        };
        for (bytes, lane) in [(&mut base, old), (&mut target, new)] {
            let at = bytes.len();
            bytes.resize(at + size_of::<L>(), 0);
            L::chunks_mut(&mut bytes[at..])[0] = lane.store();
        }
    }
    (base, target)
}

/// Applies one part as SPEC section 8 says, word by word: it counts ranks lane by lane.
fn slow_apply<L: Lane>(
    dtype: Dtype,
    table: &Table,
    part: usize,
    coded: &[Vec<(u64, L)>],
    relative: bool,
    bytes: &mut [u8],
) {
    let kind = LaneKind::<L>::of(dtype);
    let mut ranks = vec![0_u64; table.contexts];
    for lane in L::chunks_mut(bytes) {
        let old = L::load(*lane);
        let exponent = u16::try_from(kind.exponent(old)).unwrap();
        let context = table
            .thresholds(part)
            .iter()
            .filter(|&&threshold| threshold <= exponent)
            .count();
        let rank = ranks[context];
        ranks[context] += 1;
        if let Ok(place) = coded[context].binary_search_by_key(&rank, |(rank, _)| *rank) {
            let value = coded[context][place].1;
            *lane = if relative {
                kind.key(kind.key(old).wrapping_add(value))
            } else {
                value
            }
            .store();
        }
    }
}

fn check_coding<L: Lane>(
    dtype: Dtype,
    method: (Positions, bool),
    parts: &[(Vec<u8>, Vec<u8>)],
) -> Coding {
    let inputs: Vec<PieceInput<'_>> = parts
        .iter()
        .map(|(base, target)| PieceInput {
            base: Some(base),
            target,
            sparse: false,
        })
        .collect();
    let (coding, bytes) =
        encode_as::<L>(dtype, &inputs, method, &mut Compressor::default()).unwrap();
    let lanes: Vec<(Dtype, u32)> = parts
        .iter()
        .map(|(base, _)| (dtype, u32::try_from(base.len() / size_of::<L>()).unwrap()))
        .collect();
    let decoded = DecodedSegment::<L>::new(&bytes, 1000, coding, lanes).unwrap();
    for (part, (base, target)) in parts.iter().enumerate() {
        let mut result = base.clone();
        decoded.apply(part, &mut result).unwrap();
        assert_eq!(result, *target, "{coding:?} {dtype}");

        let mut by_stretches = base.clone();
        let mut changes = decoded.changes(part);
        by_stretches
            .chunks_mut(3 * BLOCK * size_of::<L>())
            .for_each(|stretch| changes.apply(stretch));
        changes.finish().unwrap();
        assert_eq!(by_stretches, *target, "{coding:?} {dtype}, by stretches");

        let mut slow = base.clone();
        let ranks: Vec<Vec<(u64, L)>> = decoded.ranks(part).map(Iterator::collect).collect();
        slow_apply(
            dtype,
            &decoded.table,
            part,
            &ranks,
            coding.is_relative(),
            &mut slow,
        );
        assert_eq!(slow, *target, "{coding:?} {dtype}, slowly");

        let lanes = |bytes: &[u8]| {
            bytes
                .chunks_exact(size_of::<L>())
                .map(<[u8]>::to_vec)
                .collect::<Vec<_>>()
        };
        let coded = lanes(base)
            .iter()
            .zip(&lanes(target))
            .filter(|(old, new)| !coding.is_sparse() || old != new)
            .count();
        assert_eq!(decoded.coded(part), coded as u64);
    }
    coding
}

#[test]
fn every_coding_gives_the_target_back() {
    let mut seen = Vec::new();
    for dtype in Dtype::all() {
        for (rarity, reach) in [(1, 3), (2, 1 << 12), (7, 2), (40, 5), (1000, 300)] {
            for positions in [Positions::Sparse, Positions::Dense] {
                for relative in [false, true] {
                    with_lane!(dtype.lane_bytes(), L => {
                        let parts: Vec<_> = [1, 63, 64, 65, 5000, 9000]
                            .iter()
                            .map(|&lanes| pieces::<L>(lanes as u64 + rarity, lanes, rarity, reach))
                            .collect();
                        let coding = check_coding::<L>(dtype, (positions, relative), &parts);
                        if !seen.contains(&coding) {
                            seen.push(coding);
                        }
                    });
                }
            }
        }
    }
    // There are five combinations of positions and values for four lane widths, but differences of
    // bytes are never too large for small values.
    assert_eq!(seen.len(), 19, "{seen:?}");
}

#[test]
fn contexts_gaps_and_bitmaps_are_used() {
    let parts = [
        pieces::<u16>(1, 60_000, 3, 2),
        pieces::<u16>(2, 60_000, 30, 2),
    ];
    let mut halves = Vec::new();
    for ((mut base, mut target), exponent) in parts.into_iter().zip([0x20_u8, 0x40]) {
        // The exponent determines how often lanes change.
        for bytes in [&mut base, &mut target] {
            bytes
                .iter_mut()
                .skip(1)
                .step_by(2)
                .for_each(|byte| *byte = exponent);
        }
        halves.push((base, target));
    }
    let joined = (
        [halves[0].0.as_slice(), &halves[1].0].concat(),
        [halves[0].1.as_slice(), &halves[1].1].concat(),
    );
    let input = PieceInput {
        base: Some(&joined.0),
        target: &joined.1,
        sparse: false,
    };
    let (coding, bytes) = encode_as::<u16>(
        Dtype::F16,
        &[input],
        (Positions::Sparse, true),
        &mut Compressor::default(),
    )
    .unwrap();
    assert_eq!(coding.values, Values::RelativeSmall);
    let decoded =
        DecodedSegment::<u16>::new(&bytes, 0, coding, vec![(Dtype::F16, 120_000)]).unwrap();
    let table = &decoded.table;
    assert!(table.contexts >= 2, "{table:?}");
    assert!(
        table.positions.contains(&PositionCoding::Bitmap),
        "{table:?}"
    );
    assert!(
        table
            .positions
            .iter()
            .any(|coding| matches!(coding, PositionCoding::Gaps(_))),
        "{table:?}"
    );
    assert_eq!(Coding::from_byte(coding.to_byte()).unwrap(), coding);
}

#[test]
fn extreme_differences_survive() {
    for dtype in [
        Dtype::I8,
        Dtype::F8_E4M3,
        Dtype::BF16,
        Dtype::I16,
        Dtype::F32,
        Dtype::F64,
        Dtype::I64,
    ] {
        with_lane!(dtype.lane_bytes(), L => {
            let top = L::from_u64(1 << (L::BITS - 1));
            let ends = [
                L::default(),
                L::from_u64(1),
                L::from_u64(u64::MAX),
                top,
                top.wrapping_sub(L::from_u64(1)),
                top.wrapping_add(L::from_u64(1)),
            ];
            let (mut base, mut target) = (Vec::new(), Vec::new());
            for old in ends {
                for new in ends {
                    for (bytes, lane) in [(&mut base, old), (&mut target, new)] {
                        let at = bytes.len();
                        bytes.resize(at + size_of::<L>(), 0);
                        L::chunks_mut(&mut bytes[at..])[0] = lane.store();
                    }
                }
            }
            for positions in [Positions::Sparse, Positions::Dense] {
                for relative in [false, true] {
                    check_coding::<L>(dtype, (positions, relative), &[(base.clone(), target.clone())]);
                }
            }
        });
    }
}

#[test]
fn the_cheapest_method_is_chosen() {
    let chosen = |dtype: Dtype, base: Option<&[u8]>, target: &[u8], profile| {
        let input = PieceInput {
            base,
            target,
            sparse: false,
        };
        let (segments, _) =
            encode::<u16, ()>(dtype, &[input], profile, &mut Compressor::default(), |_| ())
                .unwrap();
        segments.first().map(|segment| segment.coding.describe())
    };
    let (base, target) = pieces::<u16>(3, 50_000, 100, 2);
    assert_eq!(
        chosen(Dtype::BF16, Some(&base), &target, Profile::Compact),
        Some("sparse relative")
    );
    assert_eq!(
        chosen(Dtype::BF16, Some(&base), &target, Profile::Direct),
        Some("sparse absolute")
    );
    assert_eq!(
        chosen(Dtype::BF16, Some(&base), &base, Profile::Compact),
        None
    );
    let no_zeros: Vec<u8> = target.iter().map(|byte| byte | 1).collect();
    assert_eq!(
        chosen(Dtype::BF16, None, &no_zeros, Profile::Compact),
        Some("dense absolute")
    );
    assert_eq!(
        chosen(Dtype::BF16, None, &vec![0; 5000], Profile::Compact),
        None
    );
    let (base, target) = pieces::<u16>(3, 50_000, 1, 1 << 8);
    assert_eq!(
        chosen(Dtype::I16, Some(&base), &target, Profile::Direct),
        Some("dense absolute")
    );
    assert_eq!(
        chosen(Dtype::I16, Some(&base), &target, Profile::Compact),
        Some("dense relative")
    );
}

/// Decodes a segment of one part that is made by hand: positions and counts by context, with a
/// threshold of 100 between two contexts.
fn by_hand<L: Lane>(
    (dtype, coding): (Dtype, Coding),
    positions: &[PositionCoding],
    counts: &[u32],
    streams: &[&[u8]],
) -> crate::error::Result<DecodedSegment<L>> {
    let widths = if coding.values == Values::RelativeSmall {
        vec![8; counts.len()]
    } else {
        Vec::new()
    };
    let thresholds = vec![100; counts.len() - 1];
    let (positions, counts) = (positions.to_vec(), counts.to_vec());
    let table = Table {
        contexts: counts.len(),
        positions,
        widths,
        thresholds,
        counts,
    }
    .to_bytes();
    let streams = std::iter::once(table.as_slice()).chain(streams.iter().copied());
    let streams: Vec<(usize, Vec<u8>)> = streams
        .map(|stream| (stream.len(), stream.to_vec()))
        .collect();
    DecodedSegment::new(&join(&streams), 0, coding, vec![(dtype, 4)])
}

#[test]
fn ranks_end_with_the_lanes() {
    let coding = Coding {
        lane_bytes: 1,
        positions: Positions::Sparse,
        values: Values::Absolute,
    };
    let decode = |shift: u8, low: &[u8], high: &[u8]| {
        let values = vec![9; high.len()];
        let count = u32::try_from(high.len()).unwrap();
        let decoded = by_hand::<u8>(
            (Dtype::U8, coding),
            &[PositionCoding::Gaps(shift)],
            &[count],
            &[&[], low, high, &[], &values],
        )?;
        decoded.patches(0).map(|(indices, _)| indices.unwrap())
    };
    assert_eq!(decode(0, &[], &[3]).unwrap(), [3]);
    assert_eq!(decode(0, &[], &[1, 1]).unwrap(), [1, 3]);
    assert_eq!(decode(0, &[], &[0, 0, 0, 0]).unwrap(), [0, 1, 2, 3]);
    assert_eq!(decode(1, &[1], &[1]).unwrap(), [3]);
    for (shift, low, high) in [
        (0, &[][..], &[4][..]),
        (0, &[], &[1, 2]),
        (0, &[], &[3, 0]),
        (1, &[0], &[2]),
    ] {
        assert_eq!(
            decode(shift, low, high).unwrap_err().rule(),
            Some("R-POS-01"),
            "{high:?}"
        );
    }
}

#[test]
fn there_is_a_varint_for_each_escape() {
    let coding = Coding {
        lane_bytes: 1,
        positions: Positions::Sparse,
        values: Values::Absolute,
    };
    for escapes in [&[][..], &[0, 0]] {
        let streams: [&[u8]; 5] = [&[], &[], &[255], escapes, &[9]];
        let error = by_hand::<u8>(
            (Dtype::U8, coding),
            &[PositionCoding::Gaps(0)],
            &[1],
            &streams,
        )
        .unwrap_err();
        assert_eq!(error.rule(), Some("R-STR-06"), "{escapes:?}");
    }
}

#[test]
fn differences_fit_their_lanes() {
    let coding = Coding {
        lane_bytes: 1,
        positions: Positions::Sparse,
        values: Values::RelativeSmall,
    };
    let apply = |sign: u8, less_one: u8| {
        let streams: [&[u8]; 7] = [&[], &[], &[0], &[], &[sign], &[less_one], &[]];
        let mut piece = [100, 0, 0, 0];
        by_hand::<u8>(
            (Dtype::U8, coding),
            &[PositionCoding::Gaps(0)],
            &[1],
            &streams,
        )?
        .apply(0, &mut piece)?;
        Ok::<u8, crate::error::Error>(piece[0])
    };
    assert_eq!(apply(0, 126).unwrap(), 227);
    assert_eq!(apply(1, 126).unwrap(), 229);
    assert_eq!(apply(1, 127).unwrap(), 228);
    for (sign, less_one) in [(0, 127), (0, 128), (1, 128), (1, 200)] {
        assert_eq!(
            apply(sign, less_one).unwrap_err().rule(),
            Some("R-VAL-02"),
            "{sign} {less_one}"
        );
    }
}

#[test]
fn contexts_have_the_members_that_the_base_gives_them() {
    let lanes = |lanes: [u16; 4]| lanes.map(u16::to_le_bytes).concat();
    // `right` has two members of each context; `low` and `high` have three of one of them.
    let right = lanes([1, 0x3F80, 2, 0x3F81]);
    let (low, high) = (lanes([1, 0x3F80, 2, 2]), lanes([1, 0x3F80, 0x3F80, 0x3F81]));
    let sparse = Coding {
        lane_bytes: 2,
        positions: Positions::Sparse,
        values: Values::RelativePlanes,
    };
    let dense = Coding {
        positions: Positions::Dense,
        ..sparse
    };
    let bitmaps = [PositionCoding::Bitmap; 2];
    let gaps = [PositionCoding::Gaps(0); 2];
    // The second member of the first context and the first member of the second one are coded; each
    // increases by one.
    for (coding, positions, counts, streams, wrong, rule) in [
        (
            sparse,
            &bitmaps[..],
            [2, 2],
            &[&[0b10, 0b01][..], &[], &[], &[], &[2, 2], &[0, 0]][..],
            &low,
            "R-POS-02",
        ),
        (
            sparse,
            &gaps,
            [1, 1],
            &[&[], &[], &[1, 0], &[], &[2, 2], &[0, 0]],
            &high,
            "R-POS-01",
        ),
        (
            dense,
            &[],
            [2, 2],
            &[&[0, 2, 2, 0], &[0, 0, 0, 0]],
            &low,
            "R-POS-02",
        ),
    ] {
        let decoded = by_hand::<u16>((Dtype::BF16, coding), positions, &counts, streams).unwrap();
        let mut piece = right.clone();
        decoded.apply(0, &mut piece).unwrap();
        assert_eq!(piece, lanes([1, 0x3F81, 3, 0x3F81]));
        let error = decoded.apply(0, &mut wrong.clone()).unwrap_err();
        assert_eq!((error.rule(), error.offset()), (Some(rule), Some(0)));
        assert!(decoded.patches(0).is_err());
    }
}

#[test]
fn misfits_are_found_in_the_order_of_contexts() {
    let lanes = |lanes: [u16; 4]| lanes.map(u16::to_le_bytes).concat();
    let (low, high) = (lanes([1, 0x3F80, 2, 2]), lanes([1, 0x3F80, 0x3F80, 0x3F81]));
    let coding = Coding {
        lane_bytes: 2,
        positions: Positions::Sparse,
        values: Values::RelativePlanes,
    };
    let rule = |positions: [PositionCoding; 2],
                counts: [u32; 2],
                bits: &[u8],
                gaps: &[u8],
                base: &[u8]| {
        let streams: [&[u8]; 6] = [bits, &[], gaps, &[], &[2, 2], &[0, 0]];
        let decoded = by_hand::<u16>((Dtype::BF16, coding), &positions, &counts, &streams).unwrap();
        decoded.apply(0, &mut base.to_vec()).unwrap_err().rule()
    };
    let (bitmap, gaps) = (PositionCoding::Bitmap, PositionCoding::Gaps(0));
    // A bitmap codes a member that does not exist.
    assert_eq!(
        rule([bitmap; 2], [2, 2], &[0b01, 0b10], &[], &low),
        Some("R-POS-02")
    );
    assert_eq!(
        rule([bitmap; 2], [2, 2], &[0b10, 0b01], &[], &high),
        Some("R-POS-02")
    );
    // Each context has a different fault: too many or too few members in the first one, a rank that
    // is too high in the second one.
    assert_eq!(
        rule([bitmap, gaps], [2, 1], &[0b01], &[1], &low),
        Some("R-POS-02")
    );
    assert_eq!(
        rule([gaps, bitmap], [1, 2], &[0b01], &[3], &low),
        Some("R-POS-01")
    );
}

#[test]
fn escapes_are_bounded() {
    let rule = |dtype: Dtype, streams: [&[u8]; 7]| {
        let lane_bytes = dtype.lane_bytes();
        let coding = Coding {
            lane_bytes,
            positions: Positions::Sparse,
            values: Values::RelativeSmall,
        };
        with_lane!(lane_bytes, L => {
            by_hand::<L>((dtype, coding), &[PositionCoding::Gaps(0)], &[1], &streams).unwrap_err().rule()
        })
    };
    // The maximum number of bytes for one escape, each of them a varint; then one more.
    assert_eq!(
        rule(Dtype::U8, [&[], &[], &[255], &[0; 4], &[0], &[0], &[]]),
        Some("R-STR-06")
    );
    assert_eq!(
        rule(Dtype::U8, [&[], &[], &[255], &[0; 5], &[0], &[0], &[]]),
        Some("R-LIM-03")
    );
    for (dtype, most) in [(Dtype::BF16, 3), (Dtype::I32, 5), (Dtype::F64, 9)] {
        let magnitudes =
            |length| rule(dtype, [&[], &[], &[0], &[], &[0], &[255], &vec![0; length]]);
        assert_eq!(
            (magnitudes(most), magnitudes(most + 1)),
            (Some("R-STR-06"), Some("R-LIM-03")),
            "{dtype}"
        );
    }
    // A difference of 256 does not fit a byte.
    assert_eq!(
        rule(Dtype::U8, [&[], &[], &[0], &[], &[0], &[255], &[0]]),
        Some("R-VAL-02")
    );
    assert_eq!(
        rule(Dtype::U8, [&[], &[], &[0], &[], &[0], &[255], &[0; 2]]),
        Some("R-LIM-03")
    );
}

#[test]
fn described_dtypes_are_coded_like_others() {
    let described = |lane_bytes, exponent| {
        Dtype::Described(
            DescribedDtype::new("ODD", 8 * u32::from(lane_bytes), lane_bytes, exponent).unwrap(),
        )
    };
    for (lane_bytes, exponent) in [
        (1, None),
        (1, Some(0)),
        (1, Some(7)),
        (2, Some(0)),
        (2, Some(11)),
        (4, Some(3)),
        (8, Some(0)),
        (8, Some(10)),
    ] {
        let dtype = described(lane_bytes, exponent);
        with_lane!(dtype.lane_bytes(), L => {
            let parts = [pieces::<L>(1, 1000, 3, 200), pieces::<L>(2, 7, 2, 3)];
            for positions in [Positions::Dense, Positions::Sparse] {
                for relative in [false, true] {
                    check_coding::<L>(dtype, (positions, relative), &parts);
                }
            }
        });
    }
}

/// The bytes that a sink gets.
#[derive(Default)]
struct Bytes {
    base: Vec<u8>,
    target: Vec<u8>,
}

impl PieceSink for Bytes {
    type Seen = (Self, u64);

    fn changed(&mut self, _target: &[u8], _lanes: &[u16]) {}

    fn passed(&mut self, base: Option<&[u8]>, target: &[u8]) {
        self.base.extend_from_slice(base.unwrap_or_default());
        self.target.extend_from_slice(target);
    }

    fn end(self, changed: u64) -> Self::Seen {
        (self, changed)
    }
}

#[test]
fn changes_outside_the_sample_are_coded() {
    // Large enough for 13 turns of the sample, of which the first three are taken.
    let same = vec![0x40; 3 << 19];
    let mut base: Vec<u8> = same.iter().copied().cycle().take(2 * same.len()).collect();
    let mut target = base.clone();
    for lane in [5 * STRETCH, 5 * STRETCH + 100, 6 * STRETCH - 1] {
        target[2 * lane] ^= 1;
    }
    let unchanged = PieceInput {
        base: Some(&same),
        target: &same,
        sparse: false,
    };
    let changed = PieceInput {
        base: Some(&base),
        target: &target,
        sparse: false,
    };
    let large = PieceInput {
        base: Some(&base),
        target: &base,
        sparse: false,
    };
    let pieces = [unchanged, large, changed];
    let sink = |_: &_| Bytes::default();
    let compressor = &mut Compressor::default();
    let (segments, seen) =
        encode::<u16, _>(Dtype::BF16, &pieces, Profile::Compact, compressor, sink).unwrap();
    // Each sink gets all bytes of its piece, in order.
    for ((shown, changed), (piece, expected)) in seen.iter().zip(pieces.iter().zip([0, 0, 3])) {
        assert_eq!(
            (shown.base.as_slice(), *changed),
            (piece.base.unwrap(), expected)
        );
        assert!(shown.target == piece.target);
    }
    let [segment] = &segments[..] else {
        panic!("{} segments", segments.len())
    };
    assert_eq!(segment.pieces, [2]);
    let lanes = u32::try_from(base.len() / 2).unwrap();
    let decoded = DecodedSegment::<u16>::new(
        &segment.bytes,
        0,
        segment.coding,
        vec![(Dtype::BF16, lanes)],
    )
    .unwrap();
    decoded.apply(0, &mut base).unwrap();
    assert!(base == target);
}

#[test]
fn a_segment_is_closed_when_it_has_many_coded_lanes() {
    let lanes = SEGMENT_LANES * 3 / 5;
    let base = vec![0; lanes];
    let target: Vec<u8> = (0..lanes as u64)
        .map(|lane| blake3::hash(&lane.to_le_bytes()).as_bytes()[0])
        .collect();
    let piece = || PieceInput {
        base: Some(&base),
        target: &target,
        sparse: false,
    };
    let pieces: Vec<PieceInput<'_>> = (0..5).map(|_| piece()).collect();
    let compressor = &mut Compressor::default();
    let (segments, changed) =
        encode::<u8, ()>(Dtype::U8, &pieces, Profile::Direct, compressor, |_| ()).unwrap();
    assert_eq!(
        changed,
        [target.iter().filter(|&&byte| byte != 0).count() as u64; 5]
    );
    assert_eq!(
        segments
            .iter()
            .map(|segment| &segment.pieces[..])
            .collect::<Vec<_>>(),
        [&[0, 1][..], &[2, 3], &[4]]
    );
    for segment in segments {
        let parts = vec![(Dtype::U8, u32::try_from(lanes).unwrap()); segment.pieces.len()];
        let decoded = DecodedSegment::<u8>::new(&segment.bytes, 0, segment.coding, parts).unwrap();
        for part in 0..segment.pieces.len() {
            let mut built = base.clone();
            decoded.apply(part, &mut built).unwrap();
            assert!(built == target);
        }
    }
}

proptest! {
    #[test]
    fn any_change_survives(
        seed: u64,
        lanes in 1_usize..3000,
        rarity in 1_u64..200,
        reach in 1_u64..70_000,
        code in 1_u8..=22
    ) {
        let dtype = Dtype::from_code(code).unwrap();
        with_lane!(dtype.lane_bytes(), L => {
            let parts = [pieces::<L>(seed, lanes, rarity, reach), pieces::<L>(seed ^ 1, lanes / 2 + 1, rarity, reach)];
            for positions in [Positions::Sparse, Positions::Dense] {
                for relative in [false, true] {
                    check_coding::<L>(dtype, (positions, relative), &parts);
                }
            }
        });
    }
}
