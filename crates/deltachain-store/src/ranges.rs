//! A link of which only what is read is fetched, for a subscriber that takes some tensors only (SPEC section 9.1).

use std::sync::atomic::{AtomicU64, Ordering};

use deltachain::chain::FileReference;
use deltachain::{Result, Source};

use crate::observer::{Observer, Phase};
use crate::store::Store;

/// A link in the store. As many ranges are fetched side by side as there are threads that read.
pub(crate) struct Ranges<'a> {
    pub(crate) store: &'a Store,
    pub(crate) reference: FileReference,
    pub(crate) observer: &'a dyn Observer,
    fetched: AtomicU64,
}

impl<'a> Ranges<'a> {
    pub(crate) fn new(store: &'a Store, reference: FileReference, observer: &'a dyn Observer) -> Self {
        Self { store, reference, observer, fetched: AtomicU64::new(0) }
    }

    /// Bytes that have been fetched.
    pub(crate) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }
}

impl Source for Ranges<'_> {
    fn length(&self) -> Result<u64> {
        Ok(self.reference.size)
    }

    /// # Errors
    /// R-CHN-09, R-CHN-10 as far as the size is concerned; IO; the observer's.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let length = out.len() as u64;
        let end = offset.saturating_add(length);
        let got = self.store.block_on(self.store.get_range(self.reference.name(), offset, end))?;
        let (bytes, stored) = got.ok_or_else(|| self.reference.missing())?;
        // The range is there if the size is right.
        self.reference.check(stored, self.reference.digest)?;
        out.copy_from_slice(&bytes);
        self.fetched.fetch_add(length, Ordering::Relaxed);
        self.observer.advance(Phase::Download, length)
    }
}
