//! Chooses the contexts of a segment: lanes whose exponents change at a similar rate share a
//! context.
//!
//! The chance that a weight changes depends on its ULP, and so on its exponent. Where every lane
//! changes, the size of the change depends on it, too. One figure covers both: the rate, the chance
//! of a change times the typical size of its difference. It falls by about half from one exponent
//! to the next, and a context per factor of two is as good as a finer one.

use std::collections::BTreeMap;

use crate::codec::statistics::{ExponentStatistics, float, log2};
use crate::format::segment::MAX_CONTEXTS;

/// Parts with fewer lanes have too few changes for rates of their own; they use the rates of the
/// segment.
pub(crate) const OWN_RATES_FROM: usize = 1 << 16;
/// A context with fewer coded lanes costs more (in code tables) than it saves.
const LEAST_CODED: u64 = 512;

/// Thresholds of each of these parts, and the thresholds that all parts with too few lanes share,
/// whose statistics are added up in `small`. All have the same length: one less than the number of
/// contexts.
pub(crate) fn thresholds(
    parts: &[&ExponentStatistics],
    small: &ExponentStatistics,
    dense: bool,
) -> (Vec<Vec<u16>>, Vec<u16>) {
    let mut pool = small.clone();
    for part in parts {
        pool.add(part);
    }
    // Levels of the exponents, and the number of lanes coded at each exponent.
    let coded = |part: &ExponentStatistics| {
        if dense {
            part.all.clone()
        } else {
            part.changed.clone()
        }
    };
    let own: Vec<(Vec<i32>, Vec<u64>)> = parts
        .iter()
        .map(|part| (levels(part, &pool), coded(part)))
        .collect();
    let pooled = (levels(&pool, &pool), coded(small));

    let mut by_level: BTreeMap<i32, u64> = BTreeMap::new();
    for (levels, coded) in own.iter().chain([&pooled]) {
        for (&level, &count) in levels.iter().zip(coded) {
            *by_level.entry(level).or_default() += count;
        }
    }
    let boundaries = merge(by_level.into_iter().collect());
    // No exponent field has more than 11 bits.
    let highest = u16::try_from(small.all.len()).unwrap_or(u16::MAX);
    let thresholds = |(levels, _): &(Vec<i32>, Vec<u64>)| -> Vec<u16> {
        let of = |boundary: &i32| levels.iter().position(|level| level >= boundary);
        boundaries
            .iter()
            .map(|b| of(b).and_then(|e| u16::try_from(e).ok()).unwrap_or(highest))
            .collect()
    };
    (own.iter().map(thresholds).collect(), thresholds(&pooled))
}

/// The negative logarithm of the rate of each exponent, rounded. Neighbours that do not ascend are
/// pooled. `pool` supplies rates where a part has no data.
fn levels(part: &ExponentStatistics, pool: &ExponentStatistics) -> Vec<i32> {
    let mut groups: Vec<(f64, f64, usize)> = Vec::new();
    for exponent in 0..part.all.len() {
        let expected = (pool.weight(exponent) + 1e-9) / (float(pool.all[exponent]) + 1.0);
        let mut group = (
            part.weight(exponent) + expected / 2.0,
            float(part.all[exponent]) + 0.5,
            1,
        );
        while let Some(&(weight, lanes, length)) = groups.last() {
            if weight * group.1 >= group.0 * lanes {
                break;
            }
            group = (group.0 + weight, group.1 + lanes, group.2 + length);
            groups.pop();
        }
        groups.push(group);
    }
    groups
        .into_iter()
        .flat_map(|(weight, lanes, length)| {
            std::iter::repeat_n(round(-log2(weight / lanes)), length)
        })
        .collect()
}

/// First levels of the second, third, ... context. Levels are joined until each context has enough
/// coded lanes and there are few enough contexts.
fn merge(levels: Vec<(i32, u64)>) -> Vec<i32> {
    let mut groups = levels;
    while groups.len() > 1 {
        let Some(smallest) = (0..groups.len()).min_by_key(|&index| groups[index].1) else {
            break;
        };
        if groups.len() <= MAX_CONTEXTS && groups[smallest].1 >= LEAST_CODED {
            break;
        }
        let left = match (smallest.checked_sub(1), groups.get(smallest + 1)) {
            (Some(left), Some(right)) if groups[left].1 <= right.1 => left,
            (Some(left), None) => left,
            _ => smallest,
        };
        groups[left].1 += groups[left + 1].1;
        groups.remove(left + 1);
    }
    groups.into_iter().skip(1).map(|(level, _)| level).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "logarithms of finite positive numbers are small"
)]
fn round(value: f64) -> i32 {
    (value + 0.5).floor() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thresholds of each of these parts, found as the encoder finds them.
    fn thresholds(parts: &[&ExponentStatistics], dense: bool) -> Vec<Vec<u16>> {
        let mut small = ExponentStatistics::new(parts[0].all.len());
        let is_small =
            |part: &&ExponentStatistics| part.all.iter().sum::<u64>() < OWN_RATES_FROM as u64;
        let (few, many): (Vec<_>, Vec<_>) = parts.iter().copied().partition(is_small);
        few.into_iter().for_each(|part| small.add(part));
        let (own, shared) = super::thresholds(&many, &small, dense);
        let mut own = own.into_iter();
        let of = |part| {
            if is_small(part) {
                shared.clone()
            } else {
                own.next().unwrap()
            }
        };
        parts.iter().map(of).collect()
    }

    #[test]
    fn rates_that_halve_get_a_context_each() {
        let mut part = ExponentStatistics::new(256);
        for i in 0..8 {
            part.all[100 + i] = 200_000;
            part.changed[100 + i] = 100_000 >> i;
        }
        let thresholds = thresholds(&[&part], false);
        assert_eq!(thresholds.len(), 1);
        assert!(thresholds[0].len() >= 7, "{thresholds:?}");
        assert!(thresholds[0].is_sorted());
    }

    #[test]
    fn there_are_never_too_many_contexts() {
        let mut part = ExponentStatistics::new(2048);
        for i in 0..60 {
            part.all[900 + i] = 1 << 40;
            part.changed[900 + i] = 1 << (40 - i.min(30));
            part.logarithms[900 + i] = part.changed[900 + i] * (20 - i as u64 / 3);
        }
        let thresholds = thresholds(&[&part, &part.clone()], true);
        assert!(
            thresholds
                .iter()
                .all(|part| part.len() < MAX_CONTEXTS && part.is_sorted())
        );
    }

    /// Lanes and weight of each exponent; the weights are powers of two.
    fn statistics(exponents: &[(u64, u64)]) -> ExponentStatistics {
        let mut statistics = ExponentStatistics::new(exponents.len());
        for (exponent, &(all, weight)) in exponents.iter().enumerate() {
            statistics.all[exponent] = all;
            statistics.changed[exponent] = u64::from(weight > 0);
            statistics.logarithms[exponent] = u64::from(weight.checked_ilog2().unwrap_or(0));
        }
        statistics
    }

    /// The same with changed lanes, each by one.
    fn changes(exponents: &[(u64, u64)]) -> ExponentStatistics {
        let mut statistics = statistics(exponents);
        (statistics.changed, statistics.logarithms) = (
            exponents.iter().map(|pair| pair.1).collect(),
            vec![0; exponents.len()],
        );
        statistics
    }

    #[test]
    fn levels_are_logarithms_of_rates() {
        // An exponent that a part has not seen has the rate of the pool: 8 / 2.
        assert_eq!(levels(&statistics(&[(0, 0)]), &statistics(&[(1, 8)])), [-2]);
        // Half of that is added to what it has seen: (1 + 2) / 1.5.
        assert_eq!(levels(&statistics(&[(1, 1)]), &statistics(&[(1, 8)])), [-1]);
        // Nobody has seen anything: the least rate there is, less where there were more lanes.
        let unseen = statistics(&[(0, 0), (100, 0)]);
        assert_eq!(levels(&unseen, &statistics(&[(0, 0), (0, 0)])), [30, 38]);
        let own = |exponents: &[(u64, u64)]| levels(&changes(exponents), &changes(exponents));
        // Rates of 1/10 and 1/12.5 fall with the exponent.
        assert_eq!(own(&[(10_000, 1000), (100_000, 8000)]), [3, 4]);
        // Rates that rise are those of both together: 1085 of 11,000; 210 of 2000; 211 of 3000.
        assert_eq!(own(&[(1000, 85), (10_000, 1000)]), [3, 3]);
        assert_eq!(own(&[(1000, 10), (1000, 200)]), [3, 3]);
        assert_eq!(own(&[(1000, 1), (1000, 10), (1000, 200)]), [4, 4, 4]);
    }

    #[test]
    fn small_parts_use_the_rates_of_all() {
        // Exponent 1 changes as often as 0 in the small part, rarely in the large one.
        let large = changes(&[(640_000, 320_000), (640_000, 16_000)]);
        let flat = |lanes: usize| changes(&[(lanes as u64 / 2, 6400), (lanes as u64 / 2, 6400)]);
        assert_eq!(
            thresholds(&[&large, &flat(OWN_RATES_FROM - 2)], false),
            [[1], [1]]
        );
        // On its own it begins with the context of a level that the large one does not have, and
        // has no third.
        assert_eq!(
            thresholds(&[&large, &flat(OWN_RATES_FROM)], false),
            [[1, 1], [0, 2]]
        );
    }

    #[test]
    fn levels_are_joined_with_the_smaller_neighbour() {
        let merge = |counts: &[u64]| merge((0..).zip(counts.iter().copied()).collect());
        assert_eq!(merge(&[512, 512]), [1]);
        assert_eq!(merge(&[511, 512]), [0; 0]);
        assert_eq!(merge(&[1000, 10, 600]), [1]);
        assert_eq!(merge(&[600, 10, 1000]), [2]);
        assert_eq!(merge(&[600, 10, 600]), [2]);
        assert_eq!(merge(&[1000, 600, 10]), [1]);
        // Joined again until there are enough.
        assert_eq!(merge(&[256, 255, 1000]), [0; 0]);
        assert_eq!(merge(&[256, 256, 1000]), [2]);
        assert_eq!(merge(&[1000; 20]).len(), MAX_CONTEXTS - 1);
    }

    #[test]
    fn few_changes_make_one_context() {
        let mut part = ExponentStatistics::new(16);
        part.all = vec![1000; 16];
        part.changed = vec![3; 16];
        assert_eq!(thresholds(&[&part], false), vec![Vec::<u16>::new()]);
    }
}
