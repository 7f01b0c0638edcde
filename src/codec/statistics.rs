//! Figures that the encoder measures before it chooses: entropies, histograms and estimated sizes.
//!
//! Only sizes depend on these figures, never correctness. They use nothing but IEEE additions,
//! multiplications, divisions and exact integer logarithms, so that the same input gives the same
//! link on every machine.
#![expect(
    clippy::cast_precision_loss,
    reason = "estimates of sizes; counts stay far below 2^53"
)]

/// Counts of byte values, in several tables that take turns: a processor must wait before it can
/// add to a place that it has just written.
#[derive(Clone)]
pub(crate) struct ByteHistogram([[u32; 256]; 4]);

impl ByteHistogram {
    pub(crate) fn new() -> Self {
        Self([[0; 256]; 4])
    }

    pub(crate) fn add(&mut self, byte: u8) {
        self.0[0][usize::from(byte)] += 1;
    }

    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        let (fours, rest) = bytes.as_chunks::<4>();
        for four in fours {
            for (counts, &byte) in self.0.iter_mut().zip(four) {
                counts[usize::from(byte)] += 1;
            }
        }
        rest.iter().for_each(|&byte| self.add(byte));
    }

    /// The count of each value.
    pub(crate) fn counts(&self) -> [u64; 256] {
        std::array::from_fn(|value| self.0.iter().map(|counts| u64::from(counts[value])).sum())
    }

    pub(crate) fn add_several(&mut self, byte: u8, count: u64) {
        let place = &mut self.0[0][usize::from(byte)];
        *place = place.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts().iter().sum()
    }

    /// Bits per symbol of an entropy coder that knows the counts; at least 1 unless there is only
    /// one symbol, as for a Huffman code.
    pub(crate) fn huffman_bits(&self) -> f64 {
        let counts = self.counts();
        let total: u64 = counts.iter().sum();
        if total == 0 || counts.contains(&total) {
            return 0.0;
        }
        (entropy_bits(counts.into_iter()) / total as f64).max(1.0)
    }

    /// Bits of these bytes as a stream, which is compressed with a table of codes if that is
    /// shorter.
    pub(crate) fn stream_bits(&self) -> f64 {
        let (length, codes) = (
            float(self.total()),
            self.counts().iter().filter(|&&count| count > 0).count(),
        );
        let table = float(TABLE_BITS + CODE_BITS * codes as u64);
        (8.0 * length).min(table + self.huffman_bits() * length)
    }
}

/// Approximate bits of a table of codes, and of each code in it.
const TABLE_BITS: u64 = 64;
const CODE_BITS: u64 = 4;

/// A count as a figure to estimate with.
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Bits for a sequence with these counts of symbols under an ideal order-0 coder.
pub(crate) fn entropy_bits(counts: impl Iterator<Item = u64> + Clone) -> f64 {
    let total: u64 = counts.clone().sum();
    let of = |count: u64| {
        if count == 0 {
            0.0
        } else {
            count as f64 * log2(count as f64)
        }
    };
    let total_bits = if total == 0 {
        0.0
    } else {
        total as f64 * log2(total as f64)
    };
    total_bits - counts.map(of).sum::<f64>()
}

/// Bits that select `chosen` of `all` lanes.
pub(crate) fn subset_bits(chosen: u64, all: u64) -> f64 {
    entropy_bits([chosen, all.saturating_sub(chosen)].into_iter())
}

/// Logarithm to base 2 of a positive number, the same on every machine (`f64::log2` is not):
/// exponent of the number plus a polynomial in its mantissa, off by less than 0.0001.
pub(crate) fn log2(value: f64) -> f64 {
    let bits = value.to_bits();
    // Eleven bits always fit.
    let exponent = f64::from(i32::try_from((bits >> 52) & 0x7FF).unwrap_or(0) - 1023);
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // atanh series: log2(m) = 2 / ln 2 * (x + x^3/3 + x^5/5 + ...), x = (m - 1) / (m + 1) <= 1/3.
    let x = (mantissa - 1.0) / (mantissa + 1.0);
    let square = x * x;
    exponent
        + x * (2.885_390_08
            + square * (0.961_796_69 + square * (0.577_078_02 + square * 0.412_198_6)))
}

/// Occurrences, changes and sizes of changes of lanes, for each value of the exponent field.
#[derive(Debug, Clone)]
pub(crate) struct ExponentStatistics {
    pub(crate) all: Vec<u64>,
    pub(crate) changed: Vec<u64>,
    /// Sum over changed lanes of the integer logarithm of the difference's magnitude.
    pub(crate) logarithms: Vec<u64>,
}

impl ExponentStatistics {
    pub(crate) fn new(exponents: usize) -> Self {
        Self {
            all: vec![0; exponents],
            changed: vec![0; exponents],
            logarithms: vec![0; exponents],
        }
    }

    /// All counts.
    pub(crate) fn counts(&mut self) -> impl Iterator<Item = &mut u64> {
        [&mut self.all, &mut self.changed, &mut self.logarithms]
            .into_iter()
            .flatten()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let others = [&other.all, &other.changed, &other.logarithms]
            .into_iter()
            .flatten();
        self.counts()
            .zip(others)
            .for_each(|(own, other)| *own += other);
    }

    /// Bits for the positions of the changed lanes, exponent by exponent.
    pub(crate) fn position_bits(&self) -> f64 {
        let changed = self
            .all
            .iter()
            .zip(&self.changed)
            .filter(|(_, changed)| **changed > 0);
        changed
            .map(|(&all, &changed)| subset_bits(changed, all.max(changed)))
            .sum()
    }

    /// Rate of change of an exponent: changed lanes, each weighted with the typical size of its
    /// difference.
    pub(crate) fn weight(&self, exponent: usize) -> f64 {
        let changed = self.changed[exponent];
        if changed == 0 {
            return 0.0;
        }
        // Two to the mean logarithm, linear between powers; the mean is below 64. The mean is of
        // logarithms, not of differences, because single lanes that change sign have huge
        // differences.
        let whole = self.logarithms[exponent] / changed;
        let part = (self.logarithms[exponent] % changed) as f64 / changed as f64;
        changed as f64 * (1_u64 << whole.min(63)) as f64 * (1.0 + part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_close() {
        for i in 1..100_000_u32 {
            let value = f64::from(i) / 7.0;
            assert!((log2(value) - value.log2()).abs() < 0.0001, "{value}");
        }
    }

    #[test]
    fn entropies_are_those_of_the_textbook() {
        assert!((entropy_bits([4, 4, 4, 4].into_iter()) - 32.0).abs() < 0.1);
        assert!((subset_bits(8, 16) - 16.0).abs() < 0.1);
        assert!(subset_bits(0, 16).abs() < 1e-9);
        assert!(subset_bits(16, 16).abs() < 1e-9);
    }
    #[test]
    fn symbols_cost_a_bit_at_least_unless_there_is_one() {
        let bits = |counts: &[u32]| {
            let mut histogram = ByteHistogram::new();
            let bytes: Vec<u8> = (0..)
                .zip(counts)
                .flat_map(|(byte, &count)| (0..count).map(move |_| byte))
                .collect();
            histogram.extend(&bytes);
            assert_eq!(histogram.total(), bytes.len() as u64);
            histogram.huffman_bits()
        };
        let near = |value: f64, expected: f64| {
            assert!((value - expected).abs() < 0.001, "{value}, not {expected}");
        };
        near(bits(&[]), 0.0);
        near(bits(&[7]), 0.0);
        near(bits(&[99, 1]), 1.0);
        near(bits(&[4, 4, 4, 4]), 2.0);
        near(bits(&[8, 4, 2, 2]), 1.75);
    }

    #[test]
    fn rates_and_positions_are_counted_by_exponent() {
        let near = |value: f64, expected: f64| {
            assert!((value - expected).abs() < 0.01, "{value}, not {expected}");
        };
        let mut statistics = ExponentStatistics::new(4);
        (statistics.all, statistics.changed) = (vec![16, 16, 4, 4], vec![8, 0, 4, 8]);
        // Mean logarithms of 0, -, 2.5 and 1.
        statistics.logarithms = vec![0, 0, 10, 8];
        near(statistics.weight(0), 8.0);
        near(statistics.weight(1), 0.0);
        near(statistics.weight(2), 4.0 * 4.0 * 1.5);
        near(statistics.weight(3), 8.0 * 2.0);
        // 8 of 16; all or none of the others, also where a sample has seen fewer lanes than
        // changed.
        near(statistics.position_bits(), 16.0);
        let mut sum = statistics.clone();
        sum.add(&statistics);
        assert_eq!(
            (sum.all, sum.changed, sum.logarithms),
            (vec![32, 32, 8, 8], vec![16, 0, 8, 16], vec![0, 0, 20, 16])
        );
    }
}
