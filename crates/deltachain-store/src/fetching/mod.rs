//! The links of a plan on their way from the store: downloads, ranges, and the cache.

pub(crate) mod cache;
pub(crate) mod download;
pub(crate) mod links;
