//! Which context a lane is a member of (SPEC section 7.1), for single lanes and counted over blocks.

use crate::codec::lane::{Kind, Lane};
use crate::format::segment::MAX_CONTEXTS;

/// Lanes that are counted at once: enough for the compiler to use wide registers, few enough that most blocks of a
/// sparse part have no coded lane.
pub(crate) const BLOCK: usize = 64;

/// The contexts of one part.
#[derive(Debug, Clone)]
pub(crate) struct Contexts<L> {
    kind: Kind<L>,
    /// Least magnitude of contexts 1, 2, ...
    least: Vec<L>,
}

impl<L: Lane> Contexts<L> {
    pub(crate) fn new(kind: Kind<L>, thresholds: &[u16]) -> Self {
        Self { kind, least: thresholds.iter().map(|&threshold| kind.threshold(threshold)).collect() }
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

    /// Members of each context among at most [`BLOCK`] lanes.
    pub(crate) fn count(&self, block: &[L::Bytes]) -> [u32; MAX_CONTEXTS] {
        let mut counts = [0; MAX_CONTEXTS];
        // Members of context c and all above; the differences are the members of c.
        let mut above = u32::try_from(block.len()).unwrap_or(u32::MAX);
        for (context, &least) in self.least.iter().enumerate() {
            // A block's count fits a byte, which keeps the sum narrow and fast.
            let next: u8 = block.iter().map(|&bytes| u8::from(self.kind.magnitude(L::load(bytes)) >= least)).sum();
            counts[context] = above - u32::from(next);
            above = u32::from(next);
            if above == 0 {
                return counts;
            }
        }
        counts[self.least.len()] = above;
        counts
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
