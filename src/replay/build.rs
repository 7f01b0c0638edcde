//! The pass that builds pieces. The parts of all links are applied to a piece stretch by stretch,
//! in the order of the links, while the stretch is in the cache. Each stretch is hashed once and
//! passed on once.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::codec::blocks::BLOCK;
use crate::codec::decode::PartChanges;
use crate::error::{Error, Result};
use crate::in_order::in_order;
use crate::limits::address;
use crate::link::Segment;
use crate::progress::Progress;
use crate::replay::course::{Course, Fault, Group, Item, SegmentId};
use crate::replay::lineage::{EntryId, Lineage};
use crate::replay::output::{Output, Stretch, fill_buffer};
use crate::replay::segments::Segments;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::tensor::{Digest, State, stretch_of};

/// Bytes of a piece that go through all links before the next ones: they fit in a core's L2 cache.
const STRETCH_BYTES: usize = 1 << 17;

// `PartChanges::apply` needs whole blocks of lanes, which have 8 bytes at most.
const _: () = assert!(STRETCH_BYTES.is_multiple_of(8 * BLOCK));

/// A pass over the pieces of a sequence of links.
pub(super) struct Pass<'a, S, O> {
    pub(super) course: &'a Course<'a, S>,
    /// For each link, the segments that are read.
    pub(super) wanted: &'a [Vec<usize>],
    /// The selected tensors of the base.
    pub(super) held: &'a dyn State,
    /// For each tensor of the base's table, its number in `held`; `None` if it is not selected.
    pub(super) held_numbers: &'a [Option<usize>],
    pub(super) out: &'a O,
    /// True if the result of each link is compared with its digests, and the pass searches for the
    /// least failure. Otherwise any failure ends the pass.
    pub(super) compares_each: bool,
    /// When the open segments of a group take more bytes, they are applied before more are opened.
    /// The bytes of the group, at most a full piece, are kept from one batch of links to the next.
    pub(super) open_bytes: usize,
    pub(super) progress: &'a dyn Progress,
}

/// The segments that are open for a group, ascending; `None` if one cannot be decoded.
type OpenSegments = Vec<(SegmentId, Option<Arc<Segment>>)>;

/// The work of one link on a piece.
struct LinkStep<'a> {
    entry: EntryId,
    /// The link's part of the piece; `None` if it has none.
    part: Option<StepPart<'a>>,
    /// The hasher of the piece as it is after the link, if that is compared.
    hasher: Option<Box<blake3::Hasher>>,
}

/// A part of a piece, and where it stands.
struct StepPart<'a> {
    segment: SegmentId,
    /// The number of the part in the segment.
    number: usize,
    changes: Box<dyn PartChanges + 'a>,
}

/// Buffers that a thread uses for one piece after another.
#[derive(Default)]
struct PieceRoom<'a> {
    steps: Vec<LinkStep<'a>>,
    buffer: Vec<u8>,
}

/// A piece of a group while it is built.
struct GroupPiece<P> {
    item: Item,
    /// The data that the output has gathered; `None` if the lineage has ended.
    gathered: Option<P>,
    /// Its bytes, between two batches of links.
    bytes: Option<Vec<u8>>,
    failure: Option<Fault>,
}

/// The pieces of a group, and the least failure of opening its segments.
struct BuiltGroup<P> {
    pieces: Vec<GroupPiece<P>>,
    failure: Option<Fault>,
}

/// A piece whose stretches are built, one after another, with the last batch of links.
struct PieceBuilder<'p, 'o> {
    lineage: usize,
    /// The byte of the tensor with which the piece begins.
    begin: u64,
    /// The bytes after the links before; `None` if these are the first.
    kept: Option<Vec<u8>>,
    steps: &'p mut Vec<LinkStep<'o>>,
    /// The hasher of the result, if that is compared.
    hasher: Option<blake3::Hasher>,
}

impl<S: Source, O: Output> Pass<'_, S, O> {
    /// Builds the selected tensors, and proves them: steps 8 and 9 of SPEC section 10. Returns the
    /// least failure if each link is compared.
    pub(super) fn run(&self) -> Result<Option<Fault>> {
        let failure = self.check_empty()?;
        let (first, groups) = self.items()?;
        // These need no segment, which may still be on its way.
        self.carry_over(&first)?;
        let segments = Segments::of(self.course.links, &groups);
        let others = self.other_segments(&segments);
        let failure = Fault::least(failure, self.build_groups(&groups, &segments)?);
        // Every segment is proven, also if the result does not need it.
        Ok(Fault::least(failure, self.prove_segments(&others)?))
    }

    /// The segments that are read and that no group opens. Groups must not have begun.
    fn other_segments(&self, segments: &Segments<'_, S>) -> Vec<SegmentId> {
        let wanted = self.wanted.iter().enumerate().flat_map(|(link, wanted)| {
            wanted
                .iter()
                .map(move |&segment| SegmentId { link, segment })
        });
        wanted.filter(|&id| !segments.is_expected(id)).collect()
    }

    /// Builds groups on all threads, and hands on their pieces in order.
    fn build_groups(&self, groups: &[Group], segments: &Segments<'_, S>) -> Result<Option<Fault>> {
        let mut least = None;
        let build = |(): &mut (), group: &Group| self.build_group(group, segments);
        let accept = |_: &Group, built: BuiltGroup<O::Piece>| {
            least = Fault::least(least.take(), self.accept_group(built)?);
            Ok(())
        };
        in_order(groups, || (), build, accept)?;
        Ok(least)
    }

    /// Hands on the pieces of a group; returns the least of its failures.
    fn accept_group(&self, built: BuiltGroup<O::Piece>) -> Result<Option<Fault>> {
        let mut least = built.failure;
        for piece in built.pieces {
            least = Fault::least(least, piece.failure);
            self.accept(piece.item, piece.gathered)?;
        }
        Ok(least)
    }

    /// Hands on a piece, unless its lineage has ended.
    fn accept(&self, item: Item, gathered: Option<O::Piece>) -> Result<()> {
        match (self.course.lineage(item.lineage).target, gathered) {
            (Some(target), Some(gathered)) => self.out.accept(target, item.piece, gathered),
            _ => Ok(()),
        }
    }

    /// Decodes segments on all threads; returns the least failure.
    fn prove_segments(&self, ids: &[SegmentId]) -> Result<Option<Fault>> {
        let mut least = None;
        let prove = |(): &mut (), &id: &SegmentId| {
            let decoded = self.course.links[id.link].segment(id.segment);
            self.note(decoded.err().map(|error| Fault::of_segment(id, error)))
        };
        let keep = |_: &SegmentId, failure| {
            least = Fault::least(least.take(), failure);
            Ok(())
        };
        in_order(ids, || (), prove, keep)?;
        Ok(least)
    }

    /// Keeps a failure if the pass searches for the least one; otherwise the failure ends the pass.
    /// A failure that breaks no rule always ends it.
    fn note(&self, failure: Option<Fault>) -> Result<Option<Fault>> {
        match failure {
            Some(failure) if !self.compares_each || failure.error.rule().is_none() => {
                Err(failure.error)
            }
            failure => Ok(failure),
        }
    }

    /// Compares a piece with an entry's digest: R-APP-04. The hasher has the bytes of the piece.
    fn compare(
        &self,
        entry: EntryId,
        piece: u64,
        hasher: &blake3::Hasher,
    ) -> Result<Option<Fault>> {
        let written = self.course.written(entry)?;
        let is_promised = written.digests.get(address(piece)?) == Some(&Digest::of_hashed(hasher));
        let compared = ensure(is_promised, &rules::APP_04, || {
            "the result differs from what the link promises".into()
        });
        let name = written.info.name();
        let fault = |error: Error| Fault::of_piece(entry, piece, error.of_tensor(name));
        Ok(compared.err().map(fault))
    }

    /// Compares the digests of tensors without data: R-APP-04.
    fn check_empty(&self) -> Result<Option<Fault>> {
        let mut least = None;
        for lineage in self
            .course
            .lineages
            .iter()
            .filter(|one| one.info.bytes() == 0)
        {
            let entries = self.course.entries_of(lineage);
            let compared = if self.compares_each {
                entries
            } else if lineage.target.is_some() {
                // Only the last entry describes the result.
                &entries[entries.len().saturating_sub(1)..]
            } else {
                &[]
            };
            for &entry in compared {
                let failure = self.compare(entry, 0, &blake3::Hasher::new())?;
                least = Fault::least(least.take(), self.note(failure)?);
            }
        }
        Ok(least)
    }

    /// Returns the pieces that are built without any segment, and the others in groups. Tensors
    /// that no link writes, and that the output does not need, are reported as done.
    fn items(&self) -> Result<(Vec<Item>, Vec<Group>)> {
        let mut first = Vec::new();
        let mut built = Vec::new();
        for (number, lineage) in self.course.lineages.iter().enumerate() {
            let entries = self.course.entries_of(lineage);
            if entries.is_empty() && !O::NEEDS_EVERY_PIECE {
                self.progress.advance(lineage.info.bytes())?;
                continue;
            }
            for piece in 0..lineage.info.pieces() {
                let item = Item {
                    lineage: number,
                    piece,
                };
                let mut has_part = false;
                let mut needs_base = false;
                for &entry in entries {
                    if let Some(id) = self.course.segment_of(entry, piece)? {
                        has_part = true;
                        needs_base |= self.course.links[id.link].index().segments[id.segment]
                            .coding
                            .is_relative();
                    }
                }
                if !has_part && O::NEEDS_EVERY_PIECE && lineage.target.is_some() {
                    first.push(item);
                } else if lineage.target.is_some() || needs_base || self.compares_each {
                    // In lineages that have ended, the positions of relative values must still be
                    // checked.
                    built.push(item);
                }
            }
        }
        Ok((first, self.course.grouped(built)?))
    }

    /// Builds pieces that need no segment. There are none if each link is compared: that pass has
    /// no output that needs them. So any failure ends this one.
    fn carry_over(&self, items: &[Item]) -> Result<()> {
        debug_assert!(items.is_empty() || !self.compares_each);
        let none = OpenSegments::new();
        let built = items
            .par_iter()
            .map_init(PieceRoom::default, |room, &item| {
                let mut piece = self.begin(item);
                self.finish_piece(&mut piece, &none, 0..0, room)?;
                self.accept(item, piece.gathered)
            });
        built.collect()
    }

    fn begin(&self, item: Item) -> GroupPiece<O::Piece> {
        let target = self.course.lineage(item.lineage).target;
        GroupPiece {
            item,
            gathered: target.map(|target| self.out.begin(target)),
            bytes: None,
            failure: None,
        }
    }

    /// Builds the pieces of a group. Its segments are opened link by link. If they take too much
    /// memory, the open ones are applied before more are opened.
    fn build_group(
        &self,
        group: &Group,
        segments: &Segments<'_, S>,
    ) -> Result<BuiltGroup<O::Piece>> {
        let mut pieces: Vec<GroupPiece<O::Piece>> =
            group.items.iter().map(|&item| self.begin(item)).collect();
        let mut open = OpenSegments::new();
        let mut open_bytes = 0;
        // The first link that has not been applied.
        let mut first = 0;
        let mut least = None;
        let mut room_was_short = false;
        for of_link in group.segments.chunk_by(|a, b| a.link == b.link) {
            let link = of_link.first().map_or(0, |id| id.link);
            if open_bytes > self.open_bytes {
                room_was_short = true;
                each(&mut pieces, |room, piece| {
                    self.advance_piece(piece, &open, first..link, room)
                })?;
                open.drain(..).for_each(|(id, _)| segments.close(id, true));
                open_bytes = 0;
                first = link;
            }
            for &id in of_link {
                let (segment, failure) = match segments.open(id) {
                    Ok(segment) => (Some(segment), None),
                    Err(error) => (None, Some(Fault::of_segment(id, error))),
                };
                least = Fault::least(least, self.note(failure)?);
                open_bytes += segment.as_ref().map_or(0, |segment| segment.memory());
                open.push((id, segment));
            }
        }
        each(&mut pieces, |room, piece| {
            self.finish_piece(piece, &open, first..self.course.links.len(), room)
        })?;
        open.drain(..)
            .for_each(|(id, _)| segments.close(id, room_was_short));
        Ok(BuiltGroup {
            pieces,
            failure: least,
        })
    }

    /// Adds to `steps` the work of some links on a piece, up to the first link whose segment cannot
    /// be decoded.
    fn add_steps<'o>(
        &'o self,
        item: Item,
        open: &'o OpenSegments,
        links: &Range<usize>,
        steps: &mut Vec<LinkStep<'o>>,
    ) -> Result<()> {
        for &entry in self
            .course
            .entries_of(self.course.lineage(item.lineage))
            .iter()
            .filter(|entry| links.contains(&entry.link))
        {
            let part = match self.course.segment_of(entry, item.piece)? {
                None if !self.compares_each => continue,
                None => None,
                Some(segment) => {
                    let found = open.binary_search_by_key(&segment, |(id, _)| *id);
                    let Some(decoded) = found.ok().and_then(|found| open[found].1.as_ref()) else {
                        return Ok(());
                    };
                    let link = self.course.links[segment.link];
                    let number = link.part(segment.segment, entry.entry, item.piece);
                    Some(StepPart {
                        segment,
                        number,
                        changes: decoded.changes(number),
                    })
                }
            };
            let hasher = self.compares_each.then(Box::default);
            steps.push(LinkStep {
                entry,
                part,
                hasher,
            });
        }
        Ok(())
    }

    /// Returns the first failure of a piece that has gone through these steps.
    fn judge(&self, item: Item, steps: &[LinkStep<'_>]) -> Result<Option<Fault>> {
        for step in steps {
            if let Some(part) = &step.part {
                let link = self.course.links[step.entry.link];
                let done = part.changes.finish();
                let done = link.locate(part.segment.segment, part.number, done);
                if let Err(error) = done {
                    return Ok(Some(Fault::of_part(part.segment, part.number, error)));
                }
            }
            if let Some(hasher) = &step.hasher
                && let Some(failure) = self.compare(step.entry, item.piece, hasher)?
            {
                return Ok(Some(failure));
            }
        }
        Ok(None)
    }

    /// Reads the bytes that a piece starts from.
    fn read_start(&self, lineage: &Lineage<'_>, begin: u64, bytes: &mut [u8]) -> Result<()> {
        let Some(start) = lineage.start else {
            bytes.fill(0);
            return Ok(());
        };
        let missing = || Error::usage("the tensor is not selected");
        let number = self.held_numbers[start].ok_or_else(missing)?;
        self.held.read(number, begin, bytes)
    }

    /// Applies a batch of links to a piece, whose bytes are kept for the next batch.
    fn advance_piece<'o>(
        &'o self,
        piece: &mut GroupPiece<O::Piece>,
        open: &'o OpenSegments,
        links: Range<usize>,
        room: &mut PieceRoom<'o>,
    ) -> Result<()> {
        let lineage = self.course.lineage(piece.item.lineage);
        let mut bytes = match piece.bytes.take() {
            Some(bytes) => bytes,
            None => {
                let range = lineage.info.piece(piece.item.piece);
                let mut bytes = vec![0; address(range.end - range.start)?];
                self.read_start(lineage, range.start, &mut bytes)?;
                bytes
            }
        };
        room.steps.clear();
        self.add_steps(piece.item, open, &links, &mut room.steps)?;
        bytes
            .chunks_mut(STRETCH_BYTES)
            .for_each(|stretch| apply(&mut room.steps, stretch));
        let failure = self.note(self.judge(piece.item, &room.steps)?)?;
        piece.failure = Fault::least(piece.failure.take(), failure);
        piece.bytes = Some(bytes);
        Ok(())
    }

    /// Applies the last batch of links to a piece, proves it and hands its bytes on. A piece that
    /// no link writes is the base's, whose digest is known.
    fn finish_piece<'o>(
        &'o self,
        piece: &mut GroupPiece<O::Piece>,
        open: &'o OpenSegments,
        links: Range<usize>,
        room: &mut PieceRoom<'o>,
    ) -> Result<()> {
        let lineage = self.course.lineage(piece.item.lineage);
        let whole = lineage.info.piece(piece.item.piece);
        let PieceRoom { steps, buffer } = room;
        steps.clear();
        self.add_steps(piece.item, open, &links, steps)?;
        let is_zero = lineage.start.is_none() && piece.bytes.is_none() && steps.is_empty();
        // Where each link is compared, the steps have hashers of their own.
        let last = if !self.compares_each && lineage.target.is_some() {
            self.course.entries_of(lineage).last()
        } else {
            None
        };
        let mut builder = PieceBuilder {
            lineage: piece.item.lineage,
            begin: whole.start,
            kept: piece.bytes.take(),
            steps,
            hasher: last.map(|_| blake3::Hasher::new()),
        };
        for begin in whole.clone().step_by(STRETCH_BYTES) {
            let range = begin..whole.end.min(begin + STRETCH_BYTES as u64);
            let mut fill = |bytes: &mut [u8]| self.fill_stretch(&mut builder, &range, bytes);
            match (lineage.target, &mut piece.gathered) {
                (Some(target), Some(data)) if !(is_zero && self.out.starts_as_zeros(target)) => {
                    let stretch = Stretch {
                        tensor: target,
                        range: range.clone(),
                        buffer,
                        fill: &mut fill,
                    };
                    self.out.put(data, stretch)?;
                }
                // It is built only to be proven.
                _ => fill_buffer(buffer, &range, &mut fill)?,
            }
            if lineage.target.is_some() {
                self.progress.advance(range.end - range.start)?;
            }
        }
        let mut failure = self.judge(piece.item, builder.steps)?;
        if let (Some(&last), Some(hasher)) = (last, &builder.hasher) {
            failure = failure.or(self.compare(last, piece.item.piece, hasher)?);
        }
        piece.failure = Fault::least(piece.failure.take(), self.note(failure)?);
        Ok(())
    }

    /// Builds the next stretch of a piece in `bytes`: its start, changed by all steps.
    fn fill_stretch(
        &self,
        builder: &mut PieceBuilder<'_, '_>,
        range: &Range<u64>,
        bytes: &mut [u8],
    ) -> Result<()> {
        match &builder.kept {
            Some(kept) => {
                let own = stretch_of(kept, range.start - builder.begin..range.end - builder.begin);
                bytes.copy_from_slice(
                    own.ok_or_else(|| Error::usage("no such range in the piece"))?,
                );
            }
            None => self.read_start(self.course.lineage(builder.lineage), range.start, bytes)?,
        }
        apply(builder.steps, bytes);
        if let Some(hasher) = &mut builder.hasher {
            hasher.update(bytes);
        }
        Ok(())
    }
}

/// Works on pieces on all threads, each of which has its own buffers.
fn each<'o, P: Send>(
    pieces: &mut [GroupPiece<P>],
    work: impl Fn(&mut PieceRoom<'o>, &mut GroupPiece<P>) -> Result<()> + Sync + Send,
) -> Result<()> {
    let done: Vec<Result<()>> = pieces
        .par_iter_mut()
        .map_init(PieceRoom::default, work)
        .collect();
    // The first failure in the order of pieces, whatever the threads did.
    done.into_iter().collect()
}

/// Applies all steps to a stretch, one after another.
fn apply(steps: &mut [LinkStep<'_>], bytes: &mut [u8]) {
    for LinkStep { part, hasher, .. } in steps {
        if let Some(part) = part {
            part.changes.apply(bytes);
        }
        if let Some(hasher) = hasher {
            hasher.update(bytes);
        }
    }
}
