//! The client of all requests to servers. A server is not trusted: its answers are bounded, and a
//! request is given up when nothing moves. A busy server is left alone as long as it wants.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};

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
use crate::access::named_file::NamedFile;
use crate::access::opened::LastDate;
use crate::access::options::{ATTEMPTS, COMPLETING, StoreOptions};
use crate::access::pace::{RetryAfter, UploadTimes, lock};
use crate::access::pages::LISTING;
use crate::access::part_retry;
use crate::access::rate::Rate;
use crate::access::refusal::{Meaning, Refusal, causes, is_transient_status, told};

/// Maximum length of an answer that is not a range of an object: a document, or one page of a list
/// with 1,000 names, or 5,000 with Azure, each of at most 1 KiB and its attributes. It is larger
/// than `DOCUMENT_BYTES`, so that the store and not this limit detects documents that are too long.
const ANSWER_BYTES: u64 = 32 << 20;

/// Maximum number of bytes that are read of the body of a refusal. They are shown to people.
const REFUSAL_BYTES: usize = 16 << 10;

/// Maximum length of an answer of a service for credentials.
const CREDENTIALS_BYTES: u64 = 1 << 20;

/// The requests that the clients of a connector make.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Objects,
    /// They ask a service for credentials.
    Credentials {
        /// True if a setting names the service. Then it exists, and may be just starting.
        is_configured: bool,
        /// True if a refusal of its token means that it can be asked without.
        works_without_token: bool,
    },
}

/// Makes the clients of a store. They share the rate, the times of uploads, `Retry-After` and the
/// store's time.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    options: Arc<StoreOptions>,
    /// Certificates in PEM that are trusted besides those of the machine.
    authorities: Arc<[u8]>,
    rate: Option<Arc<Rate>>,
    earliest: Arc<RetryAfter>,
    uploads: Arc<UploadTimes>,
    purpose: Purpose,
    /// The file with the token that the requests contain.
    token_file: Option<Arc<NamedFile>>,
    /// The last failure after which a request was repeated, for people.
    pub(crate) last_failure: Arc<Mutex<Option<String>>>,
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
            uploads: Arc::default(),
            purpose: Purpose::Objects,
            token_file: None,
            last_failure: Arc::default(),
            date: Arc::default(),
        }
    }

    /// Options for the clients that the `object_store` crate makes.
    pub(crate) fn client_options(&self) -> ClientOptions {
        let certificates = Certificate::from_pem_bundle(&self.authorities).unwrap_or_default();
        let options = ClientOptions::new().with_timeout_disabled();
        certificates
            .into_iter()
            .fold(options, ClientOptions::with_root_certificate)
    }

    /// A connector for the clients of another server, which share the rate. Times of uploads and
    /// `Retry-After` belong to one server.
    #[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
    pub(crate) fn for_credentials(&self, purpose: Purpose, token_file: Option<NamedFile>) -> Self {
        Self {
            purpose,
            token_file: token_file.map(Arc::new),
            earliest: Arc::default(),
            uploads: Arc::default(),
            last_failure: Arc::default(),
            ..self.clone()
        }
    }

    fn watch(&self, inner: HttpClient) -> HttpClient {
        HttpClient::new(WatchedClient {
            inner,
            shared: self.clone(),
        })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(self.watch(ReqwestConnector::default().connect(options)?))
    }
}

/// A client whose requests are watched.
#[derive(Debug)]
struct WatchedClient {
    inner: HttpClient,
    shared: Connector,
}

#[async_trait]
impl HttpService for WatchedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Purpose::Objects = self.shared.purpose {
            check_page(request.uri())?;
        }
        if let Some(file) = &self.shared.token_file {
            file.check().map_err(|error| {
                let refusal = Refusal::new(Meaning::NotGiven, error.message());
                HttpError::new(HttpErrorKind::Unknown, refusal)
            })?;
        }
        let attempts = self.attempts();
        let mut attempt = 1;
        loop {
            let answer = self.once(request.clone()).await;
            if let Purpose::Objects = self.shared.purpose {
                part_retry::note_answer(&answer);
            }
            let is_transient = match &answer {
                Ok(answer) => is_transient_status(answer.status().as_u16()),
                Err(error) => self.is_transient(error),
            };
            if !is_transient || attempt >= attempts {
                return answer;
            }
            if let Err(error) = &answer {
                let refusal = Refusal::of(error);
                let words = refusal.map_or_else(|| told(error), |refusal| refusal.words.clone());
                *lock(&self.shared.last_failure) = Some(words);
            }
            tokio::time::sleep(self.shared.options.pause_after(attempt)).await;
            attempt += 1;
        }
    }
}

impl WatchedClient {
    /// Number of times that the client makes a request. `Store::retry` and the policy for parts
    /// repeat most requests, with a new signature. Two kinds are repeated here, because their
    /// callers cannot: the end of an upload in parts, and a request for credentials, which is made
    /// inside of another request.
    fn attempts(&self) -> u32 {
        let is_completing = COMPLETING.try_with(|()| ()).is_ok();
        if !is_completing && matches!(self.shared.purpose, Purpose::Objects) {
            return 1;
        }
        let of_store = ATTEMPTS.try_with(|attempts| *attempts);
        of_store.unwrap_or(self.shared.options.attempts)
    }

    /// True if it makes sense to ask again after this failure.
    fn is_transient(&self, error: &HttpError) -> bool {
        if let Some(refusal) = Refusal::of(error) {
            return refusal.meaning == Meaning::Service;
        }
        // The metadata service of a machine need not exist.
        let is_guess = matches!(
            self.shared.purpose,
            Purpose::Credentials {
                is_configured: false,
                ..
            }
        );
        !(is_guess && error.kind() == HttpErrorKind::Connect)
    }

    /// The meaning of an answer that is no success; `None` if the caller deals with it.
    fn meaning(
        &self,
        request: &RequestFacts,
        status: u16,
        code: &str,
        has_region: bool,
    ) -> Option<Meaning> {
        let Purpose::Credentials {
            works_without_token,
            ..
        } = self.shared.purpose
        else {
            return Meaning::of_answer(status, code, has_region, request.is_conditional);
        };
        match status {
            // By this `object_store` learns that it may ask in the older way.
            403 if request.is_for_token && works_without_token => None,
            _ if is_transient_status(status) => Some(Meaning::Service),
            400..=499 if code.starts_with("Expired") => Some(Meaning::Expired),
            _ => Some(Meaning::NotGiven),
        }
    }

    /// Makes a request once.
    async fn once(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let asked = RequestFacts::new(&request);
        self.wait_for_turn(asked.length).await;
        let answer = self.execute_in_time(request, asked.length).await?;
        let (head, body) = answer.into_parts();
        self.note_headers(&head);
        if asked.range.is_some() && head.status == http::StatusCode::OK {
            return Err(whole_file());
        }
        let body = if head.status.is_success() {
            self.read_success(&asked, body).await?
        } else {
            self.read_failure(&asked, &head, body).await?
        };
        Ok(HttpResponse::from_parts(head, body))
    }

    /// Waits as long as a busy server wants, and until a body of this length may be sent.
    async fn wait_for_turn(&self, length: u64) {
        self.shared.earliest.wait().await;
        if let Some(rate) = &self.shared.rate
            && length > 0
        {
            tokio::time::sleep_until(rate.reserve(length).start).await;
        }
    }

    /// Sends a request with a body of this length, and waits for the head of the answer.
    async fn execute_in_time(
        &self,
        request: HttpRequest,
        length: u64,
    ) -> Result<HttpResponse, HttpError> {
        let limit = self.shared.options.timeout;
        let upload = self.shared.uploads.begin(length);
        let mut answer = pin!(self.inner.execute(request));
        let answer = loop {
            let deadline = upload.deadline(limit);
            if let Ok(answer) = timeout_at(deadline, &mut answer).await {
                break answer.map_err(unreached)?;
            }
            // Other uploads may have changed it.
            if upload.deadline(limit) <= deadline {
                upload.timed_out();
                return Err(too_late(limit));
            }
        };
        if answer.status().is_success() {
            upload.succeeded();
        }
        Ok(answer)
    }

    /// Notes the store's time, and how long a busy server wants to be left alone.
    fn note_headers(&self, head: &http::response::Parts) {
        let date = header(head, http::header::DATE);
        // A refusal may come from something that stands before the store, and has a clock of its
        // own.
        if !self.is_for_credentials()
            && head.status.is_success()
            && let Some(date) = date
            && let Ok(date) = httpdate::parse_http_date(date)
        {
            *lock(&self.shared.date) = Some(date);
        }
        if matches!(head.status.as_u16(), 429 | 503)
            && let Some(retry_after) = header(head, http::header::RETRY_AFTER)
        {
            self.shared.earliest.not_before(retry_after, date);
        }
    }

    fn is_for_credentials(&self) -> bool {
        matches!(self.shared.purpose, Purpose::Credentials { .. })
    }

    /// The body of an answer that is a success.
    async fn read_success(
        &self,
        asked: &RequestFacts,
        body: HttpResponseBody,
    ) -> Result<HttpResponseBody, HttpError> {
        let limit = self.shared.options.timeout;
        if !self.is_for_credentials() {
            let most = asked.range.unwrap_or(ANSWER_BYTES);
            return Ok(bounded(body, most, limit, self.shared.rate.clone()));
        }
        let body = bounded(body, CREDENTIALS_BYTES, limit, None);
        if asked.is_for_token || asked.is_for_role {
            return Ok(word(&body.bytes().await?)?.into());
        }
        Ok(body)
    }

    /// The body of an answer that is no success.
    ///
    /// # Errors
    /// The refusal, if the answer is final.
    async fn read_failure(
        &self,
        asked: &RequestFacts,
        head: &http::response::Parts,
        body: HttpResponseBody,
    ) -> Result<HttpResponseBody, HttpError> {
        let limit = self.shared.options.timeout;
        let text = beginning(bounded(body, u64::MAX, limit, None)).await;
        let status = head.status.as_u16();
        if status == 416 && asked.range.is_some() {
            return Err(HttpError::new(HttpErrorKind::Unknown, BeyondEnd));
        }
        let code = between(&text, "<Code>", "</Code>").unwrap_or_default();
        let region = header(head, http::HeaderName::from_static("x-amz-bucket-region"));
        let Some(meaning) = self.meaning(asked, status, code, region.is_some()) else {
            return Ok(text.into());
        };
        let detail = match meaning {
            Meaning::Region => region.map(|region| format!("; its region is {region}")),
            Meaning::Clock => {
                header(head, http::header::DATE).map(|date| format!("; the store's time is {date}"))
            }
            _ => None,
        };
        let words = between(&text, "<Message>", "</Message>").unwrap_or(&text);
        let words = format!("HTTP {status} {code} {words}{}", detail.unwrap_or_default());
        Err(HttpError::new(
            HttpErrorKind::Unknown,
            Refusal::new(meaning, &words),
        ))
    }
}

fn header(head: &http::response::Parts, name: http::HeaderName) -> Option<&str> {
    head.headers.get(name)?.to_str().ok()
}

/// The error of a server that sends a file from its beginning when it is asked for a range.
fn whole_file() -> HttpError {
    // There is no use in asking again.
    let text = "the server sends the whole file for a range request, so it cannot serve a chain, \
                whose files are downloaded in parts; use a server that supports range requests, \
                such as nginx or Caddy";
    let error = io::Error::new(io::ErrorKind::Unsupported, text);
    HttpError::new(HttpErrorKind::Unknown, error)
}

/// The server's answer to a range that begins at the end of an object, or beyond.
#[derive(Debug)]
struct BeyondEnd;

impl fmt::Display for BeyondEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HTTP 416: the object ends before the range")
    }
}

impl std::error::Error for BeyondEnd {}

/// True if a range may have been refused because the object is too short. To a range of an empty
/// object, some servers (such as Caddy) answer 200.
pub(crate) fn may_be_too_short(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| {
        let kind = cause.downcast_ref().map(io::Error::kind);
        cause.is::<BeyondEnd>() || kind == Some(io::ErrorKind::Unsupported)
    })
}

/// The text of an element of XML that has no other elements.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    Some(text.split_once(begin)?.1.split_once(end)?.0)
}

/// Checks that a list to which this request belongs, if there is one, goes on for a reason.
fn check_page(uri: &http::Uri) -> Result<(), HttpError> {
    let query = uri.query().unwrap_or_default();
    let checked = LISTING.try_with(|pages| pages.add_page(query));
    checked.unwrap_or(Ok(())).map_err(|why| {
        let refusal = Refusal::new(Meaning::Endless, &why);
        HttpError::new(HttpErrorKind::Unknown, refusal)
    })
}

/// The facts about a request by which its answer is read.
struct RequestFacts {
    /// Number of bytes of the body.
    length: u64,
    /// Number of bytes that it asks for, if it asks for a range.
    range: Option<u64>,
    /// It asks the metadata service for its token.
    is_for_token: bool,
    /// It asks the metadata service for the name of the role.
    is_for_role: bool,
    is_conditional: bool,
}

impl RequestFacts {
    fn new(request: &HttpRequest) -> Self {
        let path = request.uri().path();
        Self {
            length: request.body().content_length() as u64,
            range: length_of_range(request),
            is_for_token: path.ends_with("/latest/api/token"),
            is_for_role: path.ends_with("/security-credentials/"),
            is_conditional: request.headers().contains_key(http::header::IF_NONE_MATCH),
        }
    }
}

/// An answer that goes into the address or the head of the next request. Networks with a login page
/// give that page to all requests, and the crate would panic.
fn word(answer: &[u8]) -> Result<String, HttpError> {
    let text = answer.trim_ascii_end();
    if text.iter().all(u8::is_ascii_graphic) && !text.is_empty() {
        return Ok(String::from_utf8_lossy(text).into_owned());
    }
    let words = "it answers with a page of its own, such as a login page";
    let refusal = Refusal::new(Meaning::NotGiven, words);
    Err(HttpError::new(HttpErrorKind::Decode, refusal))
}

/// Why a request got no answer.
fn unreached(error: HttpError) -> HttpError {
    let tls = causes(&error).find_map(|cause| cause.downcast_ref::<rustls::Error>());
    let meaning = match tls {
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

/// Number of bytes that a request asks for, if it asks for a range.
fn length_of_range(request: &HttpRequest) -> Option<u64> {
    let range = request.headers().get(http::header::RANGE)?.to_str().ok()?;
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    last.parse::<u64>()
        .ok()?
        .checked_sub(first.parse().ok()?)?
        .checked_add(1)
}

/// The beginning of a body, as text. Errors of the body are ignored: the status is enough.
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
