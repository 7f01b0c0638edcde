//! Observers of long operations: they receive progress and can stop the work.

use deltachain::{Progress, Result};

/// A kind of work that takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Reading a state to find its digest, in bytes of its tensors.
    Hash,
    /// Comparing two states to make a link, in bytes of both.
    Compare,
    /// Sending files, in their bytes.
    Upload,
    /// Fetching files, in their bytes.
    Download,
    /// Building a state from links, in bytes of its tensors, for each state on the way.
    Build,
    /// Looking at objects of a chain, in their bytes.
    Check,
    /// Nothing to do until there is a new version; no bytes.
    Wait,
}

/// Watches work, from several threads. The default of each function ignores its event and
/// continues.
#[expect(unused_variables, reason = "whoever implements them reads the names")]
pub trait Observer: Sync {
    /// Work on this many bytes begins; work in other phases may go on at the same time.
    fn begin(&self, phase: Phase, bytes: u64) {}

    /// This many more bytes are done. Called often, with 0 bytes too. An error stops the work and
    /// is returned to its caller.
    ///
    /// # Errors
    /// Whatever the implementer wants the work to end with.
    fn advance(&self, phase: Phase, bytes: u64) -> Result<()> {
        Ok(())
    }

    /// All work of this phase has ended.
    fn end(&self, phase: Phase) {}

    /// Something that a person should know and that ends nothing: a damaged file that was passed
    /// over, a store that went back.
    fn remark(&self, text: &str) {}
}

/// Watches nothing.
impl Observer for () {}

/// One phase of an observer, as the library's own work wants it. Begins when made, ends when
/// dropped.
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
