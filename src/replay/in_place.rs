//! Taking links in place: the lanes that they code are gathered, brought through the links, and proven by sums, before any is
//! written (SPEC section 24.6). Pieces for which lanes are not enough are built whole and proven by their digests.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::codec::lane::{Kind, Lane, with_lane};
use crate::error::Result;
use crate::in_order::in_order;
use crate::limits::address;
use crate::memory::{PatchSet, PieceChanges, Proof};
use crate::progress::Progress;
use crate::replay::Replay;
use crate::replay::course::{Course, Item};
use crate::replay::output::Patching;
use crate::replay::plan::{Failure, PieceStep, Planned, Planner};
use crate::replay::segments::Segments;
use crate::rules;
use crate::source::Source;
use crate::sums::{Sums, of_lanes};
use crate::tensor::{Dtype, Lanes, State};

impl<S: Source> Replay<'_, S> {
    /// Takes the links in place: reads from the memory, which holds the base, the lanes that they code, and proves their new
    /// values by the sums of each link. Nothing is written: what comes back is then applied like that of
    /// [`patches`](Self::patches). Where lanes are not enough, pieces are read and built whole, and proven by their digests: of
    /// tensors that come new, without sums, or coded in contexts. [`PatchSet::proof`] says which it was.
    ///
    /// The sums are trusted: the caller has hashed each link's file, and found the digest in a commit that it has checked
    /// (R-SUM-08).
    ///
    /// ```
    /// use deltachain::memory::Proof;
    /// use deltachain::StateSums;
    /// use deltachain::tensor::{Dtype, MemoryState};
    /// use deltachain::{DiffOptions, Limits, LinkReader, Profile, Replay, diff};
    ///
    /// # fn main() -> deltachain::Result<()> {
    /// let (mut weights, mut target) = (MemoryState::new(), MemoryState::new());
    /// weights.insert("weight", Dtype::U8, &[4], vec![1, 2, 3, 4])?;
    /// target.insert("weight", Dtype::U8, &[4], vec![1, 2, 3, 9])?;
    /// let mut file = Vec::new();
    /// diff(&weights, &target, &DiffOptions::default().profile(Profile::Local).sums(true), &mut file)?;
    /// let link = LinkReader::open(file, &Limits::default())?;
    ///
    /// let (table, sums) = StateSums::hashed(&weights, &())?;
    /// let mut replay = Replay::new(table).with_sums(sums);
    /// replay.push(&link)?;
    /// let mut patches = replay.in_place(&weights, u64::MAX, &())?;
    /// assert_eq!(patches.proof(), Proof::ChangedLanes);
    /// patches.fit(&mut weights)?.apply()?;
    /// assert_eq!(weights, target);
    /// replay.sums().unwrap().check(&weights, &())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first of: step 8 of SPEC section 10 of each link, without 8.5; R-SUM-03 and R-SUM-04, with link, segment and
    /// tensor; those of [`run`](Self::run) for pieces that are built whole. IO; errors of the memory and of `progress`;
    /// USAGE if the budget is exceeded, or if sums are [not followed](Self::with_sums).
    pub fn in_place(&self, memory: &dyn State, budget: u64, progress: &dyn Progress) -> Result<PatchSet> {
        self.collect(memory, budget, |patching| self.prove_lanes(memory, patching, progress))
    }

    fn prove_lanes(&self, memory: &dyn State, patching: &Patching<'_>, progress: &dyn Progress) -> Result<Proof> {
        let sums = self.followed_sums()?;
        let held_numbers = self.held_numbers(memory)?;
        let taken = &self.taken();
        let course = Course { links: &self.links, taken };
        let planner = Planner { course, sums };
        let items = planner.items()?;
        let groups = course.grouped(items.iter().copied())?;
        let segments = Segments::of(&self.links, &groups);

        let whole = Mutex::new(BTreeSet::new());
        let prove = |planned: Planned| {
            let item = planned.item;
            let (lineage, piece) = (course.lineage(item.0), item.1);
            let Some(start) = lineage.start.filter(|_| planned.plan.is_some()) else {
                whole.lock().unwrap_or_else(PoisonError::into_inner).insert(item);
                return Ok((item, None, None));
            };
            let range = lineage.info.piece(piece);
            let bytes = range.end - range.start;
            let lanes = address(bytes / lineage.info.dtype().lane_bytes() as u64)?;
            let (changes, failure) = planner.prove(memory, held_numbers[start], lanes, planned)?;
            progress.advance(bytes)?;
            Ok((item, changes, failure))
        };
        let mut least = None;
        let mut has_lanes = false;
        let done = in_order(
            &groups,
            || (),
            |(), group| {
                let planned = planner.plan(group, &segments)?;
                let proven: Vec<Result<_>> = planned.into_par_iter().map(prove).collect();
                proven.into_iter().collect::<Result<Vec<_>>>()
            },
            |_, proven| {
                for ((lineage, piece), changes, failure) in proven {
                    least = Failure::least(least.take(), failure);
                    if let (Some(target), Some(changes)) = (course.lineage(lineage).target, changes) {
                        has_lanes = true;
                        patching.take_changes(target, piece, changes)?;
                    }
                }
                Ok(())
            },
        );
        let done = done.and_then(|()| least.map_or(Ok(()), |failure| Err(failure.into_error())));
        if let Err(error) = done {
            let first = if error.rule().is_some() { self.first_fault().err() } else { None };
            return Err(first.unwrap_or(error));
        }

        let mut by_lanes: BTreeSet<Item> = items.into_iter().collect();
        // No digest is compared in place, also not of a tensor without bytes.
        for (number, lineage) in taken.lineages.iter().enumerate().filter(|(_, one)| one.info.bytes() == 0) {
            let takes = planner.takes((number, 0))?;
            by_lanes.extend(Some((number, 0)).filter(|_| !course.places(lineage).is_empty() && takes));
        }
        let whole = whole.into_inner().unwrap_or_else(PoisonError::into_inner);
        let builds = |item: Item| !by_lanes.contains(&item) || whole.contains(&item);
        // The others have been proven.
        let wanted = self.links.iter().enumerate().map(|(link, reader)| {
            let mut wanted = self.wanted_of(reader);
            wanted.retain(|&segment| !segments.is_expected((link, segment)));
            wanted
        });
        let wanted: Vec<_> = wanted.collect();
        self.pass_over(course, &wanted, &builds, memory, patching, progress)?;
        Ok(if has_lanes { Proof::ChangedLanes } else { Proof::Hashed })
    }
}

impl<S: Source> Planner<'_, S> {
    /// Brings the lanes of a piece, which has as many as `all`, through the links: what changes, or the first failure.
    fn prove(
        &self,
        memory: &dyn State,
        tensor: usize,
        all: usize,
        planned: Planned,
    ) -> Result<(Option<PieceChanges>, Option<Failure>)> {
        let Planned { item: (lineage, piece), plan, places, mut failure } = planned;
        let dtype = self.course.lineage(lineage).info.dtype();
        let width = dtype.lane_bytes();
        let Some(plan) = plan else { return Ok((None, failure)) };
        let lanes = match &plan.lanes {
            Some(numbers) => Lanes::numbered(plan.first_lane, numbers),
            None => Lanes::all(plan.first_lane, all),
        };
        let mut old = vec![0; lanes.count * width];
        memory.gather(tensor, &lanes, &mut old)?;
        let mut values = old.clone();
        for (step, &place) in plan.steps.iter().zip(&places) {
            let [before, after] = with_lane!(width, L => take::<L>(dtype, plan.lanes.as_deref(), step, &mut values));
            let found = self.ensure(after == step.coded, &rules::SUM_03, place, piece)?;
            let reached = step.before.minus(before).plus(after);
            let found = found.or(self.ensure(reached == step.piece, &rules::SUM_04, place, piece)?);
            failure = Failure::least(failure, found);
        }
        if failure.is_some() {
            return Ok((None, failure));
        }
        let changes = match plan.lanes {
            Some(numbers) => PieceChanges::of_lanes(width, numbers, values, old),
            None => {
                let mut changes = PieceChanges::new(width);
                changes.add(0, &old, &values);
                changes
            }
        };
        Ok((Some(changes), None))
    }
}

/// Brings lanes through a link: the sums of those that it codes, before and after.
fn take<L: Lane>(dtype: Dtype, lanes: Option<&[u32]>, step: &PieceStep, current: &mut [u8]) -> [Sums; 2] {
    let kind = Kind::of(dtype);
    if step.is_relative {
        change::<L>(lanes, step, L::chunks_mut(current), |old, value| kind.moved(L::load(old), L::load(value)).store())
    } else {
        change::<L>(lanes, step, L::chunks_mut(current), |_, value| value)
    }
}

fn change<L: Lane>(
    lanes: Option<&[u32]>,
    step: &PieceStep,
    current: &mut [L::Bytes],
    changed: impl Fn(L::Bytes, L::Bytes) -> L::Bytes,
) -> [Sums; 2] {
    let values = L::chunks(&step.values);
    let take = |number: u32, lane: &mut L::Bytes, value: L::Bytes| {
        let old = std::mem::replace(lane, changed(*lane, value));
        (number, [old, *lane])
    };
    match (lanes, &step.places) {
        (None, None) => {
            let before = Sums::of_bytes(0, L::flat(current));
            current.iter_mut().zip(values).for_each(|(lane, &value)| *lane = changed(*lane, value));
            [before, Sums::of_bytes(0, L::flat(current))]
        }
        (Some(numbers), None) => {
            let all = numbers.iter().zip(current).zip(values);
            of_lanes::<L, 2>(all.map(|((&number, lane), &value)| take(number, lane, value)))
        }
        (numbers, Some(places)) => of_lanes::<L, 2>(places.iter().zip(values).map(|(&place, &value)| {
            let number = numbers.map_or(place, |numbers| numbers[place as usize]);
            take(number, &mut current[place as usize], value)
        })),
    }
}
