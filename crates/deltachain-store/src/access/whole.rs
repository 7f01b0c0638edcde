//! Objects that are read as a whole, and proven to be what a document of the chain says.

use std::pin::pin;
use std::time::SystemTime;

use deltachain::chain::Reference;
use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::access::store::Store;

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
    let (object, file) = (reference.object_name(), reference.file());
    let size = file.size;
    // An empty object is fetched, too: it must exist.
    let parts = stream::iter(0..size.div_ceil(part_bytes).max(1)).map(async |number| {
        let start = number * part_bytes;
        let end = start.saturating_add(part_bytes).min(size.max(1));
        let part = store.get_range(object, start, end).await?;
        let (bytes, stored) = part.ok_or_else(|| reference.missing())?;
        // Whatever its digest, an object of another length is another one.
        reference.check(stored, file.digest)?;
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
    let found = store.find(reference.object_name())?.ok_or_else(|| reference.missing())?;
    reference.check(found.size, reference.file().digest)?;
    Ok(found.stored)
}
