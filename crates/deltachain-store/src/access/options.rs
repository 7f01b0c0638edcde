//! How to talk to a store.

use std::time::Duration;

/// How to talk to a store. The default is right for a bucket on the same continent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Settings of the kind of store, by name, such as `("region", "eu-central-1")`: the keys of the `object_store` crate.
    /// They come before the usual environment variables (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
    pub settings: Vec<(String, String)>,
    /// How often an operation is tried that fails for a reason that may pass.
    pub attempts: u32,
    /// The pause after the first failure; after each further one it is twice as long. A random part is taken off.
    pub pause: Duration,
    /// How long one attempt may take. Files go in parts, each of which has this time.
    pub timeout: Duration,
    /// Requests at the same time.
    pub parallel: usize,
    /// Bytes of one part of a file, at most. Files are stored in longer parts where S3 would refuse ones as short as that.
    pub part_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            settings: Vec::new(),
            attempts: 5,
            pause: Duration::from_millis(200),
            timeout: Duration::from_mins(1),
            parallel: 8,
            part_bytes: 8 << 20,
        }
    }
}

impl StoreOptions {
    deltachain::setters! {
        settings: Vec<(String, String)>,
        attempts: u32,
        pause: Duration,
        timeout: Duration,
        parallel: usize,
        part_bytes: u64,
    }
}
