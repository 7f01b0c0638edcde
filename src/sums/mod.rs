//! Sums: two numbers for any lanes of a piece, which add up, so that lanes can be proven without
//! reading the rest (SPEC section 24).

mod lanes;
mod number;
mod record;
mod rows;
mod tables;

pub(crate) use lanes::of_lanes;
pub use number::Sums;
pub use record::{LinkSums, PieceSums};

use crate::sums::tables::TABLES;

/// The fixed numbers by which units are multiplied, in the order of SPEC section 24.2: for programs
/// that compute sums elsewhere, such as on a device.
pub fn numbers() -> impl Iterator<Item = u32> {
    let of = |table: &'static [[u32; 2]]| {
        [0, 1]
            .into_iter()
            .flat_map(|k| table.iter().map(move |pair| pair[k]))
    };
    of(&TABLES.low).chain(of(&TABLES.high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sums::tables::{MODULUS, ROW, ROW_BYTES};

    const P: u64 = MODULUS as u64;

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

    /// SPEC section 24.2, word by word.
    fn plain(begin: u64, bytes: &[u8]) -> Sums {
        let of = |k: usize| {
            let product = |(byte, place): (&u8, u64)| {
                let low = TABLES.low[usize::try_from((place >> 1) % ROW as u64).unwrap()][k];
                let high = TABLES.high[usize::try_from(place >> 13).unwrap()][k];
                (u64::from(*byte) << (8 * (place % 2))) % P * u64::from(low) % P * u64::from(high)
                    % P
            };
            u32::try_from(bytes.iter().zip(begin..).map(product).sum::<u64>() % P).unwrap()
        };
        Sums::new([of(0), of(1)]).unwrap()
    }

    fn noise(seed: u8, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new()
            .update(&[seed])
            .finalize_xof()
            .fill(&mut bytes);
        bytes
    }

    #[test]
    fn bytes_at_any_place_are_multiplied_with_their_numbers() {
        let bytes = noise(1, 12 * ROW_BYTES);
        let full = vec![0xFF; 12 * ROW_BYTES];
        for begin in [
            0,
            2,
            62,
            64,
            66,
            8190,
            8192,
            3 * 8192 + 100,
            (1 << 24) - 12 * 8192,
        ] {
            for length in [
                0,
                1,
                2,
                3,
                62,
                63,
                64,
                65,
                127,
                128,
                129,
                8191,
                8192,
                8193,
                17 * 1024,
                70_001,
                12 * 8192,
            ] {
                for bytes in [&bytes, &full] {
                    assert_eq!(
                        Sums::of_bytes(begin, &bytes[..length]),
                        plain(begin, &bytes[..length]),
                        "{begin} {length}"
                    );
                }
            }
        }
        // Whatever lies beyond the piece.
        assert_eq!(Sums::of_bytes(1 << 24, &bytes), Sums::ZERO);
    }

    #[test]
    fn lanes_of_any_width_are_the_bytes_that_they_are() {
        let bytes: Vec<u8> = (0_u32..40_000)
            .map(|byte| (byte * 7 % 251).to_le_bytes()[0])
            .collect();
        let whole = Sums::of_bytes(0, &bytes);
        for width in [1, 2, 4, 8] {
            let numbers: Vec<u32> = (0..u32::try_from(bytes.len() / width).unwrap()).collect();
            assert_eq!(Sums::of_lanes(width, &numbers, &bytes), whole, "{width}");
            let (few, rest): (Vec<u32>, Vec<u32>) =
                numbers.iter().partition(|&&number| number % 5 == 0);
            let values = |numbers: &[u32]| {
                let lane = |&number: &u32| &bytes[number as usize * width..][..width];
                numbers.iter().flat_map(lane).copied().collect::<Vec<u8>>()
            };
            let few = Sums::of_lanes(width, &few, &values(&few));
            let rest = Sums::of_lanes(width, &rest, &values(&rest));
            assert_eq!((few.plus(rest), whole.minus(few)), (whole, rest), "{width}");
        }
        assert_eq!(
            Sums::of_bytes(0, &bytes[..8192]).plus(Sums::of_bytes(8192, &bytes[8192..])),
            whole
        );
    }
}
