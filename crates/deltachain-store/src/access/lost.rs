//! Finds evidence of missing commits in files that no document names.

use std::collections::BTreeMap;

use deltachain::Result;
use deltachain::chain::HistoryEntry;
use deltachain::format::{HEADER_BYTES, Header};
use deltachain::tensor::Digest;

use crate::access::store::{Store, StoredObject};

/// The versions that have these shards.
pub(crate) fn versions_of(entries: &BTreeMap<u64, HistoryEntry>) -> BTreeMap<Digest, u64> {
    let shards = |(&version, entry): (&u64, &HistoryEntry)| {
        entry
            .commit
            .shards
            .clone()
            .into_iter()
            .map(move |shard| (shard, version))
    };
    entries.iter().flat_map(shards).collect()
}

/// The base and the target of a link, by its header, or `None` for another file.
pub(crate) fn ends_of(store: &Store, object: &StoredObject) -> Result<Option<(Digest, Digest)>> {
    let found = store.block_on(store.get_range(object.name, 0, HEADER_BYTES))?;
    let header = found.and_then(|(bytes, _)| Header::parse(&bytes).ok());
    Ok(header.map(|header| (header.base, header.target)))
}

/// True if a link from this state proves that a commit was lost: publishers make no link from a
/// state without a commit (R-PUB-01).
pub(crate) fn is_lost(base: Digest, versions: &BTreeMap<Digest, u64>) -> bool {
    base != Digest::of_empty_state() && !versions.contains_key(&base)
}
