//! A small HTTP server for the pages of `follow` and `mirror`: metrics, health and readiness.
//! Requests are limited in time and size, and answered one after another.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use deltachain::{Error, Result};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime::{self, Runtime};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Limits of a request, in time and in bytes.
const ASKING: Duration = Duration::from_secs(5);
const LONGEST_QUESTION: usize = 8192;

/// Time limit of a connection. Some pages poll servers first, which takes some seconds.
const CONNECTION: Duration = Duration::from_secs(30);

/// A page: its path, and the function that makes its content.
pub(crate) struct Page {
    pub(crate) path: &'static str,
    pub(crate) show: Box<dyn Fn() -> Answer + Send + Sync>,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The type of the body.
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl Answer {
    /// Answers whether something is healthy, with the problems if it is not.
    pub(crate) fn of_health<T: AsRef<str>>(problems: &[T]) -> Self {
        let (status, mut body) = if problems.is_empty() {
            (StatusCode::OK, "healthy".to_owned())
        } else {
            let lines: Vec<&str> = problems.iter().map(AsRef::as_ref).collect();
            (StatusCode::SERVICE_UNAVAILABLE, lines.join("\n"))
        };
        body.push('\n');
        text_answer(status, body)
    }
}

impl Answer {
    /// Answers with a JSON document.
    pub(crate) fn of_json(value: &serde_json::Value) -> Self {
        Self {
            status: StatusCode::OK,
            kind: "application/json",
            body: value.to_string(),
        }
    }
}

/// A bound address, before requests are answered.
#[derive(Debug)]
pub(crate) struct Port {
    listener: TcpListener,
    /// The address, with the port that the system has chosen if the requested port was 0.
    pub(crate) address: SocketAddr,
}

impl Port {
    /// # Errors
    /// IO if the address of --listen cannot be bound.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let refused = |error| Error::io(format!("opening --listen {address}"), error);
        let listener = TcpListener::bind(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address })
    }

    /// Serves these pages from now on.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn serve(self, pages: Vec<Page>) -> Result<HttpServer> {
        let failed = |error| Error::io("starting the server of --listen", error);
        self.listener.set_nonblocking(true).map_err(failed)?;
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(failed)?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(self.listener).map_err(failed)?
        };
        runtime.spawn(answer_all(listener, Arc::new(pages)));
        Ok(HttpServer {
            runtime: Some(runtime),
        })
    }
}

/// A server that answers requests until it is dropped.
#[derive(Debug)]
pub(crate) struct HttpServer {
    /// The runtime; `None` only while this is dropped.
    runtime: Option<Runtime>,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(ASKING);
        }
    }
}

async fn answer_all(listener: tokio::net::TcpListener, pages: Arc<Vec<Page>>) {
    // Connections are served one after another, so that clients cannot make the program hold many.
    loop {
        let Ok((connection, _)) = listener.accept().await else {
            // The limit of open files may have been reached, so this waits before the next attempt.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = service_fn(|request| answer(request, Arc::clone(&pages)));
        let conversation = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(ASKING)
            .max_buf_size(LONGEST_QUESTION)
            .keep_alive(false)
            .serve_connection(TokioIo::new(connection), service);
        // A client that has disconnected, or does not read, needs no answer.
        drop(timeout(CONNECTION, conversation).await);
    }
}

async fn answer(
    request: Request<Incoming>,
    pages: Arc<Vec<Page>>,
) -> Result<Response<String>, Infallible> {
    let is_question = [Method::GET, Method::HEAD].contains(request.method());
    let path = request.uri().path();
    let answer = match pages.iter().position(|page| page.path == path) {
        _ if !is_question => text_answer(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
        None => {
            let paths: Vec<_> = pages.iter().map(|page| page.path).collect();
            text_answer(StatusCode::NOT_FOUND, format!("see {}\n", paths.join(", ")))
        }
        Some(page) => {
            // A page may block while it polls servers.
            let shown = spawn_blocking(move || (pages[page].show)()).await;
            shown.unwrap_or_else(|error| {
                text_answer(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
            })
        }
    };
    let mut response = Response::new(answer.body);
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn text_answer(status: StatusCode, body: String) -> Answer {
    Answer {
        status,
        kind: "text/plain; charset=utf-8",
        body,
    }
}

/// Parses an address such as `127.0.0.1:9464` or `[::1]:9464`. A port alone is a port of 127.0.0.1.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse()
        .map_err(|_| "an address must be PORT or IP:PORT, such as 9464 or 0.0.0.0:9464".to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    fn ask(address: SocketAddr, question: &str) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(question.as_bytes()).unwrap();
        let mut text = String::new();
        // The connection of a refused request may end with a reset.
        let _ = connection.read_to_string(&mut text);
        text
    }

    fn page(path: &'static str) -> Page {
        let show = move || Answer {
            status: StatusCode::OK,
            kind: "text/plain",
            body: format!("this is {path}"),
        };
        Page {
            path,
            show: Box::new(show),
        }
    }

    #[test]
    fn pages_are_shown_and_questions_are_bounded() {
        let port = Port::open(parse_address("0").unwrap()).unwrap();
        let address = port.address;
        assert!(address.ip().is_loopback());
        let server = port.serve(vec![page("/a"), page("/b")]).unwrap();
        assert!(
            ask(address, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n")
        );
        assert!(
            ask(address, "GET /b?x=y HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\r\n\r\nthis is /b")
        );
        assert!(ask(address, "HEAD /a HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        let missing = ask(address, "GET / HTTP/1.1\r\n\r\n");
        assert!(
            missing.starts_with("HTTP/1.1 404") && missing.ends_with("see /a, /b\n"),
            "{missing}"
        );
        assert!(ask(address, "POST /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(3 * LONGEST_QUESTION));
        assert!(ask(address, &long).starts_with("HTTP/1.1 431"));
        assert!(Port::open(address).is_err(), "the port is taken");
        drop(server);
        assert_eq!(Port::open(address).unwrap().address, address);
    }

    #[test]
    fn addresses_are_of_this_machine_unless_said() {
        assert_eq!(parse_address("9464").unwrap().to_string(), "127.0.0.1:9464");
        assert_eq!(parse_address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert_eq!(parse_address("[::1]:1").unwrap().to_string(), "[::1]:1");
        for text in ["", "70000", "localhost:1", "1.2.3.4", ":1"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}
