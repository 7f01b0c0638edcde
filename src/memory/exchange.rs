//! Writing the values of a set to the library's own memory: whatever can be found out is found out before, and there is
//! a way back from wherever it stops.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::memory::patch_set::{Cursor, PatchSet, RunKind, shared};
use crate::tensor::{Lanes, MemoryState, State, scatter};

impl PatchSet {
    /// Checks all that could hinder the exchange; nothing is written yet. The memory must hold the base, or the target
    /// if the set has been applied, or what an unfinished exchange of this set has left.
    ///
    /// # Errors
    /// USAGE if the memory holds other tensors than the base, by name, dtype or shape.
    pub fn fit<'m>(&'m mut self, memory: &'m mut MemoryState) -> Result<Ready<'m>> {
        let expected = if self.is_switched { &self.table.tensors } else { &self.base };
        if memory.tensors() != expected {
            return Err(Error::usage("the memory does not hold the tensors that the changes are for"));
        }
        Ok(Ready { set: self, memory })
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

/// A set and memory that it fits. Nothing that can be done now fails or allocates.
///
/// Dropped half way, it leaves memory that holds parts of both states. The set knows how far it came:
/// [`fit`](PatchSet::fit) it again to go on or back.
#[derive(Debug)]
pub struct Ready<'m> {
    set: &'m mut PatchSet,
    memory: &'m mut MemoryState,
}

impl Ready<'_> {
    /// Makes the memory hold the target, also after an exchange that stopped half way. Nothing happens if it does
    /// already.
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn apply(&mut self) -> Result<()> {
        self.exchange(u64::MAX).map(drop)
    }

    /// Goes on for at most `lanes` lanes, for callers who cannot pause for long. Whether the memory holds the target
    /// now; until then it holds neither state.
    ///
    /// # Errors
    /// None, if the memory is what it was when this was made.
    pub fn exchange(&mut self, lanes: u64) -> Result<bool> {
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
            let end = all.min(lane.saturating_add(left));
            self.put(run, lane..end, true)?;
            self.set.cursor = if end == all { Cursor { run: run + 1, lane: 0 } } else { Cursor { run, lane: end } };
            left -= end - lane;
        }
        let PatchSet { over, other, .. } = &mut *self.set;
        self.memory.switch(other, &mut shared(over).map(|(new, old)| (old, new)));
        self.set.is_switched = true;
        Ok(true)
    }

    /// Makes the memory hold the base again, bit for bit, from wherever an exchange has stopped.
    ///
    /// # Errors
    /// As for [`exchange`](Self::exchange).
    pub fn undo(&mut self) -> Result<()> {
        if self.set.is_switched {
            let PatchSet { over, other, .. } = &mut *self.set;
            self.memory.switch(other, &mut shared(over));
            self.set.is_switched = false;
        }
        let Cursor { run: last, lane } = self.set.cursor;
        for run in (0..self.set.runs.len().min(last + 1)).rev() {
            let end = if run == last { lane } else { self.set.lanes_of(run) };
            self.put(run, 0..end, false)?;
            self.set.cursor = Cursor { run, lane: 0 };
        }
        Ok(())
    }

    /// Writes the new or the old values of some lanes of a run.
    fn put(&mut self, run: usize, lanes: Range<usize>, is_new: bool) -> Result<()> {
        let (tensor, lanes, values) = self.set.stretch(run, lanes)?;
        let arena = if is_new { &self.set.values } else { &self.set.old };
        let lane_bytes = self.memory.tensors()[tensor].dtype().lane_bytes();
        scatter(lane_bytes, self.memory.room(tensor), &lanes, &arena[values])
    }
}
