//! What is known of a piece before all of it is read: how it is to be coded, estimated from a sample of its lanes.
//!
//! Reading is what takes the encoder's time, so that large pieces are read once, when their lanes are sorted into the contexts
//! that the sample has led to. Only sizes depend on it.

use crate::codec::blocks::{BLOCK, Compare, Places, STRETCH, Work, dispatch};
use crate::codec::choose::OWN_RATES_FROM;
use crate::codec::encode::{PieceInput, Profile};
use crate::codec::lane::{Kind, Lane, absolute, zigzag};
use crate::codec::sort::differing;
use crate::codec::statistics::{ByteHistogram, ExponentStatistics, entropy_bits, float, subset_bits};
use crate::format::coding::Positions;
use crate::tensor::Dtype;

/// How a piece is coded: its positions, and whether values are relative.
pub(super) type Method = (Positions, bool);

/// A turn looks at so many lanes, if a piece has twice as many and more, spread over all of it: at every stretch whose number is
/// a multiple of that of turns, or next to one.
const TURN: usize = 1 << 17;

/// Odd, as all numbers of turns, so that it is not always the same columns of a matrix.
const MOST_TURNS: usize = 17;

/// There are no more turns once so many changes have been seen.
const ENOUGH: u64 = 2048;

/// How a piece is to be coded.
pub(super) struct Plan {
    /// `None` if all lanes have been looked at, and none changes.
    pub(super) method: Option<Method>,
    /// `None` if the piece has no rates of its own.
    pub(super) exponents: Option<ExponentStatistics>,
}

/// What has been seen of the pieces that are too small to have rates of their own.
pub(super) struct SmallPieces {
    /// Of the piece at hand.
    at_hand: ExponentStatistics,
    /// Of all that are coded as differences, at sparse positions or at all.
    pub(super) sparse: ExponentStatistics,
    pub(super) dense: ExponentStatistics,
}

impl SmallPieces {
    pub(super) fn new(dtype: Dtype) -> Self {
        let none = ExponentStatistics::new(1 << dtype.exponent_bits());
        Self { at_hand: none.clone(), sparse: none.clone(), dense: none }
    }
}

impl Plan {
    pub(super) fn new<L: Lane>(
        kind: Kind<L>,
        piece: &PieceInput<'_>,
        profile: Profile,
        small: &mut SmallPieces,
        places: &mut Places,
    ) -> Self {
        let relative = profile == Profile::Compact && piece.base.is_some();
        let lanes = Lanes { kind, base: piece.base.map(L::chunks), target: L::chunks(piece.target) };
        if relative && lanes.target.len() >= OWN_RATES_FROM {
            let mut own = ExponentStatistics::new(small.at_hand.all.len());
            let sample = lanes.sample(Some(&mut own), places);
            let method = lanes.method(&sample, Some(&own), piece.sparse);
            return Self { method, exponents: (sample.changed > 0).then_some(own) };
        }
        let SmallPieces { at_hand, sparse, dense } = small;
        let sample = lanes.sample(relative.then_some(&mut *at_hand), places);
        let method = lanes.method(&sample, relative.then_some(&*at_hand), piece.sparse);
        if relative && sample.changed > 0 {
            match method {
                Some((Positions::Sparse, true)) => sparse.add(at_hand),
                Some((Positions::Dense, true)) => dense.add(at_hand),
                _ => {}
            }
            at_hand.clear();
        }
        Self { method, exponents: None }
    }
}

/// The lanes of a piece.
struct Lanes<'a, L: Lane> {
    kind: Kind<L>,
    base: Option<&'a [L::Bytes]>,
    target: &'a [L::Bytes],
}

/// What has been seen of a piece.
struct Sample<L> {
    /// Lanes that change, about.
    changed: u64,
    /// These are all.
    is_whole: bool,
    /// Differences by the length of their magnitude in bits, if values may be relative.
    lengths: Lengths,
    /// What changed lanes become, if values may not be relative.
    values: Vec<L>,
}

/// Counts of differences by the length of their magnitude in bits.
type Lengths = [u64; 65];

impl<L: Lane> Lanes<'_, L> {
    /// Looks at some lanes. If values may be relative, there are `exponents` to be counted.
    fn sample(&self, mut exponents: Option<&mut ExponentStatistics>, places: &mut Places) -> Sample<L> {
        let all = ((self.target.len() / TURN) | 1).min(MOST_TURNS);
        let mut sample = Sample { changed: 0, is_whole: all == 1, lengths: [0; _], values: Vec::new() };
        let mut turns = 0;
        // No more than a quarter of a large piece.
        while turns == 0 || 4 * turns < all - 1 && sample.changed < ENOUGH {
            let (exponents, sample) = (exponents.as_deref_mut(), &mut sample);
            dispatch(Look { lanes: self, turn: turns, turns: all, places, exponents, sample });
            turns += 1;
        }
        if !sample.is_whole {
            let scale = |count: &mut u64| *count = *count * all as u64 / turns as u64;
            scale(&mut sample.changed);
            sample.lengths.iter_mut().for_each(scale);
            if let Some(ExponentStatistics { all, changed, logarithms }) = exponents {
                [all, changed, logarithms].into_iter().flatten().for_each(scale);
            }
        }
        sample
    }

    /// The cheapest method, as far as the sample tells.
    fn method(&self, sample: &Sample<L>, exponents: Option<&ExponentStatistics>, is_sparse: bool) -> Option<Method> {
        let relative = exponents.is_some();
        let changed = sample.changed;
        if changed == 0 && sample.is_whole {
            return None;
        }
        if is_sparse || changed == 0 {
            return Some((Positions::Sparse, relative));
        }
        let lanes = self.target.len() as u64;
        let (sparse, dense) = if let Some(exponents) = exponents {
            // Sign and leading bits as entropy, the bits below as they are.
            let lengths = sample.lengths.iter().enumerate();
            let values = float(changed)
                + entropy_bits(sample.lengths.iter().copied())
                + lengths.map(|(length, &count)| float(count * length.saturating_sub(1) as u64)).sum::<f64>();
            let sparse = exponents.position_bits() + values;
            // A dense lane costs a bit at least; only then is it worth measuring what it really costs.
            let dense = if sparse < float(lanes) {
                f64::INFINITY
            } else {
                self.dense_bits(|old, new| zigzag(self.kind.difference(old, new)))
            };
            (sparse, dense)
        } else {
            let dense =
                if changed < lanes / 8 { f64::INFINITY } else { self.dense_bits(|_, new| self.kind.to_planes(new)) };
            (subset_bits(changed, lanes) + self.bits(&sample.values) * float(changed), dense)
        };
        let mut method = if sparse < dense { (Positions::Sparse, relative) } else { (Positions::Dense, relative) };
        // Where differences are as long as the lanes themselves, the new bits alone may be shorter.
        if method == (Positions::Dense, true) && self.dense_bits(|_, new| self.kind.to_planes(new)) < dense {
            method.1 = false;
        }
        Some(method)
    }

    /// Estimated bits of all lanes as byte planes of `map(old, new)`.
    fn dense_bits(&self, map: impl Fn(L, L) -> L) -> f64 {
        let mut planes = vec![ByteHistogram::new(); size_of::<L>()];
        for (number, block) in self.target.chunks(BLOCK).enumerate().step_by(block_stride(self.target.len())) {
            for (offset, &new) in block.iter().enumerate() {
                let old = self.base.map_or(L::default(), |base| L::load(base[number * BLOCK + offset]));
                let value = map(old, L::load(new));
                planes.iter_mut().enumerate().for_each(|(index, plane)| plane.add(value.byte(index)));
            }
        }
        planes.iter().map(ByteHistogram::huffman_bits).sum::<f64>() * float(self.target.len() as u64)
    }

    /// Estimated bits of one of these new values as byte planes.
    fn bits(&self, values: &[L]) -> f64 {
        let mut planes = vec![ByteHistogram::new(); size_of::<L>()];
        for &value in values {
            let value = self.kind.to_planes(value);
            planes.iter_mut().enumerate().for_each(|(index, plane)| plane.add(value.byte(index)));
        }
        planes.iter().map(ByteHistogram::huffman_bits).sum()
    }
}

/// What lanes are, other than whether they change, is counted on some of their blocks: so many lanes say enough. Odd, for the
/// same reason as turns.
fn block_stride(lanes: usize) -> usize {
    lanes >> 17 | 1
}

/// Looks at the stretches of one turn.
struct Look<'a, L: Lane> {
    lanes: &'a Lanes<'a, L>,
    turn: usize,
    turns: usize,
    places: &'a mut Places,
    exponents: Option<&'a mut ExponentStatistics>,
    sample: &'a mut Sample<L>,
}

impl<L: Lane> Work for Look<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self, compare: impl Compare) {
        let Self { lanes: &Lanes { kind, base, target }, turn, turns, places, mut exponents, sample } = self;
        let stride = block_stride(target.len()).div_ceil(turns);
        let is_single = target.len() <= STRETCH;
        for begin in (0..target.len()).step_by(STRETCH).skip(turn).step_by(turns) {
            let target = &target[begin..target.len().min(begin + STRETCH)];
            let base = base.map(|base| &base[begin..begin + target.len()]);
            let changed = places.of(&differing::<L>(compare, base, target)).iter().map(|&lane| usize::from(lane));
            sample.changed += changed.len() as u64;
            let (Some(exponents), Some(base)) = (&mut exponents, base) else {
                sample.values.extend(changed.map(|lane| L::load(target[lane])));
                continue;
            };
            for lane in changed {
                let old = L::load(base[lane]);
                let length = bit_length(absolute(kind.difference(old, L::load(target[lane]))));
                let exponent = kind.exponent(old);
                sample.lengths[length] += 1;
                exponents.changed[exponent] += 1;
                exponents.logarithms[exponent] += length as u64 - 1;
            }
            // Where it is clear that nothing changes, nobody will ask.
            if is_single && sample.changed == 0 {
                continue;
            }
            let number = begin / BLOCK;
            for block in base.chunks(BLOCK).skip(number.next_multiple_of(stride) - number).step_by(stride) {
                for &lane in block {
                    exponents.all[kind.exponent(L::load(lane))] += stride as u64;
                }
            }
        }
    }
}

fn bit_length(magnitude: u64) -> usize {
    // At most 64.
    (u64::BITS - magnitude.leading_zeros()) as usize
}
