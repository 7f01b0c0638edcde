//! Which context a lane is a member of (SPEC section 7.1), for whole blocks.

use crate::codec::blocks::{Block, Compare};
use crate::codec::lane::{Kind, Lane};

/// The contexts of one part.
#[derive(Debug, Clone)]
pub(crate) struct Contexts<L> {
    kind: Kind<L>,
    /// The magnitude that each context ends before. The last one ends before what no magnitude is, having no sign.
    ends: Vec<L>,
}

impl<L: Lane> Contexts<L> {
    pub(crate) fn new(kind: Kind<L>, thresholds: &[u16]) -> Self {
        let mut ends: Vec<L> = thresholds.iter().map(|&threshold| kind.threshold(threshold)).collect();
        ends.push(L::from_u64(u64::MAX));
        Self { kind, ends }
    }

    /// The context of a lane of the base.
    #[inline(always)]
    pub(crate) fn of(&self, lane: L) -> usize {
        let magnitude = self.kind.magnitude(lane);
        self.ends.iter().map(|&end| usize::from(end <= magnitude)).sum()
    }

    /// Calls `each` with every context and its members in a block of the base, of which the lanes of the set `present` are
    /// there.
    #[inline(always)]
    pub(crate) fn each(&self, compare: impl Compare, block: &Block<L>, present: u64, mut each: impl FnMut(usize, u64)) {
        let kind = self.kind;
        let mut magnitudes = *block;
        magnitudes.iter_mut().for_each(|lane| *lane = kind.magnitude(L::load(*lane)).store());
        let mut left = present;
        for (context, &end) in self.ends.iter().enumerate() {
            let beyond = left & compare.at_least(&magnitudes, end);
            each(context, left & !beyond);
            left = beyond;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::blocks::{Portable, padded};
    use crate::tensor::Dtype;

    #[test]
    fn the_example_of_the_specification() {
        let contexts = Contexts::new(Kind::<u16>::of(Dtype::BF16), &[100, 110]);
        let block = padded::<u16>(&[0x3F80_u16, 0x3580, 0].map(Lane::store));
        let mut members = Vec::new();
        contexts.each(Portable, &block, 0b111, |context, set| members.push((context, set)));
        assert_eq!(members, [(0, 0b100), (1, 0b010), (2, 0b001)]);
    }
}
