//! Estimates the best coding of pieces from a sample of their lanes, before all lanes are read.
//!
//! Reading takes most of the encoder's time. So pieces are read once, and their lanes are sorted
//! into the contexts that the sample suggests. The estimate affects only the size of the link.

use crate::codec::blocks::{BLOCK, BLOCKS, Compare, LanePlaces, STRETCH, Work, dispatch, padded};
use crate::codec::choose::OWN_RATES_FROM;
use crate::codec::lane::{Lane, LaneKind, absolute, zigzag};
use crate::codec::piece::{Method, PieceInput, Profile, are_small, differing};
use crate::codec::statistics::{
    ByteHistogram, ExponentStatistics, entropy_bits, float, subset_bits,
};
use crate::format::coding::Positions;

/// Number of lanes sampled in one turn, if the pieces have at least twice as many. They are spread
/// over all lanes: each turn takes every n-th stretch (or small piece), where n is the number of
/// turns, and the next turn takes the stretches after these.
const TURN: usize = 1 << 16;

/// The number of turns is odd, so that a turn does not always meet the same columns of a matrix.
const MOST_TURNS: usize = 17;

/// The sample ends after the turn in which this many changes have been found.
const ENOUGH: u64 = 2048;

/// The chosen coding of a piece.
pub(super) struct PieceMethod {
    /// `None` if all lanes were compared and no lane changes.
    pub(super) method: Option<Method>,
    /// Rates of change by exponent; `None` if unknown.
    pub(super) rates: Option<ExponentStatistics>,
}

/// The fraction of the lanes that was sampled.
struct Fraction {
    turns: usize,
    all: usize,
}

impl Fraction {
    /// Samples some of these lanes, in turns, until there are enough changes; if there are many
    /// lanes, at most a quarter of them. `look` gets the number of a turn, and the number of turns
    /// that would see all lanes; it returns the number of changes that it has seen.
    fn seen(lanes: usize, mut look: impl FnMut(usize, usize) -> u64) -> Self {
        let all = ((lanes / TURN) | 1).min(MOST_TURNS);
        let (mut turns, mut changes) = (0, 0);
        while turns == 0 || 4 * turns < all - 1 && changes < ENOUGH {
            changes += look(turns, all);
            turns += 1;
        }
        Self { turns, all }
    }

    /// Scales counts of this fraction to estimates for all lanes.
    fn scale<'a>(&self, counts: impl IntoIterator<Item = &'a mut u64>) {
        for count in counts {
            *count = *count * self.all as u64 / self.turns as u64;
        }
    }
}

/// Rates of change by exponent, of lanes in small pieces that are coded as differences: with sparse
/// positions and with dense ones.
pub(super) struct Rates {
    pub(super) sparse: ExponentStatistics,
    pub(super) dense: ExponentStatistics,
}

impl Rates {
    /// Estimates the rates from some of the small pieces among these.
    pub(super) fn of_small<L: Lane>(
        kind: LaneKind<L>,
        pieces: &[PieceInput<'_>],
        profile: Profile,
        places: &mut LanePlaces,
    ) -> Self {
        let none = no_rates(kind);
        let mut rates = Self {
            sparse: none.clone(),
            dense: none,
        };
        let small = || {
            let lanes = pieces
                .iter()
                .map(|piece| PieceLanes::of(kind, piece, profile));
            lanes.filter(|lanes| lanes.is_relative && !lanes.is_local && lanes.are_few())
        };
        let share = Fraction::seen(
            small().map(|lanes| lanes.target.len()).sum(),
            |turn, turns| {
                small()
                    .skip(turn)
                    .step_by(turns)
                    .map(|lanes| rates.add(&lanes, places))
                    .sum()
            },
        );
        for statistics in [&mut rates.sparse, &mut rates.dense] {
            share.scale(statistics.counts());
        }
        rates
    }

    /// Adds a small piece; returns the number of its lanes that change.
    fn add<L: Lane>(&mut self, lanes: &PieceLanes<'_, L>, places: &mut LanePlaces) -> u64 {
        let rates = match lanes.method(places) {
            Some((Positions::Sparse, true)) => &mut self.sparse,
            Some((Positions::Dense, true)) => &mut self.dense,
            _ => return 0,
        };
        lanes.sample(Some(rates), places).changed
    }
}

fn no_rates<L: Lane>(kind: LaneKind<L>) -> ExponentStatistics {
    ExponentStatistics::new(1 << kind.exponent_bits())
}

/// The lanes of a piece, and the facts that are known without reading them.
pub(super) struct PieceLanes<'a, L: Lane> {
    kind: LaneKind<L>,
    base: Option<&'a [L::Bytes]>,
    target: &'a [L::Bytes],
    /// Values may be relative.
    is_relative: bool,
    /// Lanes that are not coded must not be needed: there are no contexts and no dense differences.
    /// So no sample is taken: positions are sparse until all lanes have been read.
    pub(super) is_local: bool,
    /// Only the changed lanes are known.
    is_sparse: bool,
}

/// Counts from a sample of a piece.
struct Sample {
    /// Approximate number of lanes that change.
    changed: u64,
    /// True if the sample is the whole piece.
    is_whole: bool,
    /// Differences by the length of their magnitude in bits, if values may be relative.
    lengths: [u64; 65],
}

impl Sample {
    /// Estimated bits of the differences of changed lanes: the signs, the entropy of the lengths,
    /// and all bits below the leading ones.
    fn difference_bits<L: Lane>(&self) -> f64 {
        let lengths = &self.lengths[..=L::BITS as usize];
        let below = lengths
            .iter()
            .zip(0_u64..)
            .map(|(&count, length)| count * length.saturating_sub(1));
        float(self.changed) + entropy_bits(lengths.iter().copied()) + float(below.sum())
    }

    /// Whether differences are coded as byte planes rather than as small ones.
    fn is_long(&self) -> bool {
        !are_small(self.lengths[9..].iter().sum(), self.changed)
    }
}

impl<'a, L: Lane> PieceLanes<'a, L> {
    pub(super) fn of(kind: LaneKind<L>, piece: &PieceInput<'a>, profile: Profile) -> Self {
        let is_relative = profile != Profile::Direct && piece.base.is_some();
        let is_local = profile == Profile::Local && piece.base.is_some();
        let (base, target) = (piece.base.map(L::chunks), L::chunks(piece.target));
        Self {
            kind,
            base,
            target,
            is_relative,
            is_local,
            is_sparse: piece.sparse,
        }
    }

    /// Whether there are too few lanes for rates of their own.
    pub(super) fn are_few(&self) -> bool {
        self.target.len() < OWN_RATES_FROM
    }

    /// The cheapest method according to a sample. `None` if all lanes were compared and no lane
    /// changes.
    pub(super) fn method(&self, places: &mut LanePlaces) -> Option<Method> {
        let bits = |lanes: &Self, sample: &Sample| {
            let position_bits = subset_bits(sample.changed, lanes.target.len() as u64);
            (position_bits, position_bits + sample.difference_bits::<L>())
        };
        // If the first lanes cost at most half as much as with dense positions, the others need not
        // be sampled.
        if let Some(target) = self
            .target
            .get(..STRETCH)
            .filter(|_| self.is_relative && self.are_few())
        {
            let first = Self {
                base: self.base.map(|base| &base[..STRETCH]),
                target,
                ..*self
            };
            let sample = first.sample(None, places);
            if sample.changed > 0 && 2.0 * bits(&first, &sample).1 < float(STRETCH as u64) {
                return Some((Positions::Sparse, true));
            }
        }
        let sample = self.sample(None, places);
        let (position_bits, all_bits) = bits(self, &sample);
        // Positions cost less if the rates of exponents differ, which matters only if there are
        // many positions.
        if self.is_relative && all_bits >= float(self.target.len() as u64) {
            return self.plan(places).method;
        }
        self.cheapest(&sample, position_bits)
    }

    /// The cheapest method, with the rates of change.
    pub(super) fn plan(&self, places: &mut LanePlaces) -> PieceMethod {
        if self.is_local {
            return PieceMethod {
                method: Some((Positions::Sparse, true)),
                rates: None,
            };
        }
        if !self.is_relative {
            return PieceMethod {
                method: self.method(places),
                rates: None,
            };
        }
        let mut rates = no_rates(self.kind);
        let sample = self.sample(Some(&mut rates), places);
        let method = self.cheapest(&sample, rates.position_bits());
        PieceMethod {
            method,
            rates: (sample.changed > 0).then_some(rates),
        }
    }

    /// Whether the new bits of all lanes are shorter than these differences, which are those of all
    /// lanes that change.
    pub(super) fn are_shorter_dense(&self, differences: &[L]) -> bool {
        let (changed, lanes) = (differences.len() as u64, self.target.len() as u64);
        // Positions and differences of so few lanes take less than a bit per lane of the piece,
        // however long they are.
        if 128 * changed < lanes {
            return false;
        }
        let mut lengths = [0; _];
        differences
            .iter()
            .for_each(|&difference| lengths[bit_length(absolute(difference))] += 1);
        let sample = Sample {
            changed,
            is_whole: true,
            lengths,
        };
        self.cheapest(&sample, subset_bits(changed, lanes)) == Some((Positions::Dense, false))
    }

    /// Samples some lanes, and adds their rates to `rates` if given.
    fn sample(
        &self,
        mut rates: Option<&mut ExponentStatistics>,
        places: &mut LanePlaces,
    ) -> Sample {
        let mut sample = Sample {
            changed: 0,
            is_whole: true,
            lengths: [0; _],
        };
        let share = Fraction::seen(self.target.len(), |turn, turns| {
            let before = sample.changed;
            dispatch(Sampler {
                lanes: self,
                turn,
                turns,
                places,
                rates: rates.as_deref_mut(),
                sample: &mut sample,
            });
            sample.changed - before
        });
        if share.turns < share.all {
            sample.is_whole = false;
            share.scale([&mut sample.changed].into_iter().chain(&mut sample.lengths));
            share.scale(rates.into_iter().flat_map(ExponentStatistics::counts));
        }
        sample
    }

    /// The cheapest method. `position_bits` is the cost of the positions of changed lanes.
    fn cheapest(&self, sample: &Sample, position_bits: f64) -> Option<Method> {
        let relative = self.is_relative;
        let changed = sample.changed;
        if changed == 0 && sample.is_whole {
            return None;
        }
        if self.is_sparse || changed == 0 {
            return Some((Positions::Sparse, relative));
        }
        let lanes = self.target.len() as u64;
        // A dense lane costs at least one bit, and new bits cost more. The real cost is estimated
        // only if sparse positions cost more than that.
        let short = position_bits + sample.difference_bits::<L>();
        let is_short = if relative {
            short < float(lanes)
        } else {
            changed < lanes / 8
        };
        if is_short {
            return Some((Positions::Sparse, relative));
        }
        let sparse = if relative && !sample.is_long() {
            short
        } else {
            position_bits + self.plane_bits(relative, true) * float(changed)
        };
        // Dense differences are not local.
        let dense = self.plane_bits(relative && !self.is_local, false) * float(lanes);
        // Dense lanes are applied faster, which is worth one percent.
        if 1.01 * sparse < dense {
            return Some((Positions::Sparse, relative));
        }
        // If differences are as long as the lanes themselves, the new bits alone may be shorter.
        let absolute =
            relative && (self.is_local || self.plane_bits(false, false) * float(lanes) < dense);
        Some((Positions::Dense, relative && !absolute))
    }

    /// Estimated bits of a lane's value as byte planes, of all lanes or only of those that change.
    fn plane_bits(&self, relative: bool, of_changed: bool) -> f64 {
        let mut planes = vec![ByteHistogram::new(); size_of::<L>()];
        // A few thousand lanes are enough. The distance between their blocks is odd, for the same
        // reason as the number of turns.
        let stride = self.target.len() >> 14 | 1;
        for (number, block) in self.target.chunks(BLOCK).enumerate().step_by(stride) {
            for (offset, &new) in block.iter().enumerate() {
                let old = self
                    .base
                    .map_or(L::default(), |base| L::load(base[number * BLOCK + offset]));
                let new = L::load(new);
                if !of_changed || new != old {
                    let kind = self.kind;
                    let value = if relative {
                        zigzag(kind.difference(old, new))
                    } else {
                        kind.to_planes(new)
                    };
                    planes
                        .iter_mut()
                        .enumerate()
                        .for_each(|(index, plane)| plane.add(value.byte(index)));
                }
            }
        }
        planes.iter().map(ByteHistogram::huffman_bits).sum()
    }
}

/// Samples the stretches of one turn.
struct Sampler<'a, L: Lane> {
    lanes: &'a PieceLanes<'a, L>,
    turn: usize,
    turns: usize,
    places: &'a mut LanePlaces,
    rates: Option<&'a mut ExponentStatistics>,
    sample: &'a mut Sample,
}

impl<L: Lane> Work for Sampler<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self, compare: impl Compare) {
        let Self {
            lanes,
            turn,
            turns,
            places,
            mut rates,
            sample,
        } = self;
        let &PieceLanes {
            kind,
            base,
            target,
            is_relative,
            ..
        } = lanes;
        for begin in (0..target.len()).step_by(STRETCH).skip(turn).step_by(turns) {
            let target = &target[begin..target.len().min(begin + STRETCH)];
            let base = base.map(|base| &base[begin..begin + target.len()]);
            let changed = places
                .of(&differing::<L>(compare, base, target))
                .iter()
                .map(|&lane| usize::from(lane));
            sample.changed += changed.len() as u64;
            let Some(base) = base.filter(|_| is_relative) else {
                continue;
            };
            for lane in changed {
                let old = L::load(base[lane]);
                let length = bit_length(absolute(kind.difference(old, L::load(target[lane]))));
                sample.lengths[length] += 1;
                if let Some(rates) = &mut rates {
                    let exponent = kind.exponent(old);
                    rates.changed[exponent] += 1;
                    rates.logarithms[exponent] += length as u64 - 1;
                }
            }
        }
        if let (Some(rates), Some(base)) = (rates, base.filter(|_| is_relative)) {
            // The exponents of all lanes are counted in every n-th block only: 2^16 lanes are
            // enough.
            let stride = (target.len() >> 16 | 1).div_ceil(turns);
            let stretches = base
                .chunks(STRETCH)
                .zip((0..).step_by(BLOCKS))
                .skip(turn)
                .step_by(turns);
            let blocks = stretches.flat_map(|(stretch, first): (_, usize)| {
                stretch
                    .chunks(BLOCK)
                    .skip(first.next_multiple_of(stride) - first)
                    .step_by(stride)
            });
            count_exponents(kind, blocks, stride as u64, &mut rates.all);
        }
    }
}

/// Counts the exponents of these blocks. Each lane counts `each` times.
#[inline(always)]
fn count_exponents<'a, L: Lane>(
    kind: LaneKind<L>,
    blocks: impl Iterator<Item = &'a [L::Bytes]>,
    each: u64,
    counts: &mut [u64],
) {
    if kind.has_long_exponents() {
        blocks
            .flatten()
            .for_each(|&lane| counts[kind.exponent(L::load(lane))] += each);
        return;
    }
    let mut bytes = ByteHistogram::new();
    for block in blocks {
        bytes.extend(
            &padded::<L>(block).map(|lane| kind.exponent_byte(L::load(lane)))[..block.len()],
        );
    }
    for (byte, count) in bytes.counts().into_iter().enumerate() {
        counts[byte >> (8 - kind.exponent_bits())] += count * each;
    }
}

fn bit_length(magnitude: u64) -> usize {
    // At most 64.
    (u64::BITS - magnitude.leading_zeros()) as usize
}
