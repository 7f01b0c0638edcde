//! Objects that are read as a whole, and proven to be what a document of the chain says.

use std::pin::pin;
use std::time::SystemTime;

use deltachain::chain::{Asset, FileReference, ObjectName};
use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::access::store::Store;

/// What a document says of an object: a link or an asset.
pub(crate) trait Reference {
    /// The object's name in the store.
    fn object(&self) -> ObjectName;

    /// Its length in bytes.
    fn size(&self) -> u64;

    /// The digest of its bytes.
    fn digest(&self) -> Digest;

    /// That the store does not have it: R-CHN-09 or R-CHN-15.
    fn missing(&self) -> Error;

    /// Whether an object with this size and digest is the one: R-CHN-10 or R-CHN-16.
    fn check(&self, size: u64, digest: Digest) -> Result<()>;

    /// The same for a size alone. Whatever its digest, an object of another length is another one.
    fn check_size(&self, size: u64) -> Result<()> {
        self.check(size, self.digest())
    }
}

impl Reference for FileReference {
    fn object(&self) -> ObjectName {
        self.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn missing(&self) -> Error {
        self.missing()
    }

    fn check(&self, size: u64, digest: Digest) -> Result<()> {
        self.check(size, digest)
    }
}

impl Reference for Asset {
    fn object(&self) -> ObjectName {
        self.object_name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn digest(&self) -> Digest {
        self.digest
    }

    fn missing(&self) -> Error {
        self.missing()
    }

    fn check(&self, size: u64, digest: Digest) -> Result<()> {
        self.check(size, digest)
    }
}

/// Fetches an object in ranges of `part_bytes` side by side, gives the bytes in order to `take`, and checks that they are
/// what the document says.
///
/// # Errors
/// R-CHN-09 and R-CHN-10 for a link, R-CHN-15 and R-CHN-16 for an asset; errors of `take`; IO.
pub(crate) async fn read_whole(
    store: &Store,
    reference: &impl Reference,
    part_bytes: u64,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let size = reference.size();
    // An empty object is fetched, too: it must exist.
    let parts = stream::iter(0..size.div_ceil(part_bytes).max(1)).map(async |number| {
        let start = number * part_bytes;
        let end = start.saturating_add(part_bytes).min(size.max(1));
        let part = store.get_range(reference.object(), start, end).await?;
        let (bytes, stored) = part.ok_or_else(|| reference.missing())?;
        reference.check_size(stored)?;
        Ok::<_, Error>(bytes)
    });
    let mut parts = pin!(parts.buffered(store.options().parallel));
    let mut hasher = blake3::Hasher::new();
    while let Some(bytes) = parts.try_next().await? {
        hasher.update(&bytes);
        take(&bytes)?;
    }
    reference.check(size, Digest(*hasher.finalize().as_bytes()))
}

/// Checks that an object is there and has the right size. When it was stored, by the store's clock.
///
/// # Errors
/// As for [`read_whole`], without the errors of reading.
pub(crate) fn check_there(store: &Store, reference: &impl Reference) -> Result<SystemTime> {
    let found = store.find(reference.object())?.ok_or_else(|| reference.missing())?;
    reference.check_size(found.size)?;
    Ok(found.stored)
}
