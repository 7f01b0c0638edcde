//! Options of the access to a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::access::credentials::CredentialSource;

tokio::task_local! {
    /// [`StoreOptions::attempts`] of the store whose operation runs. A clone of a store may have
    /// fewer attempts than the client that it shares with others.
    pub(crate) static ATTEMPTS: u32;

    /// Set while an upload in parts is completed. The client then repeats failed requests, because
    /// the upload cannot be completed a second time: the `object_store` crate has forgotten its
    /// parts.
    pub(crate) static COMPLETING: ();
}

deltachain::setters! {
    /// Options of the access to a store. The defaults suit a bucket on the same continent.
    #[derive(Clone)]
    pub struct StoreOptions {
        /// Settings of the kind of store, by name, such as `("region", "eu-central-1")`: the keys
        /// of the `object_store` crate. They come before the usual environment variables (`AWS_*`,
        /// `GOOGLE_*`, `AZURE_*`). Unknown ones are refused; directories have none. The value
        /// `env:NAME` is that of the environment variable NAME.
        pub settings: Vec<(String, String)> = Vec::new(),
        /// Source of S3's credentials, if they are not in the settings or the environment. Other
        /// kinds of stores refuse this option.
        pub credentials: Option<Arc<dyn CredentialSource>> = None,
        /// Number of attempts of an operation that fails for a transient reason.
        pub attempts: u32 = 8,
        /// The pause after the first failure; after each further one it is twice as long. A random
        /// part is taken off. A server that says when to come again is left alone until then, for
        /// up to five minutes.
        pub pause: Duration = Duration::from_millis(200),
        /// Time without any progress after which an attempt is given up. A download may take any
        /// time as long as bytes come. The answer to an upload may take longer: four times the time
        /// that the speed of the last upload would need, or the time at 20 kB/s until one has
        /// succeeded. A store that is not a server has this time for each operation: a document, a
        /// part of a file, a list.
        pub timeout: Duration = Duration::from_mins(1),
        /// Bytes per second of all objects, or of the bodies of all requests to a server, together
        /// and in both directions. Parts of files go as a whole, with pauses between them.
        pub max_rate: Option<u64> = None,
        /// Requests at the same time.
        pub parallel: usize = 8,
        /// Bytes of one part of a file, at most. Files are stored in longer parts where S3 would
        /// refuse ones as short as that.
        pub part_bytes: u64 = 8 << 20,
    }
}

/// Values of settings are not shown: some are secret.
impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings: Vec<&str> = self.settings.iter().map(|(key, _)| key.as_str()).collect();
        f.debug_struct("StoreOptions")
            .field("settings", &settings)
            .finish_non_exhaustive()
    }
}

impl StoreOptions {
    /// Between half and all of a time that doubles with each attempt, so that many readers do not
    /// come back at once.
    pub(crate) fn pause_after(&self, attempt: u32) -> Duration {
        let longest = self
            .pause
            .saturating_mul(1 << attempt.saturating_sub(1).min(10));
        longest.mul_f64(rand::random_range(0.5..1.0))
    }
}
