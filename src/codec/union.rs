//! The union of the lanes that several links code, and the places of each link's lanes in it.

use crate::codec::blocks::{Compare, Work, dispatch};

/// Makes the union of lists of ascending lane numbers. Replaces each number in the lists by its
/// place in the union.
pub(crate) fn union(lists: &mut [&mut Vec<u32>]) -> Vec<u32> {
    dispatch(Union(lists))
}

struct Union<'a, 'n>(&'a mut [&'n mut Vec<u32>]);

/// Number of words of a stretch that are scanned together: they fit in the L1 cache.
const WORDS: usize = 1 << 10;
const WORDS_U32: u32 = 1 << 10;

/// This many numbers are written for each word, even if it has fewer: most have no more, so no
/// branch is needed.
const AHEAD: usize = 8;

impl Work for Union<'_, '_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run(self, _: impl Compare) -> Vec<u32> {
        let lists = self.0;
        let mut union: Vec<u32> = Vec::new();
        let mut begins = vec![0; lists.len()];
        let mut ends = begins.clone();
        let word = |number: u32| ((number / 64) as usize % WORDS, 1_u64 << (number % 64));
        while let Some(least) = lists
            .iter()
            .zip(&begins)
            .filter_map(|(list, &begin)| list.get(begin))
            .min()
        {
            let first_word = least / 64 / WORDS_U32 * WORDS_U32;
            let end = 64 * (u64::from(first_word) + u64::from(WORDS_U32));
            let mut set = [0_u64; WORDS];
            for (list, (&begin, end_of_list)) in lists.iter().zip(begins.iter().zip(&mut ends)) {
                *end_of_list =
                    begin + list[begin..].partition_point(|&number| u64::from(number) < end);
                for &number in &list[begin..*end_of_list] {
                    let (word, bit) = word(number);
                    set[word] |= bit;
                }
            }
            let mut filled = union.len();
            let count: usize = set.iter().map(|set| set.count_ones() as usize).sum();
            union.resize(filled + count + AHEAD, 0);
            let mut before = [0; WORDS];
            for ((&set, before), first) in set
                .iter()
                .zip(&mut before)
                .zip((64 * first_word..).step_by(64))
            {
                // Lanes of a piece are `u32`, and so are their places.
                *before = u32::try_from(filled).unwrap_or(u32::MAX);
                let mut left = set;
                let mut next = || {
                    let number = first + left.trailing_zeros();
                    left &= left.wrapping_sub(1);
                    number
                };
                let count = set.count_ones() as usize;
                let numbers = &mut union[filled..];
                numbers[..AHEAD]
                    .iter_mut()
                    .for_each(|number| *number = next());
                if count > AHEAD {
                    numbers[AHEAD..count]
                        .iter_mut()
                        .for_each(|number| *number = next());
                }
                filled += count;
            }
            union.truncate(filled);
            for (list, (begin, &end)) in lists.iter_mut().zip(begins.iter_mut().zip(&ends)) {
                for number in &mut list[*begin..end] {
                    let (word, bit) = word(*number);
                    *number = before[word] + (set[word] & (bit - 1)).count_ones();
                }
                *begin = end;
            }
        }
        union
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lead_back_to_the_numbers() {
        let every =
            |step: usize, begin: u32, end: u32| (begin..end).step_by(step).collect::<Vec<u32>>();
        let lists = [
            every(3, 0, 200_000),
            every(1, 65_530, 65_560),
            Vec::new(),
            every(500, 7, 1 << 24),
            vec![(1 << 24) - 1],
            every(1, 0, 300),
        ];
        let mut expected: Vec<u32> = lists.concat();
        expected.sort_unstable();
        expected.dedup();
        let mut places = lists.clone();
        let joined = union(&mut places.iter_mut().collect::<Vec<_>>());
        assert!(joined == expected);
        for (places, list) in places.iter().zip(&lists) {
            assert!(
                places
                    .iter()
                    .map(|&place| joined[place as usize])
                    .eq(list.iter().copied())
            );
        }
        assert!(union(&mut []).is_empty());
    }
}
