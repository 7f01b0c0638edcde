//! The fixed numbers that units are multiplied with (SPEC-in-place section 24.2).

use std::sync::LazyLock;

use crate::sums::{MODULUS, ROW};

/// What the numbers are made from.
const CONTEXT: &str = "deltachain 2026-11-25 sums v1";

/// Rows of a piece.
const ROWS: usize = 1 << 11;

/// The numbers for each of the two sums.
pub(super) struct Tables {
    /// By the place of a unit in its row.
    pub(super) low: [Vec<u32>; 2],
    /// By row.
    pub(super) high: [Vec<u32>; 2],
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
    Tables { low: [next(ROW), next(ROW)], high: [next(ROWS), next(ROWS)] }
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Digest;

    #[test]
    fn the_numbers_of_the_specification() {
        let all = [&TABLES.low[0], &TABLES.low[1], &TABLES.high[0], &TABLES.high[1]];
        let bytes: Vec<u8> = all.into_iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
        let text = include_str!("../../SPEC-in-place.md");
        assert!(text.contains(&Digest::of_bytes(&bytes).to_string()));
        for table in all {
            assert!(text.contains(&format!("| {}, {}, {} |", table[0], table[1], table[2])));
        }
    }
}
