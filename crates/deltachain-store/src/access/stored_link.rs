//! Links read where they are, range by range, without a copy on disk.

use std::io;

use deltachain::chain::FileReference;
use deltachain::{Error, Progress, Result, Source};

use crate::access::store::Store;
use crate::access::whole::read_whole;

/// A link in a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredLink<'a> {
    store: &'a Store,
    file: FileReference,
}

impl<'a> StoredLink<'a> {
    pub(crate) fn new(store: &'a Store, file: FileReference) -> Self {
        Self { store, file }
    }

    /// Reads all of it and checks that it is the file that the route names: R-CHN-09, R-CHN-10.
    pub(crate) fn check_bytes(&self, progress: &dyn Progress) -> Result<()> {
        let Self { store, file } = self;
        let take = |bytes: &[u8]| progress.advance(bytes.len() as u64);
        store.block_on(read_whole(store, file, store.options().part_bytes, take))
    }
}

impl Source for StoredLink<'_> {
    fn length(&self) -> Result<u64> {
        Ok(self.file.size)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let Self { store, file } = *self;
        let end = offset.saturating_add(out.len() as u64);
        let (bytes, size) = store.block_on(store.get_range(file.name(), offset, end))?.ok_or_else(|| file.missing())?;
        // The digest is looked at elsewhere.
        file.check(size, file.digest)?;
        if bytes.len() != out.len() {
            let error = Error::io("reading", io::ErrorKind::UnexpectedEof.into());
            return Err(error.in_file(file.name().to_string()));
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }
}
