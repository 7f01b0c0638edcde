//! Decodes a segment: from streams to coded lanes, and from these to the lanes of a part (SPEC
//! sections 7 and 8).
//!
//! Checks that do not need the base are made when the streams are read; the others, when a part is
//! applied.

use std::borrow::Cow;

use crate::codec::bits::{add_items, for_each_one, packed_bytes, take, unpack_symbols};
use crate::codec::blocks::{BLOCK, Compare, STRETCH, Work, dispatch, padded};
use crate::codec::contexts::{Contexts, Members};
use crate::codec::escapes;
use crate::codec::lane::{Lane, LaneKind, unzigzag};
use crate::error::{Error, Result};
use crate::format::coding::{Coding, Values};
use crate::format::segment::{MAX_CONTEXTS, PositionCoding, StoredStream, Table, split};
use crate::limits::address;
use crate::rules::{self, ensure};
use crate::tensor::Dtype;

/// Maximum bytes of the escape of a gap: a piece has at most 2^24 lanes.
const GAP_ESCAPE_BYTES: u64 = 4;

/// A decoded segment: for each part and context the coded lanes, as gaps between ranks and as
/// values.
///
/// Both lists are ordered by context, part and lane; `runs` says which stretch belongs to a part
/// and context.
#[derive(Debug)]
pub(crate) struct DecodedSegment<L> {
    pub(crate) coding: Coding,
    pub(crate) table: Table,
    pub(crate) parts: Vec<(Dtype, u32)>,
    /// Absolute offset of the segment.
    offset: u64,
    /// Raw and stored length of each stream.
    pub(crate) streams: Vec<(u64, u64)>,
    /// Begin and length of each run, by part and then context.
    runs: Vec<(usize, u32)>,
    /// For each coded lane, the number of members between it and the coded lane before; empty if
    /// positions are dense.
    gaps: Vec<u32>,
    /// For each coded lane, its new bits or its difference.
    values: Vec<L>,
}

impl<L: Lane> DecodedSegment<L> {
    /// Decodes a segment that begins at `offset` in the file and whose checksum matched; steps 8.2
    /// to 8.4 of SPEC section 10. `parts` gives dtype and lanes of each part.
    pub(crate) fn new(
        segment: &[u8],
        offset: u64,
        coding: Coding,
        parts: Vec<(Dtype, u32)>,
    ) -> Result<Self> {
        let streams = split(segment, offset, coding)?;
        let lengths = streams
            .iter()
            .map(|stream| (stream.raw_length, stream.bytes.len() as u64))
            .collect();
        let mut streams = streams.into_iter();
        let mut next = || {
            streams
                .next()
                .ok_or_else(|| Error::broken(&rules::SEG_02, "a stream is missing"))
        };
        let table = Table::parse(&next()?, coding, &parts)?;
        let (runs, gaps, values) = (Vec::new(), Vec::new(), Vec::new());
        let mut decoded = Self {
            coding,
            table,
            parts,
            offset,
            streams: lengths,
            runs,
            gaps,
            values,
        };
        let total = if coding.is_sparse() {
            decoded.read_positions(&[next()?, next()?, next()?, next()?])?
        } else {
            let counts = decoded.table.counts.clone();
            decoded.set_runs(&counts)
        };
        if coding.values == Values::RelativeSmall {
            decoded.read_small(&[next()?, next()?, next()?], total)?;
        } else {
            let planes = (0..L::BITS / 8)
                .map(|_| next())
                .collect::<Result<Vec<_>>>()?;
            decoded.read_planes(&planes, total)?;
        }
        Ok(decoded)
    }

    /// Size of its lists in memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let counted = size_of_val(&*self.table.counts) + size_of_val(&*self.table.thresholds);
        counted + size_of_val(&*self.runs) + size_of_val(&*self.gaps) + size_of_val(&*self.values)
    }

    /// Sets the runs from the coded lanes of each part and context; returns the number of all coded
    /// lanes.
    fn set_runs(&mut self, coded: &[u32]) -> usize {
        let contexts = self.table.contexts;
        self.runs = vec![(0, 0); coded.len()];
        let mut begin = 0;
        for context in 0..contexts {
            for index in (context..coded.len()).step_by(contexts) {
                self.runs[index] = (begin, coded[index]);
                begin += coded[index] as usize;
            }
        }
        begin
    }

    /// Reads the four position streams: bitmap, gap low, gap high, gap escape. Returns the number
    /// of coded lanes.
    fn read_positions(
        &mut self,
        [bitmap, low, high, escape]: &[StoredStream<'_>; 4],
    ) -> Result<usize> {
        let contexts = self.table.contexts;
        let of_context = |context| self.table.counts.iter().skip(context).step_by(contexts);
        let per_context: Vec<u64> = (0..contexts)
            .map(|context| of_context(context).map(|&count| u64::from(count)).sum())
            .collect();
        // Bits of an item; 0 for contexts without items.
        let bit = |position| u8::from(position == PositionCoding::Bitmap);
        let symbol = |position| 8 * u8::from(position != PositionCoding::Bitmap);
        let low_bits = |position| match position {
            PositionCoding::Bitmap => 0,
            PositionCoding::Gaps(shift) => shift,
        };
        let bytes = |width: &dyn Fn(PositionCoding) -> u8| -> u64 {
            let contexts = self.table.positions.iter().zip(&per_context);
            contexts
                .map(|(&position, &count)| packed_bytes(count, width(position)))
                .sum()
        };
        let bits = read_exact(bitmap, bytes(&bit))?;
        let bits = self.each_context(&bits, bitmap, &per_context, bit)?;
        let low_run = read_exact(low, bytes(&low_bits))?;
        let low_bits = self.each_context(&low_run, low, &per_context, low_bits)?;
        let high = read_exact(high, bytes(&symbol))?;
        let escaped = high.iter().filter(|&&symbol| symbol == u8::MAX).count();
        let raw_escapes = read_escapes(escape, escaped, GAP_ESCAPE_BYTES)?;
        let mut escapes = escapes::read(&raw_escapes, escape.offset);

        // Bits of bitmaps become gaps, too, so that parts are applied from a single form.
        let mut coded = self.table.counts.clone();
        let mut gaps = Vec::with_capacity(
            high.len()
                + bits
                    .iter()
                    .flat_map(|run| *run)
                    .map(|byte| byte.count_ones() as usize)
                    .sum::<usize>(),
        );
        let mut high = &*high;
        for context in 0..contexts {
            let parts = (context..coded.len()).step_by(contexts);
            match self.table.positions[context] {
                PositionCoding::Bitmap => {
                    let mut begin = 0;
                    for index in parts {
                        let (before, end) = (gaps.len(), begin + coded[index] as usize);
                        // Places and their number are below the count, which is a `u32`.
                        for_each_one(bits[context], begin..end, |place| {
                            gaps.push(u32::try_from(place - begin).unwrap_or(u32::MAX));
                            begin = place + 1;
                        });
                        begin = end;
                        coded[index] = u32::try_from(gaps.len() - before).unwrap_or(u32::MAX);
                    }
                }
                PositionCoding::Gaps(shift) => {
                    // The count fits: each gap has a symbol in memory, by R-STR-04.
                    let (mut own, others) = high.split_at(address(per_context[context])?);
                    high = others;
                    let mut begin = gaps.len();
                    gaps.extend(own.iter().map(|&symbol| u32::from(symbol) << shift));
                    add_items(&mut gaps[begin..], low_bits[context], usize::from(shift));
                    // R-POS-01 as far as it does not need the base.
                    let too_much = |lanes: u32| {
                        let message = format!("a rank exceeds the {lanes} lanes of its part");
                        Error::broken(&rules::POS_01, message).at(escape.offset)
                    };
                    for index in parts {
                        let (_, lanes) = self.parts[index / contexts];
                        let (symbols, others) = own.split_at(coded[index] as usize);
                        own = others;
                        let part = &mut gaps[begin..begin + symbols.len()];
                        begin += symbols.len();
                        if symbols.contains(&u8::MAX) {
                            for (gap, _) in part
                                .iter_mut()
                                .zip(symbols)
                                .filter(|(_, symbol)| **symbol == u8::MAX)
                            {
                                let more = escapes.next().unwrap_or(0).checked_mul(1 << shift);
                                let more = more.and_then(|more| u32::try_from(more).ok());
                                *gap = more
                                    .and_then(|more| gap.checked_add(more))
                                    .ok_or_else(|| too_much(lanes))?;
                            }
                        }
                        let ranks = part.iter().map(|&gap| u64::from(gap) + 1).sum::<u64>();
                        if ranks > u64::from(lanes) {
                            return Err(too_much(lanes));
                        }
                    }
                }
            }
        }
        self.gaps = gaps;
        Ok(self.set_runs(&coded))
    }

    /// Takes the run of each context from a bit stream; `width` gives the bits per item, 0 for
    /// contexts without items.
    fn each_context<'a>(
        &self,
        mut bytes: &'a [u8],
        stream: &StoredStream<'_>,
        counts: &[u64],
        width: impl Fn(PositionCoding) -> u8,
    ) -> Result<Vec<&'a [u8]>> {
        let contexts = self.table.positions.iter().zip(counts);
        // The bits of all items are in memory, so the count fits. If items have no bits, nothing is
        // taken, whatever the count.
        let runs = contexts.map(|(position, &count)| {
            take(
                &mut bytes,
                width(*position).into(),
                usize::try_from(count).unwrap_or(0),
            )
        });
        runs.collect::<Result<_>>()
            .map_err(|error| error.at(stream.offset))
    }

    /// Reads absolute values or relative planes.
    fn read_planes(&mut self, planes: &[StoredStream<'_>], total: usize) -> Result<()> {
        let relative = self.coding.is_relative();
        for (byte, plane) in (0..).zip(planes) {
            let plane = read_exact(plane, total as u64)?;
            // Memory is taken only now, when it is known that there are that many values.
            self.values.resize(total, L::default());
            for (value, &bits) in self.values.iter_mut().zip(&*plane) {
                *value = *value ^ L::from_u64(u64::from(bits) << (8 * byte));
            }
        }
        if relative {
            for value in &mut self.values {
                *value = unzigzag(*value);
            }
            // R-VAL-01: a coded lane of a sparse part changes.
            if self.coding.is_sparse() {
                let changed = self.values.iter().all(|value| *value != L::default());
                let offset = planes.last().map_or(self.offset, |plane| plane.offset);
                ensure(changed, &rules::VAL_01, || {
                    "a coded lane does not change".into()
                })
                .map_err(|e| e.at(offset))?;
            }
        } else {
            for part in 0..self.parts.len() {
                let kind = LaneKind::<L>::of(self.parts[part].0);
                let (begin, length) = self.runs[part];
                for value in &mut self.values[begin..begin + length as usize] {
                    *value = kind.of_planes(*value);
                }
            }
        }
        Ok(())
    }

    /// Reads relative small values: sign, magnitude, magnitude escape.
    fn read_small(
        &mut self,
        [sign, magnitude, escape]: &[StoredStream<'_>; 3],
        total: usize,
    ) -> Result<()> {
        let contexts = self.table.contexts;
        let mut counts = vec![0_usize; contexts];
        for (index, (_, length)) in self.runs.iter().enumerate() {
            counts[index % contexts] += *length as usize;
        }
        let bytes = |width: &dyn Fn(usize) -> u8| -> u64 {
            counts
                .iter()
                .enumerate()
                .map(|(context, &count)| packed_bytes(count as u64, width(context)))
                .sum()
        };
        let (sign_bytes, magnitude_bytes) =
            (bytes(&|_| 1), bytes(&|context| self.table.widths[context]));
        let signs = read_exact(sign, sign_bytes)?;
        let mut signs = &*signs;
        let mut negative = Vec::with_capacity(total);
        for &count in &counts {
            negative.extend(
                unpack_symbols(&mut signs, 1, count).map_err(|error| error.at(sign.offset))?,
            );
        }
        let magnitudes = read_exact(magnitude, magnitude_bytes)?;
        let mut magnitudes = &*magnitudes;
        let mut symbols = Vec::with_capacity(contexts);
        let mut escaped = 0;
        for (&count, &width) in counts.iter().zip(&self.table.widths) {
            let greatest = u8::MAX >> (8 - width);
            let run = unpack_symbols(&mut magnitudes, width, count)
                .map_err(|error| error.at(magnitude.offset))?;
            escaped += run.iter().filter(|&&symbol| symbol == greatest).count();
            symbols.push((greatest, run));
        }
        // R-VAL-02 leaves a magnitude one bit less than a lane.
        let raw_escapes = read_escapes(escape, escaped, (u64::from(L::BITS) - 1).div_ceil(7))?;
        let mut escapes = escapes::read(&raw_escapes, escape.offset);
        // R-VAL-02: the greatest magnitude less one.
        let most = (u64::MAX >> (64 - L::BITS)) / 2;
        let signed = |less_one: u64, negative: u8| {
            let magnitude = L::from_u64(less_one + 1);
            if negative == 1 {
                L::default().wrapping_sub(magnitude)
            } else {
                magnitude
            }
        };
        let mut negative = negative.as_slice();
        self.values.reserve(total);
        for (greatest, run) in symbols {
            let (own, others) = negative.split_at(run.len());
            negative = others;
            let begin = self.values.len();
            self.values.extend(
                run.iter()
                    .zip(own)
                    .map(|(&symbol, &negative)| signed(symbol.into(), negative)),
            );
            // Then the few that exceed their symbol, or may be too large.
            for (place, &symbol) in run.iter().enumerate() {
                if symbol < greatest && u64::from(symbol) < most {
                    continue;
                }
                let less_one = escapes::value(symbol, greatest, &mut escapes);
                ensure(
                    less_one < most || (own[place] == 1 && less_one == most),
                    &rules::VAL_02,
                    || format!("a difference of magnitude {less_one} + 1"),
                )
                .map_err(|error| error.at(magnitude.offset))?;
                self.values[begin + place] = signed(less_one, own[place]);
            }
        }
        Ok(())
    }

    /// The values and gaps of part number `part`, one run per context.
    fn runs(&self, part: usize) -> impl Iterator<Item = CodedRun<'_, L>> {
        let contexts = self.table.contexts;
        let runs = self.runs.chunks_exact(contexts).nth(part).unwrap_or(&[]);
        runs.iter().map(|&(begin, length)| {
            let end = begin + length as usize;
            CodedRun {
                gaps: self.gaps.get(begin..end).unwrap_or(&[]),
                values: &self.values[begin..end],
            }
        })
    }

    /// The coded lanes of a part and their values, if positions do not depend on the base, that is,
    /// with one context. Lanes are ascending numbers in the piece; `None` if all lanes are coded.
    /// The values are new bits or differences, as the segment's coding says.
    pub(crate) fn patches(&self, part: usize) -> Result<(Option<Vec<u32>>, &[L])> {
        let Some(run) = self.runs(part).next().filter(|_| self.table.contexts == 1) else {
            return Err(Error::usage(
                "positions with several contexts need the base",
            ));
        };
        let mut next = 0;
        let lane = |&gap: &u32| {
            let lane = next + gap;
            next = lane + 1;
            lane
        };
        // The ranks have been checked to be below the number of lanes.
        let lanes = self
            .coding
            .is_sparse()
            .then(|| run.gaps.iter().map(lane).collect());
        Ok((lanes, run.values))
    }

    /// The changes of part number `part`, to be applied to its piece's bytes.
    pub(crate) fn changes(&self, part: usize) -> PartPatch<'_, L> {
        let kind = LaneKind::of(self.parts[part].0);
        let mut runs = [const {
            CodedRun {
                gaps: &[],
                values: &[],
            }
        }; MAX_CONTEXTS];
        let mut until = [u64::MAX; MAX_CONTEXTS];
        for ((run, until), own) in runs.iter_mut().zip(&mut until).zip(self.runs(part)) {
            *until = own.gap().unwrap_or(u64::MAX);
            *run = own;
        }
        let contexts = Contexts::new(kind, self.table.thresholds(part));
        PartPatch {
            decoded: self,
            part,
            kind,
            contexts,
            runs,
            members: [0; MAX_CONTEXTS],
            until,
        }
    }

    /// Applies part number `part` to its piece's bytes, which hold the lanes that the tensor starts
    /// from.
    pub(crate) fn apply(&self, part: usize, bytes: &mut [u8]) -> Result<()> {
        let mut changes = self.changes(part);
        changes.apply(bytes);
        changes.finish()
    }

    /// The coded lanes of part number `part`, for each context: rank and value.
    pub(crate) fn ranks(
        &self,
        part: usize,
    ) -> impl Iterator<Item = impl ExactSizeIterator<Item = (u64, L)>> {
        self.runs(part).map(|run| {
            let mut next = 0;
            run.values.iter().enumerate().map(move |(index, &value)| {
                // Dense positions have no gaps.
                let rank = next + u64::from(run.gaps.get(index).copied().unwrap_or(0));
                next = rank + 1;
                (rank, value)
            })
        })
    }

    /// Number of coded lanes of part number `part`.
    pub(crate) fn coded(&self, part: usize) -> u64 {
        self.runs(part).map(|run| run.values.len() as u64).sum()
    }
}

/// The remaining coded lanes of one part and context.
#[derive(Debug, Clone, Copy)]
struct CodedRun<'a, L> {
    /// Empty where positions are dense.
    gaps: &'a [u32],
    values: &'a [L],
}

impl<L: Lane> CodedRun<'_, L> {
    /// Members of the context between the last coded lane and the next one, where positions are
    /// sparse; `None` after the last one.
    #[inline(always)]
    fn gap(&self) -> Option<u64> {
        self.gaps.first().map(|&gap| u64::from(gap))
    }

    /// Takes the next coded lane.
    #[inline(always)]
    fn next(&mut self) -> Option<L> {
        let (value, values) = self.values.split_first()?;
        self.values = values;
        self.gaps = self.gaps.get(1..).unwrap_or(&[]);
        Some(*value)
    }
}

/// The changes of a part, applied to one stretch of its piece after another.
#[derive(Debug)]
pub(crate) struct PartPatch<'a, L> {
    decoded: &'a DecodedSegment<L>,
    part: usize,
    kind: LaneKind<L>,
    contexts: Contexts<L>,
    runs: [CodedRun<'a, L>; MAX_CONTEXTS],
    /// Number of members of each context that have been passed.
    members: [u64; MAX_CONTEXTS],
    /// Number of lanes of each context to skip before the next coded one; a huge number if no coded
    /// lane is left.
    until: [u64; MAX_CONTEXTS],
}

/// Changes of lanes of any width.
pub(crate) trait PartChanges {
    /// Changes the next stretch, which holds the lanes that the tensor starts from. All stretches
    /// but the last must have whole blocks.
    fn apply(&mut self, bytes: &mut [u8]);

    /// Checks after the last stretch that the part fits the lanes; step 8.5 of SPEC section 10.
    fn finish(&self) -> Result<()>;
}

impl<L: Lane> PartChanges for PartPatch<'_, L> {
    fn apply(&mut self, bytes: &mut [u8]) {
        let lanes = L::chunks_mut(bytes);
        let relative = self.decoded.coding.is_relative();
        if self.decoded.table.contexts > 1 {
            return dispatch(Apply {
                lanes,
                changes: self,
            });
        }
        if !self.decoded.coding.is_sparse() {
            let CodedRun { values, .. } = &mut self.runs[0];
            let own = values.split_off(..lanes.len()).unwrap_or(&[]);
            return lanes
                .iter_mut()
                .zip(own)
                .for_each(|(lane, &value)| change(self.kind, relative, lane, value));
        }
        // All lanes are members.
        let count = lanes.len() as u64;
        let mut rank = self.until[0];
        while rank < count
            && let Some(value) = self.runs[0].next()
        {
            if let Some(lane) = usize::try_from(rank)
                .ok()
                .and_then(|rank| lanes.get_mut(rank))
            {
                change(self.kind, relative, lane, value);
            }
            rank = self.runs[0].gap().map_or(u64::MAX, |gap| rank + 1 + gap);
        }
        self.until[0] = rank - count;
        self.members[0] += count;
    }

    fn finish(&self) -> Result<()> {
        let Self {
            decoded,
            part,
            runs,
            members,
            ..
        } = self;
        // With one context all lanes are members, and the table has been compared with their
        // number.
        if decoded.table.contexts == 1 {
            return Ok(());
        }
        for (context, &count) in decoded.table.counts(*part).iter().enumerate() {
            let members = members[context];
            let checked = match decoded.table.positions.get(context) {
                Some(PositionCoding::Gaps(_)) => {
                    ensure(runs[context].values.is_empty(), &rules::POS_01, || {
                        format!("ranks exceed the {members} members of context {context}")
                    })
                }
                Some(PositionCoding::Bitmap) | None => {
                    ensure(u64::from(count) == members, &rules::POS_02, || {
                        format!("{count} values for the {members} members of context {context}")
                    })
                }
            };
            checked.map_err(|error| error.at(decoded.offset))?;
        }
        Ok(())
    }
}

/// Changes the coded lanes of a stretch, if there are several contexts.
struct Apply<'a, 'b, L: Lane> {
    lanes: &'a mut [L::Bytes],
    changes: &'a mut PartPatch<'b, L>,
}

impl<L: Lane> Work for Apply<'_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self, compare: impl Compare) {
        let Self { lanes, changes } = self;
        let PartPatch {
            decoded,
            kind,
            ref contexts,
            ref mut runs,
            ref mut members,
            ref mut until,
            ..
        } = *changes;
        if !decoded.coding.is_sparse() {
            let mut passed = [0; MAX_CONTEXTS];
            for block in lanes.chunks_mut(BLOCK) {
                let of_lanes = contexts.of_block(&padded::<L>(block));
                for (lane, &context) in block.iter_mut().zip(&of_lanes) {
                    let context = usize::from(context) % MAX_CONTEXTS;
                    if let Some(&value) = runs[context].values.get(passed[context]) {
                        change(kind, true, lane, value);
                    }
                    passed[context] += 1;
                }
            }
            for (context, passed) in passed.into_iter().enumerate() {
                members[context] += passed as u64;
                runs[context].values = runs[context].values.get(passed..).unwrap_or(&[]);
            }
            return;
        }
        let mut found = Members::new();
        for stretch in lanes.chunks_mut(STRETCH) {
            // Contexts are found first, because they depend on the base's lanes, which change here.
            contexts.find(compare, stretch, &mut found);
            for context in 0..decoded.table.contexts {
                let count = u64::from(found.count(context));
                members[context] += count;
                let CodedRun {
                    mut gaps,
                    mut values,
                } = runs[context];
                let mut rank = until[context];
                let mut own = found.of(context);
                while rank < count
                    && let ([_, other_gaps @ ..], [value, other_values @ ..]) = (gaps, values)
                {
                    // The rank is below the number of lanes of a stretch, which fits in a `u16`.
                    let lane = own.lane(u16::try_from(rank).unwrap_or(0));
                    change(kind, true, &mut stretch[lane], *value);
                    (gaps, values) = (other_gaps, other_values);
                    rank = gaps
                        .first()
                        .map_or(u64::MAX, |&gap| rank + 1 + u64::from(gap));
                }
                runs[context] = CodedRun { gaps, values };
                until[context] = rank - count;
            }
        }
    }
}

/// Gives a coded lane its new bits, or moves it by its difference.
#[inline(always)]
fn change<L: Lane>(kind: LaneKind<L>, relative: bool, lane: &mut L::Bytes, value: L) {
    *lane = if relative {
        kind.moved(L::load(*lane), value)
    } else {
        value
    }
    .store();
}

/// Decodes a stream, whose raw length must be the one that the coding requires (R-STR-04).
fn read_exact<'a>(stream: &StoredStream<'a>, raw_length: u64) -> Result<Cow<'a, [u8]>> {
    ensure(stream.raw_length == raw_length, &rules::STR_04, || {
        format!(
            "a stream declares {} raw bytes instead of {raw_length}",
            stream.raw_length
        )
    })
    .map_err(|error| error.at(stream.offset))?;
    stream.decode()
}

/// Checks R-LIM-03, then decodes an escape stream and checks its varints. None of them takes more
/// than `longest` bytes.
fn read_escapes<'a>(
    stream: &StoredStream<'a>,
    escaped: usize,
    longest: u64,
) -> Result<Cow<'a, [u8]>> {
    let most = longest * escaped as u64;
    ensure(stream.raw_length <= most, &rules::LIM_03, || {
        format!(
            "an escape stream of {} bytes for {escaped} escapes",
            stream.raw_length
        )
    })
    .map_err(|error| error.at(stream.offset))?;
    let raw = stream.decode()?;
    escapes::check(&raw, stream.offset, escaped)?;
    Ok(raw)
}
