//! Credentials of the caller's, as S3's client asks for them: kept until they are about to expire.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error, Result};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::access::credentials::{CredentialSource, Credentials};
use crate::access::settings;

/// Credentials that expire sooner are not used any more: a request takes its time.
const RESERVE: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Provider {
    source: Arc<dyn CredentialSource>,
    kept: Mutex<Option<Credentials>>,
}

impl Provider {
    pub(crate) fn new(source: Arc<dyn CredentialSource>) -> Self {
        Self {
            source,
            kept: Mutex::new(None),
        }
    }

    /// Makes the next request ask for new credentials. If a request for them is under way, its
    /// answer counts as new.
    pub(crate) fn renew(&self) {
        if let Ok(mut kept) = self.kept.try_lock() {
            *kept = None;
        }
    }
}

#[async_trait]
impl CredentialProvider for Provider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>> {
        let mut kept = self.kept.lock().await;
        let is_valid = kept.as_ref().is_some_and(|kept| {
            let end = kept.expires.map(|expires| expires.checked_sub(RESERVE));
            // Later than now: no time has passed since.
            end.is_none_or(|end| end.is_some_and(|end| end.elapsed().is_err()))
        });
        if !is_valid {
            let failed = |error: Box<dyn std::error::Error + Send + Sync>| Error::Unauthenticated {
                path: "credentials".to_owned(),
                source: error,
            };
            let source = Arc::clone(&self.source);
            let asked = spawn_blocking(move || source.credentials())
                .await
                .map_err(|error| failed(error.into()))?;
            let given = asked.map_err(|error| failed(format!("{error:#}").into()))?;
            let token = given.token.as_ref().map(|token| ("token", token));
            let texts = [("key_id", &given.key_id), ("secret_key", &given.secret_key)]
                .into_iter()
                .chain(token);
            for (name, text) in texts {
                settings::check_text(name, text).map_err(|error| failed(error.message().into()))?;
            }
            *kept = Some(given);
        }
        let missing = || Error::Generic {
            store: "S3",
            source: "there are no credentials".into(),
        };
        let Credentials {
            key_id,
            secret_key,
            token,
            ..
        } = kept.clone().ok_or_else(missing)?;
        Ok(Arc::new(AwsCredential {
            key_id,
            secret_key,
            token,
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
}
