//! Lanes: unsigned integers of 1, 2, 4 or 8 bytes, and the maps of SPEC section 8 on them.

use std::fmt::Debug;
use std::ops::{BitAnd, BitXor};

use crate::tensor::Dtype;

/// An unsigned integer that holds a lane.
pub(crate) trait Lane:
    Copy + Default + Ord + Debug + Send + Sync + BitAnd<Output = Self> + BitXor<Output = Self> + 'static
{
    /// The lane's bytes in memory and in files.
    type Bytes: Copy + Eq + Send + Sync;
    const BITS: u32;

    /// The whole lanes of `bytes`.
    fn chunks(bytes: &[u8]) -> &[Self::Bytes];
    fn chunks_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    /// The bytes of whole lanes.
    fn flat(lanes: &[Self::Bytes]) -> &[u8];
    fn load(bytes: Self::Bytes) -> Self;
    fn store(self) -> Self::Bytes;

    /// Byte `index`, 0 being the least significant.
    fn byte(self, index: usize) -> u8;
    fn to_u64(self) -> u64;
    /// The low bits of `value`.
    fn from_u64(value: u64) -> Self;

    fn rotate_left(self) -> Self;
    fn rotate_right(self) -> Self;
    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_sub(self, other: Self) -> Self;
    /// Whether the top bit is set: the sign of a float or of a two's-complement difference.
    fn is_negative(self) -> bool;
}

macro_rules! lane {
    ($($type:ty, $bytes:literal;)*) => {$(
        impl Lane for $type {
            type Bytes = [u8; $bytes];
            const BITS: u32 = <$type>::BITS;

            #[inline]
            fn chunks(bytes: &[u8]) -> &[Self::Bytes] {
                bytes.as_chunks().0
            }
            #[inline]
            fn chunks_mut(bytes: &mut [u8]) -> &mut [Self::Bytes] {
                bytes.as_chunks_mut().0
            }
            #[inline]
            fn flat(lanes: &[Self::Bytes]) -> &[u8] {
                lanes.as_flattened()
            }
            #[inline]
            fn load(bytes: Self::Bytes) -> Self {
                <$type>::from_le_bytes(bytes)
            }
            #[inline]
            fn store(self) -> Self::Bytes {
                self.to_le_bytes()
            }
            #[inline]
            fn byte(self, index: usize) -> u8 {
                let [byte, ..] = (self >> (8 * index)).to_le_bytes();
                byte
            }
            #[inline]
            fn to_u64(self) -> u64 {
                u64::from(self)
            }
            #[inline]
            fn from_u64(value: u64) -> Self {
                let mut bytes = [0; $bytes];
                bytes.copy_from_slice(&value.to_le_bytes()[..$bytes]);
                Self::from_le_bytes(bytes)
            }
            #[inline]
            fn rotate_left(self) -> Self {
                self.rotate_left(1)
            }
            #[inline]
            fn rotate_right(self) -> Self {
                self.rotate_right(1)
            }
            #[inline]
            fn wrapping_add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn wrapping_sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline]
            fn is_negative(self) -> bool {
                self >> (<$type>::BITS - 1) == 1
            }
        }
    )*};
}

lane! { u8, 1; u16, 2; u32, 4; u64, 8; }

/// Runs `$body` with `$lane` standing for the lane type of `$bytes` bytes.
macro_rules! with_lane {
    ($bytes:expr, $lane:ident => $body:expr) => {
        match $bytes {
            1 => {
                type $lane = u8;
                $body
            }
            2 => {
                type $lane = u16;
                $body
            }
            4 => {
                type $lane = u32;
                $body
            }
            _ => {
                type $lane = u64;
                $body
            }
        }
    };
}
pub(crate) use with_lane;

/// Interpretation of the lanes of a dtype: whether they are sign and magnitude, and the place of
/// the exponent field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneKind<L> {
    sign_magnitude: bool,
    /// All bits but the sign; 0 for dtypes without an exponent field, so that every lane has
    /// magnitude 0.
    magnitude_mask: L,
    /// Bits below the exponent field.
    mantissa_bits: u32,
}

impl<L: Lane> LaneKind<L> {
    pub(crate) fn of(dtype: Dtype) -> Self {
        let exponent_bits = dtype.exponent_bits();
        let magnitude_mask = exponent_bits.map_or(0, |_| u64::MAX >> (65 - L::BITS));
        Self {
            sign_magnitude: exponent_bits.is_some(),
            magnitude_mask: L::from_u64(magnitude_mask),
            mantissa_bits: L::BITS - 1 - exponent_bits.unwrap_or(0),
        }
    }

    /// The lane without its sign. The exponent field is in its highest bits, so a larger exponent
    /// gives a larger magnitude.
    #[inline]
    pub(crate) fn magnitude(&self, lane: L) -> L {
        lane & self.magnitude_mask
    }

    /// The exponent field, which has at most 11 bits.
    #[inline]
    pub(crate) fn exponent(&self, lane: L) -> usize {
        usize::try_from(self.magnitude(lane).to_u64() >> self.mantissa_bits).unwrap_or(0)
    }

    /// Least magnitude whose exponent field is at least `threshold`.
    pub(crate) fn threshold(&self, threshold: u16) -> L {
        L::from_u64(u64::from(threshold) << self.mantissa_bits)
    }

    pub(crate) fn exponent_bits(&self) -> u32 {
        L::BITS - 1 - self.mantissa_bits
    }

    /// Whether exponents are longer than a byte.
    pub(crate) fn has_long_exponents(&self) -> bool {
        self.exponent_bits() > 8
    }

    /// The highest byte of the lane without its sign: the exponent, with the bits after it if it is
    /// shorter than a byte.
    #[inline]
    pub(crate) fn exponent_byte(&self, lane: L) -> u8 {
        let magnitude = self.magnitude(lane);
        magnitude.wrapping_add(magnitude).byte(size_of::<L>() - 1)
    }

    /// The least [`exponent_byte`](Self::exponent_byte) of lanes whose exponent field is at least
    /// `threshold`; `None` if there are no such lanes.
    pub(crate) fn threshold_byte(&self, threshold: u16) -> Option<u8> {
        u8::try_from(u32::from(threshold) << 8_u32.saturating_sub(self.exponent_bits())).ok()
    }

    /// The key of SPEC section 8.3; the function is its own inverse.
    #[inline]
    pub(crate) fn key(&self, lane: L) -> L {
        if self.sign_magnitude && lane.is_negative() {
            lane ^ self.magnitude_mask
        } else {
            lane
        }
    }

    /// `key(new) - key(old)`, wrapping.
    #[inline]
    pub(crate) fn difference(&self, old: L, new: L) -> L {
        self.key(new).wrapping_sub(self.key(old))
    }

    /// The lane that differs from `old` by `difference`.
    #[inline]
    pub(crate) fn moved(&self, old: L, difference: L) -> L {
        self.key(self.key(old).wrapping_add(difference))
    }

    /// The bits that are split into planes (SPEC section 8.2).
    #[inline]
    pub(crate) fn to_planes(self, lane: L) -> L {
        if self.sign_magnitude {
            lane.rotate_left()
        } else {
            lane
        }
    }

    #[inline]
    pub(crate) fn of_planes(self, lane: L) -> L {
        if self.sign_magnitude {
            lane.rotate_right()
        } else {
            lane
        }
    }
}

/// Maps signed differences to unsigned numbers, small ones first (SPEC section 8.4).
#[inline]
pub(crate) fn zigzag<L: Lane>(difference: L) -> L {
    let doubled = difference.wrapping_add(difference);
    if difference.is_negative() {
        L::from_u64(!doubled.to_u64())
    } else {
        doubled
    }
}

#[inline]
pub(crate) fn unzigzag<L: Lane>(zigzag: L) -> L {
    let half = zigzag.to_u64() >> 1;
    L::from_u64(if zigzag.to_u64() & 1 == 1 {
        !half
    } else {
        half
    })
}

/// Absolute value of a signed difference; for the least difference, 2^(W-1).
#[inline]
pub(crate) fn absolute<L: Lane>(difference: L) -> u64 {
    if difference.is_negative() {
        L::default().wrapping_sub(difference).to_u64()
    } else {
        difference.to_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_lanes_is_that_of_the_numbers() {
        let kind = LaneKind::<u16>::of(Dtype::BF16);
        // -inf, -1, -least, -0, +0, +least, 1, inf as signed keys.
        let lanes = [
            0xFF80, 0xBF80, 0x8001, 0x8000, 0x0000, 0x0001, 0x3F80, 0x7F80,
        ];
        let keys: Vec<i16> = lanes
            .iter()
            .map(|&lane| kind.key(lane).cast_signed())
            .collect();
        assert!(keys.is_sorted());
        assert_eq!(keys[3], -1);
        assert_eq!(keys[4], 0);
        assert_eq!(kind.difference(0x8000, 0x0000), 1);
    }

    #[test]
    fn maps_are_bijective() {
        for dtype in [Dtype::BF16, Dtype::F16, Dtype::I16] {
            let kind = LaneKind::<u16>::of(dtype);
            for lane in 0..=u16::MAX {
                assert_eq!(kind.key(kind.key(lane)), lane);
                assert_eq!(kind.of_planes(kind.to_planes(lane)), lane);
                assert_eq!(unzigzag(zigzag(lane)), lane);
                assert_eq!(kind.moved(0x1234, kind.difference(0x1234, lane)), lane);
            }
        }
        for difference in [0_i64, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(
                unzigzag(zigzag(difference.cast_unsigned())),
                difference.cast_unsigned()
            );
            assert_eq!(
                absolute(difference.cast_unsigned()),
                difference.unsigned_abs()
            );
        }
        assert_eq!(absolute(0x80_u8), 128);
    }

    /// The rows of a table of functions that another reader has made. The published package is
    /// without it.
    fn rows(table: &str) -> Vec<serde_json::Value> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/functions.json");
        let Ok(text) = std::fs::read(path) else {
            return Vec::new();
        };
        let tables: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let rows = tables["tables"][table]["rows"].as_array().unwrap().clone();
        assert!(rows.len() >= 8, "{table}");
        rows
    }

    /// A lane of a row, and what a dtype makes of lanes.
    fn in_row<L: Lane>(row: &serde_json::Value) -> (LaneKind<L>, impl Fn(&serde_json::Value) -> L) {
        let dtype = Dtype::from_name(row["dtype"].as_str().unwrap()).unwrap();
        (LaneKind::of(dtype), |value| {
            L::from_u64(u64::from_str_radix(value.as_str().unwrap(), 16).unwrap())
        })
    }

    type Check = fn(&serde_json::Value);

    #[test]
    fn lanes_are_those_of_the_table() {
        fn check<L: Lane>(row: &serde_json::Value) {
            let (kind, lane) = in_row::<L>(row);
            assert_eq!(kind.key(lane(&row["lane"])), lane(&row["key"]), "{row}");
            assert_eq!(
                kind.to_planes(lane(&row["lane"])),
                lane(&row["rotl"]),
                "{row}"
            );
            assert_eq!(
                kind.of_planes(lane(&row["rotl"])),
                lane(&row["lane"]),
                "{row}"
            );
        }
        fn check_difference<L: Lane>(row: &serde_json::Value) {
            let (kind, lane) = in_row::<L>(row);
            let number = |name: &str| row[name].as_str().unwrap();
            let difference = L::from_u64(number("d").parse::<i64>().unwrap().cast_unsigned());
            assert_eq!(
                kind.difference(lane(&row["old"]), lane(&row["new"])),
                difference,
                "{row}"
            );
            assert_eq!(
                zigzag(difference),
                L::from_u64(number("z").parse().unwrap()),
                "{row}"
            );
            assert_eq!(
                kind.moved(lane(&row["old"]), difference),
                lane(&row["new"]),
                "{row}"
            );
        }
        fn check_members<L: Lane>(row: &serde_json::Value) {
            let (kind, lane) = in_row::<L>(row);
            let numbers = |name: &str| {
                row[name]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|n| n.as_u64().unwrap())
            };
            for (value, context) in row["lanes"]
                .as_array()
                .unwrap()
                .iter()
                .zip(numbers("contexts"))
            {
                let exponent = kind.exponent(lane(value)) as u64;
                let found = numbers("thresholds")
                    .filter(|threshold| *threshold <= exponent)
                    .count();
                assert_eq!(found as u64, context, "{value} in {row}");
            }
        }
        let tables: [(&str, [Check; 4]); 3] = [
            (
                "lanes",
                [check::<u8>, check::<u16>, check::<u32>, check::<u64>],
            ),
            (
                "differences",
                [
                    check_difference::<u8>,
                    check_difference::<u16>,
                    check_difference::<u32>,
                    check_difference::<u64>,
                ],
            ),
            (
                "members",
                [
                    check_members::<u8>,
                    check_members::<u16>,
                    check_members::<u32>,
                    check_members::<u64>,
                ],
            ),
        ];
        for (table, checks) in tables {
            for row in &rows(table) {
                let lane_bytes = Dtype::from_name(row["dtype"].as_str().unwrap())
                    .unwrap()
                    .lane_bytes();
                checks[lane_bytes.ilog2() as usize](row);
            }
        }
    }

    #[test]
    fn the_examples_of_the_specification() {
        assert_eq!(LaneKind::<u16>::of(Dtype::BF16).to_planes(0xBF80), 0x7F01);
        assert_eq!(
            zigzag(LaneKind::<u16>::of(Dtype::F16).difference(0x3C00, 0x3BFE)),
            3
        );
        let kind = LaneKind::<u16>::of(Dtype::BF16);
        assert_eq!(
            (
                kind.exponent(0x3F80),
                kind.exponent(0x3580),
                kind.exponent(0x8000)
            ),
            (127, 107, 0)
        );
        assert_eq!(LaneKind::<u8>::of(Dtype::U8).exponent(0xFF), 0);
        assert_eq!(LaneKind::<u64>::of(Dtype::F64).exponent(u64::MAX), 2047);
    }
}
