//! Services that give credentials: the metadata service of the machine, that of its container,
//! token services. Their refusals are final, and all their requests for credentials together have
//! the time of the setting `credentials_timeout`.
#![cfg_attr(
    not(all(feature = "s3", feature = "gs", feature = "az", feature = "http")),
    allow(dead_code, reason = "each kind of store uses a part")
)]

use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use deltachain::{Error, Result, without_secrets};
use futures_util::FutureExt;
use object_store::CredentialProvider;
use object_store::Error as StoreError;
#[cfg(feature = "s3")]
use object_store::aws::AwsCredential;
#[cfg(feature = "az")]
use object_store::azure::AzureCredential;
#[cfg(feature = "gs")]
use object_store::gcp::GcpCredential;
use tokio::time::timeout;

use crate::access::http::{Purpose, kind_of};
use crate::access::named_file::NamedFile;
use crate::access::refusal::{Meaning, Refusal, told};
use crate::access::settings;

/// The setting that says how many seconds credentials may take.
pub(crate) const TIMEOUT: &str = "credentials_timeout";

/// Long enough for the agent of a pod that has just started.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// No setting waits longer.
const LONGEST_TIMEOUT: f64 = 86_400.0;

/// The service that a store asks for credentials.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    /// Its name, for people.
    pub(crate) what: String,
    /// The file that it needs.
    pub(crate) file: Option<NamedFile>,
    /// True if a setting names it. Without one, the metadata service of the machine is asked, which
    /// need not exist.
    pub(crate) is_configured: bool,
    /// True if a refusal of its token means that it can be asked without.
    pub(crate) works_without_token: bool,
}

impl Service {
    /// A service that settings name.
    pub(crate) fn configured(what: impl Into<String>) -> Self {
        Self {
            what: without_secrets(&what.into()),
            file: None,
            is_configured: true,
            works_without_token: false,
        }
    }

    /// The same service, which needs this file.
    pub(crate) fn with_file(self, file: NamedFile) -> Self {
        Self {
            file: Some(file),
            ..self
        }
    }

    /// The requests that are made to the service.
    pub(crate) fn purpose(&self) -> Purpose {
        Purpose::Credentials {
            is_configured: self.is_configured,
            works_without_token: self.works_without_token,
        }
    }

    /// The file with the token, which the service reads again when the credentials have expired.
    /// Other files are read once.
    pub(crate) fn token_file(&self) -> Option<&NamedFile> {
        self.file.as_ref().filter(|file| file.is_token)
    }

    /// Checks the file that the service needs, before anything is asked.
    ///
    /// # Errors
    /// USAGE, with the names of the variable and of the file.
    pub(crate) fn check(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), NamedFile::check)
    }
}

/// The time that settings give to the services for credentials.
///
/// # Errors
/// USAGE if the setting is not a number of seconds.
pub(crate) fn time_limit(settings: &[(String, String)]) -> Result<Duration> {
    let Some((_, value)) = settings.iter().rfind(|(key, _)| key == TIMEOUT) else {
        return Ok(DEFAULT_TIMEOUT);
    };
    let seconds: f64 = value.parse().unwrap_or(f64::NAN);
    if seconds > 0.0 && seconds <= LONGEST_TIMEOUT {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        let text = format!("the setting {TIMEOUT:?} must be a number of seconds, up to one day");
        Err(Error::usage(text))
    }
}

/// Credentials that go into the heads of requests.
pub(crate) trait Texts {
    /// The texts, with names for people.
    fn texts(&self) -> Vec<(&'static str, &str)>;
}

#[cfg(feature = "s3")]
impl Texts for AwsCredential {
    fn texts(&self) -> Vec<(&'static str, &str)> {
        let mut texts = vec![
            ("the access key id", self.key_id.as_str()),
            ("the secret key", self.secret_key.as_str()),
        ];
        if let Some(token) = &self.token {
            texts.push(("the session token", token));
        }
        texts
    }
}

#[cfg(feature = "az")]
impl Texts for AzureCredential {
    fn texts(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::BearerToken(token) => vec![("the token", token)],
            Self::AccessKey(_) | Self::SASToken(_) => Vec::new(),
        }
    }
}

#[cfg(feature = "gs")]
impl Texts for GcpCredential {
    fn texts(&self) -> Vec<(&'static str, &str)> {
        vec![("the token", &self.bearer)]
    }
}

/// Asks a service for credentials, for a short time. Its failures end the operation that needs the
/// credentials.
#[derive(Debug)]
pub(crate) struct Limited<C> {
    pub(crate) inner: Arc<dyn CredentialProvider<Credential = C>>,
    pub(crate) service: Service,
    /// The time for credentials in all.
    pub(crate) limit: Duration,
    /// The store, for people.
    pub(crate) store: String,
    /// The failure after which the service was last asked again, for people.
    pub(crate) last_failure: Arc<Mutex<Option<String>>>,
}

impl<C> Limited<C> {
    fn failed(&self, error: &StoreError) -> StoreError {
        let refusal = Refusal::of(error);
        let words = refusal.map_or_else(|| told(error), |refusal| refusal.words.clone());
        match refusal.map(|refusal| refusal.meaning) {
            Some(
                meaning @ (Meaning::Certificate
                | Meaning::NoTls
                | Meaning::Service
                | Meaning::Expired),
            ) => self.refused(meaning, &words),
            None if self.service.is_configured && kind_of(error).is_some() => {
                self.refused(Meaning::Service, &words)
            }
            _ => self.refused(self.not_given(), &words),
        }
    }

    /// The meaning of a service that gives no credentials.
    fn not_given(&self) -> Meaning {
        if self.service.is_configured {
            Meaning::NotGiven
        } else {
            Meaning::NoCredentials
        }
    }

    /// The error for a service that gives nothing in time.
    fn too_late(&self) -> StoreError {
        let meaning = match self.not_given() {
            Meaning::NotGiven => Meaning::Service,
            meaning => meaning,
        };
        let seconds = self.limit.as_secs_f64();
        let mut words = format!("no answer within {seconds} s ({TIMEOUT})");
        let last_failure = self.last_failure.lock();
        if let Some(failure) = last_failure.unwrap_or_else(PoisonError::into_inner).take() {
            words += ": ";
            words += &failure;
        }
        self.refused(meaning, &words)
    }

    fn refused(&self, meaning: Meaning, words: &str) -> StoreError {
        let what = &self.service.what;
        let words = if meaning == Meaning::NoCredentials {
            format!("{}: {what}: {words}", self.store)
        } else {
            format!("{what}: {words}")
        };
        StoreError::Generic {
            store: "credentials",
            source: Refusal::new(meaning, &words).into(),
        }
    }
}

#[async_trait]
impl<C: Texts + Debug + Send + Sync + 'static> CredentialProvider for Limited<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        // object_store panics on some malformed answers.
        let asked = AssertUnwindSafe(self.inner.get_credential()).catch_unwind();
        let error = match timeout(self.limit, asked).await {
            Ok(Ok(Ok(given))) => return self.check_texts(given),
            Ok(Ok(Err(error))) => self.failed(&error),
            Ok(Err(_)) => self.refused(self.not_given(), "its answer has no usable credentials"),
            Err(_) => self.too_late(),
        };
        // A token is replaced while the program runs. The reason may be the file.
        let token_file = self.service.token_file();
        match token_file.map_or(Ok(()), NamedFile::check) {
            Ok(()) => Err(error),
            Err(error) => Err(self.refused(Meaning::NotGiven, error.message())),
        }
    }
}

impl<C: Texts> Limited<C> {
    /// Checks that credentials can go into the heads of requests.
    fn check_texts(&self, given: Arc<C>) -> object_store::Result<Arc<C>> {
        for (name, text) in given.texts() {
            if let Err(error) = settings::check_text(name, text) {
                return Err(self.refused(Meaning::NotGiven, error.message()));
            }
        }
        Ok(given)
    }
}
