//! Requests to one server, with bounded answers and timeouts.
//!
//! The server may have carried out a request whose connection broke. Requests that may be carried
//! out twice are sent once more.

use std::io::{self, Read};
use std::time::Duration;

use deltachain::{Error, Result};
use reqwest::blocking::{Client, ClientBuilder, RequestBuilder};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{StatusCode, Url};
use serde_json::Value;

/// Timeout for connecting to a server, and for a request that costs the server nothing.
const QUESTION: Duration = Duration::from_secs(5);

/// Timeout for asking a server for its version while a client waits for the answer, and while the
/// server is being updated and may be too busy to answer.
const GLANCE: Duration = Duration::from_secs(2);
const GLANCE_WHILE_CHANGING: Duration = Duration::from_millis(250);

/// Maximum length of an answer.
const ANSWER_BYTES: u64 = 4 << 20;

/// Maximum number of characters of a refusal that an error quotes.
const QUOTED: usize = 500;

/// Kind of a request to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A request that costs the server nothing: its timeout is a few seconds.
    Question,
    /// A change, or a part of one, that may be made twice: the request is sent once more if its
    /// connection breaks.
    Change,
    /// A change that must not be made twice.
    Once,
}

/// An inference server.
#[derive(Debug)]
pub struct Server {
    /// URL of the server, without a slash at the end.
    pub(crate) url: String,
    client: Client,
    /// Sent with each request: `Authorization: Bearer TOKEN`.
    token: Option<String>,
    /// Timeout for requests that change something.
    pub(crate) timeout: Duration,
}

impl Server {
    /// Makes a server from a URL of [`parse_url`], an optional token, and a timeout for each
    /// request that changes something.
    ///
    /// # Errors
    /// IO if this machine cannot make connections.
    pub fn new(url: &str, token: Option<String>, timeout: Duration) -> Result<Self> {
        let client = new_client(|builder| builder.connect_timeout(QUESTION))?;
        Ok(Self {
            url: url.to_owned(),
            client,
            token,
            timeout,
        })
    }

    /// # Errors
    /// IO if the server does not answer in time, or refuses.
    pub(crate) fn get(&self, path: &str, ask: Ask) -> Result<Value> {
        self.ask(path, None, ask)
    }

    /// Returns the server's answer to a question while a client waits; `None` if the server does
    /// not answer in time, or refuses.
    ///
    /// # Errors
    /// Errors of the connection.
    pub(crate) fn glance(&self, path: &str, is_changing: bool) -> io::Result<Option<Value>> {
        let timeout = self.timeout.min(if is_changing {
            GLANCE_WHILE_CHANGING
        } else {
            GLANCE
        });
        match self.send(path, None, timeout) {
            Ok((status, bytes)) if status.is_success() => {
                Ok(Some(serde_json::from_slice(&bytes).unwrap_or_default()))
            }
            Ok(_) => Ok(None),
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// True if the server answers a request in this time, and does not refuse it.
    pub(crate) fn responds(&self, path: &str, time: Duration) -> bool {
        self.send(path, None, self.timeout.min(time))
            .is_ok_and(|(status, _)| status.is_success())
    }

    pub(crate) fn post(&self, path: &str, body: &Value, ask: Ask) -> Result<Value> {
        self.ask(path, Some(body), ask)
    }

    /// Sends a request whose answer does not matter. Returns the server's text if it refuses.
    ///
    /// # Errors
    /// IO if the server does not answer in time.
    pub(crate) fn refusal(&self, path: &str, body: &Value, ask: Ask) -> Result<Option<String>> {
        let (status, bytes) = self.answer(path, Some(body), ask)?;
        Ok((!status.is_success()).then(|| refusal(&bytes)))
    }

    /// Returns the server's answer, or null if the answer is not JSON.
    fn ask(&self, path: &str, body: Option<&Value>, ask: Ask) -> Result<Value> {
        let (status, bytes) = self.answer(path, body, ask)?;
        if !status.is_success() {
            return Err(self.failed(path, format!("refused with {status}: {}", refusal(&bytes))));
        }
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Sends a request, once more if its connection breaks and the kind allows that.
    fn answer(&self, path: &str, body: Option<&Value>, ask: Ask) -> Result<(StatusCode, Vec<u8>)> {
        let timeout = if ask == Ask::Question {
            self.timeout.min(QUESTION)
        } else {
            self.timeout
        };
        let send = || self.send(path, body, timeout);
        let answer = match send() {
            Err(error) if ask != Ask::Once && !is_timeout(&error) => send(),
            answer => answer,
        };
        answer.map_err(|error| self.failed(path, cause(&error)))
    }

    /// Sends a request and reads the answer.
    fn send(
        &self,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> io::Result<(StatusCode, Vec<u8>)> {
        let url = format!("{}{path}", self.url);
        let request = match body {
            None => self.client.get(&url),
            Some(body) => self
                .client
                .post(&url)
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string()),
        };
        let request = self
            .token
            .iter()
            .fold(request, RequestBuilder::bearer_auth)
            .timeout(timeout);
        let answer = request.send().map_err(io::Error::other)?;
        let status = answer.status();
        let mut bytes = Vec::new();
        answer.take(ANSWER_BYTES).read_to_end(&mut bytes)?;
        Ok((status, bytes))
    }

    /// Makes an error of class IO.
    pub(crate) fn failed(&self, path: &str, text: impl Into<String>) -> Error {
        let path = path.split('?').next().unwrap_or_default();
        Error::io(
            format!("asking the server for {path}"),
            io::Error::other(text.into()),
        )
        .in_file(&self.url)
    }
}

/// Makes an HTTP client for servers and followers of the same network, with these timeouts.
///
/// # Errors
/// IO if this machine cannot make connections.
pub(crate) fn new_client(
    with_timeouts: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<Client> {
    // The HTTP client uses the cryptography that is installed for the process. If the store has
    // installed one before, that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Servers are in the same network, so no proxy is used. Redirects are refused, so a token is
    // never sent elsewhere. Connections are not reused: vLLM closes a connection after an error,
    // and loses requests that are sent on it in the meantime.
    let builder = Client::builder()
        .pool_max_idle_per_host(0)
        .redirect(Policy::none())
        .no_proxy()
        .user_agent(concat!("deltachain/", env!("CARGO_PKG_VERSION")));
    with_timeouts(builder)
        .build()
        .map_err(|error| Error::io("preparing requests to servers", io::Error::other(error)))
}

/// Returns the text of a refusal's body, without the text that vLLM puts around it
/// (`v1/engine/core.py` and `v1/executor/multiproc_executor.py`).
fn refusal(bytes: &[u8]) -> String {
    let body: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let whole = String::from_utf8_lossy(bytes);
    let mut text = body["error"]["message"].as_str().unwrap_or(&whole).trim();
    for (before, after) in [
        ("Call to collective_rpc method failed: ", ""),
        (
            "Worker failed with error '",
            "', please check the stack trace above for the root cause",
        ),
    ] {
        text = text
            .strip_prefix(before)
            .and_then(|text| text.strip_suffix(after))
            .unwrap_or(text);
    }
    text.chars().take(QUOTED).collect()
}

fn is_timeout(error: &io::Error) -> bool {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<reqwest::Error>());
    inner.is_some_and(reqwest::Error::is_timeout)
}

/// Returns the text of the innermost cause, which says what happened.
fn cause(error: &io::Error) -> String {
    if is_timeout(error) {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Checks the URL of a server, `http://HOST:PORT`, optionally with a path; removes the slash at its
/// end.
///
/// # Errors
/// A text for people that says what is wrong with the URL.
pub fn parse_url(text: &str) -> Result<String, String> {
    let url = Url::parse(text).map_err(|error| format!("{error}; write http://HOST:PORT"))?;
    let is_good = matches!(url.scheme(), "http" | "https") && url.has_host();
    if !is_good || url.query().is_some() || url.fragment().is_some() {
        return Err("a server must be given as http://HOST:PORT".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "the address must not have a password, since others could see it; use \
             DELTACHAIN_SERVER_TOKEN"
                .to_owned(),
        );
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_the_worker_said() {
        let wrapped = "Call to collective_rpc method failed: Worker failed with error 'no chain', \
                       please check the stack trace above for the root cause";
        let body =
            serde_json::json!({ "error": { "message": wrapped, "type": "InternalServerError" } });
        assert_eq!(refusal(body.to_string().as_bytes()), "no chain");
        for (body, said) in [
            (" no JSON ", "no JSON"),
            (r#"{"detail":"x"}"#, r#"{"detail":"x"}"#),
            (
                r#"{"error":{"message":"Call to collective_rpc method failed: one worker"}}"#,
                "one worker",
            ),
            (
                "Worker failed with error 'x', and more",
                "Worker failed with error 'x', and more",
            ),
        ] {
            assert_eq!(refusal(body.as_bytes()), said);
        }
    }

    #[test]
    fn servers_are_named_by_plain_urls() {
        assert_eq!(
            parse_url("http://127.0.0.1:8000").unwrap(),
            "http://127.0.0.1:8000"
        );
        assert_eq!(
            parse_url("https://Gpu-1/vllm/").unwrap(),
            "https://gpu-1/vllm"
        );
        for text in [
            "",
            "gpu-1",
            "gpu-1:8000",
            "ftp://a",
            "http://a?b",
            "http://a#b",
            "http://u:p@a",
        ] {
            assert!(parse_url(text).is_err(), "{text}");
        }
    }
}
