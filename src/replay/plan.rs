//! Plans: what links do to the lanes that they code, piece by piece, which is enough to prove them (SPEC section 24.6).

use rayon::prelude::*;

use crate::codec::union::union;
use crate::error::{Error, ErrorClass, Result, Section};
use crate::format::Start;
use crate::limits::address;
use crate::replay::course::{Course, Group, Item};
use crate::replay::lineage::Place;
use crate::replay::segments::Segments;
use crate::replay::{FollowedSums, Replay};
use crate::rules::{self, Rule, ensure};
use crate::source::Source;
use crate::sums::{PieceSums, Sums};

/// What links do to one piece of a tensor, in lanes.
#[derive(Debug)]
pub(super) struct PiecePlan {
    /// The tensor's number in the table of the base.
    pub(super) tensor: usize,
    /// The lane of the tensor with which the piece begins.
    pub(super) first_lane: u64,
    /// The lanes that any of the links codes, strictly ascending, counted from `first_lane`; `None` if they are all of
    /// the piece.
    pub(super) lanes: Option<Vec<u32>>,
    /// What the links do that code lanes of the piece, in their order.
    pub(super) steps: Vec<PieceStep>,
}

/// What one link does to the lanes of a piece.
#[derive(Debug)]
pub(super) struct PieceStep {
    /// The entry of the link.
    pub(super) place: Place,
    /// Which of the [lanes](PiecePlan::lanes) it codes, by their places among them, strictly ascending; `None` if all
    /// of them.
    pub(super) places: Option<Vec<u32>>,
    /// Whether values are differences (SPEC section 8.3) modulo 2^W; otherwise they are the new lanes.
    pub(super) is_relative: bool,
    /// A value for each lane, little-endian.
    pub(super) values: Vec<u8>,
    /// What is promised.
    pub(super) sums: Promised,
}

/// The sums that a link promises of a piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promised {
    /// Of the piece before this link.
    pub(super) before: Sums,
    /// Of the new values: R-SUM-03.
    pub(super) coded: Sums,
    /// Of the piece after this link: R-SUM-04.
    pub(super) piece: Sums,
}

/// A broken rule of step 3 of the operation, and where: link, entry, piece.
#[derive(Debug)]
pub(super) struct Failure {
    place: (usize, usize, u64),
    error: Error,
}

impl Failure {
    /// The lesser one, if any.
    pub(super) fn least(left: Option<Self>, right: Option<Self>) -> Option<Self> {
        left.into_iter().chain(right).min_by_key(|failure| failure.place)
    }

    pub(super) fn into_error(self) -> Error {
        self.error
    }
}

/// A piece that has been planned.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) item: Item,
    /// What the links do; `None` if lanes are not enough for that.
    pub(super) plan: Option<PiecePlan>,
    /// R-SUM-04 of a link without a part.
    pub(super) failure: Option<Failure>,
}

/// Makes plans for pieces.
#[derive(Debug)]
pub(super) struct Planner<'a, S> {
    pub(super) course: Course<'a, S>,
    pub(super) sums: &'a FollowedSums,
}

impl<S: Source> Planner<'_, S> {
    /// Whether the lanes that are coded are enough to prove a piece, as far as indexes and sums tell.
    pub(super) fn takes(&self, (number, piece): Item) -> Result<bool> {
        let lineage = self.course.lineage(number);
        if lineage.target.is_none() || self.sums_before(number, piece)?.is_none() {
            return Ok(false);
        }
        for &place in self.course.places(lineage) {
            let is_local = match self.course.segment_of(place, piece)? {
                Some((link, segment)) => {
                    let coding = self.course.links[link].index().segments[segment].coding;
                    coding.is_sparse() || !coding.is_relative()
                }
                None => true,
            };
            if !is_local || self.sums_of(place, piece)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The sums that a piece has in the base.
    fn sums_before(&self, lineage: usize, piece: u64) -> Result<Option<Sums>> {
        let Some(start) = self.course.lineage(lineage).start else { return Ok(None) };
        let pieces = self.sums.base.tensors.get(start).and_then(Option::as_ref);
        let piece = address(piece)?;
        // A tensor without bytes has no piece, and so the sums of no bytes.
        let nothing = (self.course.lineage(lineage).info.bytes() == 0).then_some(Sums::ZERO);
        Ok(pieces.and_then(|pieces| pieces.get(piece).copied().or(nothing)))
    }

    /// The sums that a link has for a piece.
    fn sums_of(&self, (link, entry): Place, piece: u64) -> Result<Option<PieceSums>> {
        let of_link = self.sums.links.get(link).and_then(Option::as_ref);
        let piece = address(piece)?;
        let pieces = of_link.and_then(|sums| sums.entries.get(entry));
        let zero = PieceSums { piece: Sums::ZERO, coded: Sums::ZERO };
        let nothing = (self.course.written((link, entry))?.info.bytes() == 0).then_some(zero);
        Ok(pieces.and_then(|pieces| pieces.get(piece).copied().or(nothing)))
    }

    /// The pieces that links write, which need no more than lanes.
    pub(super) fn items(&self) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        for (number, lineage) in self.course.taken.lineages.iter().enumerate() {
            if self.course.places(lineage).is_empty() {
                continue;
            }
            for piece in 0..lineage.info.pieces() {
                if self.takes((number, piece))? {
                    items.push((number, piece));
                }
            }
        }
        Ok(items)
    }

    /// Plans the pieces of a group. Its segments are opened link by link, and let go one by one.
    ///
    /// # Errors
    /// Those of step 8 of SPEC section 10 without 8.5; of some segment, not always the first.
    pub(super) fn plan(&self, group: &Group, segments: &Segments<'_, S>) -> Result<Vec<Planned>> {
        let mut coded: Vec<Option<Vec<CodedLanes>>> = group.items.iter().map(|_| Some(Vec::new())).collect();
        for &number in &group.segments {
            let segment = segments.open(number)?;
            for (&(lineage, piece), coded) in group.items.iter().zip(&mut coded) {
                let places = self.course.places(self.course.lineage(lineage));
                let Ok(place) = places.binary_search_by_key(&number.0, |(link, _)| *link) else { continue };
                if self.course.segment_of(places[place], piece)? != Some(number) {
                    continue;
                }
                if !segment.has_one_context() {
                    *coded = None;
                }
                if let Some(coded) = coded {
                    coded.push(segment.coded(self.course.part(number, places[place].1, piece))?);
                }
            }
            drop(segment);
            segments.close(number, false);
        }
        let planned = group.items.iter().zip(coded).map(|(&item, coded)| self.planned(item, coded));
        planned.collect()
    }

    /// The plan of a piece from what each link that has a part of it codes.
    fn planned(&self, item: Item, coded: Option<Vec<CodedLanes>>) -> Result<Planned> {
        let (number, piece) = item;
        let lineage = self.course.lineage(number);
        let mut planned = Planned { item, plan: None, failure: None };
        let (Some(tensor), Some(base), Some(coded)) = (lineage.start, self.sums_before(number, piece)?, coded) else {
            return Ok(planned);
        };
        let lane_bytes = lineage.info.dtype().lane_bytes();
        let range = lineage.info.piece(piece);
        let Coded { lanes, steps: values } = Coded::of(coded);
        let mut values = values.into_iter();
        let (mut steps, mut before) = (Vec::new(), base);
        for &place in self.course.places(lineage) {
            let unknown = || Error::usage("the sums of the piece are not known");
            let sums = self.sums_of(place, piece)?.ok_or_else(unknown)?;
            if let Some(segment) = self.course.segment_of(place, piece)? {
                // In the order of the links.
                let (places, values) = values.next().ok_or_else(unknown)?;
                let is_relative = self.course.links[segment.0].index().segments[segment.1].coding.is_relative();
                let sums = Promised { before, coded: sums.coded, piece: sums.piece };
                steps.push(PieceStep { place, places, is_relative, values, sums });
            } else {
                let failure = self.ensure(before == sums.piece, &rules::SUM_04, place, piece)?;
                planned.failure = Failure::least(planned.failure.take(), failure);
            }
            before = sums.piece;
        }
        let first_lane = range.start / lane_bytes as u64;
        planned.plan = Some(PiecePlan { tensor, first_lane, lanes, steps });
        Ok(planned)
    }

    /// A rule of step 3, for an entry of a link and a piece.
    pub(super) fn ensure(&self, holds: bool, rule: &'static Rule, place: Place, piece: u64) -> Result<Option<Failure>> {
        let checked = ensure(holds, rule, || {
            if rule.id == rules::SUM_03.id {
                "the new values of the coded lanes have other sums than the link promises".into()
            } else {
                "the piece comes to other sums than the link promises: the memory does not hold the base, or the link is wrong"
                    .into()
            }
        });
        let Err(error) = checked else { return Ok(None) };
        let (link, entry) = place;
        let name = self.course.written(place)?.info.name();
        let error = match self.course.segment_of(place, piece)? {
            Some((_, segment)) => error.in_section(Section::Segment(segment)),
            None => error.in_section(Section::Index),
        };
        Ok(Some(Failure { place: (link, entry, piece), error: error.of_tensor(name).of_link(link) }))
    }
}

/// The lanes that a link codes of a piece, and their values. Lanes are numbers in the piece, or places among the lanes
/// that any of the links codes; `None` if they are all of these.
type CodedLanes = (Option<Vec<u32>>, Vec<u8>);

/// What links code of a piece, in the order of the links.
struct Coded {
    /// The lanes that any of them codes; `None` if they are all of the piece.
    lanes: Option<Vec<u32>>,
    /// Of each link, by places.
    steps: Vec<CodedLanes>,
}

impl Coded {
    /// From what each link codes, by numbers.
    fn of(mut steps: Vec<CodedLanes>) -> Self {
        if let [(numbers, _)] = steps.as_mut_slice() {
            return Self { lanes: numbers.take(), steps };
        }
        let lists: Option<Vec<&mut Vec<u32>>> = steps.iter_mut().map(|(numbers, _)| numbers.as_mut()).collect();
        // If one codes all of the piece, numbers are places.
        let Some(mut lists) = lists else { return Self { lanes: None, steps } };
        let lanes = union(&mut lists);
        for (places, _) in &mut steps {
            if places.as_ref().is_some_and(|places| places.len() == lanes.len()) {
                *places = None;
            }
        }
        Self { lanes: Some(lanes), steps }
    }
}

impl<S: Source> Replay<'_, S> {
    /// The sums, if they are followed.
    pub(super) fn followed_sums(&self) -> Result<&FollowedSums> {
        self.sums.as_ref().ok_or_else(|| Error::usage("the sums of the base are needed to take links in place"))
    }

    /// Why lanes are not enough, as far as indexes and sums tell.
    pub(super) fn why_not(&self, planner: &Planner<'_, S>) -> Result<Option<Error>> {
        let refused = |message: &str, link: usize| Error::refused(ErrorClass::Unsupported, message).of_link(link);
        for (number, link) in self.links.iter().enumerate() {
            for entry in link.index().tensors.iter().filter(|entry| self.takes(entry.name())) {
                if entry.written().is_none_or(|written| written.start == Start::Zeros) {
                    let message = "a tensor is set or removed, which cannot be done in place";
                    return Ok(Some(refused(message, number).of_tensor(entry.name())));
                }
            }
            if planner.sums.links.get(number).is_none_or(Option::is_none) {
                return Ok(Some(refused("the link has no sums, so that it cannot be taken in place", number)));
            }
        }
        for (number, lineage) in planner.course.taken.lineages.iter().enumerate() {
            let Some(&(link, _)) = planner.course.places(lineage).first() else { continue };
            for piece in 0..lineage.info.pieces() {
                if !planner.takes((number, piece))? {
                    let is_known = planner.sums_before(number, piece)?.is_some();
                    let message = if is_known { NOT_LOCAL } else { "the sums of the base are not known for a tensor" };
                    return Ok(Some(refused(message, link).of_tensor(lineage.info.name())));
                }
            }
        }
        Ok(None)
    }

    /// Step 8 of SPEC section 10 of each link in order, without 8.5, as *check* does it.
    pub(super) fn first_fault(&self) -> Result<()> {
        for (number, link) in self.links.iter().enumerate() {
            let checked: Vec<Result<()>> =
                self.wanted_of(link).into_par_iter().map(|segment| link.segment(segment).map(drop)).collect();
            checked.into_iter().collect::<Result<()>>().map_err(|error| error.of_link(number))?;
        }
        Ok(())
    }
}

/// Why a link is refused.
pub(super) const NOT_LOCAL: &str =
    "a part needs more of the base than the lanes that it codes, so that it cannot be taken in place";
