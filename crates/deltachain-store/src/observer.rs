//! Observers of long operations: they receive progress and can stop the work.

use deltachain::{Progress, Result};

/// A kind of work that takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Reading a state to compute its digest, in bytes of its tensors.
    Hash,
    /// Comparing two states to make a link, in bytes of both.
    Compare,
    /// Uploading files, in bytes of the files.
    Upload,
    /// Downloading files, in bytes of the files.
    Download,
    /// Building a state from links, in bytes of the tensors of each state on the path.
    Build,
    /// Checking objects of a chain, in bytes of the objects.
    Check,
    /// Waiting for a new version; no bytes.
    Wait,
}

/// Receives the progress of work, from several threads. By default, each method ignores its event
/// and lets the work go on.
#[expect(unused_variables, reason = "whoever implements them reads the names")]
pub trait Observer: Sync {
    /// Work on this many bytes begins; work in other phases may go on at the same time.
    fn begin(&self, phase: Phase, bytes: u64) {}

    /// This many more bytes are done. Called often, with 0 bytes too. An error stops the work and
    /// is returned to its caller.
    ///
    /// # Errors
    /// The error that the work should end with.
    fn advance(&self, phase: Phase, bytes: u64) -> Result<()> {
        Ok(())
    }

    /// All work of this phase has ended.
    fn end(&self, phase: Phase) {}

    /// A message for people about something that does not stop the work, such as a damaged file
    /// that was skipped or a chain that was rolled back.
    fn remark(&self, text: &str) {}
}

/// Ignores all events.
impl Observer for () {}

/// A phase of an observer, which begins when this is created and ends when it is dropped.
pub(crate) struct InPhase<'a> {
    observer: &'a dyn Observer,
    phase: Phase,
}

impl<'a> InPhase<'a> {
    pub(crate) fn begin(observer: &'a dyn Observer, phase: Phase, bytes: u64) -> Self {
        observer.begin(phase, bytes);
        Self { observer, phase }
    }
}

impl Progress for InPhase<'_> {
    fn advance(&self, bytes: u64) -> Result<()> {
        self.observer.advance(self.phase, bytes)
    }
}

impl Drop for InPhase<'_> {
    fn drop(&mut self) {
        self.observer.end(self.phase);
    }
}
