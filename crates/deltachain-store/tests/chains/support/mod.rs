//! Helpers of several tests: stores of all kinds on this machine, and failing stores.

pub(crate) mod child;
pub(crate) mod counting;
pub(crate) mod foreign;
pub(crate) mod models;
pub(crate) mod proxy;
pub(crate) mod s3;
pub(crate) mod shards;
pub(crate) mod tls;
pub(crate) mod web;

use std::time::Duration;

use deltachain_store::StoreOptions;
#[allow(unused_imports, reason = "each test program uses a part")]
pub(crate) use deltachain_testkit::{Random, faulty, verify};

/// Options for fast tests: short pauses, parts of a few bytes.
pub(crate) fn quick() -> StoreOptions {
    StoreOptions::default()
        .attempts(4)
        .pause(Duration::from_millis(1))
        .timeout(Duration::from_secs(20))
        .part_bytes(1000)
}

/// A number from the environment, for longer runs.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}
