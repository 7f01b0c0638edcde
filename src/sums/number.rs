//! The two numbers of sums, and their addition over rows.

use crate::sums::tables::{MODULUS, TABLES};

/// The sums of some bytes of a piece (SPEC section 24.2). The sums of different bytes of one piece
/// can be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Sums([u32; 2]);

impl Sums {
    /// The sums of no bytes, and of zeros.
    pub const ZERO: Self = Self([0; 2]);

    /// Creates sums from two numbers; `None` unless both are below the modulus, 2^31 - 1.
    pub fn new(numbers: [u32; 2]) -> Option<Self> {
        numbers
            .iter()
            .all(|&number| number < MODULUS)
            .then_some(Self(numbers))
    }

    /// The two numbers.
    pub fn numbers(self) -> [u32; 2] {
        self.0
    }

    /// The sums of the bytes of both, which are different bytes of one piece.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, |own, other| own + other)
    }

    /// The sums of the remaining bytes without the bytes of `other`.
    #[must_use]
    pub(crate) fn minus(self, other: Self) -> Self {
        self.with(other, |own, other| own + u64::from(MODULUS) - other)
    }

    fn with(self, other: Self, join: impl Fn(u64, u64) -> u64) -> Self {
        Self([0, 1].map(|k| reduced(join(self.0[k].into(), other.0[k].into()))))
    }
}

/// Sums of rows, added up.
pub(super) struct Total([u64; 2]);

impl Total {
    pub(super) const ZERO: Self = Self([0; 2]);

    /// Adds a row, given by the sums of the products of its units with their numbers, which are
    /// below 2^59.
    pub(super) fn add(&mut self, row: u64, products: [u64; 2]) {
        // A piece has no more rows.
        let Some(high) = usize::try_from(row)
            .ok()
            .and_then(|row| TABLES.high.get(row))
        else {
            return;
        };
        for ((total, products), &high) in self.0.iter_mut().zip(products).zip(high) {
            // Folding keeps the residue. The inner result is below 2^32, and the outer one below
            // 2^33.
            let folded = |number: u64| (number & P) + (number >> 31);
            *total += folded(folded(products) * u64::from(high));
        }
    }

    pub(super) fn sums(self) -> Sums {
        Sums(self.0.map(reduced))
    }
}

/// The modulus, for products.
const P: u64 = MODULUS as u64;

/// The least residue.
fn reduced(number: u64) -> u32 {
    // Below the modulus, which is a `u32`.
    u32::try_from(number % P).unwrap_or(0)
}
