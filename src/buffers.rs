//! Buffers that are used again: a fresh one of megabytes costs more, page by page, than what is done with it.

use std::sync::{Mutex, PoisonError};

/// Buffers that nobody uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Lends buffers to `work`, which may leave anything in them.
    pub(crate) fn lend<T>(&self, count: usize, work: impl FnOnce(&mut [Vec<u8>]) -> T) -> T {
        let mut lent = Vec::with_capacity(count);
        {
            let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lent.extend((0..count).map(|_| free.pop().unwrap_or_default()));
        }
        let result = work(&mut lent);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(&mut lent);
        result
    }
}
