//! All that goes to a server and comes from it passes here. A server is not trusted: its answers
//! are bounded, and it is given up when nothing moves. A busy one is left alone as long as it
//! wants.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{Certificate, Result};
use tokio::time::timeout_at;

use crate::access::answer::{bounded, too_late};
use crate::access::opened::LastDate;
use crate::access::options::{IN_PARTS, StoreOptions};
use crate::access::pace::{RetryAfter, Upload, lock};
use crate::access::rate::Rate;
use crate::access::refusal::{Meaning, Refusal, causes, told};
use crate::access::sender::sender;

/// An answer that is not a range of an object is a document, or one page of a list: 1,000 names, or
/// 5,000 with Azure, each of at most 1 KiB and what belongs to it. More than any document of which
/// the store wants to know only that it is too long.
const ANSWER_BYTES: u64 = 32 << 20;

/// The most bytes that are read of the body of a refusal. They are shown to people.
const REFUSAL_BYTES: usize = 16 << 10;

/// Makes the clients of a store, which share the rate and what the server has said.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    options: Arc<StoreOptions>,
    /// Certificates in PEM that count beside those of the machine.
    authorities: Arc<[u8]>,
    rate: Option<Arc<Rate>>,
    earliest: Arc<RetryAfter>,
    /// The number of bytes that may lie in buffers of all uploads together, which share a line.
    buffered: Arc<AtomicU64>,
    /// How many clients have been made.
    clients: Arc<AtomicUsize>,
    /// The store's time, as its answers tell it.
    pub(crate) date: LastDate,
}

impl Connector {
    pub(crate) fn new(options: &StoreOptions, authorities: Vec<u8>) -> Self {
        // Clients ask the process for its cryptography. If the program has chosen one before, that
        // stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let rate = options.max_rate.map(|rate| Arc::new(Rate::new(rate)));
        Self {
            options: Arc::new(options.clone()),
            authorities: authorities.into(),
            rate,
            earliest: Arc::default(),
            buffered: Arc::default(),
            clients: Arc::default(),
            date: Arc::default(),
        }
    }

    /// How the `object_store` crate is to make its clients.
    pub(crate) fn client_options(&self) -> ClientOptions {
        let certificates = Certificate::from_pem_bundle(&self.authorities).unwrap_or_default();
        let options = ClientOptions::new().with_timeout_disabled();
        certificates
            .into_iter()
            .fold(options, ClientOptions::with_root_certificate)
    }

    fn watch(&self, inner: HttpClient, uploads: HttpClient) -> HttpClient {
        let number = self.clients.fetch_add(1, Ordering::Relaxed) + 1;
        HttpClient::new(WatchedClient {
            inner,
            uploads,
            number,
            shared: self.clone(),
        })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(self.watch(
            ReqwestConnector::default().connect(options)?,
            sender(options, &self.authorities)?,
        ))
    }
}

/// A client whose requests are watched.
#[derive(Debug)]
struct WatchedClient {
    inner: HttpClient,
    /// The client for requests whose bodies are sent in pieces.
    uploads: HttpClient,
    /// Counted from 1.
    number: usize,
    shared: Connector,
}

#[async_trait]
impl HttpService for WatchedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let options = &self.shared.options;
        // Whoever asks for these could not repeat them: not a part without beginning the upload
        // again, and the thread that waits for credentials may be in the middle of one.
        let is_in_parts = IN_PARTS.try_with(|()| ()).is_ok();
        let attempts = if is_in_parts || self.is_for_credentials() {
            options.attempts
        } else {
            1
        };
        let mut attempt = 1;
        loop {
            let answer = self.once(request.clone()).await;
            let may_pass = match &answer {
                Ok(answer) => {
                    answer.status().is_server_error()
                        || matches!(answer.status().as_u16(), 408 | 429)
                }
                Err(error) => {
                    // Where nobody listens there is no service that gives credentials.
                    let is_nobody =
                        self.is_for_credentials() && error.kind() == HttpErrorKind::Connect;
                    !is_nobody
                        && Refusal::of(error)
                            .is_none_or(|refusal| refusal.meaning == Meaning::NoService)
                }
            };
            if !may_pass || attempt >= attempts {
                return answer;
            }
            tokio::time::sleep(options.pause_after(attempt)).await;
            attempt += 1;
        }
    }
}

impl WatchedClient {
    /// Whether it asks a provider for credentials: the last client that a store makes is the one
    /// for its objects.
    fn is_for_credentials(&self) -> bool {
        self.number < self.shared.clients.load(Ordering::Relaxed)
    }

    async fn once(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let Connector {
            options,
            rate,
            earliest,
            buffered,
            ..
        } = &self.shared;
        earliest.wait().await;
        let length = request.body().content_length();
        if let Some(rate) = rate.as_ref().filter(|_| length > 0) {
            tokio::time::sleep_until(rate.take(length as u64).0).await;
        }
        let range = length_of_range(&request);
        let is_for_credentials = self.is_for_credentials();
        // Whether it asks the machine's own service for credentials, in the way of today.
        let is_service = is_for_credentials && request.uri().path().ends_with("/latest/api/token");
        let is_conditional = request.headers().contains_key(http::header::IF_NONE_MATCH);
        let upload = Upload::new(length, buffered);
        // A short body is one piece, and goes at once.
        let client = if request.body().as_bytes().is_some() {
            upload.has_gone();
            &self.inner
        } else {
            &self.uploads
        };
        request.extensions_mut().insert(Arc::clone(&upload));
        let mut answer = pin!(client.execute(request));
        let answer = loop {
            let deadline = upload.deadline(options.timeout);
            if let Ok(answer) = timeout_at(deadline, &mut answer).await {
                break answer.map_err(|error| unreached(is_service, error))?;
            }
            if upload.deadline(options.timeout) <= deadline {
                return Err(unreached(is_service, too_late(options.timeout)));
            }
        };
        let (head, body) = answer.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        // A refusal may come from something that stands before the store, and has a clock of its
        // own.
        if let Some(date) =
            header(http::header::DATE).filter(|_| !is_for_credentials && head.status.is_success())
        {
            httpdate::parse_http_date(date)
                .into_iter()
                .for_each(|date| *lock(&self.shared.date) = Some(date));
        }
        if matches!(head.status.as_u16(), 429 | 503)
            && let Some(retry_after) = header(http::header::RETRY_AFTER)
        {
            earliest.not_before(retry_after, header(http::header::DATE));
        }
        if range.is_some() && head.status == http::StatusCode::OK {
            // There is no use in asking again.
            let text = "the server sends the whole file when it is asked for a part of it (range request): it cannot \
                        show a chain, whose files are fetched in parts; take one that can, such as nginx or Caddy";
            let error = io::Error::new(io::ErrorKind::Unsupported, text);
            return Err(HttpError::new(HttpErrorKind::Unknown, error));
        }
        let body = if head.status.is_success() {
            let most = range.unwrap_or(ANSWER_BYTES);
            bounded(body, most, options.timeout, rate.clone())
        } else {
            let text = beginning(bounded(body, u64::MAX, options.timeout, None)).await;
            let code = between(&text, "<Code>", "</Code>").unwrap_or_default();
            let region = header(http::HeaderName::from_static("x-amz-bucket-region"));
            let meaning = match head.status.as_u16() {
                // By this `object_store` learns that it may ask in the older way.
                403 if is_service => None,
                _ if is_service => Some(Meaning::NoService),
                400..=499 if is_for_credentials && !code.starts_with("Expired") => {
                    Some(Meaning::Credentials)
                }
                status => Meaning::of_answer(status, code, region.is_some(), is_conditional),
            };
            if let Some(meaning) = meaning {
                let detail = match meaning {
                    Meaning::Region => region.map(|region| format!("; its region is {region}")),
                    Meaning::Clock => header(http::header::DATE)
                        .map(|date| format!("; the store's time is {date}")),
                    _ => None,
                };
                let words = between(&text, "<Message>", "</Message>").unwrap_or(&text);
                let words = format!(
                    "HTTP {} {code} {words}{}",
                    head.status.as_u16(),
                    detail.unwrap_or_default()
                );
                return Err(HttpError::new(
                    HttpErrorKind::Unknown,
                    Refusal::new(meaning, &words),
                ));
            }
            text.into()
        };
        Ok(HttpResponse::from_parts(head, body))
    }
}

/// The text of an element of XML that has no other elements.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    Some(text.split_once(begin)?.1.split_once(end)?.0)
}

/// Why a request got no answer.
fn unreached(is_service: bool, error: HttpError) -> HttpError {
    let tls = causes(&error).find_map(|cause| cause.downcast_ref::<rustls::Error>());
    let meaning = match tls {
        _ if is_service => Meaning::NoService,
        Some(rustls::Error::InvalidCertificate(_)) => Meaning::Certificate,
        Some(rustls::Error::InvalidMessage(_)) => Meaning::NoTls,
        _ => return error,
    };
    HttpError::new(error.kind(), Refusal::new(meaning, &told(&error)))
}

/// Why a server could not be reached, if that was it.
pub(crate) fn kind_of(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<HttpError>())
        .find_map(|cause| match cause.kind() {
            HttpErrorKind::Connect => Some(io::ErrorKind::HostUnreachable),
            HttpErrorKind::Timeout => Some(io::ErrorKind::TimedOut),
            _ => None,
        })
}

/// How many bytes a request asks for, if it asks for a range.
fn length_of_range(request: &HttpRequest) -> Option<u64> {
    let range = request.headers().get(http::header::RANGE)?.to_str().ok()?;
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    last.parse::<u64>()
        .ok()?
        .checked_sub(first.parse().ok()?)?
        .checked_add(1)
}

/// The beginning of a body, as text. A body that does not come is not a reason to forget the
/// status.
async fn beginning(mut body: HttpResponseBody) -> String {
    let mut begun = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let data: Bytes = frame.into_data().unwrap_or_default();
        begun.extend_from_slice(&data[..data.len().min(REFUSAL_BYTES - begun.len())]);
        if begun.len() >= REFUSAL_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&begun).into_owned()
}

#[cfg(test)]
mod tests;
