//! Shards of a version, each prepared by a publisher of its own, and committed by another one.

use std::collections::BTreeMap;

use deltachain::Result;
use deltachain_store::{
    Base, Model, Observer, PublishOptions, PublishReport, Publisher, ShardPart, Store,
};

/// Prepares shard number `shard` of `of`.
pub(crate) fn publish_shard<'m>(
    store: &Store,
    model: impl Into<Model<'m>>,
    base: Base<'m>,
    shard: usize,
    of: usize,
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<ShardPart> {
    let mut publisher = Publisher::open(store.clone(), options.clone())?;
    let mut parts = publisher.prepare([(shard, model.into(), base)], of, observer)?;
    assert_eq!(parts.len(), 1);
    Ok(parts.remove(0))
}

/// Commits the parts of all shards.
pub(crate) fn commit_shards(
    store: &Store,
    parts: &[ShardPart],
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<PublishReport> {
    Publisher::open(store.clone(), options.clone())?.commit(
        parts.to_vec(),
        BTreeMap::new(),
        observer,
    )
}
