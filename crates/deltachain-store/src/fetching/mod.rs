//! Fetching the links of a plan: downloads, ranges, and the cache.

pub(crate) mod cache;
pub(crate) mod download;
pub(crate) mod links;
