//! Reads links in a store range by range, without a copy on disk.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use deltachain::chain::FileReference;
use deltachain::{Error, Result, Source};

use crate::access::store::Store;
use crate::access::whole::RangeSource;
use crate::observer::{Observer, Phase};

/// A link in a store, of which only the bytes that are read are fetched (SPEC section 9.1). As many
/// ranges are fetched side by side as there are threads that read.
pub(crate) struct StoredLink<'a, S = &'a Store> {
    /// The store whose threads wait.
    store: &'a Store,
    source: S,
    file: FileReference,
    /// Hears of the bytes that have been fetched.
    pub(crate) observer: &'a dyn Observer,
    fetched: AtomicU64,
}

impl<'a> StoredLink<'a> {
    pub(crate) fn new(store: &'a Store, file: FileReference, observer: &'a dyn Observer) -> Self {
        Self::from_source(store, store, file, observer)
    }
}

impl<'a, S> StoredLink<'a, S> {
    /// A link whose ranges come from a source.
    pub(crate) fn from_source(
        store: &'a Store,
        source: S,
        file: FileReference,
        observer: &'a dyn Observer,
    ) -> Self {
        Self {
            store,
            source,
            file,
            observer,
            fetched: AtomicU64::new(0),
        }
    }

    /// Bytes of ranges that have been fetched.
    pub(crate) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }
}

impl<S: RangeSource + Sync> Source for StoredLink<'_, S> {
    fn length(&self) -> Result<u64> {
        Ok(self.file.size)
    }

    /// # Errors
    /// R-CHN-09, R-CHN-10 as far as the size is concerned; IO; the observer's.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let Self {
            store,
            source,
            file,
            observer,
            fetched,
        } = self;
        let length = out.len() as u64;
        if !out.is_empty() {
            let range = store.block_on(source.get_range(
                file.name(),
                offset,
                offset.saturating_add(length),
            ))?;
            let (bytes, size) = range.ok_or_else(|| file.missing())?;
            // `deltachain`'s reader of links proves what it reads (SPEC section 9.1).
            file.check(size, file.digest)?;
            if bytes.len() != out.len() {
                let error = Error::io("reading", io::ErrorKind::UnexpectedEof.into());
                return Err(error.in_file(file.name().to_string()));
            }
            out.copy_from_slice(&bytes);
        }
        fetched.fetch_add(length, Ordering::Relaxed);
        observer.advance(Phase::Download, length)
    }
}
