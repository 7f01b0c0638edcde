//! The pass that builds pieces. The parts of all links are applied to a piece stretch by stretch,
//! in the order of the links, while the stretch is in the cache. Each stretch is hashed once and
//! passed on once.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::codec::decode::PartChanges;
use crate::error::{Error, Result};
use crate::in_order::in_order;
use crate::limits::address;
use crate::link::Segment;
use crate::progress::Progress;
use crate::replay::course::{Course, Fault, Group, Item, SegmentNumber};
use crate::replay::lineage::EntryPlace;
use crate::replay::output::{Output, Stretch, make_in};
use crate::replay::segments::Segments;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::tensor::{Digest, State, stretch_of};

/// Bytes that are read, changed, hashed and handed on before the next: what a core keeps to itself.
/// Whole blocks of the codec.
const STRETCH_BYTES: usize = 1 << 17;

/// A pass over the pieces of a sequence of links.
pub(super) struct Pass<'a, S, O> {
    pub(super) course: &'a Course<'a, S>,
    /// For each link, the segments that are read.
    pub(super) wanted: &'a [Vec<usize>],
    /// The part of the base that is held, and the number there of each tensor of the base's table.
    pub(super) held: &'a dyn State,
    pub(super) held_numbers: &'a [usize],
    pub(super) out: &'a O,
    /// Whether the result of each link is compared with its digests, and the least failure looked
    /// for. Otherwise any failure ends the pass.
    pub(super) compares_each: bool,
    /// Bytes that the decoded segments of a group may take. Where they take more, the group's own
    /// bytes, 32 MiB at most, are kept from one batch of links to the next.
    pub(super) open_bytes: usize,
    pub(super) progress: &'a dyn Progress,
}

/// The segments that are open for a group, ascending; `None` if one cannot be decoded.
type OpenSegments = Vec<(SegmentNumber, Option<Arc<Segment>>)>;

/// The work of one link on a piece.
struct LinkStep<'a> {
    place: EntryPlace,
    /// The segment and the number of the part in it, and what it changes; `None` if the link does
    /// not change the piece.
    part: Option<(usize, usize, Box<dyn PartChanges + 'a>)>,
    /// The hasher of the piece as it is after the link, if that is compared.
    hasher: Option<Box<blake3::Hasher>>,
}

/// Buffers that a thread uses for one piece after another.
#[derive(Default)]
struct PieceRoom<'a> {
    steps: Vec<LinkStep<'a>>,
    buffer: Vec<u8>,
}

/// A piece of a group on its way.
struct GroupPiece<P> {
    item: Item,
    /// The data that the output has gathered; `None` if the lineage has ended.
    made: Option<P>,
    /// Its bytes, between two batches of links.
    bytes: Option<Vec<u8>>,
    failure: Option<Fault>,
}

/// The pieces of a group, and the least failure of opening its segments.
type BuiltGroup<P> = (Vec<GroupPiece<P>>, Option<Fault>);

impl<S: Source, O: Output> Pass<'_, S, O> {
    /// Builds what is wanted, and proves it: steps 8 and 9 of SPEC section 10. The least failure,
    /// if each link is compared.
    pub(super) fn run(&self) -> Result<Option<Fault>> {
        let mut least = self.check_empty()?;
        let (first, groups) = self.items()?;
        // These need no segment, which may still be on its way.
        self.carry_over(&first)?;
        let segments = Segments::of(self.course.links, &groups);
        let others = self
            .wanted
            .iter()
            .enumerate()
            .flat_map(|(link, wanted)| wanted.iter().map(move |&n| (link, n)));
        let others: Vec<SegmentNumber> = others
            .filter(|&number| !segments.is_expected(number))
            .collect();

        let build = |(): &mut (), group: &Group| self.build_group(group, &segments);
        let take = |_: &Group, (pieces, failure): BuiltGroup<O::Piece>| {
            least = Fault::least(least.take(), failure);
            for GroupPiece {
                item: (number, piece),
                made,
                failure,
                ..
            } in pieces
            {
                least = Fault::least(least.take(), failure);
                if let Some((target, made)) = self.course.lineage(number).target.zip(made) {
                    self.out.take(target, piece, made)?;
                }
            }
            Ok(())
        };
        in_order(&groups, || (), build, take)?;
        // Every segment is proven, also if the result does not need it.
        let prove = |(): &mut (), &(link, number): &SegmentNumber| {
            let failure = self.course.links[link]
                .segment(number)
                .err()
                .map(|error| Fault::new((link, 8, number, 0), error));
            self.note(failure)
        };
        let keep = |_: &SegmentNumber, failure| {
            least = Fault::least(least.take(), failure);
            Ok(())
        };
        in_order(&others, || (), prove, keep)?;
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

    /// R-APP-04 for an entry's digest of a piece; the hasher has the bytes of the piece.
    fn compare(
        &self,
        place: EntryPlace,
        piece: u64,
        hasher: &blake3::Hasher,
    ) -> Result<Option<Fault>> {
        let written = self.course.written(place)?;
        let is_promised = written.digests.get(address(piece)?) == Some(&Digest::of_hashed(hasher));
        let compared = ensure(is_promised, &rules::APP_04, || {
            "the result differs from what the link promises".into()
        });
        let failed = |error: Error| {
            Fault::new(
                (place.0, 9, place.1, piece),
                error.of_tensor(written.info.name()),
            )
        };
        Ok(compared.err().map(failed))
    }

    /// R-APP-04 for tensors without data.
    fn check_empty(&self) -> Result<Option<Fault>> {
        let mut least = None;
        for lineage in self
            .course
            .lineages
            .iter()
            .filter(|one| one.info.bytes() == 0)
        {
            let places = self.course.places(lineage);
            let skipped = if self.compares_each {
                0
            } else {
                places.len().saturating_sub(1)
            };
            let is_compared = self.compares_each || lineage.target.is_some();
            for &place in places.iter().skip(skipped).filter(|_| is_compared) {
                let failure = self.compare(place, 0, &blake3::Hasher::new())?;
                least = Fault::least(least.take(), self.note(failure)?);
            }
        }
        Ok(least)
    }

    /// The pieces that are built without any segment, and the others in groups.
    fn items(&self) -> Result<(Vec<Item>, Vec<Group>)> {
        let (mut first, mut built) = (Vec::new(), Vec::new());
        for (number, lineage) in self.course.lineages.iter().enumerate() {
            let (info, target, places) =
                (lineage.info, lineage.target, self.course.places(lineage));
            if places.is_empty() && !O::TAKES_UNCHANGED {
                self.progress.advance(info.bytes())?;
                continue;
            }
            for piece in 0..info.pieces() {
                let (mut has_part, mut needs_base) = (false, false);
                for &place in places {
                    if let Some((link, segment)) = self.course.segment_of(place, piece)? {
                        has_part = true;
                        needs_base |= self.course.links[link].index().segments[segment]
                            .coding
                            .is_relative();
                    }
                }
                if !has_part && O::TAKES_UNCHANGED && target.is_some() {
                    first.push((number, piece));
                } else if target.is_some() || needs_base || self.compares_each {
                    // In lineages that have ended, the positions of relative values must still be
                    // checked.
                    built.push((number, piece));
                }
            }
        }
        Ok((first, self.course.grouped(built)?))
    }

    /// Builds pieces that need no segment.
    fn carry_over(&self, items: &[Item]) -> Result<()> {
        let none = OpenSegments::new();
        let built = items
            .par_iter()
            .map_init(PieceRoom::default, |room, &item| {
                let mut piece = self.begin(item);
                self.finish_piece(&mut piece, &none, 0..0, room)?;
                let made = self.course.lineage(item.0).target.zip(piece.made);
                made.map_or(Ok(()), |(target, made)| self.out.take(target, item.1, made))
            });
        built.collect()
    }

    fn begin(&self, item: Item) -> GroupPiece<O::Piece> {
        let made = self
            .course
            .lineage(item.0)
            .target
            .map(|target| self.out.begin(target));
        GroupPiece {
            item,
            made,
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
        let (mut open, mut open_bytes, mut first) = (OpenSegments::new(), 0, 0);
        let mut least = None;
        let mut room_was_short = false;
        for of_link in group.segments.chunk_by(|left, right| left.0 == right.0) {
            let link = of_link.first().map_or(0, |number| number.0);
            if open_bytes > self.open_bytes {
                room_was_short = true;
                each(&mut pieces, |room, piece| {
                    self.advance_piece(piece, &open, first..link, room)
                })?;
                open.drain(..)
                    .for_each(|(number, _)| segments.close(number, true));
                (open_bytes, first) = (0, link);
            }
            for &number in of_link {
                let (segment, failure) = match segments.open(number) {
                    Ok(segment) => (Some(segment), None),
                    Err(error) => (None, Some(Fault::new((number.0, 8, number.1, 0), error))),
                };
                least = Fault::least(least, self.note(failure)?);
                open_bytes += segment.as_ref().map_or(0, |segment| segment.memory());
                open.push((number, segment));
            }
        }
        each(&mut pieces, |room, piece| {
            self.finish_piece(piece, &open, first..self.course.links.len(), room)
        })?;
        open.drain(..)
            .for_each(|(number, _)| segments.close(number, room_was_short));
        Ok((pieces, least))
    }

    /// Adds to `steps` the work of some links on a piece, up to the first link whose segment cannot
    /// be decoded.
    fn steps<'o>(
        &'o self,
        item: Item,
        open: &'o OpenSegments,
        links: &Range<usize>,
        steps: &mut Vec<LinkStep<'o>>,
    ) -> Result<()> {
        let (number, piece) = item;
        for &place in self
            .course
            .places(self.course.lineage(number))
            .iter()
            .filter(|(link, _)| links.contains(link))
        {
            let part = match self.course.segment_of(place, piece)? {
                None if !self.compares_each => continue,
                None => None,
                Some(segment) => {
                    let found = open.binary_search_by_key(&segment, |(number, _)| *number);
                    let Some(decoded) = found.ok().and_then(|found| open[found].1.as_ref()) else {
                        return Ok(());
                    };
                    let part = self.course.links[segment.0].part(segment.1, place.1, piece);
                    Some((segment.1, part, decoded.changes(part)))
                }
            };
            let hasher = self.compares_each.then(Box::default);
            steps.push(LinkStep {
                place,
                part,
                hasher,
            });
        }
        Ok(())
    }

    /// The first failure of a piece that has gone through these steps.
    fn judge(&self, (_, piece): Item, steps: &[LinkStep<'_>]) -> Result<Option<Fault>> {
        for LinkStep {
            place,
            part,
            hasher,
        } in steps
        {
            if let Some((segment, part, changes)) = part
                && let Err(error) =
                    self.course.links[place.0].locate(*segment, *part, changes.finish())
            {
                return Ok(Some(Fault::new(
                    (place.0, 8, *segment, 1 + *part as u64),
                    error,
                )));
            }
            if let Some(hasher) = hasher
                && let Some(failure) = self.compare(*place, piece, hasher)?
            {
                return Ok(Some(failure));
            }
        }
        Ok(None)
    }

    /// Reads what a piece starts from.
    fn read_start(&self, number: usize, begin: u64, bytes: &mut [u8]) -> Result<()> {
        match self.course.lineage(number).start {
            Some(start) => self.held.read(self.held_numbers[start], begin, bytes),
            None => {
                bytes.fill(0);
                Ok(())
            }
        }
    }

    /// Applies a batch of links to a piece, whose bytes are kept for the next batch.
    fn advance_piece<'o>(
        &'o self,
        piece: &mut GroupPiece<O::Piece>,
        open: &'o OpenSegments,
        links: Range<usize>,
        room: &mut PieceRoom<'o>,
    ) -> Result<()> {
        let (number, index) = piece.item;
        let mut bytes = match piece.bytes.take() {
            Some(bytes) => bytes,
            None => {
                let range = self.course.lineage(number).info.piece(index);
                let mut bytes = vec![0; address(range.end - range.start)?];
                self.read_start(number, range.start, &mut bytes)?;
                bytes
            }
        };
        room.steps.clear();
        self.steps(piece.item, open, &links, &mut room.steps)?;
        bytes
            .chunks_mut(STRETCH_BYTES)
            .for_each(|stretch| apply(&mut room.steps, stretch));
        let failure = self.note(self.judge(piece.item, &room.steps)?)?;
        piece.failure = Fault::least(piece.failure.take(), failure);
        piece.bytes = Some(bytes);
        Ok(())
    }

    /// Applies the last batch of links to a piece, proves it and hands it on. What no link writes
    /// is the base's, whose digest is known.
    fn finish_piece<'o>(
        &'o self,
        piece: &mut GroupPiece<O::Piece>,
        open: &'o OpenSegments,
        links: Range<usize>,
        room: &mut PieceRoom<'o>,
    ) -> Result<()> {
        let (number, index) = piece.item;
        let lineage = self.course.lineage(number);
        let PieceRoom { steps, buffer } = room;
        steps.clear();
        self.steps(piece.item, open, &links, steps)?;
        let kept = piece.bytes.take();
        let is_zero = lineage.start.is_none() && kept.is_none() && steps.is_empty();
        let mut hasher = blake3::Hasher::new();
        let last = self
            .course
            .places(lineage)
            .last()
            .filter(|_| !self.compares_each && lineage.target.is_some());
        let whole = lineage.info.piece(index);
        for begin in whole.clone().step_by(STRETCH_BYTES) {
            let range = begin..whole.end.min(begin + STRETCH_BYTES as u64);
            let mut make = |bytes: &mut [u8]| {
                match &kept {
                    Some(kept) => {
                        let own = stretch_of(kept, begin - whole.start..range.end - whole.start);
                        bytes.copy_from_slice(
                            own.ok_or_else(|| Error::usage("no such range in the piece"))?,
                        );
                    }
                    None => self.read_start(number, begin, bytes)?,
                }
                apply(steps, bytes);
                if last.is_some() {
                    hasher.update(bytes);
                }
                Ok(())
            };
            match (lineage.target, &mut piece.made) {
                (Some(target), Some(made)) if !(is_zero && self.out.starts_as_zeros(target)) => {
                    let stretch = Stretch {
                        tensor: target,
                        range: range.clone(),
                        buffer,
                        make: &mut make,
                    };
                    self.out.put(made, stretch)?;
                }
                _ => make_in(buffer, &range, &mut make)?,
            }
            if lineage.target.is_some() {
                self.progress.advance(range.end - range.start)?;
            }
        }
        let mut failure = self.judge(piece.item, steps)?;
        if let Some(&last) = last {
            failure = failure.or(self.compare(last, index, &hasher)?);
        }
        piece.failure = Fault::least(piece.failure.take(), self.note(failure)?);
        Ok(())
    }
}

/// Lets threads work on pieces, each with room of its own.
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

/// Lets each step change a stretch in turn.
fn apply(steps: &mut [LinkStep<'_>], bytes: &mut [u8]) {
    for LinkStep { part, hasher, .. } in steps {
        if let Some((.., changes)) = part {
            changes.apply(bytes);
        }
        if let Some(hasher) = hasher {
            hasher.update(bytes);
        }
    }
}
