//! Sums: two numbers for any lanes of a piece, which add up, so that lanes can be proven without reading the rest
//! (SPEC-in-place section 24).

mod record;
mod state;
mod tables;

pub use record::{LinkSums, PieceSums};
pub use state::StateSums;

use crate::sums::tables::TABLES;

/// What sums are taken modulo: a prime.
pub const MODULUS: u32 = (1 << 31) - 1;

/// The fixed numbers that units are multiplied with, in the order of SPEC-in-place section 24.2: for programs that compute
/// sums elsewhere, such as on a device.
pub fn numbers() -> impl Iterator<Item = u32> {
    TABLES.low.iter().chain(&TABLES.high).flatten().copied()
}

/// Units of a row: their products are added before they are reduced.
const ROW: usize = 1 << 12;

/// The sums of some bytes of a piece (SPEC-in-place section 24.2). Those of different bytes of one piece add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Sums([u32; 2]);

impl Sums {
    /// Of no bytes, and of zeros.
    pub const ZERO: Self = Self([0; 2]);

    /// From two numbers; `None` unless both are below the [modulus](MODULUS).
    pub fn new(numbers: [u32; 2]) -> Option<Self> {
        numbers.iter().all(|&number| number < MODULUS).then_some(Self(numbers))
    }

    /// The two numbers.
    pub fn numbers(self) -> [u32; 2] {
        self.0
    }

    /// Of the bytes of both, which are different bytes of one piece.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, |own, other| own + other)
    }

    /// Of the bytes that are left without those of `other`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.with(other, |own, other| own + u64::from(MODULUS) - other)
    }

    fn with(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self([0, 1].map(|k| reduced(join(self.0[k].into(), other.0[k].into()))))
    }

    /// Of bytes that stand one after another, the first at byte `begin` of the piece, which is even.
    pub fn of_bytes(begin: u64, bytes: &[u8]) -> Self {
        let mut sums = Self::ZERO;
        let (units, rest) = bytes.as_chunks::<2>();
        let last = rest.first().map(|&byte| [byte, 0]);
        let mut row = Row::default();
        for (unit, number) in units.iter().chain(&last).zip(begin / 2..) {
            if number % ROW as u64 == 0 {
                sums = sums.plus(row.end());
            }
            row.add(number, u16::from_le_bytes(*unit).into());
        }
        sums.plus(row.end())
    }

    /// Of lanes of `lane_bytes` bytes, by their numbers in the piece, ascending, and their values, little-endian.
    pub fn of_lanes(lane_bytes: usize, numbers: &[u32], values: &[u8]) -> Self {
        let mut sums = Self::ZERO;
        let mut row = Row::default();
        for (&number, value) in numbers.iter().zip(values.chunks_exact(lane_bytes)) {
            let begin = u64::from(number) * lane_bytes as u64;
            for (&byte, place) in value.iter().zip(begin..) {
                if place / 2 / ROW as u64 != row.number {
                    sums = sums.plus(row.end());
                }
                row.add(place / 2, u64::from(byte) << (8 * (place % 2)));
            }
        }
        sums.plus(row.end())
    }
}

/// Units of one row that have been added: at most as many as it has, so that nothing overflows.
#[derive(Default)]
struct Row {
    number: u64,
    products: [u64; 2],
}

impl Row {
    /// Adds what stands at a unit of this row, or of the next one if the last has been ended.
    fn add(&mut self, unit: u64, value: u64) {
        self.number = unit / ROW as u64;
        // A piece has 2^23 units.
        let place = usize::try_from(unit % ROW as u64).unwrap_or(0);
        for (products, low) in self.products.iter_mut().zip(&TABLES.low) {
            *products += value * u64::from(low[place]);
        }
    }

    /// Its sums; nothing has been added then.
    fn end(&mut self) -> Sums {
        let number = usize::try_from(self.number).unwrap_or(usize::MAX);
        let products = std::mem::take(&mut self.products);
        let of = |k: usize| TABLES.high[k].get(number).map_or(0, |&high| reduced(products[k] % P * u64::from(high)));
        Sums([of(0), of(1)])
    }
}

/// The modulus, for products.
const P: u64 = MODULUS as u64;

/// The least residue.
fn reduced(number: u64) -> u32 {
    // Below the modulus, which is a `u32`.
    u32::try_from(number % P).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        let rows: [(&[u8], u64, [u32; 2]); 5] = [
            (&[1], 0, [1_403_049_672, 939_181_040]),
            (&[0, 1], 0, [550_946_983, 2_059_661_423]),
            (&[0x80, 0x3F], 0, [1_699_136_892, 865_739_717]),
            (&[0x80, 0x3F], 8192, [2_010_498_579, 1_697_666_059]),
            (&[0, 0xFF], (1 << 24) - 2, [2_120_037_275, 1_049_725_627]),
        ];
        for (bytes, begin, expected) in rows {
            assert_eq!(Sums::of_bytes(begin, bytes).numbers(), expected);
        }
    }

    #[test]
    fn lanes_of_any_width_are_the_bytes_that_they_are() {
        let bytes: Vec<u8> = (0_u32..40_000).map(|byte| (byte * 7 % 251).to_le_bytes()[0]).collect();
        let whole = Sums::of_bytes(0, &bytes);
        for width in [1, 2, 4, 8] {
            let numbers: Vec<u32> = (0..u32::try_from(bytes.len() / width).unwrap()).collect();
            assert_eq!(Sums::of_lanes(width, &numbers, &bytes), whole, "{width}");
            let (few, rest): (Vec<u32>, Vec<u32>) = numbers.iter().partition(|&&number| number % 5 == 0);
            let values = |numbers: &[u32]| {
                let lane = |&number: &u32| &bytes[number as usize * width..][..width];
                numbers.iter().flat_map(lane).copied().collect::<Vec<u8>>()
            };
            let few = Sums::of_lanes(width, &few, &values(&few));
            let rest = Sums::of_lanes(width, &rest, &values(&rest));
            assert_eq!((few.plus(rest), whole.minus(few)), (whole, rest), "{width}");
        }
        assert_eq!(Sums::of_bytes(0, &bytes[..8192]).plus(Sums::of_bytes(8192, &bytes[8192..])), whole);
    }
}
