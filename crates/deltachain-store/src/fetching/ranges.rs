//! A link that fetches only the bytes that are read, for a subscriber that takes only some tensors (SPEC section 9.1).

use std::sync::atomic::{AtomicU64, Ordering};

use deltachain::chain::FileReference;
use deltachain::{Result, Source};

use crate::access::store::Store;
use crate::access::stored_link::StoredLink;
use crate::observer::{Observer, Phase};

/// A link in the store. As many ranges are fetched side by side as there are threads that read.
pub(crate) struct Ranges<'a> {
    link: StoredLink<'a>,
    pub(crate) observer: &'a dyn Observer,
    fetched: AtomicU64,
}

impl<'a> Ranges<'a> {
    pub(crate) fn new(store: &'a Store, reference: FileReference, observer: &'a dyn Observer) -> Self {
        Self { link: StoredLink::new(store, reference), observer, fetched: AtomicU64::new(0) }
    }

    /// Bytes that have been fetched.
    pub(crate) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }
}

impl Source for Ranges<'_> {
    fn length(&self) -> Result<u64> {
        self.link.length()
    }

    /// # Errors
    /// R-CHN-09, R-CHN-10 as far as the size is concerned; IO; the observer's.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.link.read_at(offset, out)?;
        self.fetched.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.observer.advance(Phase::Download, out.len() as u64)
    }
}
