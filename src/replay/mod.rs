//! Applying any number of links in one pass (SPEC sections 9 and 10).
//!
//! Links are pushed one after another, which checks what indexes can prove: step 7. Then each piece
//! is built once, whatever the number of links, and proven once (`build.rs`). If a rule is broken,
//! a second pass without output compares after each link, and blames the first that fails. In
//! place, only the lanes that links code are read and proven (`in_place.rs`).

mod build;
mod course;
#[cfg(test)]
mod fake_device;
mod in_place;
#[cfg(test)]
mod in_place_tests;
mod lineage;
mod output;
mod plan;
mod segments;
#[cfg(test)]
mod spread_tests;
#[cfg(test)]
mod tests;

use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::link::LinkReader;
use crate::memory::{PatchCollector, PatchSet};
use crate::progress::Progress;
use crate::replay::build::Pass;
use crate::replay::course::Course;
use crate::replay::lineage::Lineages;
use crate::replay::output::{CallbackOutput, DiscardOutput, Output, PatchOutput, WriteOutput};
use crate::source::Source;
use crate::state_sums::StateSums;
use crate::sums::LinkSums;
use crate::table::{Origin, StateTable};
use crate::tensor::{MemoryState, State, StateDigests, StateWriter, TensorInfo, total_bytes};

/// When the open segments of a group of pieces take more bytes, they are applied before more are
/// opened.
const OPEN_BYTES: usize = 1 << 25;

/// Links that lead from a base to a target, one after another, and are applied in one pass. The
/// states between are never built.
///
/// ```
/// use deltachain::tensor::{Dtype, MemoryState, StateDigests};
/// use deltachain::{DiffOptions, Limits, LinkReader, Replay, StateTable, diff};
///
/// # fn main() -> deltachain::Result<()> {
/// let mut states = [0, 1, 2].map(|step| (step, MemoryState::new()));
/// for (step, state) in &mut states {
///     state.insert("weight", Dtype::U8, &[2], vec![7, *step])?;
/// }
/// let link = |base, target| {
///     let mut file = Vec::new();
///     diff(base, target, &DiffOptions::default(), &mut file)?;
///     LinkReader::open(file, &Limits::default())
/// };
/// let links = [link(&states[0].1, &states[1].1)?, link(&states[1].1, &states[2].1)?];
///
/// let mut replay = Replay::new(StateTable::of(&states[0].1, &())?);
/// for link in &links {
///     replay.push(link)?;
/// }
/// let mut target = MemoryState::zeros(&replay.tensors())?;
/// replay.run(&states[0].1, &target.writer(), &())?;
/// assert_eq!(target, states[2].1);
/// # Ok(())
/// # }
/// ```
pub struct Replay<'a, S> {
    base: Vec<TensorInfo>,
    links: Vec<&'a LinkReader<S>>,
    table: StateTable,
    lineages: Lineages,
    /// The files of the state, if layouts are followed.
    layout: Option<FollowedLayout>,
    /// Sums, if they are followed.
    sums: Option<FollowedSums>,
    /// True for the names of selected tensors; all are selected if `None`.
    is_selected: Option<&'a (dyn Fn(&str) -> bool + Sync)>,
    open_bytes: usize,
    /// True if a layout or sums came after the first link.
    is_late: bool,
}

/// The layout that the links lead to so far; `None` for a base that is nothing.
struct FollowedLayout(Option<Layout>);

/// Sums, as far as they are known.
#[derive(Debug)]
struct FollowedSums {
    base: StateSums,
    /// The sums of each link, if it has any.
    links: Vec<Option<LinkSums>>,
    target: StateSums,
}

/// The layout and sums of the state that a link leads to.
struct FollowedLink {
    layout: Option<FollowedLayout>,
    /// The sums of the state, and of the link itself, if they are followed.
    sums: Option<(StateSums, Option<LinkSums>)>,
}

impl<'a, S: Source> Replay<'a, S> {
    /// Creates a replay that starts from a base with this table.
    pub fn new(base: StateTable) -> Self {
        Self {
            lineages: Lineages::of_base(base.tensors.len()),
            base: base.tensors.clone(),
            links: Vec::new(),
            table: base,
            layout: None,
            sums: None,
            is_selected: None,
            open_bytes: OPEN_BYTES,
            is_late: false,
        }
    }

    /// Same as [`new`](Self::new), for a reader that holds only the tensors whose names
    /// `is_selected` accepts (SPEC section 9.1).
    ///
    /// `base` is the table of the whole base, and links are checked against all of it. The held
    /// state and the result contain only the selected tensors. Segments without a part of one of
    /// these are not read. Keep the result of [`table`](Self::table) for the next link.
    pub fn of_part(base: StateTable, is_selected: &'a (dyn Fn(&str) -> bool + Sync)) -> Self {
        Self {
            is_selected: Some(is_selected),
            ..Self::new(base)
        }
    }

    /// Also follows the [`layout`](Self::layout), for a tool that writes files (SPEC section 12).
    /// `base` is the layout of the base; `None` if the base is nothing. Call this before the first
    /// [`push`](Self::push): later, the layouts of links are missing, and every further call that
    /// can fail returns USAGE.
    #[must_use]
    pub fn with_layout(self, base: Option<Layout>) -> Self {
        let is_late = self.is_late || !self.links.is_empty();
        Self {
            layout: Some(FollowedLayout(base)),
            is_late,
            ..self
        }
    }

    /// Also follows the [`sums`](Self::sums), to take links [in place](Self::in_place). `sums` are
    /// those of the base, as far as they are known. Call this before the first
    /// [`push`](Self::push): later, the sums of links are missing, and every further call that can
    /// fail returns USAGE.
    #[must_use]
    pub fn with_sums(self, sums: StateSums) -> Self {
        let is_late = self.is_late || !self.links.is_empty();
        Self {
            is_late,
            sums: Some(FollowedSums {
                base: sums.clone(),
                links: Vec::new(),
                target: sums,
            }),
            ..self
        }
    }

    /// Adds the next link: step 7 of SPEC section 10, for which nothing is decoded. The caller
    /// checks R-APP-06 before the first link is pushed
    /// ([`check_sequence`](crate::check_sequence)).
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`), R-APP-02, R-APP-05; R-LAY-01 [with a layout](Self::with_layout);
    /// USAGE if the base's table has not as many digests as tensors, or if a
    /// [layout](Self::with_layout) or [sums](Self::with_sums) came after a link; IO. The error says
    /// which link it is about. Nothing has changed then.
    pub fn push(&mut self, link: &'a LinkReader<S>) -> Result<()> {
        self.check_late()?;
        let number = self.links.len();
        let follow = |table: &StateTable, origins: &[Origin]| {
            Ok(FollowedLink {
                layout: next_layout(self.layout.as_ref(), table, link)?,
                sums: next_sums(self.sums.as_ref(), origins, link)?,
            })
        };
        let pushed = self.lineages.push(&self.table, number, link, follow);
        let (table, followed) = pushed.map_err(|error| error.of_link(number))?;
        self.table = table;
        self.layout = followed.layout;
        if let (Some(sums), Some((target, of_link))) = (&mut self.sums, followed.sums) {
            sums.target = target;
            sums.links.push(of_link);
        }
        self.links.push(link);
        Ok(())
    }

    /// The files that the target lies in; `None` if that is [not followed](Self::with_layout), or
    /// if the base is nothing and no link has been pushed.
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()?.0.as_ref()
    }

    /// The sums of the state that the links lead to, of all its tensors, as far as they are known;
    /// `None` if they are [not followed](Self::with_sums).
    pub fn sums(&self) -> Option<&StateSums> {
        self.sums.as_ref().map(|sums| &sums.target)
    }

    /// The table of the state that the links lead to: of all its tensors, also of those that are
    /// not selected.
    pub fn table(&self) -> &StateTable {
        &self.table
    }

    /// The tensors that are built, ascending by name: all tensors of the target, or the selected
    /// ones.
    pub fn tensors(&self) -> Vec<TensorInfo> {
        self.table
            .tensors
            .iter()
            .filter(|info| self.selects(info.name()))
            .cloned()
            .collect()
    }

    /// Bytes that are reported to the progress of [`run`](Self::run) and of the other functions
    /// that build or prove: those of all [`tensors`](Self::tensors).
    pub fn work(&self) -> u64 {
        total_bytes(
            self.table
                .tensors
                .iter()
                .filter(|info| self.selects(info.name())),
        )
    }

    /// Bytes of the segments of a link that are read: all of them, unless only some tensors are
    /// selected.
    pub fn segment_bytes(&self, link: usize) -> u64 {
        let Some(link) = self.links.get(link) else {
            return 0;
        };
        let entries = &link.index().segments;
        self.wanted_of(link)
            .into_iter()
            .map(|number| entries[number].stored_length)
            .fold(0, u64::saturating_add)
    }

    /// Builds the target and proves it: steps 8 and 9 of SPEC section 10 for every link. `held` is
    /// the base, or the selected tensors of it. `out` has been created for
    /// [`tensors`](Self::tensors) and reads as zeros where nothing is written. Its contents must
    /// not be made visible before this has returned without error. Memory: the decoded segments of
    /// the groups of pieces that threads build, and of groups that follow, if these share them.
    ///
    /// # Errors
    /// The error that applying link by link would report first, with the link's number: classes and
    /// rules of steps 8 and 9; errors of reading, writing and `progress`; USAGE if `held` does not
    /// have exactly the selected tensors of the base, or [has changed](State::check_unchanged)
    /// meanwhile.
    pub fn run(
        &self,
        held: &dyn State,
        out: &(impl StateWriter + ?Sized),
        progress: &dyn Progress,
    ) -> Result<StateDigests> {
        self.pass(held, &WriteOutput(out), progress)?;
        Ok(self.table.digests.clone())
    }

    /// Builds and proves the target like [`run`](Self::run), and collects the changes that turn
    /// `over` into the target: prove first, patch then. `over` is the base, or, where links start
    /// from nothing, any state; nothing is written to it. Memory: the bytes that the set
    /// [holds](PatchSet::bytes), which `budget` bounds, and decoded segments.
    ///
    /// ```
    /// use deltachain::tensor::{Dtype, MemoryState};
    /// use deltachain::{DiffOptions, Limits, LinkReader, Replay, StateTable, diff};
    ///
    /// # fn main() -> deltachain::Result<()> {
    /// let (mut weights, mut target) = (MemoryState::new(), MemoryState::new());
    /// weights.insert("weight", Dtype::U8, &[4], vec![1, 2, 3, 4])?;
    /// target.insert("weight", Dtype::U8, &[4], vec![1, 2, 3, 9])?;
    /// let mut file = Vec::new();
    /// diff(&weights, &target, &DiffOptions::default(), &mut file)?;
    /// let link = LinkReader::open(file, &Limits::default())?;
    ///
    /// let mut replay = Replay::new(StateTable::of(&weights, &())?);
    /// replay.push(&link)?;
    /// let mut patches = replay.patches(&weights, &weights, u64::MAX, &())?;
    /// // Everything that can fail is done. Now one value is exchanged.
    /// patches.stage(&mut weights)?.write()?;
    /// assert_eq!(weights, target);
    /// patches.stage(&mut weights)?.put_back()?;
    /// assert_ne!(weights, target);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same errors as [`run`](Self::run); USAGE if the budget is exceeded.
    pub fn patches(
        &self,
        held: &dyn State,
        over: &dyn State,
        budget: u64,
        progress: &dyn Progress,
    ) -> Result<PatchSet> {
        let rows = self.table.tensors.iter().zip(&self.table.digests.tensors);
        let (tensors, digests) = rows
            .filter(|(info, _)| self.selects(info.name()))
            .map(|(i, d)| (i.clone(), *d))
            .unzip();
        let target = StateTable::new(tensors, digests);
        let collector = PatchCollector::new(over.tensors(), &target, budget)?;
        let new: Vec<TensorInfo> = collector
            .new_tensors()
            .map(|(_, info)| info.clone())
            .collect();
        let mut new = MemoryState::zeros(&new)?;
        let patching = PatchOutput::new(over, target.tensors, new.writer(), collector);
        self.pass(held, &patching, progress)?;
        patching.into_collector().finish(new)
    }

    /// Builds and proves the target like [`run`](Self::run), and hands over its pieces one by one:
    /// the number of the tensor among those that are [built](Self::tensors), the piece's number,
    /// and its bytes, which have been proven. The pieces of a tensor ascend, except those of which
    /// no link has a part: these may come at any time.
    ///
    /// `take` is called under a lock, by threads of rayon's pool. It must not wait for work on that
    /// pool, such as a parallel iterator: its thread could then run the work of another piece,
    /// which waits for the same lock.
    ///
    /// # Errors
    /// Same errors as [`run`](Self::run), and the errors of `take`. The pieces handed over before
    /// are right.
    pub fn pieces(
        &self,
        held: &dyn State,
        take: &mut (dyn FnMut(usize, u64, Vec<u8>) -> Result<()> + Send),
        progress: &dyn Progress,
    ) -> Result<()> {
        self.pass(held, &CallbackOutput(Mutex::new(take)), progress)
    }

    /// Does what [`run`](Self::run) does, but keeps nothing of the result.
    ///
    /// # Errors
    /// Same errors as [`run`](Self::run).
    pub fn prove(&self, held: &dyn State, progress: &dyn Progress) -> Result<()> {
        self.pass(held, &DiscardOutput, progress)
    }

    /// Refuses a replay whose layout or sums came after a link, so that they are of another state.
    fn check_late(&self) -> Result<()> {
        if self.is_late {
            return Err(Error::usage(
                "the layout and the sums of the base must be given before the first link is pushed",
            ));
        }
        Ok(())
    }

    /// Builds all selected tensors. If a rule is broken, finds the link that has the fault.
    fn pass<O: Output>(&self, held: &dyn State, out: &O, progress: &dyn Progress) -> Result<()> {
        self.check_late()?;
        let course = &self.course();
        let wanted = &self
            .links
            .iter()
            .map(|link| self.wanted_of(link))
            .collect::<Vec<_>>();
        let held_numbers = &self.held_numbers(held)?;
        let open_bytes = self.open_bytes;
        let pass = Pass {
            course,
            wanted,
            held,
            held_numbers,
            out,
            compares_each: false,
            open_bytes,
            progress,
        };
        let Err(error) = pass.run() else {
            return held.check_unchanged();
        };
        if error.rule().is_none() {
            return Err(error);
        }
        // If the base has changed meanwhile, no link is at fault.
        held.check_unchanged()?;
        let pass = Pass {
            course,
            wanted,
            held,
            held_numbers,
            out: &DiscardOutput,
            compares_each: true,
            open_bytes,
            // The first pass has reported these bytes; now the caller can only cancel.
            progress: &|_| progress.advance(0),
        };
        Err(pass.run()?.map_or(error, |fault| fault.error))
    }

    /// For each tensor of the base, its number in `held`; `None` if it is not selected.
    fn held_numbers(&self, held: &dyn State) -> Result<Vec<Option<usize>>> {
        let selected = self.base.iter().filter(|info| self.selects(info.name()));
        if !held.tensors().iter().eq(selected) {
            return Err(Error::usage(
                "the held state does not contain exactly the selected tensors of the base",
            ));
        }
        let mut numbers = 0..;
        let held_number = |info: &TensorInfo| {
            if self.selects(info.name()) {
                numbers.next()
            } else {
                None
            }
        };
        Ok(self.base.iter().map(held_number).collect())
    }

    /// The links, and the lineages that are built.
    fn course(&self) -> Course<'_, S> {
        let tensors = &self.table.tensors;
        let (lineages, entries) = self
            .lineages
            .selected(tensors, &self.links, |name| self.selects(name));
        Course {
            links: &self.links,
            lineages,
            entries,
        }
    }

    /// The segments of a link that are read.
    fn wanted_of(&self, link: &LinkReader<S>) -> Vec<usize> {
        let entries = &link.index().tensors;
        let is_wanted = |number: &usize| {
            self.is_selected.is_none()
                || link
                    .parts(*number)
                    .iter()
                    .any(|part| self.selects(entries[part.entry].name()))
        };
        (0..link.index().segments.len()).filter(is_wanted).collect()
    }

    fn selects(&self, tensor: &str) -> bool {
        self.is_selected
            .is_none_or(|is_selected| is_selected(tensor))
    }
}

/// The layout that a link leads to, if layouts are followed.
fn next_layout<S: Source>(
    base: Option<&FollowedLayout>,
    table: &StateTable,
    link: &LinkReader<S>,
) -> Result<Option<FollowedLayout>> {
    let Some(FollowedLayout(base)) = base else {
        return Ok(None);
    };
    let layout = Layout::of_target(&link.index().metadata, base.as_ref(), &table.tensors)?;
    Ok(Some(FollowedLayout(Some(layout))))
}

/// The sums of the state that a link leads to, and of the link itself, if sums are followed.
fn next_sums<S: Source>(
    base: Option<&FollowedSums>,
    origins: &[Origin],
    link: &LinkReader<S>,
) -> Result<Option<(StateSums, Option<LinkSums>)>> {
    let Some(base) = base else {
        return Ok(None);
    };
    let of_link = link.sums()?;
    let target = base.target.follow(origins, of_link.as_ref());
    Ok(Some((target, of_link)))
}

impl<S> std::fmt::Debug for Replay<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay")
            .field("links", &self.links.len())
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// Applies a link to a base; both fit in memory. The base's digest is computed here.
///
/// # Errors
/// Same errors as [`Replay::push`] and [`Replay::run`].
pub fn apply<S: Source>(base: &dyn State, link: &LinkReader<S>) -> Result<MemoryState> {
    let mut replay = Replay::new(StateTable::of(base, &())?);
    replay.push(link)?;
    let mut target = MemoryState::zeros(&replay.tensors())?;
    replay.run(base, &target.writer(), &())?;
    Ok(target)
}
