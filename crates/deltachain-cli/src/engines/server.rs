//! Requests to one server. Its answers are bounded, and it is given up when it takes too long.

use std::io::{self, Read};
use std::time::Duration;

use deltachain::{Error, Result};
use reqwest::Url;
use reqwest::blocking::{Client, RequestBuilder};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use serde_json::Value;

/// How long a server may take to be reached, and to answer a question that costs it nothing.
const QUESTION: Duration = Duration::from_secs(5);

/// No answer is longer.
const ANSWER_BYTES: u64 = 4 << 20;

/// Characters of a refusal that an error quotes.
const QUOTED: usize = 500;

/// An inference server.
#[derive(Debug)]
pub(crate) struct Server {
    /// Without a slash at its end.
    url: String,
    client: Client,
    /// Sent with each request: `Authorization: Bearer TOKEN`.
    token: Option<String>,
    /// For requests that change something.
    timeout: Duration,
}

impl Server {
    /// # Errors
    /// IO if this machine cannot make connections.
    pub(crate) fn new(url: &str, token: Option<String>, timeout: Duration) -> Result<Self> {
        // Clients ask the process for its cryptography. If the store has chosen one before, that stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Servers are near: no proxy, which is for buckets. Nobody sends a token somewhere else.
        let client = Client::builder()
            .connect_timeout(QUESTION)
            .redirect(Policy::none())
            .no_proxy()
            .user_agent(concat!("deltachain/", env!("CARGO_PKG_VERSION")))
            .build();
        let client = client.map_err(|error| Error::io("preparing requests to servers", io::Error::other(error)))?;
        Ok(Self { url: url.to_owned(), client, token, timeout })
    }

    /// Where it is, without a slash at the end.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Asks for something that costs the server nothing.
    ///
    /// # Errors
    /// IO if it does not answer in some seconds, or refuses.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        self.ask(self.client.get(format!("{}{path}", self.url)).timeout(QUESTION), path)
    }

    /// Asks for a change.
    ///
    /// # Errors
    /// IO if it does not answer in time, or refuses.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.client.post(format!("{}{path}", self.url)).timeout(self.timeout);
        self.ask(request.header(CONTENT_TYPE, "application/json").body(body.to_string()), path)
    }

    /// What it answers; nothing if that is no JSON.
    fn ask(&self, mut request: RequestBuilder, path: &str) -> Result<Value> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let path = path.split('?').next().unwrap_or_default();
        let failed = |text: String| {
            Error::io(format!("asking the server for {path}"), io::Error::other(text)).in_file(&self.url)
        };
        let answer = request.send().map_err(|error| failed(cause(&error)))?;
        let status = answer.status();
        let mut bytes = Vec::new();
        let read = answer.take(ANSWER_BYTES).read_to_end(&mut bytes);
        if !status.is_success() {
            let said: String = String::from_utf8_lossy(&bytes).trim().chars().take(QUOTED).collect();
            return Err(failed(format!("refused with {status}: {said}")));
        }
        read.map_err(|error| failed(error.to_string()))?;
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

/// The innermost cause, which says what happened.
fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// `http://HOST:PORT`, also with a path.
pub(crate) fn parse_url(text: &str) -> Result<String, String> {
    let url = Url::parse(text).map_err(|error| format!("{error}; a server is given as http://HOST:PORT"))?;
    let is_good = matches!(url.scheme(), "http" | "https") && url.has_host();
    if !is_good || url.query().is_some() || url.fragment().is_some() {
        return Err("a server is given as http://HOST:PORT".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("no passwords here, where everybody sees them: see --server-token-env".to_owned());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_by_plain_urls() {
        assert_eq!(parse_url("http://127.0.0.1:8000").unwrap(), "http://127.0.0.1:8000");
        assert_eq!(parse_url("https://Gpu-1/vllm/").unwrap(), "https://gpu-1/vllm");
        for text in ["", "gpu-1", "gpu-1:8000", "ftp://a", "http://a?b", "http://a#b", "http://u:p@a"] {
            assert!(parse_url(text).is_err(), "{text}");
        }
    }
}
