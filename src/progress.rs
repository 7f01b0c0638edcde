//! Progress reports of long operations, and their cancellation.

use std::fmt;

use crate::error::Result;

/// Receives the progress of long work, from several threads.
pub trait Progress: Sync {
    /// Called when `bytes` more bytes have been processed. An error stops the work and is returned
    /// to its caller.
    ///
    /// # Errors
    /// Any error, with which the work then ends.
    fn advance(&self, bytes: u64) -> Result<()>;

    /// Called when this many bytes of work are added to the known total. Only functions that
    /// compute the total themselves call it, such as the functions of [`files`](crate::files).
    fn expect(&self, _bytes: u64) {}
}

impl fmt::Debug for dyn Progress + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// Ignores reports, and never cancels.
impl Progress for () {
    fn advance(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }
}

impl<F: Fn(u64) -> Result<()> + Sync> Progress for F {
    fn advance(&self, bytes: u64) -> Result<()> {
        self(bytes)
    }
}
