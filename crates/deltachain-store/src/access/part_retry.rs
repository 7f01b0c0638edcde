//! Retries of the parts of an upload. The `object_store` crate asks a policy after each request of
//! a part that failed. A retry is signed anew, with the credentials that are valid then.
#![cfg_attr(
    not(any(feature = "s3", feature = "gs", feature = "az")),
    allow(dead_code, reason = "nothing is uploaded to a web server")
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
use async_trait::async_trait;
use object_store::client::{HttpError, HttpResponse};
#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
use object_store::retry::{RetryContext, RetryFailure, RetryPolicy};

use crate::access::opened::Renewal;
use crate::access::options::StoreOptions;
use crate::access::pace::lock;
#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
use crate::access::refusal::is_transient_status;
use crate::access::refusal::{Meaning, Refusal};

tokio::task_local! {
    /// Set while a part is stored. The policy is not told why the server refused a request, so the
    /// client notes it here.
    static PART: PartRequests;
}

/// The requests that were made to store one part.
#[derive(Default)]
struct PartRequests {
    /// Meaning of the last answer, if the server refused the request.
    refusal: Mutex<Option<Meaning>>,
    /// Number of the credentials of the last request.
    credentials: AtomicU64,
    is_renewed: AtomicBool,
}

/// Notes the answer to a request, if it belongs to a part.
pub(crate) fn note_answer(answer: &Result<HttpResponse, HttpError>) {
    let refusal = answer.as_ref().err().and_then(|error| Refusal::of(error));
    let meaning = refusal.map(|refusal| refusal.meaning);
    // Most requests belong to no part.
    let _ = PART.try_with(|part| *lock(&part.refusal) = meaning);
}

/// Decides whether a part is stored again.
#[derive(Debug)]
pub(crate) struct PartRetry {
    pub(crate) options: Arc<StoreOptions>,
    pub(crate) renewal: Option<Renewal>,
}

impl PartRetry {
    /// Stores a part, by a put that has this policy.
    pub(crate) async fn scope<T>(&self, put: impl Future<Output = T>) -> T {
        let part = PartRequests::default();
        self.note_credentials(&part);
        PART.scope(part, put).await
    }

    fn note_credentials(&self, part: &PartRequests) {
        if let Some(renewal) = &self.renewal {
            part.credentials.store(renewal.wanted(), Ordering::SeqCst);
        }
    }

    /// Renews the credentials, once for each part. Returns false if that is not possible.
    fn renew(&self, part: &PartRequests) -> bool {
        let Some(renewal) = &self.renewal else {
            return false;
        };
        if part.is_renewed.swap(true, Ordering::SeqCst) {
            return false;
        }
        renewal.renew(part.credentials.load(Ordering::SeqCst));
        true
    }
}

#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
#[async_trait]
impl RetryPolicy for PartRetry {
    async fn retry(&self, context: RetryContext) -> bool {
        let refusal = PART.try_with(|part| *lock(&part.refusal)).ok().flatten();
        if let Some(meaning) = refusal {
            return meaning.may_be_expired()
                && PART.try_with(|part| self.renew(part)).unwrap_or(false);
        }
        let is_transient = match context.failure {
            RetryFailure::Status(status) => is_transient_status(status.as_u16()),
            _ => true,
        };
        let attempt = u32::try_from(context.attempt).unwrap_or(u32::MAX);
        if !is_transient || attempt >= self.options.attempts {
            return false;
        }
        tokio::time::sleep(self.options.pause_after(attempt)).await;
        true
    }
}
