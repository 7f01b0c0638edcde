//! Sends the bodies of uploads, piece by piece, so that it is seen whether they move. Everything
//! else is sent by the client of the `object_store` crate, which does not show that.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{TryFutureExt, stream};
use http_body_util::BodyExt;
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{Error, Result};

use crate::access::pace::Upload;

/// Bodies of requests go in pieces of this length.
pub(crate) const CHUNK: usize = 16 << 10;

/// Timeout for connecting to the server.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Sender(reqwest::Client);

/// A client that sends requests with an [`Upload`] among their extensions. Only the settings count
/// that say how the server is reached.
pub(crate) fn sender(options: &ClientOptions, authorities: &[u8]) -> Result<HttpClient> {
    let failed = |error: reqwest::Error| Error::Generic {
        store: "HTTP client",
        source: error.into(),
    };
    let find = |key| options.get_config_value(&key);
    let is_set = |key| find(key).is_some_and(|value| value == "true");
    let agent = find(ClientConfigKey::UserAgent);
    let certificates = reqwest::Certificate::from_pem_bundle(authorities).map_err(failed)?;
    let mut builder = reqwest::Client::builder()
        .tls_certs_merge(certificates)
        .user_agent(
            agent
                .as_deref()
                .unwrap_or(concat!("deltachain/", env!("CARGO_PKG_VERSION"))),
        )
        .connect_timeout(CONNECT)
        .https_only(!is_set(ClientConfigKey::AllowHttp))
        .tls_danger_accept_invalid_certs(is_set(ClientConfigKey::AllowInvalidCertificates));
    if is_set(ClientConfigKey::Http1Only) {
        builder = builder.http1_only();
    }
    if let Some(url) = find(ClientConfigKey::ProxyUrl) {
        let mut proxy = reqwest::Proxy::all(url).map_err(failed)?;
        if let Some(excludes) = find(ClientConfigKey::ProxyExcludes) {
            proxy = proxy.no_proxy(reqwest::NoProxy::from_string(&excludes));
        }
        builder = builder.proxy(proxy);
    }
    if let Some(certificate) = find(ClientConfigKey::ProxyCaCertificate) {
        let certificate = reqwest::Certificate::from_pem(certificate.as_bytes()).map_err(failed)?;
        builder = builder.tls_certs_merge([certificate]);
    }
    Ok(HttpClient::new(Sender(builder.build().map_err(failed)?)))
}

#[async_trait]
impl HttpService for Sender {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (mut head, mut body) = request.into_parts();
        let url = head.uri.to_string().parse();
        let url = url.map_err(|error| {
            HttpError::new(HttpErrorKind::Unknown, io::Error::other(format!("{error}")))
        })?;
        let mut chunks = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame?.into_data().unwrap_or_default();
            let starts = (0..data.len()).step_by(CHUNK);
            chunks.extend(starts.map(|start| data.slice(start..data.len().min(start + CHUNK))));
        }
        let upload = head
            .extensions
            .remove::<Arc<Upload>>()
            .unwrap_or_else(|| Upload::new(0, &Arc::default()));
        // Each piece is watched from when it is taken until it is dropped, which is when the
        // connection has it.
        let watched = chunks
            .into_iter()
            .map(move |chunk: Bytes| Ok::<_, Infallible>(upload.watch(chunk)));
        let mut request = reqwest::Request::new(head.method, url);
        *request.headers_mut() = head.headers;
        *request.body_mut() = Some(reqwest::Body::wrap_stream(stream::iter(watched)));
        let answer: http::Response<reqwest::Body> =
            self.0.execute(request).map_err(failed).await?.into();
        let (head, body) = answer.into_parts();
        Ok(HttpResponse::from_parts(
            head,
            HttpResponseBody::new(body.map_err(failed)),
        ))
    }
}

fn failed(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else {
        HttpErrorKind::Unknown
    };
    // It may have a signature in it.
    HttpError::new(kind, error.without_url())
}
