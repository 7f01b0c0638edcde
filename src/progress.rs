//! How long work tells how far it is, and how its caller stops it.

use crate::error::Result;

/// Receives the progress of long work, from several threads.
pub trait Progress: Sync {
    /// `bytes` more bytes of tensors have been dealt with. An error stops the work and is returned to its caller.
    ///
    /// # Errors
    /// Whatever the implementer wants the work to end with.
    fn advance(&self, bytes: u64) -> Result<()>;

    /// As many more bytes than known before are to be dealt with. Only functions that find that out themselves tell it, such as
    /// those of [`files`](crate::files).
    fn expect(&self, _bytes: u64) {}
}

/// Nobody watches.
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
