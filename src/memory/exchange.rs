//! Exchanging values between a set and memory, from which both can go back.

use crate::error::Result;
use crate::memory::lent::StateMemory;
use crate::memory::patch_set::PatchSet;

/// How far an exchange has come: a run, and lanes of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) run: usize,
    pub(super) lane: usize,
}

impl PatchSet {
    /// Checks all that could hinder the exchange. The memory is left as it is.
    ///
    /// # Errors
    /// USAGE
    pub fn fit<'m, M: StateMemory + ?Sized>(&'m mut self, memory: &'m mut M) -> Result<Ready<'m, M>> {
        Ok(Ready { set: self, memory })
    }
}

/// A set and the memory that it fits.
#[derive(Debug)]
pub struct Ready<'m, M: ?Sized> {
    set: &'m mut PatchSet,
    memory: &'m mut M,
}

impl<M: StateMemory + ?Sized> Ready<'_, M> {
    /// Exchanges all that is left.
    pub fn apply(&mut self) {
        while !self.exchange(u64::MAX) {}
    }

    /// Exchanges up to so many lanes; whether all is done.
    pub fn exchange(&mut self, _lanes: u64) -> bool {
        todo!()
    }

    /// Goes back to the base.
    pub fn undo(&mut self) {}
}
