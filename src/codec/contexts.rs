//! Which context a lane is a member of (SPEC section 7.1), for single lanes and counted over blocks.

use crate::codec::blocks::{BLOCK, bits};
use crate::codec::lane::{Kind, Lane};
use crate::format::segment::MAX_CONTEXTS;

/// A one in the place of one context: added up, they count the members of all contexts at once.
type OneHot = [u8; MAX_CONTEXTS];

/// The contexts of one part.
#[derive(Debug, Clone)]
pub(crate) struct Contexts<L> {
    kind: Kind<L>,
    /// Least magnitude of contexts 1, 2, ...
    least: Vec<L>,
    /// By exponent field.
    ones: Vec<OneHot>,
}

impl<L: Lane> Contexts<L> {
    pub(crate) fn new(kind: Kind<L>, thresholds: &[u16]) -> Self {
        let least: Vec<L> = thresholds.iter().map(|&threshold| kind.threshold(threshold)).collect();
        let exponents = kind.exponents();
        let mut ones = Vec::with_capacity(exponents);
        for context in 0..=thresholds.len() {
            let end = thresholds.get(context).map_or(exponents, |&end| exponents.min(usize::from(end)));
            let mut one = OneHot::default();
            one[context] = 1;
            ones.resize(end.max(ones.len()), one);
        }
        Self { kind, least, ones }
    }

    /// Number of contexts.
    pub(crate) fn len(&self) -> usize {
        self.least.len() + 1
    }

    /// The context of a lane of the base.
    pub(crate) fn of(&self, lane: L) -> usize {
        let magnitude = self.kind.magnitude(lane);
        self.least.iter().take_while(|&&least| least <= magnitude).count()
    }

    /// Members of each context in a block.
    pub(crate) fn count(&self, block: &[L::Bytes]) -> [u32; MAX_CONTEXTS] {
        // Several sums, none of which has to wait for the other.
        let mut sums = [OneHot::default(); 4];
        for lanes in block.chunks(sums.len()) {
            for (sum, &lane) in sums.iter_mut().zip(lanes) {
                let ones = &self.ones[self.kind.exponent(L::load(lane))];
                sum.iter_mut().zip(ones).for_each(|(sum, one)| *sum += one);
            }
        }
        let mut counts = [0; MAX_CONTEXTS];
        for sum in sums {
            counts.iter_mut().zip(sum).for_each(|(count, sum)| *count += u32::from(sum));
        }
        counts
    }

    /// The members of a context in a block.
    pub(crate) fn members(&self, context: usize, block: &[L::Bytes]) -> u64 {
        let least = context.checked_sub(1).map_or(L::default(), |before| self.least[before]);
        let next = self.least.get(context).copied();
        let mut flags = [0; BLOCK];
        for (flag, &lane) in flags.iter_mut().zip(block) {
            let magnitude = self.kind.magnitude(L::load(lane));
            *flag = u8::from((magnitude >= least) & next.is_none_or(|next| magnitude < next));
        }
        bits(&flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dtype;

    #[test]
    fn counting_a_block_equals_asking_each_lane() {
        let kind = Kind::<u16>::of(Dtype::BF16);
        for thresholds in [&[][..], &[0], &[256], &[0, 0, 100, 100, 120, 256], &[120; 15]] {
            let contexts = Contexts::new(kind, thresholds);
            for seed in 0..50_u16 {
                let block: Vec<[u8; 2]> =
                    (0..64_u16).map(|i| (i * 257).wrapping_add(seed.wrapping_mul(40_503)).to_le_bytes()).collect();
                let mut expected = [0; MAX_CONTEXTS];
                for &lane in &block {
                    expected[contexts.of(u16::load(lane))] += 1;
                }
                assert_eq!(contexts.count(&block), expected);
            }
        }
    }

    #[test]
    fn the_example_of_the_specification() {
        let contexts = Contexts::new(Kind::<u16>::of(Dtype::BF16), &[100, 110]);
        assert_eq!([0x3F80, 0x3580, 0].map(|lane| contexts.of(lane)), [2, 1, 0]);
    }
}
