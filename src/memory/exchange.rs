//! Writing the values of a set to memory: whatever can be found out is found out before, and there is a way back from wherever
//! it stops.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::memory::lent::StateMemory;
use crate::memory::patch_set::{Cursor, PatchSet, RunKind, shared};
use crate::rules;
use crate::tensor::Lanes;

/// Lanes that are compared and written together.
const AT_ONCE: usize = 1 << 11;

impl PatchSet {
    /// Checks all that could hinder the exchange; nothing is written yet. The memory must hold the base, or the target if the
    /// set has been applied, or what an unfinished exchange of this set has left. That is proven already for the lanes that
    /// change.
    ///
    /// # Errors
    /// USAGE if the memory holds other tensors than the base, by name, dtype or shape; if tensors come, go or change their
    /// size, and the memory is not the library's [own](StateMemory::own).
    pub fn fit<'m, M: StateMemory + ?Sized>(&'m mut self, memory: &'m mut M) -> Result<Ready<'m, M>> {
        let expected = if self.is_switched { &self.table.tensors } else { &self.base };
        if memory.tensors() != expected {
            return Err(Error::usage("the memory does not hold the tensors that the changes are for"));
        }
        let mut held = Vec::new();
        if memory.own().is_none() {
            if self.over.len() != self.base.len() || self.over.contains(&None) {
                return Err(Error::usage(
                    "tensors were added, removed or resized; caller-provided memory cannot be resized",
                ));
            }
            held.resize(AT_ONCE * size_of::<u64>(), 0);
        }
        Ok(Ready { set: self, memory, held })
    }

    /// Some lanes of a run: the base's tensor that has them, and where their values stand in the arenas.
    fn stretch(&self, run: usize, lanes: Range<usize>) -> Result<(usize, Lanes<'_>, Range<usize>)> {
        let run = &self.runs[run];
        // Runs are for tensors that are laid over the base's.
        let tensor = self.over[run.tensor].ok_or_else(|| Error::usage("the tensor is new"))?;
        let lane_bytes = self.table.tensors[run.tensor].dtype().lane_bytes();
        let begin = run.values.start;
        let values = begin + lane_bytes * lanes.start..begin + lane_bytes * lanes.end;
        let lanes = match &run.kind {
            RunKind::Lanes(range) => Lanes::numbered(run.first_lane, &self.numbers[range.clone()][lanes]),
            RunKind::Whole => Lanes::all(run.first_lane + lanes.start as u64, lanes.len()),
        };
        Ok((tensor, lanes, values))
    }
}

/// A set and memory that it fits. With the library's own memory nothing that can be done now fails or allocates. With memory of
/// others, somebody may have written to it, or it may fail.
///
/// Dropped half way, it leaves memory that holds parts of both states. The set knows how far it came:
/// [`fit`](PatchSet::fit) it again to go on or back.
#[derive(Debug)]
pub struct Ready<'m, M: ?Sized> {
    set: &'m mut PatchSet,
    memory: &'m mut M,
    /// Room for what memory of others holds; empty if the memory is the library's own.
    held: Vec<u8>,
}

impl<M: StateMemory + ?Sized> Ready<'_, M> {
    /// Makes the memory hold the target, also after an exchange that stopped half way. Nothing happens if it does
    /// already.
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn apply(&mut self) -> Result<()> {
        self.exchange(u64::MAX).map(drop)
    }

    /// Goes on for at most `lanes` lanes, for callers who cannot pause for long. Whether the memory holds the target now; until
    /// then it holds neither state.
    ///
    /// In memory of others the old values of lanes are read again before they are written, and compared with those that were
    /// proven (R-SUM-05).
    ///
    /// # Errors
    /// R-APP-01 (`WRONG_BASE`) if somebody has written to the memory since; those of memory of others. The memory holds again
    /// what it held before the first lane was written, unless the set [is torn](PatchSet::is_torn). USAGE if it is torn already.
    pub fn exchange(&mut self, lanes: u64) -> Result<bool> {
        if self.set.is_torn {
            return Err(Error::usage("the memory holds parts of two states: go back, or load it as a whole"));
        }
        let done = self.write(lanes);
        if done.is_err() {
            // If that fails too, the set is torn. The first failure says why.
            let _ = self.undo();
        }
        done
    }

    fn write(&mut self, lanes: u64) -> Result<bool> {
        if self.set.is_switched {
            return Ok(true);
        }
        // No memory has more lanes than a `usize` counts.
        let mut left = usize::try_from(lanes).unwrap_or(usize::MAX);
        while self.set.cursor.run < self.set.runs.len() {
            if left == 0 {
                return Ok(false);
            }
            let Cursor { run, lane } = self.set.cursor;
            let all = self.set.lanes_of(run);
            let end = all.min(lane.saturating_add(left.min(AT_ONCE)));
            self.compare(run, lane..end)?;
            // What fails may have written some of them.
            self.set.cursor = if end == all { Cursor { run: run + 1, lane: 0 } } else { Cursor { run, lane: end } };
            self.put(run, lane..end, true)?;
            left -= end - lane;
        }
        let PatchSet { over, other, table, .. } = &mut *self.set;
        match self.memory.own() {
            Some(own) => own.switch(other, &mut shared(over).map(|(new, old)| (old, new))),
            None => self.memory.describe(&table.tensors)?,
        }
        self.set.is_switched = true;
        Ok(true)
    }

    /// Makes the memory hold the base again, bit for bit, from wherever an exchange has stopped.
    ///
    /// # Errors
    /// Those of memory of others. The set is [torn](PatchSet::is_torn) then; this can be tried again.
    pub fn undo(&mut self) -> Result<()> {
        let done = self.go_back();
        self.set.is_torn = done.is_err();
        done
    }

    fn go_back(&mut self) -> Result<()> {
        if self.set.is_switched {
            let PatchSet { over, other, base, .. } = &mut *self.set;
            match self.memory.own() {
                Some(own) => own.switch(other, &mut shared(over)),
                None => self.memory.describe(base)?,
            }
            self.set.is_switched = false;
        }
        loop {
            let Cursor { run, lane } = self.set.cursor;
            if lane > 0 {
                let begin = lane.saturating_sub(AT_ONCE);
                self.put(run, begin..lane, false)?;
                self.set.cursor.lane = begin;
            } else if let Some(run) = run.checked_sub(1) {
                self.set.cursor = Cursor { run, lane: self.set.lanes_of(run) };
            } else {
                return Ok(());
            }
        }
    }

    /// Whether memory of others still holds what was proven.
    fn compare(&mut self, run: usize, lanes: Range<usize>) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let (tensor, lanes, values) = self.set.stretch(run, lanes)?;
        let held = &mut self.held[..values.len()];
        self.memory.gather(tensor, &lanes, held)?;
        if held == &self.set.old[values] {
            return Ok(());
        }
        let message = "somebody has written to the memory since its lanes were proven";
        Err(Error::broken(&rules::APP_01, message).of_tensor(self.set.base[tensor].name()))
    }

    /// Writes the new or the old values of some lanes of a run.
    fn put(&mut self, run: usize, lanes: Range<usize>, is_new: bool) -> Result<()> {
        let (tensor, lanes, values) = self.set.stretch(run, lanes)?;
        let arena = if is_new { &self.set.values } else { &self.set.old };
        self.memory.scatter(tensor, &lanes, &arena[values])
    }
}
