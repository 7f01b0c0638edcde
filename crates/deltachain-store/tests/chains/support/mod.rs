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

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use deltachain_store::{CredentialSource, Store, StoreOptions};
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

/// Opens a chain in a bucket of S3 at this server, with credentials of a source.
pub(crate) fn bucket_with_credentials(
    server: SocketAddr,
    source: impl CredentialSource + 'static,
) -> Store {
    let settings = [
        ("endpoint", format!("http://{server}")),
        ("region", "x".to_owned()),
    ];
    let settings = settings.map(|(key, value)| (key.to_owned(), value));
    let options = quick()
        .settings(settings.to_vec())
        .credentials(Some(Arc::new(source)));
    Store::open("s3://bucket/chain", options).unwrap()
}

/// A number from the environment, for longer runs.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}
