//! Progress reports of long operations, and their cancellation.

use std::fmt;

use crate::error::Result;

/// Receives the progress of long work, from several threads.
pub trait Progress: Sync {
    /// `bytes` more bytes of tensors have been dealt with. An error stops the work and is returned
    /// to its caller.
    ///
    /// # Errors
    /// Whatever the implementer wants the work to end with.
    fn advance(&self, bytes: u64) -> Result<()>;

    /// This many bytes of work are added to the known total. Only functions that find out the total
    /// themselves report this, such as the functions of [`files`](crate::files).
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
