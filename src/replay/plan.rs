//! Plans: what links do to the lanes that they code, piece by piece, which is enough to prove them
//! (SPEC section 24.6).

use rayon::prelude::*;

use crate::codec::union::union;
use crate::error::{Error, ErrorClass, Result};
use crate::format::Start;
use crate::limits::address;
use crate::replay::course::{Course, Fault, Group, Item};
use crate::replay::lineage::EntryPlace;
use crate::replay::segments::Segments;
use crate::replay::{FollowedSums, Replay};
use crate::rules::{self, Rule, ensure};
use crate::source::Source;
use crate::sums::{PieceSums, Sums};

/// A plan for one piece of a tensor: how links change it, in lanes.
#[derive(Debug)]
pub(super) struct PiecePlan {
    pub(super) item: Item,
    /// The tensor's number in the table of the base.
    pub(super) tensor: usize,
    /// The lane of the tensor with which the piece begins.
    pub(super) first_lane: u64,
    /// Number of lanes in the piece.
    pub(super) all: usize,
    /// The lanes that any of the links codes, strictly ascending, counted from `first_lane`; `None`
    /// if they are all of the piece.
    pub(super) lanes: Option<Vec<u32>>,
    /// The steps of the links that code lanes of the piece, in the order of the links.
    pub(super) steps: Vec<PieceStep>,
    /// R-SUM-04 of a link without a part.
    pub(super) failure: Option<Fault>,
}

/// A step of a plan: how one link changes the lanes of a piece.
#[derive(Debug)]
pub(super) struct PieceStep {
    /// The entry of the link.
    pub(super) place: EntryPlace,
    /// Which of the [lanes](PiecePlan::lanes) it codes, by their places among them, strictly
    /// ascending; `None` if all of them.
    pub(super) places: Option<Vec<u32>>,
    /// Whether values are differences (SPEC section 8.3) modulo 2^W; otherwise they are the new
    /// lanes.
    pub(super) is_relative: bool,
    /// A value for each lane, little-endian.
    pub(super) values: Vec<u8>,
    /// The sums that the link promises.
    pub(super) sums: PromisedSums,
}

/// The sums that a link promises of a piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromisedSums {
    /// Sums of the piece before this link.
    pub(super) before: Sums,
    /// Sums of the new values: R-SUM-03.
    pub(super) coded: Sums,
    /// Sums of the piece after this link: R-SUM-04.
    pub(super) piece: Sums,
}

/// Makes plans for pieces.
#[derive(Debug)]
pub(super) struct PiecePlanner<'a, S> {
    pub(super) course: &'a Course<'a, S>,
    pub(super) sums: &'a FollowedSums,
}

impl<S: Source> PiecePlanner<'_, S> {
    /// Whether the lanes that are coded are enough to prove a piece, as far as indexes and sums
    /// tell.
    fn takes(&self, (number, piece): Item) -> Result<bool> {
        let lineage = self.course.lineage(number);
        if lineage.target.is_none() || self.sums_before(number, piece)?.is_none() {
            return Ok(false);
        }
        for &place in self.course.places(lineage) {
            let number = self.course.segment_of(place, piece)?;
            let coding = number
                .map(|(link, segment)| self.course.links[link].index().segments[segment].coding);
            let is_local = coding.is_none_or(|coding| coding.is_sparse() || !coding.is_relative());
            if !is_local || self.sums_of(place, piece)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The sums that a piece has in the base.
    fn sums_before(&self, lineage: usize, piece: u64) -> Result<Option<Sums>> {
        let Some(start) = self.course.lineage(lineage).start else {
            return Ok(None);
        };
        let pieces = self.sums.base.tensors.get(start).and_then(Option::as_ref);
        let piece = address(piece)?;
        Ok(pieces.and_then(|pieces| pieces.get(piece).copied()))
    }

    /// The sums that a link has for a piece.
    fn sums_of(&self, (link, entry): EntryPlace, piece: u64) -> Result<Option<PieceSums>> {
        let of_link = self.sums.links.get(link).and_then(Option::as_ref);
        let piece = address(piece)?;
        let pieces = of_link.and_then(|sums| sums.entries.get(entry));
        Ok(pieces.and_then(|pieces| pieces.get(piece).copied()))
    }

    /// The pieces that links write.
    pub(super) fn items(&self) -> impl Iterator<Item = Item> {
        let written = self
            .course
            .lineages
            .iter()
            .enumerate()
            .filter(|(_, lineage)| !lineage.places.is_empty());
        written.flat_map(|(number, lineage)| {
            (0..lineage.info.pieces()).map(move |piece| (number, piece))
        })
    }

    /// Plans the pieces of a group. Its segments are opened link by link, and let go one by one.
    ///
    /// # Errors
    /// The errors of step 8 of SPEC section 10 without 8.5, of some segment, not always the first;
    /// UNSUPPORTED, without a rule, if lanes are not enough to say how the links change a piece.
    pub(super) fn plan(&self, group: &Group, segments: &Segments<'_, S>) -> Result<Vec<PiecePlan>> {
        let mut coded: Vec<Option<Vec<CodedLanes>>> =
            group.items.iter().map(|_| Some(Vec::new())).collect();
        for &number in &group.segments {
            let segment = segments.open(number)?;
            for (&(lineage, piece), coded) in group.items.iter().zip(&mut coded) {
                let places = self.course.places(self.course.lineage(lineage));
                let Ok(place) = places.binary_search_by_key(&number.0, |(link, _)| *link) else {
                    continue;
                };
                if self.course.segment_of(places[place], piece)? != Some(number) {
                    continue;
                }
                // With several, positions depend on the base.
                if segment.table().contexts > 1 {
                    *coded = None;
                }
                if let Some(coded) = coded {
                    let part = self.course.links[number.0].part(number.1, places[place].1, piece);
                    coded.push(segment.coded(part)?);
                }
            }
            drop(segment);
            segments.close(number, false);
        }
        let planned = group
            .items
            .iter()
            .zip(coded)
            .map(|(&item, coded)| self.planned(item, coded));
        planned.collect()
    }

    /// The plan of a piece from what each link that has a part of it codes.
    fn planned(&self, item: Item, coded: Option<Vec<CodedLanes>>) -> Result<PiecePlan> {
        let (number, piece) = item;
        let lineage = self.course.lineage(number);
        let (Some(tensor), Some(base), Some(coded)) =
            (lineage.start, self.sums_before(number, piece)?, coded)
        else {
            return Err(
                Error::refused(ErrorClass::Unsupported, NOT_LOCAL).of_tensor(lineage.info.name())
            );
        };
        let (lanes, values) = united(coded);
        let mut values = values.into_iter();
        let (mut steps, mut failure, mut before) = (Vec::new(), None, base);
        for &place in self.course.places(lineage) {
            let unknown = || Error::usage("the sums of the piece are unknown");
            let sums = self.sums_of(place, piece)?.ok_or_else(unknown)?;
            if let Some(segment) = self.course.segment_of(place, piece)? {
                // In the order of the links.
                let (places, values) = values.next().ok_or_else(unknown)?;
                let is_relative = self.course.links[segment.0].index().segments[segment.1]
                    .coding
                    .is_relative();
                let sums = PromisedSums {
                    before,
                    coded: sums.coded,
                    piece: sums.piece,
                };
                steps.push(PieceStep {
                    place,
                    places,
                    is_relative,
                    values,
                    sums,
                });
            } else {
                let differs = self.ensure(before == sums.piece, &rules::SUM_04, place, piece)?;
                failure = Fault::least(failure, differs);
            }
            before = sums.piece;
        }
        let own = lineage.info.piece_lanes(piece);
        let (first_lane, all) = (own.start, address(own.end - own.start)?);
        Ok(PiecePlan {
            item,
            tensor,
            first_lane,
            all,
            lanes,
            steps,
            failure,
        })
    }

    /// A rule of step 3, for an entry of a link and a piece.
    pub(super) fn ensure(
        &self,
        holds: bool,
        rule: &'static Rule,
        place: EntryPlace,
        piece: u64,
    ) -> Result<Option<Fault>> {
        let checked = ensure(holds, rule, || {
            if rule.id == rules::SUM_03.id {
                "the new values of the coded lanes do not have the sums that the link promises"
                    .into()
            } else {
                "the piece would not have the sums that the link promises: the memory does not \
                 hold the base, or the link is wrong"
                    .into()
            }
        });
        let Err(error) = checked else { return Ok(None) };
        let (link, entry) = place;
        let name = self.course.written(place)?.info.name();
        let error = match self.course.segment_of(place, piece)? {
            Some((_, segment)) => error.in_segment(segment),
            None => error.in_section("index"),
        };
        Ok(Some(Fault::new(
            (link, 9, entry, piece),
            error.of_tensor(name),
        )))
    }
}

/// The lanes that a link codes of a piece, and their values. Lanes are numbers in the piece, or
/// places among the lanes that any of the links codes; `None` if they are all of these.
type CodedLanes = (Option<Vec<u32>>, Vec<u8>);

/// From what each link codes of a piece, by numbers: the lanes that any of them codes (`None` if
/// they are all of the piece), and what each link codes, by places.
fn united(mut steps: Vec<CodedLanes>) -> (Option<Vec<u32>>, Vec<CodedLanes>) {
    if let [(numbers, _)] = steps.as_mut_slice() {
        return (numbers.take(), steps);
    }
    let lists: Option<Vec<&mut Vec<u32>>> = steps
        .iter_mut()
        .map(|(numbers, _)| numbers.as_mut())
        .collect();
    // If one codes all of the piece, numbers are places.
    let Some(mut lists) = lists else {
        return (None, steps);
    };
    let lanes = union(&mut lists);
    for (places, _) in &mut steps {
        if places
            .as_ref()
            .is_some_and(|places| places.len() == lanes.len())
        {
            *places = None;
        }
    }
    (Some(lanes), steps)
}

impl<S: Source> Replay<'_, S> {
    /// The sums, if they are followed.
    pub(super) fn followed_sums(&self) -> Result<&FollowedSums> {
        self.sums
            .as_ref()
            .ok_or_else(|| Error::usage("the sums of the base are needed to take links in place"))
    }

    /// Why lanes are not enough, as far as indexes and sums tell.
    pub(super) fn why_not(&self, planner: &PiecePlanner<'_, S>) -> Result<Option<Error>> {
        let refused = |message: &str, link: usize| {
            Error::refused(ErrorClass::Unsupported, message).of_link(link)
        };
        for (number, link) in self.links.iter().enumerate() {
            for entry in link
                .index()
                .tensors
                .iter()
                .filter(|entry| self.takes(entry.name()))
            {
                if entry
                    .written()
                    .is_none_or(|written| written.start == Start::Zeros)
                {
                    let message = "a tensor is set or removed, which cannot be done in place";
                    return Ok(Some(refused(message, number).of_tensor(entry.name())));
                }
            }
            if planner.sums.links.get(number).is_none_or(Option::is_none) {
                return Ok(Some(refused(
                    "the link has no sums, so it cannot be taken in place",
                    number,
                )));
            }
        }
        for (number, piece) in planner.items() {
            if !planner.takes((number, piece))? {
                let lineage = planner.course.lineage(number);
                let (link, _) = planner.course.places(lineage)[0];
                let is_known = planner.sums_before(number, piece)?.is_some();
                let message = if is_known {
                    NOT_LOCAL
                } else {
                    "the sums of the base are unknown for a tensor"
                };
                return Ok(Some(refused(message, link).of_tensor(lineage.info.name())));
            }
        }
        Ok(None)
    }

    /// Step 8 of SPEC section 10 of each link in order, without 8.5, as *check* does it.
    pub(super) fn first_fault(&self) -> Result<()> {
        for (number, link) in self.links.iter().enumerate() {
            let checked: Vec<Result<()>> = self
                .wanted_of(link)
                .into_par_iter()
                .map(|segment| link.segment(segment).map(drop))
                .collect();
            checked
                .into_iter()
                .collect::<Result<()>>()
                .map_err(|error| error.of_link(number))?;
        }
        Ok(())
    }
}

/// Why a link is refused.
const NOT_LOCAL: &str =
    "a part needs more of the base than the lanes that it codes, so it cannot be taken in place";
