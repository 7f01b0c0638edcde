//! Numbers that are distributed like weights, and steps like those of training.

use deltachain_testkit::Random;

/// Exponent field of the largest numbers: they are below 2^-3.
const TOP_EXPONENT: u16 = 123;

/// Probability that a number changes, by magnitude, out of 2^24.
struct Step([u32; 10]);

impl Step {
    /// Makes a step that changes about this part of all numbers. The largest half of them change
    /// with some probability p, the next quarter with 2 p, and so on up to 2^9 p: on the whole with
    /// 5 p.
    fn new(density: f64) -> Self {
        let largest = density / 5.0 * f64::from(1_u32 << 24);
        Self(std::array::from_fn(|below| {
            limit(largest * f64::from(1_u32 << below))
        }))
    }

    /// Returns a number after the step: the same number, or a neighbour, mostly one unit in the
    /// last place away.
    fn of(&self, lane: u16, [b4, b5, b6, b7]: [u8; 4]) -> u16 {
        let below = TOP_EXPONENT.saturating_sub(lane >> 7 & 0xFF);
        let limit = self.0[usize::from(below).min(self.0.len() - 1)];
        let distance = 1 + u16::from(b7 >= 0xF0);
        let moved = if b7 & 1 == 0 {
            lane + distance
        } else {
            lane - distance
        };
        if u32::from_le_bytes([b4, b5, b6, 0]) < limit {
            moved
        } else {
            lane
        }
    }
}

/// Makes BF16 weights of all magnitudes, each power of two half as frequent as the next larger one,
/// and the same weights after a step. The step changes twice as large a part of the weights from
/// one power of two to the next smaller one, mostly by one unit in the last place.
pub(crate) fn neighbours(seed: u64, lanes: u64, density: f64) -> (Vec<u8>, Vec<u8>) {
    let step = Step::new(density);
    let mut old = Vec::new();
    let mut new = Vec::new();
    let mut random = Random(seed << 32);
    for _ in 0..lanes {
        let [b0, b1, b2, b3, rest @ ..] = random.next().to_le_bytes();
        let below = u16::from_le_bytes([b0, b1]).leading_zeros();
        let exponent = TOP_EXPONENT - u16::try_from(below).unwrap_or_default();
        let lane = u16::from(b2 & 0x80) << 8 | exponent << 7 | u16::from(b3 & 0x7F);
        old.extend(lane.to_le_bytes());
        new.extend(step.of(lane, rest).to_le_bytes());
    }
    (old, new)
}

/// Returns such weights after one more step.
pub(crate) fn next(weights: &[u8], seed: u64, density: f64) -> Vec<u8> {
    let step = Step::new(density);
    let mut random = Random(seed << 32);
    let moved = weights.as_chunks().0.iter().map(|&lane| {
        let [_, _, _, _, rest @ ..] = random.next().to_le_bytes();
        step.of(u16::from_le_bytes(lane), rest).to_le_bytes()
    });
    moved.flatten().collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a probability, at most 2^24"
)]
fn limit(value: f64) -> u32 {
    value.min(f64::from(1_u32 << 24)) as u32
}
