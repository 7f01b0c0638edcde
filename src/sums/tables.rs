//! The fixed numbers by which units are multiplied (SPEC section 24.2).

use std::sync::LazyLock;

use crate::codec::blocks::{BLOCK, Factors};

/// The modulus of the sums: a prime.
pub(super) const MODULUS: u32 = (1 << 31) - 1;

/// Units of a row: their products are added before they are reduced.
pub(super) const ROW: usize = 1 << 12;
pub(super) const ROW_BYTES: usize = 2 * ROW;

/// The context of the key derivation that the numbers are made from.
const CONTEXT: &str = "deltachain 2026-11-25 sums v1";

/// Rows of a piece.
const ROWS: usize = 1 << 11;

/// The numbers for the two sums.
pub(super) struct Tables {
    /// For both sums, by the place of a unit in its row.
    pub(super) low: Vec<[u32; 2]>,
    /// The numbers of `low`, arranged for blocks of units.
    pub(super) factors: Vec<Factors>,
    /// For both sums, by row.
    pub(super) high: Vec<[u32; 2]>,
}

pub(super) static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut output = blake3::Hasher::new_derive_key(CONTEXT).finalize_xof();
    let mut numbers = std::iter::from_fn(|| {
        let mut bytes = [0; 4];
        output.fill(&mut bytes);
        Some(u32::from_le_bytes(bytes) & MODULUS)
    })
    .filter(|&number| number != 0 && number != MODULUS);
    let mut next = |count| numbers.by_ref().take(count).collect::<Vec<u32>>();
    let (low, high) = ([next(ROW), next(ROW)], [next(ROWS), next(ROWS)]);
    let factors = (0..ROW).step_by(BLOCK / 2).map(|block| {
        let place = |odd, number| block + 4 * number + odd;
        let two =
            |low: &[u32], place: usize| u64::from(low[place]) | u64::from(low[place + 2]) << 32;
        low.each_ref()
            .map(|low| [0, 1].map(|odd| std::array::from_fn(|number| two(low, place(odd, number)))))
    });
    let factors = factors.collect();
    let both = |[first, second]: [Vec<u32>; 2]| {
        first
            .into_iter()
            .zip(second)
            .map(<[u32; 2]>::from)
            .collect()
    };
    Tables {
        low: both(low),
        factors,
        high: both(high),
    }
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Digest;

    #[test]
    fn the_numbers_of_the_specification() {
        let of =
            |both: &[[u32; 2]], k: usize| both.iter().map(|both| both[k]).collect::<Vec<u32>>();
        let all = [
            of(&TABLES.low, 0),
            of(&TABLES.low, 1),
            of(&TABLES.high, 0),
            of(&TABLES.high, 1),
        ];
        let bytes: Vec<u8> = all
            .iter()
            .flatten()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        assert_eq!(crate::sums::numbers().collect::<Vec<u32>>(), all.concat());
        let text = include_str!("../../spec/in-place.md");
        assert!(text.contains(&Digest::of_bytes(&bytes).to_string()));
        for table in all {
            assert!(text.contains(&format!("| {}, {}, {} |", table[0], table[1], table[2])));
        }
    }
}
