//! Links in place: the lanes that they code are gathered, the links are applied to them, and sums
//! prove the result before any lane is written (SPEC section 24.6).
//!
//! A tensor may be divided among processes. Each part of it in the memory of a process is a
//! *share*. A *cover* is a set of shares that hold every lane of the tensor exactly once (section
//! 24.7). The sums of a cover are added over the processes and compared then; a share with all of
//! the tensor is compared alone.

use rayon::prelude::*;

use crate::codec::changes::append_changes;
use crate::codec::lane::{Lane, LaneKind, with_lane};
use crate::error::{Error, ErrorClass, Result};
use crate::memory::{Changes, Peers, PlacedMemory, Span, TensorPart};
use crate::progress::Progress;
use crate::replay::Replay;
use crate::replay::course::{Course, Fault, Group};
use crate::replay::lineage::EntryId;
use crate::replay::plan::{PiecePlan, PiecePlanner, PieceStep, PromisedSums};
use crate::replay::segments::Segments;
use crate::rules;
use crate::source::Source;
use crate::sums::{Sums, of_lanes};
use crate::tensor::{Dtype, find_patchable};

/// Number of lanes gathered and staged together. A call to a device takes longer than gathering a
/// few lanes.
const BATCH_LANES: usize = 1 << 18;

/// The sums of tensors that are divided among processes, by cover (SPEC section 24.7). They are
/// compared when all processes have added theirs.
#[derive(Debug, Default)]
struct JointSums {
    promised: Vec<CoverPromise>,
    /// For each of `promised`, the sums of the old and new values: those of this process, and of
    /// all processes after [`Peers::add`].
    found: Vec<[Sums; 2]>,
}

/// The sums that a link promises for a piece, as one cover has to have them.
#[derive(Debug)]
struct CoverPromise {
    entry: EntryId,
    piece: u64,
    sums: PromisedSums,
}

impl<S: Source> Replay<'_, S> {
    /// Takes the links in place: reads the lanes that they code from the memory, which holds the
    /// base, and proves their new values by the sums of each link. Nothing is written:
    /// [`Changes::write`] does that. After an error, the changes are what they were. The memory may
    /// have more tensors than the base; they stay as they are.
    ///
    /// The sums are trusted: the caller has hashed each link's file, and found the digest in a
    /// commit that it has checked (R-SUM-08). The caller also compares tensors that are tied
    /// ([`Places::check_ties`](crate::memory::Places::check_ties)). All processes that hold the
    /// memory together make the same calls. `progress` is told of [`work`](Self::work) bytes: those
    /// of tensors that no link writes at the beginning.
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
    /// segment and tensor. With several processes, an error that one of them finds alone comes
    /// before all sums of tensors that are divided, also before those of an earlier link.
    ///
    /// IO; errors of the memory, of other processes and of `progress`; USAGE if the budget of the
    /// changes is exceeded, if the memory has no part of a tensor that links write (and the parts
    /// of other processes are [not known](crate::memory::Places::divide)), or if sums are
    /// [not followed](Self::with_sums).
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
        let mut joint = JointSums::default();
        let course = &self.course();
        let done = self.prove_lanes(course, memory, changes, &mut joint, progress);
        // All processes make this call, also one that has failed: the others wait for it.
        let added = peers.add(&mut joint.found, done.as_ref().err());
        done?;
        added?;
        let planner = PiecePlanner {
            course,
            sums: self.followed_sums()?,
        };
        let mut least = None;
        for (promise, found) in joint.promised.iter().zip(&joint.found) {
            let fault = planner.compare(promise.entry, promise.piece, &promise.sums, found)?;
            least = Fault::least(least, fault);
        }
        least.map_or(Ok(()), |fault| Err(fault.error))
    }

    /// Proves the lanes that this process holds: compares the sums of undivided tensors, and adds
    /// those of the others to `joint`.
    fn prove_lanes<M: PlacedMemory + ?Sized>(
        &self,
        course: &Course<'_, S>,
        memory: &mut M,
        changes: &mut Changes<M::Staged>,
        joint: &mut JointSums,
        progress: &dyn Progress,
    ) -> Result<()> {
        let planner = PiecePlanner {
            course,
            sums: self.followed_sums()?,
        };
        if let Some(refused) = self.why_not(&planner)? {
            return Err(self.first_fault().err().unwrap_or(refused));
        }
        for lineage in &course.lineages {
            if lineage.entries.is_empty() {
                progress.advance(lineage.info.bytes())?;
            }
        }
        let tensors = self
            .base
            .iter()
            .map(|info| find_patchable(memory.places().tensors(), info));
        let tensors: Vec<Option<usize>> = tensors.collect();
        let groups = planner.course.grouped(planner.items())?;
        let segments = &Segments::of(&self.links, &groups);
        let prover = LaneProver {
            planner: &planner,
            tensors: &tensors,
            memory,
            changes,
            joint,
            least: None,
            progress,
        };
        prover.prove_groups(&groups, segments).map_err(|error| {
            // Step 8 of all links comes before the refusals and the sums.
            if error.rule().is_some() || error.class() == ErrorClass::Unsupported {
                self.first_fault().err().unwrap_or(error)
            } else {
                error
            }
        })
    }
}

impl<S: Source> PiecePlanner<'_, S> {
    /// Plans the pieces of groups, on all threads.
    fn plan_all(
        &self,
        groups: &[Group],
        segments: &Segments<'_, S>,
    ) -> Result<Vec<Vec<PiecePlan>>> {
        let planned: Vec<Result<Vec<PiecePlan>>> = groups
            .par_iter()
            .map(|group| self.plan(group, segments))
            .collect();
        // The first failure in the order of groups, whatever the threads did.
        planned.into_iter().collect()
    }

    /// Compares sums with those that a link promises: step 3 of SPEC section 24.6. The sums are
    /// those of the old and of the new values of the lanes that the link codes in a piece.
    fn compare(
        &self,
        entry: EntryId,
        piece: u64,
        promised: &PromisedSums,
        &[old, new]: &[Sums; 2],
    ) -> Result<Option<Fault>> {
        let coded = self.check_sums(
            new == promised.coded,
            &rules::SUM_03,
            "the new values of the coded lanes do not have the sums that the link promises",
            entry,
            piece,
        )?;
        if coded.is_some() {
            return Ok(coded);
        }
        let reached = promised.before.minus(old).plus(new);
        self.check_sums(
            reached == promised.piece,
            &rules::SUM_04,
            "the piece would not have the sums that the link promises: the memory does not hold \
             the base, or the link is wrong",
            entry,
            piece,
        )
    }
}

/// Proves plans against the memory, and stages the new values.
struct LaneProver<'a, S, M: PlacedMemory + ?Sized> {
    planner: &'a PiecePlanner<'a, S>,
    /// The number in the memory of each tensor of the base, if it is there.
    tensors: &'a [Option<usize>],
    memory: &'a mut M,
    changes: &'a mut Changes<M::Staged>,
    joint: &'a mut JointSums,
    least: Option<Fault>,
    progress: &'a dyn Progress,
}

/// The lanes of a plan that one share of the tensor holds (SPEC section 24.7).
struct ShareLanes<'p> {
    plan: &'p PiecePlan,
    /// The number of the tensor in the memory.
    tensor: usize,
    /// The number of the share among the tensor's parts in this memory.
    part: usize,
    /// Indices of these lanes among those of the plan, ascending; `None` if they are all of them.
    which: Option<Vec<u32>>,
    /// Number of spans.
    spans: usize,
    /// Number of lanes.
    count: usize,
    /// Index in [`JointSums::promised`] of the first step, for the first cover.
    joint: usize,
}

/// The lanes of several shares, which are gathered with one call.
#[derive(Default)]
struct GatherBatch<'p> {
    shares: Vec<ShareLanes<'p>>,
    /// The spans of the first share, then those of the next one, and so on.
    spans: Vec<Span>,
}

/// The new values of a share, and for each step the sums of the old and new values.
type ShareValues = (Vec<u8>, Vec<[Sums; 2]>);

impl<S: Source, M: PlacedMemory + ?Sized> LaneProver<'_, S, M> {
    /// Plans and proves groups. One thread uses the memory, while others plan the groups that
    /// follow.
    fn prove_groups(mut self, groups: &[Group], segments: &Segments<'_, S>) -> Result<()> {
        let planner = self.planner;
        let mut chunks = groups.chunks(rayon::current_num_threads());
        let mut plan_next = || {
            let chunk = chunks.next();
            chunk
                .map(|groups| planner.plan_all(groups, segments))
                .transpose()
        };
        let mut next = plan_next()?;
        while let Some(planned) = next {
            let (done, planned) = rayon::join(|| self.prove_in_batches(planned), &mut plan_next);
            done?;
            next = planned?;
        }
        self.least.map_or(Ok(()), |fault| Err(fault.error))
    }

    /// Proves plans in batches of one lane width, each of about [`BATCH_LANES`] at most.
    fn prove_in_batches(&mut self, planned: Vec<Vec<PiecePlan>>) -> Result<()> {
        let mut waiting: Vec<PiecePlan> = Vec::new();
        let mut lanes = 0;
        let mut width = 0;
        for mut plan in planned.into_iter().flatten() {
            self.least = Fault::least(self.least.take(), plan.failure.take());
            let own_width = plan.dtype.lane_bytes();
            let count = plan.coded_lanes();
            // Plans without lanes count, too: those that wait may have none.
            if !waiting.is_empty() && (lanes + count > BATCH_LANES || width != own_width) {
                self.prove(&std::mem::take(&mut waiting))?;
                lanes = 0;
            }
            width = own_width;
            lanes += count;
            waiting.push(plan);
        }
        self.prove(&waiting)
    }

    /// Proves plans of one lane width: gathers the old values, applies the links to them, compares
    /// sums, and stages the new values.
    fn prove(&mut self, plans: &[PiecePlan]) -> Result<()> {
        let mut batch = GatherBatch::default();
        for plan in plans {
            let tensor = self.tensor_of(plan)?;
            self.add_shares(plan, tensor, &mut batch);
        }
        let GatherBatch { shares, spans } = batch;
        let Some(width) = shares.first().map(|share| share.plan.dtype.lane_bytes()) else {
            return self.advance(plans);
        };
        let mut old = vec![0; width * spans.iter().map(|span| span.count).sum::<usize>()];
        self.memory.gather(width, &spans, &mut old)?;
        let mut rest = old.as_slice();
        let with_values = shares.into_iter().map(|share| {
            let (own, others) = rest.split_at(share.count * width);
            rest = others;
            (share, own)
        });
        let shares: Vec<(ShareLanes<'_>, &[u8])> = with_values.collect();
        let applied: Vec<ShareValues> = shares
            .par_iter()
            .map(|(share, old)| share.apply_steps(old))
            .collect();
        let mut spans = spans.into_iter();
        let mut written = WriteBatch::default();
        for ((share, old), (new, sums)) in shares.into_iter().zip(applied) {
            self.compare_or_add(&share, &sums)?;
            let own = spans.by_ref().take(share.spans);
            // Tied tensors are written once, and nothing is after a fault.
            if self.memory.places().tied(share.tensor).is_none() && self.least.is_none() {
                written.add(width, share.tensor, own.collect(), (old, &new));
            } else {
                own.for_each(drop);
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

    /// The number of the plan's tensor in the memory.
    fn tensor_of(&self, plan: &PiecePlan) -> Result<usize> {
        let Some(tensor) = self.tensors.get(plan.base_tensor).copied().flatten() else {
            let name = self.planner.course.lineage(plan.item.lineage).info.name();
            let message = "the memory does not have the tensor of the base";
            return Err(Error::usage(message).of_tensor(name));
        };
        self.memory.places().check_parts(tensor)?;
        Ok(tensor)
    }

    fn advance(&self, plans: &[PiecePlan]) -> Result<()> {
        plans.iter().try_for_each(|plan| {
            let width = plan.dtype.lane_bytes();
            self.progress.advance((plan.all * width) as u64)
        })
    }

    /// Adds the lanes of a plan that each share of its tensor holds.
    fn add_shares<'p>(&mut self, plan: &'p PiecePlan, tensor: usize, batch: &mut GatherBatch<'p>) {
        if plan.steps.is_empty() {
            return;
        }
        let joint = self.promise_covers(plan, tensor);
        for (number, part) in self.memory.places().parts(tensor).iter().enumerate() {
            let before = batch.spans.len();
            let which = add_spans(plan, part, &mut batch.spans);
            batch.shares.push(ShareLanes {
                plan,
                tensor,
                part: number,
                spans: batch.spans.len() - before,
                count: which.as_ref().map_or(plan.coded_lanes(), Vec::len),
                which,
                joint,
            });
        }
    }

    /// Adds the promised sums of a plan for each cover of its tensor, and returns the index of the
    /// first.
    fn promise_covers(&mut self, plan: &PiecePlan, tensor: usize) -> usize {
        let JointSums { promised, found } = &mut *self.joint;
        let first = promised.len();
        for _ in 0..self.memory.places().covers(tensor) {
            promised.extend(plan.steps.iter().map(|step| CoverPromise {
                entry: step.entry,
                piece: plan.item.piece,
                sums: step.sums,
            }));
        }
        found.resize(promised.len(), [Sums::ZERO; 2]);
        first
    }

    /// Compares the sums of a share that has all of the tensor; adds those of others to the sums of
    /// their covers.
    fn compare_or_add(&mut self, share: &ShareLanes<'_>, sums: &[[Sums; 2]]) -> Result<()> {
        let steps = &share.plan.steps;
        let piece = share.plan.item.piece;
        let Some(covers) = self.memory.places().joins(share.tensor, share.part)? else {
            for (step, sums) in steps.iter().zip(sums) {
                let fault = self.planner.compare(step.entry, piece, &step.sums, sums)?;
                self.least = Fault::least(self.least.take(), fault);
            }
            return Ok(());
        };
        for cover in covers {
            let found = &mut self.joint.found[share.joint + cover * steps.len()..][..steps.len()];
            for ([old, new], [own_old, own_new]) in found.iter_mut().zip(sums) {
                *old = old.plus(*own_old);
                *new = new.plus(*own_new);
            }
        }
        Ok(())
    }
}

/// Adds the spans of those lanes of a plan that are in this part of the tensor. Returns the indices
/// of these lanes in the plan; `None` if they are all of them.
fn add_spans(plan: &PiecePlan, part: &TensorPart, spans: &mut Vec<Span>) -> Option<Vec<u32>> {
    if let Some(first) = part.whole() {
        spans.push(Span {
            row: part.row(),
            first: first + plan.first_lane,
            places: plan.lanes.clone(),
            count: plan.coded_lanes(),
        });
        return None;
    }
    let (which, places) = match &plan.lanes {
        Some(lanes) => part.find(plan.first_lane, lanes.iter().copied()),
        None => part.find(plan.first_lane, (0..).take(plan.all)),
    };
    spans.extend(Span::at(part.row(), &places));
    Some(which)
}

impl ShareLanes<'_> {
    /// Applies the links to old values.
    fn apply_steps(&self, old: &[u8]) -> ShareValues {
        let PiecePlan {
            dtype,
            lanes,
            steps,
            ..
        } = self.plan;
        let mut values = old.to_vec();
        let Some(which) = &self.which else {
            let lanes = lanes.as_deref();
            let sums = steps
                .iter()
                .map(|step| apply_step(*dtype, lanes, step, &mut values));
            let sums = sums.collect();
            return (values, sums);
        };
        let numbers: Vec<u32> = which
            .iter()
            .map(|&at| lanes.as_ref().map_or(at, |lanes| lanes[at as usize]))
            .collect();
        let sums = steps.iter().map(|step| {
            let own = step.restricted_to(which, dtype.lane_bytes());
            apply_step(*dtype, Some(&numbers), &own, &mut values)
        });
        let sums = sums.collect();
        (values, sums)
    }
}

impl PieceStep {
    /// The step for some lanes of the plan only. `which` has their indices; those of the result
    /// count in `which`.
    fn restricted_to(&self, which: &[u32], width: usize) -> Self {
        let coded = self.values.len() / width;
        let mut indices = Vec::new();
        let mut values = Vec::new();
        // Both lists ascend.
        let mut next = 0;
        for at in 0..coded {
            let index = self
                .indices
                .as_ref()
                .map_or_else(|| u32::try_from(at).unwrap_or(u32::MAX), |own| own[at]);
            next += which[next..].iter().take_while(|&&own| own < index).count();
            if which.get(next) == Some(&index) {
                indices.push(u32::try_from(next).unwrap_or(u32::MAX));
                values.extend_from_slice(&self.values[at * width..][..width]);
            }
        }
        Self {
            entry: self.entry,
            indices: Some(indices),
            is_relative: self.is_relative,
            values,
            sums: self.sums,
        }
    }
}

/// Lanes that are staged with one call, with their old and new values.
#[derive(Default)]
struct WriteBatch {
    spans: Vec<Span>,
    /// The tensor of each span.
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
            // These are all lanes of the piece. If few of them change, only those are staged.
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
                self.append(tensor, spans);
                return;
            }
        }
        self.old.extend_from_slice(old);
        self.new.extend_from_slice(new);
        self.append(tensor, spans);
    }

    /// Adds spans, without those that have no lanes.
    fn append(&mut self, tensor: usize, mut spans: Vec<Span>) {
        spans.retain(|span| span.count > 0);
        self.spans.append(&mut spans);
        self.tensors.resize(self.spans.len(), tensor);
    }
}

/// Applies one link to lanes; returns the sums of the lanes that it codes, before and after.
/// `lanes` are the numbers of the lanes in the piece; `None` if they are all of it.
fn apply_step(
    dtype: Dtype,
    lanes: Option<&[u32]>,
    step: &PieceStep,
    current: &mut [u8],
) -> [Sums; 2] {
    with_lane!(dtype.lane_bytes(), L => {
        let kind = LaneKind::<L>::of(dtype);
        if step.is_relative {
            apply_values::<L>(lanes, step, L::chunks_mut(current), |old, value| {
                kind.moved(L::load(old), L::load(value)).store()
            })
        } else {
            apply_values::<L>(lanes, step, L::chunks_mut(current), |_, value| value)
        }
    })
}

/// Same as [`apply_step`]; `changed` gives the new lane for an old one and its value.
fn apply_values<L: Lane>(
    lanes: Option<&[u32]>,
    step: &PieceStep,
    current: &mut [L::Bytes],
    changed: impl Fn(L::Bytes, L::Bytes) -> L::Bytes,
) -> [Sums; 2] {
    let values = L::chunks(&step.values);
    let change = |number: u32, lane: &mut L::Bytes, value: L::Bytes| {
        let old = std::mem::replace(lane, changed(*lane, value));
        (number, [old, *lane])
    };
    match (lanes, &step.indices) {
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
            of_lanes::<L, 2>(all.map(|((&number, lane), &value)| change(number, lane, value)))
        }
        (numbers, Some(indices)) => {
            of_lanes::<L, 2>(indices.iter().zip(values).map(|(&index, &value)| {
                let number = numbers.map_or(index, |numbers| numbers[index as usize]);
                change(number, &mut current[index as usize], value)
            }))
        }
    }
}
