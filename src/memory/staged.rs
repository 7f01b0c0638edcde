//! Writes the values of a set to the library's own memory. Everything that can fail is done before,
//! and the changes can be undone.

use crate::error::{Error, Result};
use crate::memory::lanes::write;
use crate::memory::patch_set::{PatchSet, RunKind, shared};
use crate::tensor::{MemoryState, State};

impl PatchSet {
    /// Checks everything that could prevent writing; nothing is written yet. The memory must hold
    /// the base, or the target if the set has been written.
    ///
    /// # Errors
    /// USAGE if the memory holds other tensors than the base, by name, dtype or shape.
    pub fn stage<'m>(&'m mut self, memory: &'m mut MemoryState) -> Result<StagedPatches<'m>> {
        let expected = if self.is_switched {
            &self.table.tensors
        } else {
            &self.base
        };
        if memory.tensors() != expected {
            return Err(Error::usage(
                "the memory does not hold the tensors that the changes are for",
            ));
        }
        Ok(StagedPatches { set: self, memory })
    }
}

/// A set, and memory that it fits. Writing the set neither fails nor allocates.
#[derive(Debug)]
pub struct StagedPatches<'m> {
    set: &'m mut PatchSet,
    memory: &'m mut MemoryState,
}

impl StagedPatches<'_> {
    /// Makes the memory hold the target. Nothing happens if it does already.
    ///
    /// # Errors
    /// None, if the memory is as it was when the set was staged.
    pub fn write(&mut self) -> Result<()> {
        if self.set.is_switched {
            return Ok(());
        }
        while self.set.written < self.set.runs.len() {
            self.put(self.set.written, true)?;
            self.set.written += 1;
        }
        let PatchSet { over, other, .. } = &mut *self.set;
        self.memory
            .switch(other, &mut shared(over).map(|(new, old)| (old, new)));
        self.set.is_switched = true;
        Ok(())
    }

    /// Makes the memory hold the base again, bit for bit.
    ///
    /// # Errors
    /// Same errors as [`write`](Self::write).
    pub fn put_back(&mut self) -> Result<()> {
        if self.set.is_switched {
            let PatchSet { over, other, .. } = &mut *self.set;
            self.memory.switch(other, &mut shared(over));
            self.set.is_switched = false;
        }
        while let Some(last) = self.set.written.checked_sub(1) {
            self.put(last, false)?;
            self.set.written = last;
        }
        Ok(())
    }

    /// Writes the new or the old values of a run.
    fn put(&mut self, run: usize, is_new: bool) -> Result<()> {
        let run = &self.set.runs[run];
        // Runs are for tensors that are laid over the base's.
        let tensor = self.set.over[run.tensor].ok_or_else(|| Error::usage("the tensor is new"))?;
        let numbers = match &run.kind {
            RunKind::Lanes(range) => Some(&self.set.numbers[range.clone()]),
            RunKind::Whole => None,
        };
        let width = self.memory.tensors()[tensor].dtype().lane_bytes();
        let arena = if is_new {
            &self.set.values
        } else {
            &self.set.old
        };
        write(
            self.memory.room(tensor),
            width,
            (run.first_lane, numbers),
            &arena[run.values.clone()],
        )
    }
}
