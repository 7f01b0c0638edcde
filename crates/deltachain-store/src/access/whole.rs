//! Reads whole objects, and compares them with the digest in a document of the chain.

use std::pin::pin;
use std::time::SystemTime;

use deltachain::chain::{Asset, FileReference, ObjectName};
use deltachain::tensor::Digest;
use deltachain::{Error, Progress, Result};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::access::store::Store;

/// An object that a document of the chain names.
#[derive(Clone, Copy)]
pub(crate) enum ChainFile<'a> {
    Link(FileReference),
    Asset(&'a Asset),
}

impl ChainFile<'_> {
    pub(crate) fn name(self) -> ObjectName {
        self.place().0
    }

    pub(crate) fn size(self) -> u64 {
        self.place().1.size
    }

    fn place(self) -> (ObjectName, FileReference) {
        match self {
            Self::Link(file) => (file.name(), file),
            Self::Asset(asset) => (asset.object_name(), asset.file),
        }
    }

    fn missing(self) -> Error {
        match self {
            Self::Link(file) => file.missing(),
            Self::Asset(asset) => asset.missing(),
        }
    }

    fn check(self, size: u64, digest: Digest) -> Result<()> {
        match self {
            Self::Link(file) => file.check(size, digest),
            Self::Asset(asset) => asset.check(size, digest),
        }
    }
}

/// A source of ranges of objects.
pub(crate) trait RangeSource {
    /// Number of ranges to fetch at the same time.
    fn parallel(&self) -> usize;

    /// Same as [`Store::get_range`].
    async fn get_range(
        &self,
        name: ObjectName,
        start: u64,
        end: u64,
    ) -> Result<Option<(Vec<u8>, u64)>>;
}

impl RangeSource for Store {
    fn parallel(&self) -> usize {
        self.options.parallel
    }

    async fn get_range(
        &self,
        name: ObjectName,
        start: u64,
        end: u64,
    ) -> Result<Option<(Vec<u8>, u64)>> {
        Store::get_range(self, name, start, end).await
    }
}

impl<S: RangeSource> RangeSource for &S {
    fn parallel(&self) -> usize {
        S::parallel(self)
    }

    async fn get_range(
        &self,
        name: ObjectName,
        start: u64,
        end: u64,
    ) -> Result<Option<(Vec<u8>, u64)>> {
        S::get_range(self, name, start, end).await
    }
}

/// Fetches an object in ranges of `part_bytes` side by side, and gives the bytes in order to
/// `take`. The digest is checked at the end: use the bytes only if this returns `Ok`.
///
/// # Errors
/// R-CHN-09 and R-CHN-10 for a link, R-CHN-15 and R-CHN-16 for an asset; errors of `take`; IO.
pub(crate) async fn read_whole(
    source: &impl RangeSource,
    chain_file: ChainFile<'_>,
    part_bytes: u64,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (object, file) = chain_file.place();
    let size = file.size;
    // An empty object is fetched, too, because it must exist.
    let parts = stream::iter(0..size.div_ceil(part_bytes).max(1)).map(async |number| {
        let start = number * part_bytes;
        let end = start.saturating_add(part_bytes).min(size.max(1));
        let part = source.get_range(object, start, end).await?;
        let (bytes, stored) = part.ok_or_else(|| chain_file.missing())?;
        // An object of another length has another digest.
        chain_file.check(stored, file.digest)?;
        Ok::<_, Error>(bytes)
    });
    let mut parts = pin!(parts.buffered(source.parallel()));
    let mut hasher = blake3::Hasher::new();
    while let Some(bytes) = parts.try_next().await? {
        hasher.update(&bytes);
        take(&bytes)?;
    }
    chain_file.check(size, Digest(*hasher.finalize().as_bytes()))
}

/// Reads a whole object, and checks that its size and digest are those in the document.
///
/// # Errors
/// Same errors as [`read_whole`]; the errors of `progress`.
pub(crate) fn check_whole(
    store: &Store,
    chain_file: ChainFile<'_>,
    progress: &dyn Progress,
) -> Result<()> {
    let take = |bytes: &[u8]| progress.advance(bytes.len() as u64);
    store.block_on(read_whole(
        store,
        chain_file,
        store.options.part_bytes,
        take,
    ))
}

/// Checks that an object exists and has the right size. Returns the time at which it was stored, by
/// the store's clock.
///
/// # Errors
/// Same errors as [`read_whole`], without the errors of reading.
pub(crate) fn check_there(store: &Store, chain_file: ChainFile<'_>) -> Result<SystemTime> {
    let (object, file) = chain_file.place();
    let found = store.find(object)?.ok_or_else(|| chain_file.missing())?;
    chain_file.check(found.size, file.digest)?;
    Ok(found.stored)
}
