//! Gives the caller's credentials to the client of S3, and keeps them until they are about to
//! expire.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error, Result};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::access::credentials::{CredentialSource, Credentials};
use crate::access::opened::Renewal;
use crate::access::settings;

/// Credentials that expire within this time are not used for a new request.
const RESERVE: Duration = Duration::from_mins(1);

/// Keeps the credentials of a source until they are about to expire, or a renewal is wanted.
#[derive(Debug)]
pub(crate) struct Provider {
    source: Arc<dyn CredentialSource>,
    renewal: Renewal,
    kept: Mutex<Option<Kept>>,
}

/// Credentials, and the renewal after which the source was asked for them.
#[derive(Debug)]
struct Kept {
    credentials: Credentials,
    number: u64,
}

impl Kept {
    fn is_valid(&self, wanted: u64) -> bool {
        let is_fresh = match self.credentials.expires {
            None => true,
            // A time in the future has not elapsed.
            Some(expires) => expires
                .checked_sub(RESERVE)
                .is_some_and(|end| end.elapsed().is_err()),
        };
        is_fresh && self.number == wanted
    }
}

impl Provider {
    pub(crate) fn new(source: Arc<dyn CredentialSource>) -> Self {
        Self {
            source,
            renewal: Renewal::default(),
            kept: Mutex::new(None),
        }
    }

    /// A handle that makes the provider ask its source again.
    pub(crate) fn renewal(&self) -> Renewal {
        self.renewal.clone()
    }

    /// Asks the source.
    async fn ask(&self) -> Result<Credentials> {
        let source = Arc::clone(&self.source);
        let asked = spawn_blocking(move || source.credentials())
            .await
            .map_err(failed)?;
        let given = asked.map_err(|error| failed(format!("{error:#}")))?;
        let mut texts = vec![("key_id", &given.key_id), ("secret_key", &given.secret_key)];
        if let Some(token) = &given.token {
            texts.push(("token", token));
        }
        for (name, text) in texts {
            settings::check_text(name, text).map_err(|error| failed(error.message()))?;
        }
        Ok(given)
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Unauthenticated {
        path: "credentials".to_owned(),
        source: error.into(),
    }
}

#[async_trait]
impl CredentialProvider for Provider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>> {
        let mut kept = self.kept.lock().await;
        let wanted = self.renewal.wanted();
        let credentials = match &*kept {
            Some(kept) if kept.is_valid(wanted) => kept.credentials.clone(),
            _ => {
                let credentials = self.ask().await?;
                *kept = Some(Kept {
                    credentials: credentials.clone(),
                    number: wanted,
                });
                credentials
            }
        };
        Ok(Arc::new(AwsCredential {
            key_id: credentials.key_id,
            secret_key: credentials.secret_key,
            token: credentials.token,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::SystemTime;

    use super::*;

    /// Counts how often it is asked; its credentials expire this many seconds from now.
    #[derive(Debug)]
    struct Counting(AtomicU64, Option<u64>);

    impl CredentialSource for Counting {
        #[expect(
            clippy::disallowed_methods,
            reason = "a service says when what it gives expires"
        )]
        fn credentials(&self) -> deltachain::Result<Credentials> {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            let expires = self
                .1
                .map(|seconds| SystemTime::now() + Duration::from_secs(seconds));
            Ok(Credentials::new(
                number.to_string(),
                "secret".to_owned(),
                None,
                expires,
            ))
        }
    }

    #[tokio::test]
    async fn credentials_are_kept_until_a_minute_before_they_expire() {
        for (expires, last) in [(None, "0"), (Some(3600), "0"), (Some(30), "2")] {
            let provider = Provider::new(Arc::new(Counting(AtomicU64::new(0), expires)));
            for _ in 0..2 {
                provider.get_credential().await.unwrap();
            }
            assert_eq!(
                provider.get_credential().await.unwrap().key_id,
                last,
                "{expires:?}"
            );
        }
        let shown = format!(
            "{:?}",
            Credentials::new("id".to_owned(), "hidden".to_owned(), None, None)
        );
        assert!(!shown.contains("hidden"), "{shown}");
    }

    #[tokio::test]
    async fn a_renewal_is_not_lost_while_the_credentials_are_read() {
        let provider = Provider::new(Arc::new(Counting(AtomicU64::new(0), None)));
        let key_id = async || provider.get_credential().await.unwrap().key_id.clone();
        assert_eq!(key_id().await, "0");
        let renewal = provider.renewal();
        let reading = provider.kept.lock().await;
        renewal.renew(0);
        drop(reading);
        assert_eq!(key_id().await, "1");
        // A second request that was refused with the first credentials needs no further renewal.
        renewal.renew(0);
        assert_eq!(key_id().await, "1");
        renewal.renew(1);
        assert_eq!(key_id().await, "2");
    }
}
