//! The head in a publisher's memory.

use std::path::Path;

use deltachain::files::Layout;
use deltachain::memory::PatchSet;
use deltachain::tensor::{Digest, MemoryState, StateDigests};
use deltachain::{Profile, Result};

use crate::observer::Observer;
use crate::publishing::model::End;
use crate::publishing::new_link::NewLink;

/// A copy of the head that nobody but the publisher writes to, so that its digests stay known.
#[derive(Debug)]
pub(crate) struct HeadCopy {
    /// Digest of the head's commit.
    pub(crate) commit: Digest,
    pub(crate) state: MemoryState,
    pub(crate) digests: StateDigests,
    pub(crate) layout: Option<Layout>,
    /// What changes it to the version that is being published, or back if that has been done.
    pub(crate) patches: Option<PatchSet>,
}

impl HeadCopy {
    /// Makes the link from the head to `target`. Each byte of `target` is read once, and gives the link, the digests
    /// and the changes for this copy.
    pub(crate) fn link_to(
        &mut self,
        target: End<'_>,
        profile: Profile,
        place: &Path,
        observer: &dyn Observer,
    ) -> Result<NewLink> {
        let base = End { state: &self.state, layout: self.layout.as_ref(), digests: Some(&self.digests) };
        let (link, patches) = NewLink::make_with_patches(base, target, profile, place, observer)?;
        self.patches = Some(patches);
        Ok(link)
    }

    /// The version that is being published. It is here from now on.
    pub(crate) fn forward(&mut self) -> Result<&MemoryState> {
        if let Some(patches) = &mut self.patches {
            patches.fit(&mut self.state)?.apply();
        }
        Ok(&self.state)
    }

    /// That version has been published: it is the head.
    pub(crate) fn publish(mut self, commit: Digest, digests: StateDigests, layout: Option<Layout>) -> Result<Self> {
        self.forward()?;
        Ok(Self { commit, state: self.state, digests, layout, patches: None })
    }

    /// It has not been published.
    pub(crate) fn go_back(mut self) -> Result<Self> {
        if let Some(mut patches) = self.patches.take() {
            patches.fit(&mut self.state)?.undo();
        }
        Ok(self)
    }
}
