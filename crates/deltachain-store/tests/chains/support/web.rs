//! A plain web server on 127.0.0.1 for the files of a directory, with or without ranges. It has no
//! lists.

use std::fs;
use std::io::{BufRead, BufReader, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Content that a server sends for the path of a file that does not exist; `None` for 404.
pub(crate) type Fallback = fn(&str) -> Option<&'static [u8]>;

/// A server that runs until the program ends.
pub(crate) struct WebServer {
    address: SocketAddr,
    requests: Arc<AtomicU64>,
}

impl WebServer {
    pub(crate) fn start(directory: &Path) -> Self {
        Self::serve(directory, true, |_| None)
    }

    /// Starts a server that may send some content, with 200, for paths of files that do not exist.
    pub(crate) fn with_fallback(directory: &Path, fallback: Fallback) -> Self {
        Self::serve(directory, true, fallback)
    }

    /// Starts a server that ignores ranges and sends whole files.
    pub(crate) fn without_ranges(directory: &Path) -> Self {
        Self::serve(directory, false, |_| None)
    }

    fn serve(directory: &Path, knows_ranges: bool, fallback: Fallback) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let directory = directory.to_owned();
        let count = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let directory = directory.clone();
                let count = Arc::clone(&count);
                // A client that disconnects is not a fault.
                thread::spawn(move || {
                    drop(answer(&stream, &directory, knows_ranges, fallback, &count));
                });
            }
        });
        Self { address, requests }
    }

    /// URL of a path below the directory.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Number of requests.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Answers the one request of a connection.
fn answer(
    mut stream: &TcpStream,
    directory: &Path,
    knows_ranges: bool,
    fallback: Fallback,
    requests: &AtomicU64,
) -> Result<()> {
    requests.fetch_add(1, Ordering::Relaxed);
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut range = None;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        match line.strip_prefix("range: bytes=") {
            Some(text) => {
                range = text
                    .split_once('-')
                    .map(|(from, to)| (number(from), number(to)));
            }
            None if line.is_empty() => break,
            None => {}
        }
    }
    let mut words = request.split(' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default();
    let content = match file(directory, path) {
        Some(path) if method == "GET" => fs::read(path).ok(),
        _ => None,
    };
    let content = content.or_else(|| fallback(path).map(<[u8]>::to_vec));
    let Some(content) = content else {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    };
    let (status, place, body) = match range {
        Some((from, to)) if knows_ranges => {
            let end = content.len().min(to + 1);
            let place = format!(
                "Content-Range: bytes {from}-{}/{}\r\n",
                end - 1,
                content.len()
            );
            ("206 Partial Content", place, &content[from..end])
        }
        _ => ("200 OK", String::new(), &content[..]),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{place}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(body)
}

fn number(text: &str) -> usize {
    text.trim().parse().unwrap()
}

fn file(directory: &Path, path: &str) -> Option<PathBuf> {
    let path = object_store::path::Path::from_url_path(path).ok()?;
    Some(directory.join(path.as_ref())).filter(|path| path.is_file())
}
