//! All that goes to a server and comes from it passes here. A server is not trusted: its answers
//! are bounded, and it is given up when nothing moves. A busy one is left alone as long as it
//! wants.

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
use crate::access::opened::LastDate;
use crate::access::options::{IN_PARTS, StoreOptions};
use crate::access::pace::{RetryAfter, UploadTimes, lock};
use crate::access::pages::LISTING;
use crate::access::rate::Rate;
use crate::access::refusal::{Meaning, Refusal, causes, told};

/// An answer that is not a range of an object is a document, or one page of a list: 1,000 names, or
/// 5,000 with Azure, each of at most 1 KiB and what belongs to it. More than any document of which
/// the store wants to know only that it is too long.
const ANSWER_BYTES: u64 = 32 << 20;

/// The most bytes that are read of the body of a refusal. They are shown to people.
const REFUSAL_BYTES: usize = 16 << 10;

/// The most bytes that a service for credentials may answer.
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

/// Makes the clients of a store, which share the rate and what the server has said.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    options: Arc<StoreOptions>,
    /// Certificates in PEM that are trusted besides those of the machine.
    authorities: Arc<[u8]>,
    rate: Option<Arc<Rate>>,
    earliest: Arc<RetryAfter>,
    uploads: Arc<UploadTimes>,
    purpose: Purpose,
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

    /// The same connector for clients that make other requests, of another server.
    #[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
    pub(crate) fn with_purpose(&self, purpose: Purpose) -> Self {
        Self {
            purpose,
            earliest: Arc::default(),
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
        let options = &self.shared.options;
        // Their callers could not repeat these: a part not without beginning the upload again, and
        // the thread that waits for credentials may be in the middle of one.
        let is_in_parts = IN_PARTS.try_with(|()| ()).is_ok();
        let is_repeated = is_in_parts || matches!(self.shared.purpose, Purpose::Credentials { .. });
        let attempts = if is_repeated { options.attempts } else { 1 };
        let mut attempt = 1;
        loop {
            let answer = self.once(request.clone()).await;
            let may_pass = match &answer {
                Ok(answer) => {
                    answer.status().is_server_error()
                        || matches!(answer.status().as_u16(), 408 | 429)
                }
                Err(error) => self.may_pass(error),
            };
            if !may_pass || attempt >= attempts {
                return answer;
            }
            if let Err(error) = &answer {
                let refusal = Refusal::of(error);
                let words = refusal.map_or_else(|| told(error), |refusal| refusal.words.clone());
                *lock(&self.shared.last_failure) = Some(words);
            }
            tokio::time::sleep(options.pause_after(attempt)).await;
            attempt += 1;
        }
    }
}

impl WatchedClient {
    /// True if it makes sense to ask again after this failure.
    fn may_pass(&self, error: &HttpError) -> bool {
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
        request: &Asked,
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
            408 | 429 | 500.. => Some(Meaning::Service),
            400..=499 if code.starts_with("Expired") => Some(Meaning::Expired),
            _ => Some(Meaning::NotGiven),
        }
    }

    async fn once(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let Connector {
            options,
            rate,
            earliest,
            uploads,
            ..
        } = &self.shared;
        earliest.wait().await;
        let length = request.body().content_length() as u64;
        if let Some(rate) = rate
            && length > 0
        {
            tokio::time::sleep_until(rate.take(length).0).await;
        }
        let range = length_of_range(&request);
        let is_for_credentials = matches!(self.shared.purpose, Purpose::Credentials { .. });
        let path = request.uri().path();
        let asked = Asked {
            is_for_token: path.ends_with("/latest/api/token"),
            is_for_role: path.ends_with("/security-credentials/"),
            is_conditional: request.headers().contains_key(http::header::IF_NONE_MATCH),
        };
        let upload = uploads.begin(length);
        let mut answer = pin!(self.inner.execute(request));
        let answer = loop {
            let deadline = upload.deadline(options.timeout);
            if let Ok(answer) = timeout_at(deadline, &mut answer).await {
                break answer.map_err(unreached)?;
            }
            if upload.deadline(options.timeout) <= deadline {
                upload.timed_out();
                return Err(too_late(options.timeout));
            }
        };
        if answer.status().is_success() {
            upload.succeeded();
        }
        let (head, body) = answer.into_parts();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
        // A refusal may come from something that stands before the store, and has a clock of its
        // own.
        if !is_for_credentials
            && head.status.is_success()
            && let Some(date) = header(http::header::DATE)
            && let Ok(date) = httpdate::parse_http_date(date)
        {
            *lock(&self.shared.date) = Some(date);
        }
        if matches!(head.status.as_u16(), 429 | 503)
            && let Some(retry_after) = header(http::header::RETRY_AFTER)
        {
            earliest.not_before(retry_after, header(http::header::DATE));
        }
        if range.is_some() && head.status == http::StatusCode::OK {
            // There is no use in asking again.
            let text = "the server sends the whole file for a range request, so it cannot serve a \
                        chain, whose files are downloaded in parts; use a server that supports \
                        range requests, such as nginx or Caddy";
            let error = io::Error::new(io::ErrorKind::Unsupported, text);
            return Err(HttpError::new(HttpErrorKind::Unknown, error));
        }
        let body = if head.status.is_success() && is_for_credentials {
            let body = bounded(body, CREDENTIALS_BYTES, options.timeout, None);
            if asked.is_for_token || asked.is_for_role {
                word(&body.bytes().await?)?.into()
            } else {
                body
            }
        } else if head.status.is_success() {
            let most = range.unwrap_or(ANSWER_BYTES);
            bounded(body, most, options.timeout, rate.clone())
        } else {
            let text = beginning(bounded(body, u64::MAX, options.timeout, None)).await;
            let code = between(&text, "<Code>", "</Code>").unwrap_or_default();
            let region = header(http::HeaderName::from_static("x-amz-bucket-region"));
            let meaning = self.meaning(&asked, head.status.as_u16(), code, region.is_some());
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

/// Checks that a list to which this request belongs, if there is one, goes on for a reason.
fn check_page(uri: &http::Uri) -> Result<(), HttpError> {
    let query = uri.query().unwrap_or_default();
    let checked = LISTING.try_with(|pages| pages.add_page(query));
    checked.unwrap_or(Ok(())).map_err(|why| {
        let refusal = Refusal::new(Meaning::Endless, &why);
        HttpError::new(HttpErrorKind::Unknown, refusal)
    })
}

/// A request for which more has to be known than its answer.
struct Asked {
    /// It asks the metadata service for its token.
    is_for_token: bool,
    /// It asks the metadata service for the name of the role.
    is_for_role: bool,
    is_conditional: bool,
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
