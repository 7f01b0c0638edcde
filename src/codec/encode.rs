//! Encoding: the changes of a few pieces of one dtype become segments (SPEC sections 7 and 8).
//!
//! Per piece the cheapest method is chosen from estimated sizes; pieces with the same method share a segment.

use crate::codec::bits::{pack, packed_bytes};
use crate::codec::blocks::{BLOCK, BLOCKS, Block, Compare, Places, STRETCH, Work, dispatch, padded};
use crate::codec::choose;
use crate::codec::contexts::{Contexts, Members};
use crate::codec::escapes;
use crate::codec::lane::{Kind, Lane, absolute, zigzag};
use crate::codec::statistics::{ByteHistogram, ExponentStatistics, entropy_bits, subset_bits};
use crate::error::Result;
use crate::format::coding::{Coding, Positions, Values};
use crate::format::segment::{MAX_CONTEXTS, PositionCoding, Table, join};
use crate::format::stream::{Compressor, Effort};
use crate::tensor::Dtype;

/// Shape of a link: how it may code values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// The smallest file: differences, in contexts. Applying it needs the base.
    #[default]
    Compact,
    /// New values only: every part decodes to (index, value) pairs without the base.
    Direct,
}

/// A piece to encode: its bytes in base and target, of equal length.
pub(crate) struct PieceInput<'a> {
    /// `None` where the tensor starts from zeros.
    pub(crate) base: Option<&'a [u8]>,
    pub(crate) target: &'a [u8],
    /// Only the changed lanes are known; the others must not be coded.
    pub(crate) sparse: bool,
}

/// A segment and the numbers of the pieces that are its parts, in order.
#[derive(Debug)]
pub(crate) struct EncodedSegment {
    pub(crate) coding: Coding,
    pub(crate) bytes: Vec<u8>,
    pub(crate) pieces: Vec<usize>,
}

/// Lanes that are compared before what differs is looked at. Whole stretches.
const COMPARED: usize = 1 << 14;

/// How a piece is coded; `RelativePlanes` and `RelativeSmall` are told apart later, for the whole segment.
type Method = (Positions, bool);
const METHODS: [Method; 4] =
    [(Positions::Sparse, true), (Positions::Dense, true), (Positions::Sparse, false), (Positions::Dense, false)];

/// Encodes pieces of one dtype. Also returns the number of changed lanes of each piece. `passed` is told of each piece in turn,
/// by its number, the stretches of the target that have just been looked at and are still in the cache.
pub(crate) fn encode<L: Lane>(
    dtype: Dtype,
    pieces: &[PieceInput<'_>],
    profile: Profile,
    compressor: &mut Compressor,
    passed: &mut dyn FnMut(usize, &[u8]),
) -> Result<(Vec<EncodedSegment>, Vec<u64>)> {
    let kind = Kind::<L>::of(dtype);
    let mut small = SmallPieces::new(dtype);
    let mut measured: Vec<Measured<'_, L>> = Vec::with_capacity(pieces.len());
    for (number, piece) in pieces.iter().enumerate() {
        measured.push(Measured::new(kind, piece, profile, &mut small, &mut |bytes| passed(number, bytes)));
    }
    let mut segments = Vec::new();
    for method in METHODS {
        let chosen: Vec<usize> = (0..pieces.len()).filter(|&index| measured[index].method == Some(method)).collect();
        if !chosen.is_empty() {
            let parts: Vec<&Measured<'_, L>> = chosen.iter().map(|&index| &measured[index]).collect();
            let (coding, bytes) = encode_segment(kind, &parts, &small, method, compressor)?;
            segments.push(EncodedSegment { coding, bytes, pieces: chosen });
        }
    }
    Ok((segments, measured.iter().map(|piece| piece.changed).collect()))
}

/// Encodes pieces of one dtype, which have a base where values are relative, as one segment by the given method.
#[cfg(test)]
pub(crate) fn encode_as<L: Lane>(
    dtype: Dtype,
    pieces: &[PieceInput<'_>],
    method: Method,
    compressor: &mut Compressor,
) -> Result<(Coding, Vec<u8>)> {
    let kind = Kind::<L>::of(dtype);
    let profile = if method.1 { Profile::Compact } else { Profile::Direct };
    // So that the values of changes are kept, whatever would have been chosen.
    let pieces = pieces.iter().map(|&PieceInput { base, target, .. }| PieceInput { base, target, sparse: true });
    let mut small = SmallPieces::new(dtype);
    let measured: Vec<Measured<'_, L>> =
        pieces.map(|piece| Measured::new(kind, &piece, profile, &mut small, &mut |_| ())).collect();
    let parts: Vec<&Measured<'_, L>> = measured.iter().collect();
    // All of them have been measured as sparse.
    encode_segment(kind, &parts, &SmallPieces { dense: small.sparse.clone(), ..small }, method, compressor)
}

/// A piece with what the choice of method needs.
struct Measured<'a, L: Lane> {
    base: Option<&'a [L::Bytes]>,
    target: &'a [L::Bytes],
    /// The lanes that change, block by block.
    changes: Vec<u64>,
    /// How many they are.
    changed: u64,
    /// What becomes of them, in order: differences, or new bits if values are not relative. Kept from when the lanes were at
    /// hand, and until it is clear that all lanes are coded.
    values: Vec<L>,
    /// `None` if the piece is one of the small ones.
    exponents: Option<ExponentStatistics>,
    /// `None` if nothing changes.
    method: Option<Method>,
}

/// What is measured of the pieces that are too small to have rates of their own.
struct SmallPieces {
    /// Of the piece that is being measured.
    at_hand: ExponentStatistics,
    /// Of all that are coded as differences, at sparse positions or at all.
    sparse: ExponentStatistics,
    dense: ExponentStatistics,
}

impl SmallPieces {
    fn new(dtype: Dtype) -> Self {
        let none = ExponentStatistics::new(1 << dtype.exponent_bits());
        Self { at_hand: none.clone(), sparse: none.clone(), dense: none }
    }
}

impl<'a, L: Lane> Measured<'a, L> {
    fn new(
        kind: Kind<L>,
        piece: &PieceInput<'a>,
        profile: Profile,
        small: &mut SmallPieces,
        passed: &mut dyn FnMut(&[u8]),
    ) -> Self {
        let base = piece.base.map(L::chunks);
        let target = L::chunks(piece.target);
        let changes = Vec::with_capacity(target.len().div_ceil(BLOCK));
        let mut measured =
            Self { base, target, changes, changed: 0, values: Vec::new(), exponents: None, method: None };
        let relative = profile == Profile::Compact && base.is_some();
        if relative && target.len() >= choose::OWN_RATES_FROM {
            let mut own = ExponentStatistics::new(small.at_hand.all.len());
            measured.method = measured.choose_method(kind, piece.sparse, Some(&mut own), passed);
            measured.exponents = Some(own);
        } else {
            let SmallPieces { at_hand, sparse, dense } = small;
            measured.method = measured.choose_method(kind, piece.sparse, relative.then_some(&mut *at_hand), passed);
            if relative && measured.changed > 0 {
                match measured.method {
                    Some((Positions::Sparse, true)) => sparse.add(at_hand),
                    Some((Positions::Dense, true)) => dense.add(at_hand),
                    _ => {}
                }
                at_hand.clear();
            }
        }
        if matches!(measured.method, Some((Positions::Dense, _))) {
            measured.values = Vec::new();
        }
        measured
    }

    /// Finds the lanes that change and chooses how to code them, which is nothing if there are none. If values may be relative,
    /// there are `exponents` to be counted.
    fn choose_method(
        &mut self,
        kind: Kind<L>,
        is_sparse: bool,
        mut exponents: Option<&mut ExponentStatistics>,
        passed: &mut dyn FnMut(&[u8]),
    ) -> Option<Method> {
        let relative = exponents.is_some();
        let lengths = self.measure_changes(kind, exponents.as_deref_mut(), passed);
        let changed = self.changed;
        if changed == 0 {
            return None;
        }
        if is_sparse {
            return Some((Positions::Sparse, relative));
        }
        let lanes = self.target.len() as u64;
        let (sparse, dense) = if let Some(exponents) = exponents {
            // Sign and leading bits as entropy, the bits below as they are.
            let values = float(changed)
                + entropy_bits(lengths.iter().copied())
                + lengths
                    .iter()
                    .enumerate()
                    .map(|(length, &count)| float(count * length.saturating_sub(1) as u64))
                    .sum::<f64>();
            let sparse = exponents.position_bits() + values;
            // A dense lane costs a bit at least; only then is it worth measuring what it really costs.
            let dense = if sparse < float(lanes) {
                f64::INFINITY
            } else {
                self.dense_bits(|old, new| zigzag(kind.difference(old, new)))
            };
            (sparse, dense)
        } else {
            let dense = if changed < lanes / 8 { f64::INFINITY } else { self.dense_bits(|_, new| kind.to_planes(new)) };
            (subset_bits(changed, lanes) + self.changed_bits(kind), dense)
        };
        let mut method = if sparse < dense { (Positions::Sparse, relative) } else { (Positions::Dense, relative) };
        // Where differences are as long as the lanes themselves, the new bits alone may be shorter.
        if method == (Positions::Dense, true) && self.dense_bits(|_, new| kind.to_planes(new)) < dense {
            method.1 = false;
        }
        Some(method)
    }

    /// The lane of the base at `index`.
    fn old(&self, index: usize) -> L {
        self.base.map_or(L::default(), |base| L::load(base[index]))
    }

    /// Finds the lanes that change. If values may be relative, counts `exponents` and returns the lengths of differences.
    fn measure_changes(
        &mut self,
        kind: Kind<L>,
        mut exponents: Option<&mut ExponentStatistics>,
        passed: &mut dyn FnMut(&[u8]),
    ) -> Lengths {
        let mut lengths = [0; _];
        let stride = sampling_stride(self.target.len());
        let mut places = Places::new();
        let mut sampled = (0..self.target.len()).step_by(BLOCK * stride).peekable();
        // By stretches that stay in the cache until all has been measured.
        for begin in (0..self.target.len()).step_by(COMPARED) {
            let end = self.target.len().min(begin + COMPARED);
            let (base, target) = (self.base.map(|base| &base[begin..end]), &self.target[begin..end]);
            dispatch(Differences::<L> { base, target, changes: &mut self.changes });
            passed(L::flat(target));
            let changes = &self.changes[begin / BLOCK..];
            let (places, values) = (&mut places, &mut self.values);
            let counts = exponents.as_deref_mut().map(|exponents| (exponents, &mut lengths));
            dispatch(Look { kind, base, target, changes, places, counts, values });
            self.changed = self.values.len() as u64;
            let Some(exponents) = &mut exponents else { continue };
            // All that has been passed before the first change, too.
            while let Some(base) = self.base.filter(|_| self.changed > 0)
                && let Some(begin) = sampled.next_if(|&begin| begin < end)
            {
                for &lane in &base[begin..base.len().min(begin + BLOCK)] {
                    exponents.all[kind.exponent(L::load(lane))] += stride as u64;
                }
            }
        }
        lengths
    }

    /// Estimated bits of all lanes as byte planes of `map(old, new)`.
    fn dense_bits(&self, map: impl Fn(L, L) -> L) -> f64 {
        let mut planes = vec![ByteHistogram::new(); size_of::<L>()];
        let stride = sampling_stride(self.target.len());
        for (number, block) in self.target.chunks(BLOCK).enumerate().step_by(stride) {
            for (offset, &new) in block.iter().enumerate() {
                let value = map(self.old(number * BLOCK + offset), L::load(new));
                planes.iter_mut().enumerate().for_each(|(index, plane)| plane.add(value.byte(index)));
            }
        }
        planes.iter().map(ByteHistogram::huffman_bits).sum::<f64>() * float(self.target.len() as u64)
    }

    /// Estimated bits of the new values of changed lanes as byte planes.
    fn changed_bits(&self, kind: Kind<L>) -> f64 {
        let mut planes = vec![ByteHistogram::new(); size_of::<L>()];
        for &value in &self.values {
            let value = kind.to_planes(value);
            planes.iter_mut().enumerate().for_each(|(index, plane)| plane.add(value.byte(index)));
        }
        planes.iter().map(ByteHistogram::huffman_bits).sum::<f64>() * float(self.changed)
    }
}

/// Counts of differences by the length of their magnitude in bits.
type Lengths = [u64; 65];

/// Large pieces are measured on some of their blocks: so many lanes say enough. Odd, so that it is not always the same columns
/// of a matrix.
fn sampling_stride(lanes: usize) -> usize {
    lanes >> 17 | 1
}

fn bit_length(magnitude: u64) -> usize {
    // At most 64.
    (u64::BITS - magnitude.leading_zeros()) as usize
}

#[expect(clippy::cast_precision_loss, reason = "estimates of sizes; counts stay far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

/// The coded lanes of a segment, by context and then in order of parts and lanes.
struct CodedContext<L> {
    gaps: Vec<u32>,
    values: Vec<L>,
    /// Coded lanes of each part.
    coded: Vec<u32>,
    /// Members of each part.
    members: Vec<u32>,
}

fn encode_segment<L: Lane>(
    kind: Kind<L>,
    parts: &[&Measured<'_, L>],
    small: &SmallPieces,
    (positions, relative): Method,
    compressor: &mut Compressor,
) -> Result<(Coding, Vec<u8>)> {
    let dense = positions == Positions::Dense;
    let thresholds = if relative {
        let own: Vec<Option<&ExponentStatistics>> = parts.iter().map(|part| part.exponents.as_ref()).collect();
        choose::thresholds(&own, if dense { &small.dense } else { &small.sparse }, dense)
    } else {
        vec![Vec::new(); parts.len()]
    };
    let contexts = collect(kind, parts, &thresholds, dense, relative);
    let small = !dense && relative && prefers_small(&contexts);
    let values = match (relative, small) {
        (false, _) => Values::Absolute,
        (true, false) => Values::RelativePlanes,
        (true, true) => Values::RelativeSmall,
    };
    let coding = Coding { lane_bytes: size_of::<L>(), positions, values };

    let mut streams = Vec::new();
    let mut positions = Vec::new();
    if !dense {
        positions = encode_positions(&contexts, &mut streams, compressor)?;
    }
    let mut widths = Vec::new();
    if small {
        widths = encode_small(&contexts, &mut streams, compressor)?;
    } else {
        for byte in 0..size_of::<L>() {
            let runs: Vec<Vec<u8>> = contexts
                .iter()
                .map(|context| {
                    let value = |&value: &L| if relative { zigzag(value) } else { kind.to_planes(value) };
                    context.values.iter().map(|lane| value(lane).byte(byte)).collect()
                })
                .collect();
            push_stream(&mut streams, &runs, Effort::Symbols, compressor)?;
        }
    }
    let counts = (0..parts.len()).flat_map(|part| {
        let positions = &positions;
        contexts.iter().enumerate().map(move |(number, context)| match positions.get(number) {
            Some(PositionCoding::Gaps(_)) => context.coded[part],
            _ => context.members[part],
        })
    });
    let table = Table {
        contexts: contexts.len(),
        counts: counts.collect(),
        thresholds: thresholds.concat(),
        positions,
        widths,
    };
    let mut all = Vec::new();
    push_stream(&mut all, &[table.to_bytes()], Effort::Text, compressor)?;
    all.append(&mut streams);
    Ok((coding, join(&all)))
}

/// Finds the lanes that change, block by block; a part without base starts from zeros.
pub(crate) struct Differences<'a, L: Lane> {
    pub(crate) base: Option<&'a [L::Bytes]>,
    pub(crate) target: &'a [L::Bytes],
    /// Gets a set for each block.
    pub(crate) changes: &'a mut Vec<u64>,
}

impl<L: Lane> Work for Differences<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self, compare: impl Compare) {
        self.changes.extend(self.target.chunks(BLOCK).enumerate().map(|(number, new)| {
            compare.differing::<L>(&old_block::<L>(self.base, number, new.len()), &padded::<L>(new))
        }));
    }
}

/// Looks at the lanes that change: at what becomes of them, and at what they were.
struct Look<'a, L: Lane> {
    kind: Kind<L>,
    base: Option<&'a [L::Bytes]>,
    target: &'a [L::Bytes],
    changes: &'a [u64],
    places: &'a mut Places,
    /// If values may be relative.
    counts: Option<(&'a mut ExponentStatistics, &'a mut Lengths)>,
    /// Gets them.
    values: &'a mut Vec<L>,
}

impl<L: Lane> Work for Look<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Compare) {
        let Self { kind, base, target, changes, places, mut counts, values } = self;
        for (number, (target, changes)) in target.chunks(STRETCH).zip(changes.chunks(BLOCKS)).enumerate() {
            let changed = places.of(changes).iter().map(|&lane| usize::from(lane));
            let Some((exponents, lengths)) = &mut counts else {
                values.extend(changed.map(|lane| L::load(target[lane])));
                continue;
            };
            let base = base.map(|base| &base[number * STRETCH..][..target.len()]);
            values.extend(changed.map(|lane| {
                let old = base.map_or(L::default(), |base| L::load(base[lane]));
                let difference = kind.difference(old, L::load(target[lane]));
                let length = bit_length(absolute(difference));
                let exponent = kind.exponent(old);
                lengths[length] += 1;
                exponents.changed[exponent] += 1;
                exponents.logarithms[exponent] += length as u64 - 1;
                difference
            }));
        }
    }
}

/// The lanes of the base that a block of the target of this number and length starts from: zeros if there is no base.
#[inline(always)]
fn old_block<L: Lane>(base: Option<&[L::Bytes]>, number: usize, length: usize) -> Block<L> {
    let begin = number * BLOCK;
    padded::<L>(base.map_or(&[], |base| &base[begin..begin + length]))
}

/// Sorts the coded lanes of all parts into contexts.
fn collect<L: Lane>(
    kind: Kind<L>,
    parts: &[&Measured<'_, L>],
    thresholds: &[Vec<u16>],
    dense: bool,
    relative: bool,
) -> Vec<CodedContext<L>> {
    let count = thresholds.first().map_or(1, |thresholds| thresholds.len() + 1);
    let mut collected: Vec<CodedContext<L>> = (0..count)
        .map(|_| CodedContext { gaps: Vec::new(), values: Vec::new(), coded: Vec::new(), members: Vec::new() })
        .collect();
    let (mut places, mut found) = (Places::new(), Members::new());
    for (part, thresholds) in parts.iter().zip(thresholds) {
        let (contexts, sorted) = (&Contexts::new(kind, thresholds), collected.as_mut_slice());
        dispatch(Sort { kind, part, contexts, dense, relative, places: &mut places, found: &mut found, sorted });
    }
    collected
}

/// Sorts the coded lanes of one part into contexts.
struct Sort<'a, 'b, L: Lane> {
    kind: Kind<L>,
    part: &'a Measured<'b, L>,
    contexts: &'a Contexts<L>,
    dense: bool,
    relative: bool,
    places: &'a mut Places,
    found: &'a mut Members,
    sorted: &'a mut [CodedContext<L>],
}

impl<L: Lane> Work for Sort<'_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self, compare: impl Compare) {
        let Self { kind, part, contexts, dense, relative, places, found, sorted } = self;
        let before: Vec<usize> = sorted.iter().map(|context| context.values.len()).collect();
        let mut members = [0; MAX_CONTEXTS];
        if dense {
            for (index, &after) in part.target.iter().enumerate() {
                let (before, after) = (part.old(index), L::load(after));
                let value = if relative { kind.difference(before, after) } else { after };
                let context = contexts.of(before);
                sorted[context].values.push(value);
                members[context] += 1;
            }
        } else {
            let has_one = sorted.len() == 1;
            let mut values = part.values.iter();
            // The rank that follows the last coded lane of each context.
            let mut next = [0; MAX_CONTEXTS];
            for (changes, begin) in part.changes.chunks(BLOCKS).zip((0..part.target.len()).step_by(STRETCH)) {
                let length = STRETCH.min(part.target.len() - begin);
                let old = part.base.map_or(&[][..], |base| &base[begin..begin + length]);
                // With one context a lane is its rank.
                if !has_one {
                    contexts.find(compare, old, found);
                }
                for &lane in places.of(changes) {
                    let (context, rank) = if has_one {
                        (0, u32::from(lane))
                    } else {
                        let context = contexts.of(L::load(old[usize::from(lane)]));
                        (context, found.rank(context, lane.into()))
                    };
                    let coded = &mut sorted[context];
                    coded.values.extend(values.next());
                    let rank: u32 = members[context] + rank;
                    coded.gaps.push(rank - next[context]);
                    next[context] = rank + 1;
                }
                if has_one {
                    members[0] += u32::try_from(length).unwrap_or(0);
                } else {
                    members.iter_mut().enumerate().for_each(|(context, members)| *members += found.count(context));
                }
            }
        }
        for ((coded, members), before) in sorted.iter_mut().zip(members).zip(before) {
            coded.members.push(members);
            coded.coded.push(u32::try_from(coded.values.len() - before).unwrap_or(u32::MAX));
        }
    }
}

/// Whether few differences need more than the widest symbol of the small coding.
fn prefers_small<L: Lane>(contexts: &[CodedContext<L>]) -> bool {
    let values = || contexts.iter().flat_map(|context| &context.values);
    let long = values().filter(|&&value| absolute(value) > 255).count();
    long * 16 <= values().count()
}

/// Compresses runs into one more stream.
fn push_stream(
    streams: &mut Vec<(usize, Vec<u8>)>,
    runs: &[Vec<u8>],
    effort: Effort,
    compressor: &mut Compressor,
) -> Result<()> {
    let runs: Vec<&[u8]> = runs.iter().map(Vec::as_slice).collect();
    let raw_length = runs.iter().map(|run| run.len()).sum();
    streams.push((raw_length, compressor.encode(&runs, effort)?));
    Ok(())
}

fn encode_positions<L: Lane>(
    contexts: &[CodedContext<L>],
    streams: &mut Vec<(usize, Vec<u8>)>,
    compressor: &mut Compressor,
) -> Result<Vec<PositionCoding>> {
    let (mut bitmaps, mut low, mut high, mut escapes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut positions = Vec::new();
    for context in contexts {
        let members: u64 = context.members.iter().map(|&members| u64::from(members)).sum();
        let coded = context.gaps.len() as u64;
        let (shift, gaps) = SplitGaps::best(&context.gaps);
        // Outside this range of densities the shorter of the two is known.
        let as_bitmap = coded * 3 >= members && coded > 0
            || coded * 8 >= members && coded > 0 && {
                let bitmap = bitmap(context);
                let bitmap_bytes = compressor.encode(&[&bitmap], Effort::Symbols)?.len();
                let gap_bytes =
                    compressor.encode(&[&gaps.high], Effort::Symbols)?.len() + gaps.low.len() + gaps.escapes.len();
                bitmap_bytes < gap_bytes
            };
        if as_bitmap {
            bitmaps.push(bitmap(context));
            positions.push(PositionCoding::Bitmap);
        } else {
            low.push(gaps.low);
            high.push(gaps.high);
            escapes.push(gaps.escapes);
            positions.push(PositionCoding::Gaps(shift));
        }
    }
    for runs in [&bitmaps, &low, &high, &escapes] {
        push_stream(streams, runs, Effort::Symbols, compressor)?;
    }
    Ok(positions)
}

/// Gaps in the three streams of SPEC section 8.1.
pub(super) struct SplitGaps {
    low: Vec<u8>,
    high: Vec<u8>,
    escapes: Vec<u8>,
}

impl SplitGaps {
    /// Splits by the shift that is estimated to be shortest, among those that bring the mean gap to between 32 and 256.
    /// Geometric gaps would make them equal, but real ones are a mixture, whose short gaps no low bits should pay for.
    fn best(gaps: &[u32]) -> (u8, Self) {
        let total: u64 = gaps.iter().map(|&gap| u64::from(gap)).sum();
        let mean = total.checked_div(gaps.len() as u64).unwrap_or(0);
        let most = u8::try_from((mean / 32).checked_ilog2().unwrap_or(0)).unwrap_or(31).min(31);
        // Some thousands tell as well as all.
        let sample: Vec<u32> = gaps.iter().step_by(gaps.len() >> 12 | 1).copied().collect();
        let mut best = (f64::INFINITY, 0);
        for shift in most.saturating_sub(2)..=most {
            let bits = Self::estimated_bits(&sample, shift);
            if bits < best.0 {
                best = (bits, shift);
            }
        }
        (best.1, Self::new(gaps, best.1))
    }

    pub(super) fn estimated_bits(gaps: &[u32], shift: u8) -> f64 {
        let mut histogram = ByteHistogram::new();
        let mut escapes = Vec::new();
        for gap in gaps {
            histogram.add(escapes::put(u64::from(gap >> shift), u8::MAX, &mut escapes));
        }
        let plain = packed_bytes(gaps.len() as u64, shift) + escapes.len() as u64;
        histogram.huffman_bits() * float(gaps.len() as u64) + 8.0 * float(plain)
    }

    fn new(gaps: &[u32], shift: u8) -> Self {
        let mut split = Self { low: Vec::new(), high: Vec::with_capacity(gaps.len()), escapes: Vec::new() };
        pack(&mut split.low, u32::from(shift), gaps.iter().copied());
        for gap in gaps {
            split.high.push(escapes::put(u64::from(gap >> shift), u8::MAX, &mut split.escapes));
        }
        split
    }
}

/// One bit per member of the context, through all parts.
fn bitmap<L: Lane>(context: &CodedContext<L>) -> Vec<u8> {
    let members: usize = context.members.iter().map(|&members| members as usize).sum();
    let mut bits = vec![0_u8; members.div_ceil(8)];
    let mut gaps = context.gaps.iter();
    let mut begin = 0;
    for (&members, &coded) in context.members.iter().zip(&context.coded) {
        let mut rank = begin;
        for gap in gaps.by_ref().take(coded as usize) {
            rank += *gap as usize;
            bits[rank / 8] |= 1 << (rank % 8);
            rank += 1;
        }
        begin += members as usize;
    }
    bits
}

fn encode_small<L: Lane>(
    contexts: &[CodedContext<L>],
    streams: &mut Vec<(usize, Vec<u8>)>,
    compressor: &mut Compressor,
) -> Result<Vec<u8>> {
    let (mut signs, mut magnitudes, mut all_escapes, mut widths) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for context in contexts {
        let mut run = Vec::new();
        pack(&mut run, 1, context.values.iter().map(|value| u32::from(value.is_negative())));
        signs.push(run);
        let less_one = |&value: &L| absolute(value) - 1;
        let symbols: Vec<u8> =
            context.values.iter().map(|value| u8::try_from(less_one(value)).unwrap_or(u8::MAX)).collect();
        let (width, packed) = best_width(&symbols);
        let greatest = u8::MAX >> (8 - width);
        let mut escapes = Vec::new();
        for (value, _) in context.values.iter().zip(&symbols).filter(|(_, symbol)| **symbol >= greatest) {
            escapes::put(less_one(value), greatest, &mut escapes);
        }
        widths.push(width);
        magnitudes.push(packed);
        all_escapes.push(escapes);
    }
    for runs in [&signs, &magnitudes, &all_escapes] {
        push_stream(streams, runs, Effort::Symbols, compressor)?;
    }
    Ok(widths)
}

/// The width of symbols that is estimated to be shortest, and the symbols packed with it.
fn best_width(symbols: &[u8]) -> (u8, Vec<u8>) {
    let mut counts = ByteHistogram::new();
    counts.extend(symbols);
    let mut best = (f64::INFINITY, 8, Vec::new());
    for width in [8, 4, 2, 1] {
        let greatest = u8::MAX >> (8 - width);
        // An escape takes a byte, or two if it is of 128 more.
        let long = greatest.checked_add(128).map_or(0, |long| counts.at_least(long));
        let escapes = 8.0 * float(counts.at_least(greatest) + long);
        // Narrower symbols have more of them.
        if escapes > best.0 {
            break;
        }
        let mut packed = Vec::with_capacity(packed_bytes(symbols.len() as u64, width).try_into().unwrap_or(0));
        pack(&mut packed, u32::from(width), symbols.iter().map(|&symbol| u32::from(symbol.min(greatest))));
        let mut histogram = ByteHistogram::new();
        histogram.extend(&packed);
        let bits = histogram.huffman_bits() * float(packed.len() as u64) + escapes;
        if bits <= best.0 {
            best = (bits, width, packed);
        }
    }
    (best.1, best.2)
}
