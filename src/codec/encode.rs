//! Encoding: the changes of a few pieces of one dtype become segments (SPEC sections 7 and 8).
//!
//! A sample of each piece shows which method is the cheapest (`sample.rs`); then each piece is read
//! once (`sort.rs`). Pieces with the same method share a segment.

use crate::codec::bits::{pack, pack_symbols, packed_bytes};
use crate::codec::choose;
use crate::codec::escapes;
use crate::codec::lane::{Lane, LaneKind, absolute, zigzag};
use crate::codec::piece::{Method, PieceInput, PieceSink, Profile, are_small};
use crate::codec::sample::{PieceLanes, PieceMethod, Rates};
use crate::codec::sort::{Bucket, CodedContext, Scratchpad};
use crate::codec::statistics::{ByteHistogram, ExponentStatistics, float};
use crate::error::Result;
use crate::format::coding::{Coding, Positions, Values};
use crate::format::segment::{MAX_SHIFT, PositionCoding, Table, join};
use crate::format::stream::{Compressor, Effort};
use crate::tensor::Dtype;

/// A segment and the numbers of the pieces that are its parts, in order.
#[derive(Debug)]
pub(crate) struct EncodedSegment {
    pub(crate) coding: Coding,
    pub(crate) bytes: Vec<u8>,
    pub(crate) pieces: Vec<usize>,
}

/// A segment gets no more parts once it has this many coded lanes. Then its tables are small in
/// comparison, and the changes are still in the cache when they are compressed.
pub(super) const SEGMENT_LANES: usize = 1 << 18;

const METHODS: [Method; 4] = [
    (Positions::Sparse, true),
    (Positions::Dense, true),
    (Positions::Sparse, false),
    (Positions::Dense, false),
];

/// Index of a method among all methods.
fn place((positions, is_relative): Method) -> usize {
    2 * usize::from(!is_relative) + usize::from(positions == Positions::Dense)
}

/// Encodes pieces of one dtype. `sink` makes a sink for each piece, to which the piece is shown.
/// Also returns the facts that the sinks have gathered.
pub(crate) fn encode<'a, L: Lane, S: PieceSink>(
    dtype: Dtype,
    pieces: &'a [PieceInput<'a>],
    profile: Profile,
    compressor: &mut Compressor,
    sink: impl FnMut(&'a PieceInput<'a>) -> S,
) -> Result<(Vec<EncodedSegment>, Vec<S::Seen>)> {
    let kind = LaneKind::<L>::of(dtype);
    let mut found = Scratchpad::new();
    let small = Rates::of_small(kind, pieces, profile, &mut found.places);
    let plan = |piece| {
        let lanes = PieceLanes::of(kind, piece, profile);
        (lanes.is_local || !lanes.are_few()).then(|| lanes.plan(&mut found.places))
    };
    let plans = pieces.iter().map(plan).collect();
    Samples {
        kind,
        pieces,
        profile,
        plans,
        small,
    }
    .encode(&mut found, compressor, sink)
}

#[cfg(test)]
pub(crate) use tests::encode_as;

/// Pieces that have been sampled.
struct Samples<'a, L: Lane> {
    kind: LaneKind<L>,
    pieces: &'a [PieceInput<'a>],
    profile: Profile,
    /// The method of each piece; `None` if it is chosen when the piece is read.
    plans: Vec<Option<PieceMethod>>,
    small: Rates,
}

/// The input of a segment: the sorted lanes of its pieces, and the thresholds that they are coded
/// with.
struct Draft<L> {
    sorted: Bucket<L>,
    /// The thresholds of the pieces that have their own, in order; then the thresholds of all
    /// others.
    own: std::vec::IntoIter<Vec<u16>>,
    shared: Vec<u16>,
}

impl<'a, L: Lane> Samples<'a, L> {
    /// Sorts the lanes of the pieces by method, and encodes them. Also returns the facts that the
    /// sinks have gathered.
    fn encode<S: PieceSink>(
        &self,
        found: &mut Scratchpad,
        compressor: &mut Compressor,
        mut sink: impl FnMut(&'a PieceInput<'a>) -> S,
    ) -> Result<(Vec<EncodedSegment>, Vec<S::Seen>)> {
        let mut all_open = METHODS.map(|method| self.begin(method));
        let mut changed = Vec::with_capacity(self.pieces.len());
        let mut seen = Vec::with_capacity(self.pieces.len());
        let mut segments = Vec::new();
        let mut close = |open: &mut Draft<L>, changed: &[u64]| {
            let next = Bucket::new(open.sorted.method, open.sorted.contexts.len());
            let mut done = std::mem::replace(&mut open.sorted, next);
            // The sample of a large piece cannot show that nothing changes.
            if done.method.0 == Positions::Sparse {
                done.leave_out(|piece| changed[piece] == 0);
            }
            if !done.pieces.is_empty() {
                segments.push(encode_segment(self.kind, done, compressor)?);
            }
            Ok(())
        };
        for (number, (piece, plan)) in self.pieces.iter().zip(&self.plans).enumerate() {
            let lanes = PieceLanes::of(self.kind, piece, self.profile);
            let method = match plan {
                Some(plan) => plan.method,
                None => lanes.method(&mut found.places),
            };
            let mut sink = sink(piece);
            if let Some(method) = method {
                let mut open = &mut all_open[place(method)];
                changed.push(self.add(open, number, found, &mut sink));
                if lanes.is_local && lanes.are_shorter_dense(open.sorted.last()) {
                    open.sorted.take_back();
                    open = &mut all_open[place((Positions::Dense, false))];
                    self.add(open, number, found, &mut ());
                }
                if open.sorted.coded() >= SEGMENT_LANES {
                    close(open, &changed)?;
                }
            } else {
                sink.passed(piece.base, piece.target);
                changed.push(0);
            }
            seen.push(sink.end(changed[number]));
        }
        all_open
            .iter_mut()
            .try_for_each(|open| close(open, &changed))?;
        Ok((segments, seen))
    }

    fn begin(&self, method: Method) -> Draft<L> {
        let planned = self
            .plans
            .iter()
            .flatten()
            .filter(|plan| plan.method == Some(method));
        let own: Vec<&ExponentStatistics> =
            planned.filter_map(|plan| plan.rates.as_ref()).collect();
        let (own, shared) = match method {
            (Positions::Sparse, true) => choose::thresholds(&own, &self.small.sparse, false),
            (Positions::Dense, true) => choose::thresholds(&own, &self.small.dense, true),
            (_, false) => (Vec::new(), Vec::new()),
        };
        Draft {
            sorted: Bucket::new(method, shared.len() + 1),
            own: own.into_iter(),
            shared,
        }
    }

    /// Adds the piece with this number; returns the number of its lanes that change.
    fn add(
        &self,
        open: &mut Draft<L>,
        number: usize,
        found: &mut Scratchpad,
        sink: &mut impl PieceSink,
    ) -> u64 {
        let has_own = self.plans[number]
            .as_ref()
            .is_some_and(|plan| plan.rates.is_some());
        let own = if has_own { open.own.next() } else { None };
        let thresholds = own.as_ref().unwrap_or(&open.shared);
        open.sorted.add(
            self.kind,
            number,
            &self.pieces[number],
            thresholds,
            found,
            sink,
        )
    }
}

fn encode_segment<L: Lane>(
    kind: LaneKind<L>,
    sorted: Bucket<L>,
    compressor: &mut Compressor,
) -> Result<EncodedSegment> {
    let Bucket {
        method: (positions, relative),
        mut contexts,
        pieces,
        thresholds,
    } = sorted;
    let dense = positions == Positions::Dense;
    let small = !dense && relative && prefers_small(&contexts);
    let values = match (relative, small) {
        (false, _) => Values::Absolute,
        (true, false) => Values::RelativePlanes,
        (true, true) => Values::RelativeSmall,
    };
    let coding = Coding {
        lane_bytes: size_of::<L>(),
        positions,
        values,
    };

    let mut streams = Streams {
        all: Vec::new(),
        compressor,
    };
    let positions = if dense {
        Vec::new()
    } else {
        encode_positions(&contexts, &mut streams)?
    };
    let mut widths = Vec::new();
    if small {
        widths = encode_small(&contexts, &mut streams)?;
    } else {
        for value in contexts.iter_mut().flat_map(|context| &mut context.values) {
            *value = if relative {
                zigzag(*value)
            } else {
                kind.to_planes(*value)
            };
        }
        let mut runs = vec![Vec::new(); contexts.len()];
        for byte in 0..size_of::<L>() {
            for (run, context) in runs.iter_mut().zip(&contexts) {
                run.clear();
                run.extend(context.values.iter().map(|value| value.byte(byte)));
            }
            streams.push(&runs, Effort::Symbols)?;
        }
    }
    let counts = (0..pieces.len()).flat_map(|part| {
        let positions = &positions;
        contexts
            .iter()
            .enumerate()
            .map(move |(number, context)| match positions.get(number) {
                Some(PositionCoding::Gaps(_)) => context.coded[part],
                _ => context.members[part],
            })
    });
    let table = Table {
        contexts: contexts.len(),
        counts: counts.collect(),
        thresholds,
        positions,
        widths,
    };
    streams.push(&[table.to_bytes()], Effort::Text)?;
    // The table comes first in the segment, but is known last.
    streams.all.rotate_right(1);
    Ok(EncodedSegment {
        coding,
        bytes: join(&streams.all),
        pieces,
    })
}

/// Whether the small coding is the better one for the differences.
fn prefers_small<L: Lane>(contexts: &[CodedContext<L>]) -> bool {
    let values = || contexts.iter().flat_map(|context| &context.values);
    let long = values().filter(|&&value| absolute(value) > 255).count();
    are_small(long as u64, values().count() as u64)
}

/// The streams of a segment, each with its raw length.
struct Streams<'a> {
    all: Vec<(usize, Vec<u8>)>,
    compressor: &'a mut Compressor,
}

impl Streams<'_> {
    /// Compresses runs into one more stream.
    fn push(&mut self, runs: &[Vec<u8>], effort: Effort) -> Result<()> {
        let runs: Vec<&[u8]> = runs.iter().map(Vec::as_slice).collect();
        let raw_length = runs.iter().map(|run| run.len()).sum();
        self.all
            .push((raw_length, self.compressor.encode(&runs, effort)?));
        Ok(())
    }
}

fn encode_positions<L: Lane>(
    contexts: &[CodedContext<L>],
    streams: &mut Streams<'_>,
) -> Result<Vec<PositionCoding>> {
    let (mut bitmaps, mut low, mut high, mut escapes) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut positions = Vec::new();
    for context in contexts {
        let members: u64 = context
            .members
            .iter()
            .map(|&members| u64::from(members))
            .sum();
        let coded = context.gaps.len() as u64;
        // Outside this range of densities, it is known which of the two is shorter.
        let mut bitmap = (coded > 0 && coded * 8 >= members).then(|| bitmap(context));
        let split = (coded == 0 || coded * 3 < members).then(|| SplitGaps::best(&context.gaps));
        if let (Some(bits), Some((_, gaps))) = (&bitmap, &split) {
            let bitmap_bytes = streams.compressor.encode(&[bits], Effort::Symbols)?.len();
            let high_bytes = streams
                .compressor
                .encode(&[&gaps.high], Effort::Symbols)?
                .len();
            if bitmap_bytes >= high_bytes + gaps.low.len() + gaps.escapes.len() {
                bitmap = None;
            }
        }
        match (bitmap, split) {
            (None, Some((shift, gaps))) => {
                low.push(gaps.low);
                high.push(gaps.high);
                escapes.push(gaps.escapes);
                positions.push(PositionCoding::Gaps(shift));
            }
            (bitmap, _) => {
                bitmaps.extend(bitmap);
                positions.push(PositionCoding::Bitmap);
            }
        }
    }
    [bitmaps, low, high, escapes]
        .iter()
        .try_for_each(|runs| streams.push(runs, Effort::Symbols))?;
    Ok(positions)
}

/// Gaps in the three streams of SPEC section 8.1.
pub(super) struct SplitGaps {
    low: Vec<u8>,
    high: Vec<u8>,
    escapes: Vec<u8>,
}

impl SplitGaps {
    /// Splits by the shift with the shortest estimate, among the shifts that bring the mean gap to
    /// between 32 and 256. With geometric gaps, these shifts would be equally good. Real gaps are a
    /// mixture, in which short gaps should not pay for low bits.
    fn best(gaps: &[u32]) -> (u8, Self) {
        let total: u64 = gaps.iter().map(|&gap| u64::from(gap)).sum();
        // Without gaps, any shift is as good as another. A mean below 32 has the logarithm 0.
        let mean = total.checked_div(gaps.len() as u64).unwrap_or(0);
        let most = u8::try_from((mean / 32).checked_ilog2().unwrap_or(0))
            .unwrap_or(MAX_SHIFT)
            .min(MAX_SHIFT);
        // A few thousand gaps are as good a sample as all.
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
        let mut split = Self {
            low: Vec::new(),
            high: Vec::with_capacity(gaps.len()),
            escapes: Vec::new(),
        };
        pack(&mut split.low, u32::from(shift), gaps.iter().copied());
        for gap in gaps {
            split.high.push(escapes::put(
                u64::from(gap >> shift),
                u8::MAX,
                &mut split.escapes,
            ));
        }
        split
    }
}

/// One bit per member of the context, through all parts.
fn bitmap<L: Lane>(context: &CodedContext<L>) -> Vec<u8> {
    let members: usize = context
        .members
        .iter()
        .map(|&members| members as usize)
        .sum();
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
    streams: &mut Streams<'_>,
) -> Result<Vec<u8>> {
    let (mut signs, mut magnitudes, mut all_escapes, mut widths) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for context in contexts {
        let negative: Vec<u8> = context
            .values
            .iter()
            .map(|value| value.is_negative().into())
            .collect();
        signs.push(pack_symbols(&negative, 1));
        let less_one = |&value: &L| absolute(value) - 1;
        // A value that does not fit in a byte is escaped, whatever the width.
        let symbols: Vec<u8> = context
            .values
            .iter()
            .map(|value| u8::try_from(less_one(value)).unwrap_or(u8::MAX))
            .collect();
        let (width, packed) = best_width(symbols, contexts.len() == 1);
        let greatest = u8::MAX >> (8 - width);
        let mut escapes = Vec::new();
        for less_one in context
            .values
            .iter()
            .map(less_one)
            .filter(|&less_one| less_one >= greatest.into())
        {
            escapes::put(less_one, greatest, &mut escapes);
        }
        widths.push(width);
        magnitudes.push(packed);
        all_escapes.push(escapes);
    }
    [signs, magnitudes, all_escapes]
        .iter()
        .try_for_each(|runs| streams.push(runs, Effort::Symbols))?;
    Ok(widths)
}

/// Counts the bytes of the escapes of all symbols from the greatest one on.
fn escape_bytes(symbols: &ByteHistogram, greatest: u8) -> ByteHistogram {
    let mut bytes = ByteHistogram::new();
    let mut varint = Vec::new();
    for (value, &count) in (0..).zip(&symbols.counts()).skip(greatest.into()) {
        varint.clear();
        escapes::put(value, greatest, &mut varint);
        varint
            .iter()
            .for_each(|&byte| bytes.add_several(byte, count));
    }
    bytes
}

/// The symbol width with the shortest estimate, and the symbols packed with it. If the context is
/// the `only` one, its escapes fill their stream, so their compressed size is estimated.
fn best_width(mut symbols: Vec<u8>, only: bool) -> (u8, Vec<u8>) {
    let mut counts = ByteHistogram::new();
    counts.extend(&symbols);
    let mut best = (f64::INFINITY, 8, Vec::new());
    for width in [8, 4, 2, 1] {
        let greatest = u8::MAX >> (8 - width);
        let escapes = escape_bytes(&counts, greatest);
        let escape_bits = if only {
            escapes.stream_bits()
        } else {
            8.0 * float(escapes.total())
        };
        // Narrower symbols have even more escapes.
        if escape_bits > best.0 {
            break;
        }
        symbols
            .iter_mut()
            .for_each(|symbol| *symbol = greatest.min(*symbol));
        let packed = pack_symbols(&symbols, width);
        let mut histogram = ByteHistogram::new();
        histogram.extend(&packed);
        let length = float(packed.len() as u64);
        let bits = if only {
            histogram.stream_bits()
        } else {
            histogram.huffman_bits() * length
        } + escape_bits;
        if bits <= best.0 {
            best = (bits, width, packed);
        }
    }
    (best.1, best.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes pieces of one dtype, which have a base where values are relative, as one segment by
    /// the given method.
    pub(crate) fn encode_as<L: Lane>(
        dtype: Dtype,
        pieces: &[PieceInput<'_>],
        method: Method,
        compressor: &mut Compressor,
    ) -> Result<(Coding, Vec<u8>)> {
        let kind = LaneKind::<L>::of(dtype);
        let profile = if method.1 {
            Profile::Compact
        } else {
            Profile::Direct
        };
        let mut found = Scratchpad::new();
        // All rates are those of sparse pieces.
        let sparse = |&PieceInput { base, target, .. }: &_| PieceInput {
            base,
            target,
            sparse: true,
        };
        let pieces: Vec<PieceInput<'_>> = pieces.iter().map(sparse).collect();
        let mut small = Rates::of_small(kind, &pieces, profile, &mut found.places);
        small.dense = small.sparse.clone();
        let plan = |piece| {
            let lanes = PieceLanes::of(kind, piece, profile);
            let rates = if lanes.are_few() {
                None
            } else {
                lanes.plan(&mut found.places).rates
            };
            Some(PieceMethod {
                method: Some(method),
                rates,
            })
        };
        let plans = pieces.iter().map(plan).collect();
        let planned = Samples {
            kind,
            pieces: &pieces,
            profile,
            plans,
            small,
        };
        let mut open = planned.begin(method);
        for number in 0..pieces.len() {
            planned.add(&mut open, number, &mut found, &mut ());
        }
        let segment = encode_segment(kind, open.sorted, compressor)?;
        Ok((segment.coding, segment.bytes))
    }
}
