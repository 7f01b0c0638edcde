//! Choices of the encoder for fixed pieces. Decoders accept any choice, so these may change. But
//! wrong estimates only make links longer, which no other test notices, and a changed choice
//! changes the bytes of links between the same states.

use crate::codec::decode::DecodedSegment;
use crate::codec::encode::{SplitGaps, encode};
use crate::codec::lane::{Lane, with_lane};
use crate::codec::piece::{PieceInput, Profile};
use crate::codec::tests::{Generator, pieces};
use crate::format::coding::{Positions, Values};
use crate::format::segment::{PositionCoding, split};
use crate::format::stream::Compressor;
use crate::tensor::Dtype;

/// Encodes pieces of this dtype as one group; describes each segment: its pieces and coding, its
/// contexts, and its raw streams.
fn choices(dtype: Dtype, parts: &[(Vec<u8>, Vec<u8>)], profile: Profile) -> Vec<String> {
    with_lane!(dtype.lane_bytes(), L => choices_of::<L>(dtype, parts, profile))
}

fn choices_of<L: Lane>(
    dtype: Dtype,
    parts: &[(Vec<u8>, Vec<u8>)],
    profile: Profile,
) -> Vec<String> {
    let inputs: Vec<PieceInput<'_>> = parts
        .iter()
        .map(|(base, target)| PieceInput {
            base: Some(base),
            target,
            sparse: false,
        })
        .collect();
    let (segments, _) =
        encode::<L, ()>(dtype, &inputs, profile, &mut Compressor::default(), |_| ()).unwrap();
    let mut words = Vec::new();
    for segment in segments {
        let lanes = |&piece: &usize| {
            (
                dtype,
                u32::try_from(parts[piece].0.len() / size_of::<L>()).unwrap(),
            )
        };
        let lanes = segment.pieces.iter().map(lanes).collect();
        let streams = split(&segment.bytes, 0, segment.coding).unwrap();
        // The table is left out, because it follows from the rest.
        let raw: Vec<u64> = streams[1..]
            .iter()
            .map(|stream| stream.raw_length)
            .collect();
        let decoded = DecodedSegment::<L>::new(&segment.bytes, 0, segment.coding, lanes).unwrap();
        let table = &decoded.table;
        let positions: Vec<String> = table
            .positions
            .iter()
            .map(|coding| match coding {
                PositionCoding::Gaps(shift) => shift.to_string(),
                PositionCoding::Bitmap => "b".to_owned(),
            })
            .collect();
        let thresholds: Vec<&[u16]> = (0..segment.pieces.len())
            .map(|part| table.thresholds(part))
            .collect();
        words.push(format!(
            "{:?} {}; thresholds {thresholds:?}, positions {}, widths {:?}, streams {raw:?}",
            segment.pieces,
            segment.coding.describe(),
            positions.join(" "),
            table.widths
        ));
    }
    words
}

/// Makes BF16 lanes with exponents from 100 on. Lanes of each exponent change half as often as
/// those of the previous one, and half as far.
fn rates(lanes: usize, rarity: u64, reach: u64) -> (Vec<u8>, Vec<u8>) {
    let mut generator = Generator(7);
    let (mut base, mut target) = (Vec::new(), Vec::new());
    for _ in 0..lanes {
        let exponent = generator.below(8);
        let old = u16::try_from((100 + exponent) << 7 | generator.below(128)).unwrap();
        let by = u16::try_from(generator.below((reach >> exponent).max(1)) + 1).unwrap();
        let new = if generator.below(rarity << exponent) == 0 {
            old.wrapping_add(by)
        } else {
            old
        };
        base.extend(old.to_le_bytes());
        target.extend(new.to_le_bytes());
    }
    (base, target)
}

/// Returns a letter for the coding of a piece: s, sparse differences; S, sparse new bits; d, dense
/// differences; D, dense new bits.
fn method(dtype: Dtype, piece: &(Vec<u8>, Vec<u8>), profile: Profile) -> char {
    with_lane!(dtype.lane_bytes(), L => {
        let input = PieceInput { base: Some(&piece.0), target: &piece.1, sparse: false };
        let (segments, _) = encode::<L, ()>(dtype, &[input], profile, &mut Compressor::default(), |_| ()).unwrap();
        match segments.first().map(|segment| segment.coding) {
            None => '-',
            Some(coding) => match (coding.positions, coding.values) {
                (Positions::Sparse, Values::Absolute) => 'S',
                (Positions::Dense, Values::Absolute) => 'D',
                (Positions::Sparse, _) => 's',
                (Positions::Dense, _) => 'd',
            },
        }
    })
}

#[test]
fn methods_change_at_these_densities() {
    // One lane in 1, 2, ..., 24 changes.
    let row = |dtype: Dtype, reach: u64, profile: Profile| -> String {
        let pieces = (1..=24).map(
            |rarity| with_lane!(dtype.lane_bytes(), L => pieces::<L>(rarity, 1000, rarity, reach)),
        );
        pieces.map(|piece| method(dtype, &piece, profile)).collect()
    };
    let (mut rows, mut local) = (Vec::new(), Vec::new());
    for dtype in [Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::I64] {
        for reach in [1, 20, 60_000] {
            rows.push(row(dtype, reach, Profile::Compact));
            local.push(row(dtype, reach, Profile::Local));
            // The direct profile only has new bits, so dtype and reach make no difference.
            assert_eq!(
                row(dtype, reach, Profile::Direct),
                "DSSSSSSSSSSSSSSSSSSSSSSS"
            );
        }
    }
    let expected = [
        "ddddssssssssssssssssssss",
        "dddddddddsssssssssssssss",
        "ddddddddddddddssssssssss",
        "ssssssssssssssssssssssss",
        "dsssssssssssssssssssssss",
        "dsssssssssssssssssssssss",
        "ssssssssssssssssssssssss",
        "dsssssssssssssssssssssss",
        "dsssssssssssssssssssssss",
        "ddddssssssssssssssssssss",
        "dddddddddsssssssssssssss",
        "dsssssssssssssssssssssss",
    ];
    assert!(rows == expected, "{rows:#?}");
    // The local profile never has dense differences, and has new bits if these are shorter.
    let (sparse, all_but_one) = ("ssssssssssssssssssssssss", "Dsssssssssssssssssssssss");
    let of_dtype = |far| [sparse, sparse, far];
    assert!(
        local
            == [all_but_one, all_but_one, sparse, sparse]
                .map(of_dtype)
                .concat(),
        "{local:#?}"
    );
}

#[test]
fn new_bits_are_taken_where_they_are_shorter() {
    let mut generator = Generator(3);
    let noise: Vec<u8> = (0..2000_u16)
        .flat_map(|_| {
            u16::try_from(generator.below(1 << 16))
                .unwrap()
                .to_le_bytes()
        })
        .collect();
    let flat: Vec<u8> = (0..2000_u16)
        .flat_map(|lane| (lane % 2).to_le_bytes())
        .collect();
    assert_eq!(method(Dtype::U16, &(noise, flat), Profile::Compact), 'D');
    // Equal lanes take no bits, but the encoder only considers coding all lanes if at least one in
    // eight changes.
    for (changed, expected) in [(100, 'D'), (99, 'S')] {
        let base = [vec![8; changed], vec![7; 800 - changed]].concat();
        assert_eq!(
            method(Dtype::U8, &(base, vec![7; 800]), Profile::Direct),
            expected
        );
    }
}

#[test]
fn segments_are_made_of_these_streams() {
    let mut words = Vec::new();
    for (lanes, rarity, reach) in [
        (80_000, 2, 1),
        (80_000, 20, 200),
        (80_000, 1, 2000),
        (3000, 1, 30),
    ] {
        words.extend(choices(
            Dtype::BF16,
            &[rates(lanes, rarity, reach), rates(lanes / 2, rarity, reach)],
            Profile::Compact,
        ));
    }
    words.extend(choices(
        Dtype::F32,
        &[pieces::<u32>(5, 30_000, 500, 3)],
        Profile::Compact,
    ));
    words.extend(choices(
        Dtype::I16,
        &[
            pieces::<u16>(5, 3000, 5, 9000),
            pieces::<u16>(5, 3000, 500, 9),
        ],
        Profile::Direct,
    ));
    let expected = [
        "[0, 1] sparse relative; thresholds [[101, 102, 103, 104], [101, 102, 103, 104]], positions b 0 0 0 0, widths [1, 1, 1, 1, 1], streams [1856, 0, 7382, 31, 1842, 1842, 0]",
        "[0, 1] sparse relative; thresholds [[101], [101]], positions 0 1, widths [8, 8], streams [0, 90, 1465, 14, 184, 1465, 0]",
        "[0, 1] sparse relative (planes); thresholds [[101, 102, 103, 104, 105], [101, 102, 103, 104, 105]], positions b b 0 0 0 0, widths [], streams [3716, 0, 7319, 10, 29658, 29658]",
        "[0, 1] sparse relative; thresholds [[101], [101]], positions b 0, widths [8, 4], streams [72, 0, 553, 0, 142, 852, 0]",
        "[0] sparse relative; thresholds [[]], positions 2, widths [2], streams [0, 14, 55, 8, 7, 14, 15]",
        "[0, 1] sparse absolute; thresholds [[], []], positions 0, widths [], streams [0, 0, 599, 5, 599, 599]",
    ];
    assert!(words == expected, "{words:#?}");
}

/// Describes the only segment for I16 lanes that change from 0 to `target`.
fn from_zeros(target: impl Iterator<Item = i16>) -> String {
    let target: Vec<u8> = target.flat_map(i16::to_le_bytes).collect();
    choices(
        Dtype::I16,
        &[(vec![0; target.len()], target)],
        Profile::Compact,
    )
    .concat()
}

#[test]
fn differences_are_small_up_to_255() {
    let words =
        |value: i16| from_zeros((0..2000).map(|lane| if lane % 40 == 0 { value } else { 0 }));
    assert!(
        words(255).starts_with("[0] sparse relative; "),
        "{}",
        words(255)
    );
    assert!(
        words(256).starts_with("[0] sparse relative (planes); "),
        "{}",
        words(256)
    );
}

#[test]
fn symbols_are_narrow_if_few_are_escaped() {
    let lanes = (0..20_000).map(|lane| {
        if lane % 10 != 0 {
            0
        } else if lane % 400 == 0 {
            20
        } else {
            1
        }
    });
    assert!(from_zeros(lanes).contains("widths [1], "));
}

#[test]
fn gaps_are_estimated_by_their_streams() {
    let near = |gaps: &[u32], shift: u8, bits: f64| {
        let estimated = SplitGaps::estimated_bits(gaps, shift);
        assert!((estimated - bits).abs() < 0.001, "{estimated}, not {bits}");
    };
    // Four symbols of two bits; two symbols of one bit, and a byte of low bits.
    near(&[0, 1, 2, 3], 0, 8.0);
    near(&[0, 1, 2, 3], 1, 4.0 + 8.0);
    // 254 is a symbol, 255 has an escape.
    near(&[254; 4], 0, 0.0);
    near(&[255; 4], 0, 4.0 * 8.0);
    near(&[510, 509], 1, 2.0 + 8.0 + 8.0);
}

#[test]
fn shifts_are_those_of_the_fewest_bits() {
    // With a shift of 2, gaps of 1030 would all be escaped; gaps of 900 to 912 would not, and they
    // vary above their two low bits.
    let words = |gap: fn(usize) -> usize| {
        let mut lanes = vec![0; 100_000];
        let mut at = 0;
        for number in 0..80 {
            at += gap(number);
            lanes[at] = 1;
            at += 1;
        }
        from_zeros(lanes.into_iter())
    };
    assert!(
        words(|_| 1030).contains("positions 3, "),
        "{}",
        words(|_| 1030)
    );
    assert!(
        words(|number| 900 + 4 * (number % 4)).contains("positions 2, "),
        "{}",
        words(|_| 900)
    );
}

#[test]
fn many_lanes_are_measured_on_some_of_their_stretches_or_pieces() {
    // One exponent changes less often than the other, but only in stretches that the estimate
    // skips: from 2^17 lanes on, it skips two of three.
    let pair = |lanes: u32, stretch: u32| -> (Vec<u8>, Vec<u8>) {
        let is_seen = |lane: u32| (lane / stretch).is_multiple_of(3);
        let old = |lane: u32| if is_seen(lane) { 100 << 7 } else { 101 << 7 };
        let new = |lane: u32| {
            old(lane) + u16::from(lane.is_multiple_of(if is_seen(lane) { 16 } else { 128 }))
        };
        let bytes =
            |of: &dyn Fn(u32) -> u16| (0..lanes).flat_map(|lane| of(lane).to_le_bytes()).collect();
        (bytes(&old), bytes(&new))
    };
    let thresholds = |pieces: &[(Vec<u8>, Vec<u8>)]| {
        let words = choices(Dtype::BF16, pieces, Profile::Compact).concat();
        words
            .split("; ")
            .nth(1)
            .unwrap()
            .split(", positions")
            .next()
            .unwrap()
            .to_owned()
    };
    let large = |lanes: u32| thresholds(&[pair(lanes, 4096)]);
    assert_eq!(large((1 << 17) - 64), "thresholds [[101]]");
    assert_eq!(large(1 << 17), "thresholds [[]]");
    // The same lanes in pieces that are too small for rates of their own.
    let small = |lanes: u32| {
        let (base, target) = pair(lanes, 1024);
        let pieces: Vec<_> = base
            .chunks(2048)
            .zip(target.chunks(2048))
            .map(|(b, t)| (b.to_vec(), t.to_vec()))
            .collect();
        thresholds(&pieces)
    };
    assert!(
        small((1 << 17) - 64).starts_with("thresholds [[101], [101], "),
        "{}",
        small((1 << 17) - 64)
    );
    assert!(
        small(1 << 17).starts_with("thresholds [[], [], "),
        "{}",
        small(1 << 17)
    );
}
