//! The pages of `follow`, by HTTP: one small server for metrics and readiness. Requests are
//! bounded, and answered one after the other.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deltachain::{Error, Result};

/// How long, in time and in bytes, a request may be.
const ASKING: Duration = Duration::from_secs(5);
const LONGEST_QUESTION: usize = 8192;

/// A path, and what it shows.
pub(crate) struct Page {
    pub(crate) path: &'static str,
    pub(crate) show: Box<dyn Fn() -> Answer + Send>,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: &'static str,
    /// The type of the body.
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl Answer {
    /// Says whether something is healthy, and if not, why.
    pub(crate) fn of_health<T: AsRef<str>>(problems: &[T]) -> Self {
        let (status, body) = if problems.is_empty() {
            ("200 OK", "healthy".to_owned())
        } else {
            let lines: Vec<&str> = problems.iter().map(AsRef::as_ref).collect();
            ("503 Service Unavailable", lines.join("\n"))
        };
        Self {
            status,
            kind: "text/plain; charset=utf-8",
            body: body + "\n",
        }
    }
}

/// An address that has been taken. Nobody is answered yet.
#[derive(Debug)]
pub(crate) struct Port {
    listener: TcpListener,
    /// With the port that the system has chosen if 0 was asked for.
    pub(crate) address: SocketAddr,
}

impl Port {
    /// # Errors
    /// IO if the address of --listen cannot be had.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let refused = |error| Error::io(format!("opening --listen {address}"), error);
        let listener = TcpListener::bind(address).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address })
    }

    /// Shows these pages from now on.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn serve(self, pages: Vec<Page>) -> Result<HttpServer> {
        let Self { listener, address } = self;
        let ends = Arc::new(AtomicBool::new(false));
        let is_end = Arc::clone(&ends);
        let answering = move || {
            // One after the other: nobody can make the program hold many connections.
            for connection in listener.incoming() {
                match connection {
                    _ if is_end.load(Ordering::Relaxed) => return,
                    // A client that has gone away needs no answer.
                    Ok(connection) => drop(converse(connection, &pages)),
                    // No more files can be open, perhaps: not at once again.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let thread = thread::Builder::new()
            .name("http".to_owned())
            .spawn(answering);
        let thread = thread.map_err(|error| Error::io("starting a thread", error))?;
        Ok(HttpServer {
            address,
            ends,
            thread: Some(thread),
        })
    }
}

/// Answers until it is dropped.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The thread waits for a connection. If none can be made, it ends with the program.
        if TcpStream::connect_timeout(&self.address, ASKING).is_ok() {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

fn converse(mut connection: TcpStream, pages: &[Page]) -> io::Result<()> {
    connection.set_write_timeout(Some(ASKING))?;
    let question = question(&mut connection)?;
    let line = question
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let path = target.split('?').next().unwrap_or_default();
    let page = pages.iter().find(|page| page.path == path);
    let Answer { status, kind, body } = match (method, page) {
        ("GET" | "HEAD", Some(page)) => (page.show)(),
        ("GET" | "HEAD", None) => {
            let paths: Vec<_> = pages.iter().map(|page| page.path).collect();
            Answer {
                status: "404 Not Found",
                kind: "text/plain",
                body: format!("see {}\n", paths.join(", ")),
            }
        }
        _ => Answer {
            status: "405 Method Not Allowed",
            kind: "text/plain",
            body: "only GET\n".to_owned(),
        },
    };
    let length = body.len();
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )?;
    if method == "HEAD" {
        Ok(())
    } else {
        connection.write_all(body.as_bytes())
    }
}

/// All that is asked, up to the empty line.
fn question(connection: &mut TcpStream) -> io::Result<Vec<u8>> {
    let began = Instant::now();
    let (mut bytes, mut part) = (Vec::new(), [0; 1024]);
    loop {
        let left = ASKING.saturating_sub(began.elapsed());
        if left.is_zero() || bytes.len() > LONGEST_QUESTION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        connection.set_read_timeout(Some(left))?;
        let count = connection.read(&mut part)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&part[..count]);
        if bytes.windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(bytes);
        }
    }
}

/// An address such as `127.0.0.1:9464` or `[::1]:9464`; a port alone is one of 127.0.0.1.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse()
        .map_err(|_| "an address is PORT or IP:PORT, such as 9464 or 0.0.0.0:9464".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, question: &str) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(question.as_bytes()).unwrap();
        let mut text = String::new();
        // A refused question may end with a reset.
        let _ = connection.read_to_string(&mut text);
        text
    }

    fn page(path: &'static str) -> Page {
        let show = move || Answer {
            status: "200 OK",
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
        assert!(ask(address, "GET /b?x=y HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nthis is /b"));
        assert!(ask(address, "HEAD /a HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        let missing = ask(address, "GET / HTTP/1.1\r\n\r\n");
        assert!(
            missing.starts_with("HTTP/1.1 404") && missing.ends_with("see /a, /b\n"),
            "{missing}"
        );
        assert!(ask(address, "POST /a HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(3 * LONGEST_QUESTION));
        assert_eq!(ask(address, &long), "");
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
