//! Taking links in place: the lanes that they code are gathered, brought through the links, and
//! proven by sums, before any is written (SPEC section 24.6).

use rayon::prelude::*;

use crate::codec::changes::append_changes;
use crate::codec::lane::{Lane, LaneKind, with_lane};
use crate::error::{Error, ErrorClass, Result};
use crate::memory::{Changes, Peers, PlacedMemory, Span};
use crate::progress::Progress;
use crate::replay::Replay;
use crate::replay::course::{Course, Fault, Group};
use crate::replay::lineage::EntryPlace;
use crate::replay::plan::{PiecePlan, PiecePlanner, PieceStep, PromisedSums};
use crate::replay::segments::Segments;
use crate::rules;
use crate::source::Source;
use crate::sums::{Sums, of_lanes};
use crate::tensor::{Dtype, find_patchable};

/// Number of lanes gathered and staged together. A call to a device takes longer than gathering a
/// few lanes.
const AT_ONCE: usize = 1 << 18;

/// Sums of covers, which are known when all processes have added theirs: what each should be, and
/// what is found of old and new values.
#[derive(Debug, Default)]
struct Joint {
    promised: Vec<(EntryPlace, u64, PromisedSums)>,
    found: Vec<[Sums; 2]>,
}

impl<S: Source> Replay<'_, S> {
    /// Takes the links in place: reads from the memory, which holds the base, the lanes that they
    /// code, and proves their new values by the sums of each link. Nothing is written:
    /// [`Changes::write`] does that. If it fails, the changes are what they were. The places of the
    /// memory may have more tensors than the base, which stay.
    ///
    /// The sums are trusted: the caller has hashed each link's file, and found the digest in a
    /// commit that it has checked (R-SUM-08). Tensors that are tied are the caller's to compare
    /// ([`Places::check_ties`](crate::memory::Places::check_ties)). All processes that hold the
    /// memory together make the same calls.
    ///
    /// ```
    /// use deltachain::memory::{Alone, Changes, LentState};
    /// use deltachain::tensor::{Dtype, MemoryState, TensorInfo};
    /// use deltachain::{DiffOptions, Limits, LinkReader, Profile, Replay, StateSums, diff};
    ///
    /// # fn main() -> deltachain::Result<()> {
    /// let (mut base, mut target) = (MemoryState::new(), MemoryState::new());
    /// base.insert("weight", Dtype::U8, &[4], vec![1, 2, 3, 4])?;
    /// target.insert("weight", Dtype::U8, &[4], vec![1, 2, 3, 9])?;
    /// let mut file = Vec::new();
    /// diff(&base, &target, &DiffOptions::default().profile(Profile::Local).sums(true), &mut file)?;
    /// let link = LinkReader::open(file, &Limits::default())?;
    ///
    /// let (table, sums) = StateSums::hashed(&base, &())?;
    /// let mut replay = Replay::new(table).with_sums(sums);
    /// replay.push(&link)?;
    ///
    /// let mut weights = [1, 2, 3, 4];
    /// let info = TensorInfo::new("weight", Dtype::U8, [4]).unwrap();
    /// let mut memory = LentState::new([(info, &mut weights[..])])?;
    /// let mut changes = Changes::new(u64::MAX);
    /// replay.in_place(&mut memory, &mut changes, &Alone, &())?;
    /// // All is proven. Now one value is exchanged.
    /// changes.write(&mut memory)?;
    /// replay.sums().unwrap().check(&memory, &())?;
    /// assert_eq!(weights, [1, 2, 3, 9]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first of: step 8 of SPEC section 10 of each link, without 8.5; UNSUPPORTED, without a
    /// rule, if lanes are not enough (SPEC section 24.6, step 2); R-SUM-03 and R-SUM-04, with link,
    /// segment and tensor. IO; errors of the memory, of other processes and of `progress`; USAGE if
    /// the budget of the changes is exceeded, if the memory does not have the tensors, or if sums
    /// are [not followed](Self::with_sums).
    pub fn in_place<M: PlacedMemory + ?Sized>(
        &self,
        memory: &mut M,
        changes: &mut Changes<M::Staged>,
        peers: &dyn Peers,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mark = changes.mark();
        let proven = self.prove_together(memory, changes, peers, progress);
        if proven.is_err() {
            changes.forget(mark);
        }
        proven
    }

    fn prove_together<M: PlacedMemory + ?Sized>(
        &self,
        memory: &mut M,
        changes: &mut Changes<M::Staged>,
        peers: &dyn Peers,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut joint = Joint::default();
        let course = &self.course();
        let done = self.prove_lanes(course, memory, changes, &mut joint, progress);
        let added = peers.add(&mut joint.found, done.as_ref().err());
        done.and(added)?;
        let planner = PiecePlanner {
            course,
            sums: self.followed_sums()?,
        };
        let mut least = None;
        for ((place, piece, promised), found) in joint.promised.iter().zip(&joint.found) {
            least = Fault::least(least, planner.compare(*place, *piece, promised, found)?);
        }
        least.map_or(Ok(()), |failure| Err(failure.error))
    }

    fn prove_lanes<M: PlacedMemory + ?Sized>(
        &self,
        course: &Course<'_, S>,
        memory: &mut M,
        changes: &mut Changes<M::Staged>,
        joint: &mut Joint,
        progress: &dyn Progress,
    ) -> Result<()> {
        let planner = PiecePlanner {
            course,
            sums: self.followed_sums()?,
        };
        if let Some(refused) = self.why_not(&planner)? {
            return Err(self.first_fault().err().unwrap_or(refused));
        }
        let tensors = self
            .base
            .iter()
            .map(|info| find_patchable(memory.places().tensors(), info));
        let tensors: Vec<Option<usize>> = tensors.collect();
        let groups = planner.course.grouped(planner.items())?;
        for lineage in &course.lineages {
            if lineage.places.is_empty() {
                progress.advance(lineage.info.bytes())?;
            }
        }
        let segments = &Segments::of(&self.links, &groups);
        let plan = |groups: &[Group]| {
            let planned: Vec<Result<_>> = groups
                .par_iter()
                .map(|group| planner.plan(group, segments))
                .collect();
            planned.into_iter().collect::<Result<Vec<Vec<PiecePlan>>>>()
        };
        let mut prover = LaneProver {
            planner: &planner,
            tensors: &tensors,
            memory,
            changes,
            joint,
            least: None,
            progress,
        };
        let mut work = || -> Result<()> {
            let mut chunks = groups.chunks(rayon::current_num_threads());
            let mut next = chunks.next().map(plan).transpose()?;
            while let Some(planned) = next {
                // The memory is used by one thread, while others decode what comes next.
                let (done, planned) = rayon::join(
                    || prover.take(planned),
                    || chunks.next().map(plan).transpose(),
                );
                done?;
                next = planned?;
            }
            Ok(())
        };
        let done = work();
        let done = done.and_then(|()| prover.least.map_or(Ok(()), |failure| Err(failure.error)));
        done.map_err(|error| {
            let is_fault = error.rule().is_some() || error.class() == ErrorClass::Unsupported;
            let first = if is_fault {
                self.first_fault().err()
            } else {
                None
            };
            first.unwrap_or(error)
        })
    }
}

impl<S: Source> PiecePlanner<'_, S> {
    /// Compares sums with those that a link promises: step 3 of SPEC section 24.6. The sums are
    /// those of the old and of the new values of the lanes that the link codes in a piece.
    fn compare(
        &self,
        place: EntryPlace,
        piece: u64,
        promised: &PromisedSums,
        &[old, new]: &[Sums; 2],
    ) -> Result<Option<Fault>> {
        let (rule, message) = if new != promised.coded {
            (
                &rules::SUM_03,
                "the new values of the coded lanes have other sums than the link promises",
            )
        } else if promised.before.minus(old).plus(new) != promised.piece {
            (
                &rules::SUM_04,
                "the piece comes to other sums than the link promises: the memory does not hold \
                 the base, or the link is wrong",
            )
        } else {
            return Ok(None);
        };
        self.sum_fault(rule, message, place, piece).map(Some)
    }
}

/// Proves what has been planned.
struct LaneProver<'a, S, M: PlacedMemory + ?Sized> {
    planner: &'a PiecePlanner<'a, S>,
    /// The number in the memory of each tensor of the base.
    tensors: &'a [Option<usize>],
    memory: &'a mut M,
    changes: &'a mut Changes<M::Staged>,
    joint: &'a mut Joint,
    least: Option<Fault>,
    progress: &'a dyn Progress,
}

/// The lanes of a plan that a part of a tensor holds.
struct PartShare<'p> {
    plan: &'p PiecePlan,
    dtype: Dtype,
    tensor: usize,
    part: usize,
    /// Which of the plan's lanes they are, by their places among them; all if `None`.
    which: Option<Vec<u32>>,
    /// Number of spans, and of lanes.
    spans: usize,
    count: usize,
    /// Index of the sums of the first step among the sums of covers.
    joint: usize,
}

/// The new values of a share, and the sums of old and new ones for each step.
type ShareValues = (Vec<u8>, Vec<[Sums; 2]>);

impl<S: Source, M: PlacedMemory + ?Sized> LaneProver<'_, S, M> {
    fn take(&mut self, planned: Vec<Vec<PiecePlan>>) -> Result<()> {
        let (mut waiting, mut lanes, mut width) = (Vec::new(), 0, 0);
        for mut plan in planned.into_iter().flatten() {
            let own_width = self
                .planner
                .course
                .lineage(plan.item.0)
                .info
                .dtype()
                .lane_bytes();
            self.least = Fault::least(self.least.take(), plan.failure.take());
            let count = plan.lanes.as_ref().map_or(plan.all, Vec::len);
            // A plan may have no lanes: SPEC section 6.2.
            if !waiting.is_empty() && (lanes + count > AT_ONCE || width != own_width) {
                self.prove(&std::mem::take(&mut waiting))?;
                lanes = 0;
            }
            (width, lanes) = (own_width, lanes + count);
            waiting.push(plan);
        }
        self.prove(&waiting)
    }

    /// Proves some plans of one width: gathers, brings through the links, compares, and stages.
    fn prove(&mut self, plans: &[PiecePlan]) -> Result<()> {
        let (mut shares, mut spans) = (Vec::new(), Vec::new());
        for plan in plans {
            let info = self.planner.course.lineage(plan.item.0).info;
            let missing = || {
                Error::usage("the memory does not have the tensor of the base")
                    .of_tensor(info.name())
            };
            let tensor = self
                .tensors
                .get(plan.tensor)
                .copied()
                .flatten()
                .ok_or_else(missing)?;
            self.memory.places().check_parts(tensor)?;
            self.share((info.dtype(), tensor), plan, &mut shares, &mut spans);
        }
        let Some(width) = shares.first().map(|share| share.dtype.lane_bytes()) else {
            return self.advance(plans);
        };
        let mut old = vec![0; width * spans.iter().map(|span| span.count).sum::<usize>()];
        self.memory.gather(width, &spans, &mut old)?;
        let mut rest = old.as_slice();
        let own = shares.into_iter().map(|share| {
            let (own, others) = rest.split_at(share.count * width);
            rest = others;
            (share, own)
        });
        let own: Vec<(PartShare<'_>, &[u8])> = own.collect();
        let brought: Vec<ShareValues> = own
            .par_iter()
            .map(|(share, old)| share.bring(old))
            .collect();
        let (mut all, mut written) = (spans.into_iter(), WriteBatch::default());
        for ((share, old), (new, sums)) in own.into_iter().zip(brought) {
            self.compare(&share, &sums)?;
            let spans = all.by_ref().take(share.spans);
            if self.memory.places().tied(share.tensor).is_none() && self.least.is_none() {
                written.add(width, share.tensor, spans.collect(), (old, &new));
            } else {
                spans.for_each(drop);
            }
        }
        let WriteBatch {
            spans,
            tensors,
            old,
            new,
        } = written;
        self.changes
            .add(self.memory, width, (spans, tensors), (old, new))?;
        self.advance(plans)
    }

    fn advance(&self, plans: &[PiecePlan]) -> Result<()> {
        plans.iter().try_for_each(|plan| {
            let width = self
                .planner
                .course
                .lineage(plan.item.0)
                .info
                .dtype()
                .lane_bytes();
            self.progress.advance((plan.all * width) as u64)
        })
    }

    /// Finds the lanes of a plan in each part of its tensor.
    fn share<'p>(
        &mut self,
        (dtype, tensor): (Dtype, usize),
        plan: &'p PiecePlan,
        shares: &mut Vec<PartShare<'p>>,
        spans: &mut Vec<Span>,
    ) {
        if plan.steps.is_empty() {
            return;
        }
        let joint = self.joint.promised.len();
        for _ in 0..self.memory.places().covers(tensor) {
            self.joint.promised.extend(
                plan.steps
                    .iter()
                    .map(|step| (step.place, plan.item.1, step.sums)),
            );
        }
        self.joint
            .found
            .resize(self.joint.promised.len(), [Sums::ZERO; 2]);
        for (number, part) in self.memory.places().parts(tensor).iter().enumerate() {
            let count = plan.lanes.as_ref().map_or(plan.all, Vec::len);
            let begin = spans.len();
            let (which, count) = match part.whole() {
                Some(first) => {
                    let first = first + plan.first_lane;
                    spans.push(Span {
                        row: part.row(),
                        first,
                        places: plan.lanes.clone(),
                        count,
                    });
                    (None, count)
                }
                None => {
                    let (which, places) = match &plan.lanes {
                        Some(lanes) => part.find(plan.first_lane, lanes.iter().copied()),
                        None => part.find(plan.first_lane, (0..).take(plan.all)),
                    };
                    spans.extend(Span::at(part.row(), &places));
                    let count = which.len();
                    (Some(which), count)
                }
            };
            let spans = spans.len() - begin;
            shares.push(PartShare {
                plan,
                dtype,
                tensor,
                part: number,
                which,
                spans,
                count,
                joint,
            });
        }
    }

    /// Compares sums alone, or adds them to those of covers.
    fn compare(&mut self, share: &PartShare<'_>, sums: &[[Sums; 2]]) -> Result<()> {
        let steps = &share.plan.steps;
        let Some(covers) = self.memory.places().joins(share.tensor, share.part)? else {
            for (step, sums) in steps.iter().zip(sums) {
                let failure =
                    self.planner
                        .compare(step.place, share.plan.item.1, &step.sums, sums)?;
                self.least = Fault::least(self.least.take(), failure);
            }
            return Ok(());
        };
        for cover in covers {
            let found = &mut self.joint.found[share.joint + cover * steps.len()..][..steps.len()];
            for ([old, new], [own_old, own_new]) in found.iter_mut().zip(sums) {
                (*old, *new) = (old.plus(*own_old), new.plus(*own_new));
            }
        }
        Ok(())
    }
}

impl PartShare<'_> {
    /// Brings old values through the links.
    fn bring(&self, old: &[u8]) -> ShareValues {
        let width = self.dtype.lane_bytes();
        let (mut values, PiecePlan { lanes, steps, .. }) = (old.to_vec(), self.plan);
        let mut bring = |lanes: Option<&[u32]>, step: &PieceStep| with_lane!(width, L => take::<L>(self.dtype, lanes, step, &mut values));
        let Some(which) = &self.which else {
            let sums = steps
                .iter()
                .map(|step| bring(lanes.as_deref(), step))
                .collect();
            return (values, sums);
        };
        // The numbers of these lanes, and which of them each lane of the plan is.
        let numbers: Vec<u32> = which
            .iter()
            .map(|&at| lanes.as_ref().map_or(at, |lanes| lanes[at as usize]))
            .collect();
        let own = |step: &PieceStep| {
            let coded = step.values.len() / width;
            let (mut places, mut kept) = (Vec::new(), Vec::new());
            let mut next = 0;
            for at in 0..coded {
                // Both ascend.
                let place = step
                    .places
                    .as_ref()
                    .map_or_else(|| u32::try_from(at).unwrap_or(u32::MAX), |own| own[at]);
                next += which[next..].iter().take_while(|&&own| own < place).count();
                if which.get(next) == Some(&place) {
                    places.push(u32::try_from(next).unwrap_or(u32::MAX));
                    kept.extend_from_slice(&step.values[at * width..][..width]);
                }
            }
            let PieceStep {
                place,
                is_relative,
                sums,
                ..
            } = *step;
            PieceStep {
                place,
                places: Some(places),
                is_relative,
                values: kept,
                sums,
            }
        };
        let sums = steps
            .iter()
            .map(|step| bring(Some(&numbers), &own(step)))
            .collect();
        (values, sums)
    }
}

/// Lanes that are to be written: the spans, the tensor of each, old and new values.
#[derive(Default)]
struct WriteBatch {
    spans: Vec<Span>,
    tensors: Vec<usize>,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl WriteBatch {
    fn add(
        &mut self,
        width: usize,
        tensor: usize,
        mut spans: Vec<Span>,
        (old, new): (&[u8], &[u8]),
    ) {
        if let [
            Span {
                places: places @ None,
                count,
                ..
            },
        ] = spans.as_mut_slice()
        {
            // All lanes of the piece: if few change, only these.
            let (mut numbers, mut changed) = (Vec::new(), Vec::new());
            append_changes(width, 0, (old, new), &mut numbers, &mut changed);
            if numbers.len() * (size_of::<u32>() + width) < new.len() {
                let old = numbers
                    .iter()
                    .flat_map(|&number| &old[number as usize * width..][..width]);
                self.old.extend(old);
                self.new.append(&mut changed);
                *count = numbers.len();
                *places = Some(numbers);
                spans.retain(|span| span.count > 0);
                self.take(tensor, spans);
                return;
            }
        }
        self.old.extend_from_slice(old);
        self.new.extend_from_slice(new);
        self.take(tensor, spans);
    }

    fn take(&mut self, tensor: usize, mut spans: Vec<Span>) {
        self.spans.append(&mut spans);
        self.tensors.resize(self.spans.len(), tensor);
    }
}

/// Brings lanes through a link: the sums of those that it codes, before and after.
fn take<L: Lane>(
    dtype: Dtype,
    lanes: Option<&[u32]>,
    step: &PieceStep,
    current: &mut [u8],
) -> [Sums; 2] {
    let kind = LaneKind::of(dtype);
    if step.is_relative {
        change::<L>(lanes, step, L::chunks_mut(current), |old, value| {
            kind.moved(L::load(old), L::load(value)).store()
        })
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
            current
                .iter_mut()
                .zip(values)
                .for_each(|(lane, &value)| *lane = changed(*lane, value));
            [before, Sums::of_bytes(0, L::flat(current))]
        }
        (Some(numbers), None) => {
            let all = numbers.iter().zip(current).zip(values);
            of_lanes::<L, 2>(all.map(|((&number, lane), &value)| take(number, lane, value)))
        }
        (numbers, Some(places)) => {
            of_lanes::<L, 2>(places.iter().zip(values).map(|(&place, &value)| {
                let number = numbers.map_or(place, |numbers| numbers[place as usize]);
                take(number, &mut current[place as usize], value)
            }))
        }
    }
}
