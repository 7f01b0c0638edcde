//! Exchanging values between a set and memory: what fails is found out before, and there is a way back from wherever it stops.

use std::ops::Range;

use crate::codec::lane::{Lane, with_lane};
use crate::error::{Error, Result};
use crate::memory::lent::StateMemory;
use crate::memory::patch_set::{Cursor, PatchSet, RunKind, shared};

impl PatchSet {
    /// Checks all that could hinder the exchange; nothing is written yet. The memory must hold the base, bit for bit,
    /// or the target if the set has been applied, or the bytes that an unfinished exchange of this set has left. The
    /// caller guarantees that these are the bytes that were proven, and that nobody else writes to them meanwhile.
    ///
    /// # Errors
    /// USAGE if the memory holds other tensors than the base, by name, dtype or shape; if tensors come, go or change their
    /// size, and the memory is [lent](super::LentState); if the set has been
    /// [settled](Ready::settle).
    pub fn fit<'m, M: StateMemory + ?Sized>(&'m mut self, memory: &'m mut M) -> Result<Ready<'m, M>> {
        if self.is_settled {
            return Err(Error::usage("the changes have been settled and cannot be rolled back"));
        }
        let expected = if self.is_switched { &self.table.tensors } else { &self.base };
        if memory.tensors() != expected {
            return Err(Error::usage("the memory does not hold the tensors that the changes are for"));
        }
        if !memory.is_owned() && (self.over.len() != self.base.len() || self.over.contains(&None)) {
            return Err(Error::usage(
                "tensors were added, removed or resized; caller-provided memory cannot be resized",
            ));
        }
        Ok(Ready { set: self, memory })
    }
}

/// A set and memory that it fits: nothing that can be done now fails or allocates.
///
/// Dropped half way, it leaves memory that holds parts of both states. The set knows how far it came:
/// [`fit`](PatchSet::fit) it again to go on or back.
#[derive(Debug)]
pub struct Ready<'m, M: ?Sized> {
    set: &'m mut PatchSet,
    memory: &'m mut M,
}

impl<M: StateMemory + ?Sized> Ready<'_, M> {
    /// Makes the memory hold the target, also after an exchange that stopped half way. Nothing happens if it does
    /// already.
    pub fn apply(&mut self) {
        self.exchange(u64::MAX);
    }

    /// Goes on for at most `lanes` lanes, for callers who cannot pause for long. Whether the memory holds the target now; until
    /// then it holds neither state.
    pub fn exchange(&mut self, lanes: u64) -> bool {
        if self.set.is_switched {
            return true;
        }
        // No memory has more lanes than a `usize` counts.
        let mut left = usize::try_from(lanes).unwrap_or(usize::MAX);
        while self.set.cursor.run < self.set.runs.len() {
            if left == 0 {
                return false;
            }
            let Cursor { run, lane } = self.set.cursor;
            let all = self.set.lanes_of(run);
            let end = all.min(lane.saturating_add(left));
            self.exchange_values(run, lane..end);
            left -= end - lane;
            self.set.cursor = if end == all { Cursor { run: run + 1, lane: 0 } } else { Cursor { run, lane: end } };
        }
        let PatchSet { over, other, .. } = &mut *self.set;
        self.memory.switch(other, &mut shared(over).map(|(new, old)| (old, new)));
        self.set.is_switched = true;
        true
    }

    /// Makes the memory hold the target, without a way back: the set keeps the target's values, which are only read. So
    /// others may go on reading them. What has been exchanged already is not; the tensors that come whole go to the
    /// memory.
    pub fn settle(&mut self) {
        let Cursor { run: first, lane } = self.set.cursor;
        for run in first..self.set.runs.len() {
            let begin = if run == first { lane } else { 0 };
            self.write_values(run, begin..self.set.lanes_of(run));
        }
        self.set.cursor = Cursor { run: self.set.runs.len(), lane: 0 };
        self.set.is_settled = true;
        // Nothing is left to be exchanged but the tensors.
        self.exchange(u64::MAX);
    }

    /// Makes the memory hold the base again, bit for bit, also after an exchange that stopped half way.
    pub fn undo(&mut self) {
        if self.set.is_switched {
            let PatchSet { over, other, .. } = &mut *self.set;
            self.memory.switch(other, &mut shared(over));
            self.set.is_switched = false;
        }
        let Cursor { run: last, lane } = self.set.cursor;
        self.exchange_values(last, 0..lane);
        for run in (0..last).rev() {
            self.set.cursor = Cursor { run, lane: 0 };
            self.exchange_values(run, 0..self.set.lanes_of(run));
        }
        self.set.cursor = Cursor::default();
    }

    /// Exchanges some lanes of a run.
    fn exchange_values(&mut self, run: usize, lanes: Range<usize>) {
        if lanes.is_empty() {
            return;
        }
        let PatchSet { runs, numbers, values, over, table, .. } = &mut *self.set;
        let run = &runs[run];
        // Runs are for tensors that are laid over the base's.
        let Some(tensor) = over[run.tensor] else { return };
        let lane_bytes = table.tensors[run.tensor].dtype().lane_bytes();
        let room = self.memory.room(tensor);
        // What is in memory is within the address space.
        let first = usize::try_from(run.first_lane).unwrap_or(usize::MAX);
        let values = &mut values[run.values.clone()][lane_bytes * lanes.start..lane_bytes * lanes.end];
        match &run.kind {
            RunKind::Lanes(range) => {
                let numbers = &numbers[range.clone()][lanes];
                let room = &mut room[lane_bytes * first..];
                with_lane!(lane_bytes, L => exchange_lanes::<L>(room, numbers, values));
            }
            RunKind::Whole => room[lane_bytes * (first + lanes.start)..][..values.len()].swap_with_slice(values),
        }
    }

    /// Writes some lanes of a run; the set keeps them.
    fn write_values(&mut self, run: usize, lanes: Range<usize>) {
        let PatchSet { runs, numbers, values, over, table, .. } = &*self.set;
        let run = &runs[run];
        let Some(tensor) = over[run.tensor] else { return };
        let lane_bytes = table.tensors[run.tensor].dtype().lane_bytes();
        let room = self.memory.room(tensor);
        let first = usize::try_from(run.first_lane).unwrap_or(usize::MAX);
        let values = &values[run.values.clone()][lane_bytes * lanes.start..lane_bytes * lanes.end];
        match &run.kind {
            RunKind::Lanes(range) => {
                let numbers = &numbers[range.clone()][lanes];
                let room = &mut room[lane_bytes * first..];
                with_lane!(lane_bytes, L => {
                    let room = L::chunks_mut(room);
                    for (value, &number) in L::chunks(values).iter().zip(numbers) {
                        room[number as usize] = *value;
                    }
                });
            }
            RunKind::Whole => {
                room[lane_bytes * (first + lanes.start)..][..values.len()].copy_from_slice(values);
            }
        }
    }
}

/// Lanes that are exchanged together.
const AT_ONCE: usize = 256;

/// Exchanges the lanes of these numbers with values. Many are read before any is written: reads that miss the cache do not wait
/// for each other, writes do.
fn exchange_lanes<L: Lane>(room: &mut [u8], numbers: &[u32], values: &mut [u8]) {
    let room = L::chunks_mut(room);
    let mut held = [L::default().store(); AT_ONCE];
    for (numbers, values) in numbers.chunks(AT_ONCE).zip(L::chunks_mut(values).chunks_mut(AT_ONCE)) {
        for (held, &number) in held.iter_mut().zip(numbers) {
            *held = room[number as usize];
        }
        for (value, &number) in values.iter().zip(numbers) {
            room[number as usize] = *value;
        }
        values.copy_from_slice(&held[..values.len()]);
    }
}
