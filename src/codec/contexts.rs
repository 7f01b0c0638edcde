//! The contexts that lanes are members of (SPEC section 7.1), for a stretch of lanes at once.

use crate::codec::blocks::{BLOCK, BLOCKS, Block, Compare, first, padded, select};
use crate::codec::lane::{Lane, LaneKind};
use crate::format::segment::MAX_CONTEXTS;

/// The contexts of one part.
#[derive(Debug, Clone)]
pub(crate) struct Contexts<L> {
    kind: LaneKind<L>,
    /// The key before which each context ends, except the last one with members; unused entries
    /// have the maximum.
    ends: [u8; MAX_CONTEXTS - 1],
    /// Number of contexts that have an end; the one after them is the last with members.
    ended: usize,
    /// 255 minus each end: one comparison with these numbers finds the ends that a key has passed.
    inverted: Block<u8>,
    /// The magnitudes before which contexts end, if exponents do not fit in a key.
    long: Vec<L>,
}

impl<L: Lane> Contexts<L> {
    /// The contexts of thresholds that have been checked: ascending, fewer than [`MAX_CONTEXTS`].
    pub(crate) fn new(kind: LaneKind<L>, thresholds: &[u16]) -> Self {
        let (mut ends, mut ended) = ([u8::MAX; MAX_CONTEXTS - 1], 0);
        let mut long = Vec::new();
        for (end, (context, &threshold)) in ends.iter_mut().zip((1..).zip(thresholds)) {
            let key = if kind.has_long_exponents() {
                long.push(kind.threshold(threshold));
                Some(context)
            } else {
                kind.threshold_byte(threshold)
            };
            // No exponent is that high.
            let Some(key) = key else { break };
            *end = key;
            ended += 1;
        }
        let mut inverted = [[0]; BLOCK];
        inverted
            .iter_mut()
            .zip(ends)
            .for_each(|(inverted, end)| *inverted = [!end]);
        Self {
            kind,
            ends,
            ended,
            inverted,
            long,
        }
    }

    /// The key that separates lanes: the first byte of the exponent, or the context where that byte
    /// is not enough.
    #[inline(always)]
    fn key(&self, lane: L) -> u8 {
        if self.long.is_empty() {
            self.kind.exponent_byte(lane)
        } else {
            self.long_key(lane)
        }
    }

    #[inline(always)]
    fn long_key(&self, lane: L) -> u8 {
        let magnitude = self.kind.magnitude(lane);
        self.long
            .iter()
            .map(|&end| u8::from(end <= magnitude))
            .sum()
    }

    /// The key of each lane of a block. The kind of key is decided once for the block.
    #[inline(always)]
    fn keys(&self, block: &Block<L>) -> Block<u8> {
        if self.long.is_empty() {
            block.map(|lane| [self.kind.exponent_byte(L::load(lane))])
        } else {
            block.map(|lane| [self.long_key(L::load(lane))])
        }
    }

    /// The context of a lane of the base.
    #[inline(always)]
    pub(crate) fn of(&self, compare: impl Compare, lane: L) -> usize {
        let passed = compare.at_least(&self.inverted, !self.key(lane)) & first(self.ended);
        passed.count_ones() as usize
    }

    /// The context of each lane of a block of the base.
    #[inline(always)]
    pub(crate) fn of_block(&self, block: &Block<L>) -> [u8; BLOCK] {
        let keys = self.keys(block);
        let mut contexts = [0; BLOCK];
        for &end in &self.ends[..self.ended] {
            contexts
                .iter_mut()
                .zip(&keys)
                .for_each(|(context, &[key])| *context += u8::from(end <= key));
        }
        contexts
    }

    /// Finds the members of each context among the lanes of a stretch of the base, at most
    /// [`STRETCH`] lanes.
    ///
    /// [`STRETCH`]: crate::codec::blocks::STRETCH
    #[inline(always)]
    pub(crate) fn find(&self, compare: impl Compare, lanes: &[L::Bytes], found: &mut Members) {
        let blocks = lanes.len().div_ceil(BLOCK).min(BLOCKS);
        for (keys, lanes) in found.keys.iter_mut().zip(lanes.chunks(BLOCK)) {
            *keys = self.keys(&padded::<L>(lanes));
            // Missing lanes are beyond all contexts.
            keys[lanes.len()..].fill([u8::MAX]);
        }
        let Members {
            keys,
            from,
            counts,
            absent,
        } = found;
        let from = &mut from[..self.ended + 2];
        for (from, &end) in from[1..].iter_mut().zip(&self.ends[..self.ended]) {
            // No set has more than 64 members, here and below.
            let mut sum = 0;
            let (sums, without) = from.sums.split_at_mut(blocks);
            for ((set, sum_until), keys) in from.sets.iter_mut().zip(sums).zip(&*keys) {
                *set = compare.at_least(keys, end);
                sum += u16::try_from(set.count_ones()).unwrap_or(0);
                *sum_until = sum;
            }
            without.fill(0);
        }
        *absent = BLOCKS - blocks;
        *counts = [0; MAX_CONTEXTS];
        let Some(last) = blocks.checked_sub(1) else {
            return;
        };
        from[0] = From::ALL;
        from[0].sums[blocks..].fill(0);
        let beyond = &mut from[self.ended + 1];
        *beyond = From::NONE;
        let there = first(lanes.len() - last * BLOCK);
        beyond.sets[last] = !there;
        beyond.sums[last] = u16::try_from(there.count_zeros()).unwrap_or(0);
        for (count, pair) in counts.iter_mut().zip(from.windows(2)) {
            *count = pair[0].sums[last] - pair[1].sums[last];
        }
    }
}

/// The members of each context in a stretch of lanes.
pub(crate) struct Members {
    keys: [Block<u8>; BLOCKS],
    /// For each context, its lanes and those of all contexts after it. Then the missing lanes.
    from: [From; MAX_CONTEXTS + 1],
    /// Number of members of each context.
    counts: [u16; MAX_CONTEXTS],
    /// Number of blocks that the stretch lacks compared with a full one.
    absent: usize,
}

/// Lanes of a stretch.
#[derive(Clone, Copy)]
struct From {
    /// The set of lanes in each block.
    sets: [u64; BLOCKS],
    /// Number of members up to the end of each block; 0 where there is no block.
    sums: [u16; BLOCKS],
}

impl From {
    const NONE: Self = Self {
        sets: [0; BLOCKS],
        sums: [0; BLOCKS],
    };

    const ALL: Self = {
        let mut all = Self {
            sets: [u64::MAX; BLOCKS],
            sums: [64; BLOCKS],
        };
        let mut block = 1;
        while block < BLOCKS {
            all.sums[block] += all.sums[block - 1];
            block += 1;
        }
        all
    };
}

impl Members {
    pub(crate) fn new() -> Self {
        Self {
            keys: [[[0]; BLOCK]; BLOCKS],
            from: [From::NONE; MAX_CONTEXTS + 1],
            counts: [0; MAX_CONTEXTS],
            absent: BLOCKS,
        }
    }

    /// Number of members of a context.
    pub(crate) fn count(&self, context: usize) -> u32 {
        self.counts[context].into()
    }

    /// The members of a context, in order.
    #[inline(always)]
    pub(crate) fn of(&self, context: usize) -> MemberCursor<'_> {
        let (from, beyond) = (&self.from[context], &self.from[context + 1]);
        MemberCursor {
            from,
            beyond,
            absent: self.absent,
            block: BLOCKS - 1,
            set: 0,
            begin: 0,
            end: 0,
        }
    }

    /// Number of members before a lane, which is a member itself.
    #[inline(always)]
    pub(crate) fn rank(&self, context: usize, lane: usize) -> u32 {
        let (from, beyond) = (&self.from[context], &self.from[context + 1]);
        let block = lane / BLOCK % BLOCKS;
        let from_lane = (from.sets[block] & !beyond.sets[block]) >> (lane % BLOCK);
        u32::from(from.sums[block] - beyond.sums[block]) - from_lane.count_ones()
    }
}

/// A cursor over the members of a context, by their ranks.
pub(crate) struct MemberCursor<'a> {
    from: &'a From,
    beyond: &'a From,
    absent: usize,
    /// The block of the member that was found last; the last block at the beginning, so that the
    /// first block follows.
    block: usize,
    /// The members of that block, the rank of the first of them, and the rank that the next block
    /// begins with.
    set: u64,
    begin: u16,
    end: u16,
}

impl MemberCursor<'_> {
    /// Finds the lane of the member with this rank. Ranks must be less than the number of members,
    /// and ascend from call to call.
    #[inline(always)]
    pub(crate) fn lane(&mut self, rank: u16) -> usize {
        if rank >= self.end {
            let until = |block: usize| self.from.sums[block] - self.beyond.sums[block];
            let following = (self.block + 1) % BLOCKS;
            // Compares with all sums, because each step of a binary search would depend on the
            // data.
            self.block = if rank < until(following) {
                following
            } else {
                let passed = (0..BLOCKS)
                    .map(|block| u16::from(until(block) <= rank))
                    .sum::<u16>();
                (usize::from(passed) - self.absent) % BLOCKS
            };
            self.set = self.from.sets[self.block] & !self.beyond.sets[self.block];
            self.end = until(self.block);
            self.begin = self.end - u16::try_from(self.set.count_ones()).unwrap_or(0);
        }
        self.block * BLOCK + select(self.set, (rank - self.begin).into()) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::blocks::Portable;
    use crate::tensor::Dtype;

    #[test]
    fn the_example_of_the_specification() {
        let contexts = Contexts::new(LaneKind::<u16>::of(Dtype::BF16), &[100, 110]);
        let lanes = [0x3F80_u16, 0x3580, 0].map(Lane::store);
        let mut found = Members::new();
        contexts.find(Portable, &lanes, &mut found);
        assert_eq!(
            [0, 1, 2].map(|context| (found.count(context), found.of(context).lane(0))),
            [(1, 2), (1, 1), (1, 0)]
        );
    }
}
