//! All that goes to a server and comes from it passes here. A server is not trusted: its answers are bounded, and it is
//! given up when nothing moves. A busy one is left alone as long as it wants.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::Result;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};
use tokio::time::timeout_at;

use crate::access::answer::{Answer, too_late};
use crate::access::opened::Dates;
use crate::access::options::{IN_PARTS, StoreOptions};
use crate::access::pace::{Buffered, RetryAfter, Upload};
use crate::access::rate::Rate;
use crate::access::refusal::Refusal;
use crate::access::sender::sender;

/// An answer that is not a range of an object is a document, or one page of a list: 1,000 names, or 5,000 with Azure, each of at
/// most 1 KiB and what belongs to it. More than any document of which the store wants to know only that it is too long.
const ANSWER_BYTES: u64 = 32 << 20;

/// What is read of the body of a refusal. It is shown to people.
const REFUSAL_BYTES: usize = 16 << 10;

/// Makes the clients of a store, which share the rate and what the server has said.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    options: Arc<StoreOptions>,
    rate: Option<Arc<Rate>>,
    earliest: Arc<RetryAfter>,
    buffered: Arc<Buffered>,
    /// How many clients have been made.
    clients: Arc<AtomicUsize>,
    /// What the store's answers say of its time.
    pub(crate) dates: Arc<Dates>,
}

impl Connector {
    pub(crate) fn new(options: &StoreOptions) -> Self {
        // Clients ask the process for its cryptography. If the program has chosen one before, that stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let rate = options.max_rate.map(|rate| Arc::new(Rate::new(rate)));
        Self {
            options: Arc::new(options.clone()),
            rate,
            earliest: Arc::new(RetryAfter::new()),
            buffered: Arc::default(),
            clients: Arc::default(),
            dates: Arc::default(),
        }
    }

    fn watch(&self, inner: HttpClient, uploads: HttpClient) -> HttpClient {
        let number = self.clients.fetch_add(1, Ordering::Relaxed) + 1;
        HttpClient::new(Watched { inner, uploads, number, shared: self.clone() })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        Ok(self.watch(ReqwestConnector::default().connect(options)?, sender(options)?))
    }
}

/// A client whose requests are watched.
#[derive(Debug)]
struct Watched {
    inner: HttpClient,
    /// For what has a body of some length.
    uploads: HttpClient,
    /// Counted from 1.
    number: usize,
    shared: Connector,
}

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let options = &self.shared.options;
        // Whoever asks for these could not repeat them: not a part without beginning the upload again, and the thread that
        // waits for credentials may be in the middle of one.
        let is_in_parts = IN_PARTS.try_with(|()| ()).is_ok();
        let attempts = if is_in_parts || self.is_for_credentials() { options.attempts } else { 1 };
        let mut attempt = 1;
        loop {
            let answer = self.once(request.clone()).await;
            let may_pass = match &answer {
                Ok(answer) => answer.status().is_server_error() || matches!(answer.status().as_u16(), 408 | 429),
                // Where nobody listens there is no service that gives credentials.
                Err(error) => !self.is_for_credentials() || error.kind() != HttpErrorKind::Connect,
            };
            if !may_pass || attempt >= attempts {
                return answer;
            }
            tokio::time::sleep(options.pause_after(attempt)).await;
            attempt += 1;
        }
    }
}

impl Watched {
    /// Whether it asks a provider for credentials: the last client that a store makes is the one for its objects.
    fn is_for_credentials(&self) -> bool {
        self.number < self.shared.clients.load(Ordering::Relaxed)
    }

    async fn once(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let Connector { options, rate, earliest, buffered, dates, .. } = &self.shared;
        earliest.wait().await;
        let length = request.body().content_length();
        if let Some(rate) = rate.as_ref().filter(|_| length > 0) {
            tokio::time::sleep_until(rate.take(length as u64).0).await;
        }
        let range = length_of_range(&request);
        let is_for_credentials = self.is_for_credentials();
        let is_service = is_for_credentials && is_service(&request);
        let hides_refusals = is_for_credentials || is_list(&request);
        let upload = Upload::new(length, buffered);
        // What is short is one piece, and goes at once.
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
                break answer.map_err(|error| no_service(is_service, error))?;
            }
            if upload.deadline(options.timeout) <= deadline {
                return Err(no_service(is_service, too_late(options.timeout)));
            }
        };
        let (head, body) = answer.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        // A refusal may come from something that stands before the store, and has a clock of its own.
        if let Some(date) = header(http::header::DATE).filter(|_| !is_for_credentials && head.status.is_success()) {
            httpdate::parse_http_date(date).into_iter().for_each(|date| dates.note(date));
        }
        if matches!(head.status.as_u16(), 429 | 503)
            && let Some(retry_after) = header(http::header::RETRY_AFTER)
        {
            earliest.not_before(retry_after, header(http::header::DATE));
        }
        if range.is_some() && head.status == http::StatusCode::OK {
            return Err(HttpError::new(HttpErrorKind::Unknown, knows_no_ranges()));
        }
        let body = if head.status.is_success() {
            let most = range.unwrap_or(ANSWER_BYTES);
            HttpResponseBody::new(Answer::new(body, most, options.timeout, rate.clone()))
        } else {
            let text = beginning(Answer::new(body, u64::MAX, options.timeout, None)).await;
            if let Some(refusal) = refusal(is_service, head.status).filter(|_| hides_refusals) {
                let text = format!("Server returned non-2xx status code: {}: {text}", head.status);
                return Err(HttpError::new(HttpErrorKind::Unknown, refusal(text)));
            }
            text.into()
        };
        Ok(HttpResponse::from_parts(head, body))
    }
}

/// What a request for a range fails with if the server does not look at the range. There is no use in asking again.
fn knows_no_ranges() -> io::Error {
    let text = "the server sends the whole file when it is asked for a part of it (range request): it cannot show a \
                chain, whose files are fetched in parts; take one that can, such as nginx or Caddy";
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Whether it asks the machine's own service for credentials, in the way of today.
fn is_service(request: &HttpRequest) -> bool {
    request.uri().path().ends_with("/latest/api/token")
}

/// Whether it asks for a list: of S3 and Google, or of Azure.
fn is_list(request: &HttpRequest) -> bool {
    let mut settings = request.uri().query().unwrap_or_default().split('&');
    settings.any(|setting| setting.starts_with("list-type=") || setting == "comp=list")
}

/// Which refusal a status is, of requests for which `object_store` would hide it.
fn refusal(is_service: bool, status: http::StatusCode) -> Option<fn(String) -> Refusal> {
    match status.as_u16() {
        // By this `object_store` learns that it may ask in the older way.
        403 if is_service => None,
        _ if is_service => Some(Refusal::NoService),
        401 | 403 => Some(Refusal::Credentials),
        _ => None,
    }
}

/// Why a request got no answer.
fn no_service(is_service: bool, error: HttpError) -> HttpError {
    if !is_service {
        return error;
    }
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |&error| error.source());
    let text: Vec<String> = causes.map(ToString::to_string).collect();
    HttpError::new(error.kind(), Refusal::NoService(text.join(": ")))
}

/// Why a server could not be reached, if that was it.
pub(crate) fn kind_of(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.filter_map(|cause| cause.downcast_ref::<HttpError>()).find_map(|cause| match cause.kind() {
        HttpErrorKind::Connect => Some(io::ErrorKind::HostUnreachable),
        HttpErrorKind::Timeout => Some(io::ErrorKind::TimedOut),
        _ => None,
    })
}

/// How many bytes a request asks for, if it asks for a range.
fn length_of_range(request: &HttpRequest) -> Option<u64> {
    let range = request.headers().get(http::header::RANGE)?.to_str().ok()?;
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
}

/// The beginning of a body, as text. That it does not come is not a reason to forget the status.
async fn beginning(mut body: Answer) -> String {
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
