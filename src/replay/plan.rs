//! Plans: how links change the lanes that they code, piece by piece. These lanes suffice to prove
//! local links (SPEC section 24.6).

use rayon::prelude::*;

use crate::codec::union::union;
use crate::error::{Error, ErrorClass, Result};
use crate::format::Start;
use crate::limits::address;
use crate::replay::course::{Course, Fault, Group, Item, SegmentId};
use crate::replay::lineage::EntryId;
use crate::replay::segments::Segments;
use crate::replay::{FollowedSums, Replay};
use crate::rules::{self, Rule, ensure};
use crate::source::Source;
use crate::sums::{PieceSums, Sums};
use crate::tensor::Dtype;

/// A plan for one piece of a tensor: how links change it, in lanes.
#[derive(Debug)]
pub(super) struct PiecePlan {
    pub(super) item: Item,
    pub(super) dtype: Dtype,
    /// The tensor's number in the table of the base.
    pub(super) base_tensor: usize,
    /// The lane of the tensor with which the piece begins.
    pub(super) first_lane: u64,
    /// Number of lanes in the piece.
    pub(super) all: usize,
    /// The lanes that any of the links codes, strictly ascending, counted from `first_lane`; `None`
    /// if they are all of the piece. None at all is possible: a part may code no lane (SPEC section
    /// 6.2).
    pub(super) lanes: Option<Vec<u32>>,
    /// The steps of the links that have a part of the piece, in the order of the links.
    pub(super) steps: Vec<PieceStep>,
    /// R-SUM-04, broken by a link without a part of the piece.
    pub(super) failure: Option<Fault>,
}

/// A step of a plan: how one link changes the lanes of a piece.
#[derive(Debug)]
pub(super) struct PieceStep {
    pub(super) entry: EntryId,
    /// Indices of the lanes that the link codes in [`PiecePlan::lanes`], strictly ascending; `None`
    /// if it codes all of them.
    pub(super) indices: Option<Vec<u32>>,
    /// True if values are differences (SPEC section 8.3) modulo 2^W; otherwise they are the new
    /// lanes.
    pub(super) is_relative: bool,
    /// A value for each coded lane, little-endian.
    pub(super) values: Vec<u8>,
    /// The sums that the link promises.
    pub(super) sums: PromisedSums,
}

impl PiecePlan {
    /// Number of lanes that any of the links codes.
    pub(super) fn coded_lanes(&self) -> usize {
        self.lanes.as_ref().map_or(self.all, Vec::len)
    }
}

/// The sums that a link promises for a piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromisedSums {
    /// Sums of the piece before this link.
    pub(super) before: Sums,
    /// Sums of the new values: R-SUM-03.
    pub(super) coded: Sums,
    /// Sums of the piece after this link: R-SUM-04.
    pub(super) piece: Sums,
}

/// Plans pieces.
#[derive(Debug)]
pub(super) struct PiecePlanner<'a, S> {
    pub(super) course: &'a Course<'a, S>,
    pub(super) sums: &'a FollowedSums,
}

impl<S: Source> PiecePlanner<'_, S> {
    /// True if the coded lanes suffice to prove a piece, as far as indexes and sums show.
    fn lanes_suffice(&self, item: Item) -> Result<bool> {
        let lineage = self.course.lineage(item.lineage);
        if lineage.target.is_none() || self.sums_before(item)?.is_none() {
            return Ok(false);
        }
        for &entry in self.course.entries_of(lineage) {
            let segment = self.course.segment_of(entry, item.piece)?;
            let coding =
                segment.map(|id| self.course.links[id.link].index().segments[id.segment].coding);
            let is_local = coding.is_none_or(|coding| coding.is_sparse() || !coding.is_relative());
            if !is_local || self.sums_of(entry, item.piece)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The sums of a piece in the base, if they are known.
    fn sums_before(&self, item: Item) -> Result<Option<Sums>> {
        let Some(start) = self.course.lineage(item.lineage).start else {
            return Ok(None);
        };
        let pieces = self.sums.base.tensors.get(start).and_then(Option::as_ref);
        let piece = address(item.piece)?;
        Ok(pieces.and_then(|pieces| pieces.get(piece).copied()))
    }

    /// The sums that a link carries for a piece, if it has any.
    fn sums_of(&self, id: EntryId, piece: u64) -> Result<Option<PieceSums>> {
        let of_link = self.sums.links.get(id.link).and_then(Option::as_ref);
        let piece = address(piece)?;
        let pieces = of_link.and_then(|sums| sums.entries.get(id.entry));
        Ok(pieces.and_then(|pieces| pieces.get(piece).copied()))
    }

    /// The pieces that links write.
    pub(super) fn items(&self) -> impl Iterator<Item = Item> {
        let written = self
            .course
            .lineages
            .iter()
            .enumerate()
            .filter(|(_, lineage)| !lineage.entries.is_empty());
        written.flat_map(|(number, lineage)| {
            (0..lineage.info.pieces()).map(move |piece| Item {
                lineage: number,
                piece,
            })
        })
    }

    /// Plans the pieces of a group. Its segments are opened link by link, one at a time.
    ///
    /// # Errors
    /// The errors of step 8 of SPEC section 10 without 8.5, of some segment, not always the first;
    /// UNSUPPORTED, without a rule, if a piece depends on other lanes than the coded ones.
    pub(super) fn plan(&self, group: &Group, segments: &Segments<'_, S>) -> Result<Vec<PiecePlan>> {
        let mut coded: Vec<Result<Vec<CodedLanes>>> =
            group.items.iter().map(|_| Ok(Vec::new())).collect();
        for &id in &group.segments {
            let segment = segments.open(id)?;
            for (&item, coded) in group.items.iter().zip(&mut coded) {
                let Some(part) = self.part_in(id, item)? else {
                    continue;
                };
                // With several contexts, positions depend on the base (SPEC section 7.1). The first
                // such link is named.
                if segment.table().contexts > 1 && coded.is_ok() {
                    let name = self.course.lineage(item.lineage).info.name();
                    *coded = Err(refused(NOT_LOCAL, id.link).of_tensor(name));
                }
                if let Ok(coded) = coded {
                    let (numbers, values) = segment.coded(part)?;
                    coded.push(CodedLanes { numbers, values });
                }
            }
            drop(segment);
            segments.close(id, false);
        }
        let planned = group
            .items
            .iter()
            .zip(coded)
            .map(|(&item, coded)| self.planned(item, coded?));
        planned.collect()
    }

    /// The number of the part that a segment has of a piece, if it has one.
    fn part_in(&self, id: SegmentId, item: Item) -> Result<Option<usize>> {
        let entries = self.course.entries_of(self.course.lineage(item.lineage));
        let Ok(found) = entries.binary_search_by_key(&id.link, |entry| entry.link) else {
            return Ok(None);
        };
        let entry = entries[found];
        if self.course.segment_of(entry, item.piece)? != Some(id) {
            return Ok(None);
        }
        let link = self.course.links[id.link];
        Ok(Some(link.part(id.segment, entry.entry, item.piece)))
    }

    /// Plans a piece. `coded` has the lanes of each link that has a part of it, in the order of the
    /// links.
    fn planned(&self, item: Item, coded: Vec<CodedLanes>) -> Result<PiecePlan> {
        let lineage = self.course.lineage(item.lineage);
        // `why_not` has refused links without these.
        let unknown =
            || Error::usage("the sums of the piece are unknown").of_tensor(lineage.info.name());
        let base_tensor = lineage.start.ok_or_else(unknown)?;
        let mut before = self.sums_before(item)?.ok_or_else(unknown)?;
        let (lanes, coded) = united(coded);
        let mut coded = coded.into_iter();
        let mut steps = Vec::new();
        let mut failure = None;
        for &entry in self.course.entries_of(lineage) {
            let sums = self.sums_of(entry, item.piece)?.ok_or_else(unknown)?;
            if let Some(id) = self.course.segment_of(entry, item.piece)? {
                let missing = || Error::usage("the lanes of a part are missing");
                let StepLanes { indices, values } = coded.next().ok_or_else(missing)?;
                let is_relative = self.course.links[id.link].index().segments[id.segment]
                    .coding
                    .is_relative();
                let sums = PromisedSums {
                    before,
                    coded: sums.coded,
                    piece: sums.piece,
                };
                steps.push(PieceStep {
                    entry,
                    indices,
                    is_relative,
                    values,
                    sums,
                });
            } else {
                let holds = before == sums.piece;
                let message = "the link promises other sums for a piece that it does not change";
                let fault = self.check_sums(holds, &rules::SUM_04, message, entry, item.piece)?;
                failure = Fault::least(failure, fault);
            }
            before = sums.piece;
        }
        let range = lineage.info.piece_lanes(item.piece);
        Ok(PiecePlan {
            item,
            dtype: lineage.info.dtype(),
            base_tensor,
            first_lane: range.start,
            all: address(range.end - range.start)?,
            lanes,
            steps,
            failure,
        })
    }

    /// Returns the fault of a piece if its sums break a rule of step 3 of SPEC section 24.6.
    pub(super) fn check_sums(
        &self,
        holds: bool,
        rule: &'static Rule,
        message: &str,
        entry: EntryId,
        piece: u64,
    ) -> Result<Option<Fault>> {
        let Err(error) = ensure(holds, rule, || message.into()) else {
            return Ok(None);
        };
        let name = self.course.written(entry)?.info.name();
        let error = match self.course.segment_of(entry, piece)? {
            Some(id) => error.in_segment(id.segment),
            None => error.in_section("index"),
        };
        Ok(Some(Fault::of_piece(entry, piece, error.of_tensor(name))))
    }
}

/// The lanes that a link codes of a piece, and their values.
struct CodedLanes {
    /// Their numbers in the piece; `None` if they are all of it.
    numbers: Option<Vec<u32>>,
    values: Vec<u8>,
}

/// The lanes that a link codes of a piece, by their indices among the lanes that any link codes.
struct StepLanes {
    /// `None` if they are all of these.
    indices: Option<Vec<u32>>,
    values: Vec<u8>,
}

/// Returns the lanes that any link codes of a piece (`None` if they are all of it), and the lanes
/// of each link by their indices among them.
fn united(coded: Vec<CodedLanes>) -> (Option<Vec<u32>>, Vec<StepLanes>) {
    let mut steps: Vec<StepLanes> = coded
        .into_iter()
        .map(|CodedLanes { numbers, values }| StepLanes {
            indices: numbers,
            values,
        })
        .collect();
    if let [step] = steps.as_mut_slice() {
        return (step.indices.take(), steps);
    }
    let lists: Option<Vec<&mut Vec<u32>>> =
        steps.iter_mut().map(|step| step.indices.as_mut()).collect();
    // If a link codes all of the piece, numbers are indices.
    let Some(mut lists) = lists else {
        return (None, steps);
    };
    // This replaces each number in the lists by its index.
    let lanes = union(&mut lists);
    for step in &mut steps {
        if step
            .indices
            .as_ref()
            .is_some_and(|indices| indices.len() == lanes.len())
        {
            step.indices = None;
        }
    }
    (Some(lanes), steps)
}

impl<S: Source> Replay<'_, S> {
    /// The sums that are followed.
    ///
    /// # Errors
    /// USAGE if they are not, or if they came after a link.
    pub(super) fn followed_sums(&self) -> Result<&FollowedSums> {
        self.check_late()?;
        self.sums
            .as_ref()
            .ok_or_else(|| Error::usage("the sums of the base are needed to take links in place"))
    }

    /// Returns the refusal of links whose lanes do not suffice, as far as indexes and sums show:
    /// step 2 of SPEC section 24.6.
    pub(super) fn why_not(&self, planner: &PiecePlanner<'_, S>) -> Result<Option<Error>> {
        for (number, link) in self.links.iter().enumerate() {
            for entry in link
                .index()
                .tensors
                .iter()
                .filter(|entry| self.selects(entry.name()))
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
        for item in planner.items() {
            if !planner.lanes_suffice(item)? {
                let lineage = planner.course.lineage(item.lineage);
                let first = planner.course.entries_of(lineage)[0];
                let is_known = planner.sums_before(item)?.is_some();
                let message = if is_known {
                    NOT_LOCAL
                } else {
                    "the sums of the base are unknown for a tensor"
                };
                let error = refused(message, first.link);
                return Ok(Some(error.of_tensor(lineage.info.name())));
            }
        }
        Ok(None)
    }

    /// Checks the segments of each link in order: step 8 of SPEC section 10 without 8.5, as *check*
    /// does it.
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

/// UNSUPPORTED, without a rule: step 2 of SPEC section 24.6.
fn refused(message: &str, link: usize) -> Error {
    Error::refused(ErrorClass::Unsupported, message).of_link(link)
}

/// Message of the refusal of a part that is not local (SPEC section 24.5).
const NOT_LOCAL: &str =
    "a part needs more of the base than the lanes that it codes, so it cannot be taken in place";
