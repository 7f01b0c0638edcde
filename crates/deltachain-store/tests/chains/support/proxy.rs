//! A proxy for a server on 127.0.0.1 that injects the faults of networks and servers. One request
//! per connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use deltachain_testkit::Random;

/// Fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The connection is closed before the server gets the request.
    CloseBefore,
    /// The server carries the request out, but the client gets no answer.
    CloseAfter,
    /// Status 500; the request is not carried out.
    ErrorBefore,
    /// Status 500; the request is carried out.
    ErrorAfter,
    /// Status 503 `SlowDown` with `Retry-After: 0`.
    SlowDown,
    /// Status 429, with a `Retry-After` that is not a number.
    TooMany,
    /// Status 403.
    Denied,
    /// Status 404.
    Missing,
    /// The page of a login portal, with status 200.
    Portal,
    /// A redirect to an address where no server listens.
    Redirect,
    /// The answer's body ends in the middle.
    Cut,
    /// The answer has no body.
    Empty,
    /// One bit of the answer's body is flipped.
    Flip,
    /// No answer until the client disconnects.
    Silent,
    /// The request is carried out a second time, after the next one.
    Twice,
}

impl Fault {
    pub(crate) const ALL: [Self; 15] = [
        Self::CloseBefore,
        Self::CloseAfter,
        Self::ErrorBefore,
        Self::ErrorAfter,
        Self::SlowDown,
        Self::TooMany,
        Self::Denied,
        Self::Missing,
        Self::Portal,
        Self::Redirect,
        Self::Cut,
        Self::Empty,
        Self::Flip,
        Self::Silent,
        Self::Twice,
    ];
}

/// A proxy that runs until the program ends.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    plan: Mutex<Plan>,
}

/// Work of other processes while a client sleeps.
type Meanwhile = Box<dyn FnOnce() + Send>;

struct Plan {
    random: Random,
    /// Faults per thousand requests.
    per_thousand: u64,
    injected: BTreeMap<Fault, u64>,
    /// A request that will be carried out again.
    again: Option<Request>,
    bytes_per_second: Option<u32>,
    requests: u64,
    /// Work at the first request that stores an object below this folder, before anything else.
    asleep: Option<(&'static str, Meanwhile)>,
    /// Number of hours by which the dates of answers are ahead.
    hours: u64,
}

/// Bytes of a request.
#[derive(Clone)]
struct Request {
    head: Vec<u8>,
    body: Vec<u8>,
}

impl Proxy {
    /// Starts a proxy for this server, without faults at first.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let plan = Plan {
            random: Random(0),
            per_thousand: 0,
            injected: BTreeMap::new(),
            again: None,
            bytes_per_second: None,
            requests: 0,
            asleep: None,
            hours: 0,
        };
        let shared = Arc::new(Shared {
            server,
            plan: Mutex::new(plan),
        });
        let all = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&all);
                // A client that disconnects is not a fault.
                thread::spawn(move || drop(shared.pass(&stream)));
            }
        });
        Self { address, shared }
    }

    /// From now on, this number of requests in a thousand get a fault. All kinds are about equally
    /// frequent.
    pub(crate) fn storm(&self, seed: u64, per_thousand: u64) {
        let mut plan = self.shared.plan.lock().unwrap();
        plan.random = Random(seed);
        plan.per_thousand = per_thousand;
    }

    /// Limits the rate of bodies from now on, in each direction.
    pub(crate) fn bytes_per_second(&self, bytes: u32) {
        self.shared.plan.lock().unwrap().bytes_per_second = Some(bytes);
    }

    /// Number of requests since the last call.
    pub(crate) fn requests(&self) -> u64 {
        std::mem::take(&mut self.shared.plan.lock().unwrap().requests)
    }

    /// Lets the next client that stores an object below this folder sleep for 25 hours, during
    /// which `meanwhile` runs. Its connection is lost.
    pub(crate) fn sleep_at(&self, folder: &'static str, meanwhile: impl FnOnce() + Send + 'static) {
        self.shared.plan.lock().unwrap().asleep = Some((folder, Box::new(meanwhile)));
    }

    /// Number of injected faults of each kind.
    pub(crate) fn injected(&self) -> BTreeMap<Fault, u64> {
        self.shared.plan.lock().unwrap().injected.clone()
    }
}

impl Shared {
    fn pass(&self, stream: &TcpStream) -> Result<()> {
        let speed = self.plan.lock().unwrap().bytes_per_second;
        let Some(request) = Request::read(stream, speed)? else {
            return Ok(());
        };
        let (fault, number, again) = {
            let mut plan = self.plan.lock().unwrap();
            plan.requests += 1;
            let is_stored = |folder: &str| {
                let line = String::from_utf8_lossy(&request.head);
                let line = line.lines().next().unwrap_or_default();
                line.starts_with("PUT ") && line.contains(&format!("/{folder}/"))
            };
            if plan
                .asleep
                .as_ref()
                .is_some_and(|(folder, _)| is_stored(folder))
                && let Some((_, meanwhile)) = plan.asleep.take()
            {
                plan.hours += 25;
                meanwhile();
                return Ok(());
            }
            let drawn = plan.random.next();
            let fault = (drawn % 1000 < plan.per_thousand).then(|| {
                Fault::ALL[usize::try_from((drawn >> 20) % Fault::ALL.len() as u64).unwrap()]
            });
            if let Some(fault) = fault {
                *plan.injected.entry(fault).or_default() += 1;
            }
            let again = if fault == Some(Fault::Twice) {
                None
            } else {
                plan.again.take()
            };
            (fault, drawn >> 40, again)
        };
        match fault {
            Some(Fault::CloseBefore) => return Ok(()),
            Some(Fault::ErrorBefore) => return status(stream, "500 Internal Server Error", ""),
            Some(Fault::SlowDown) => {
                return status(stream, "503 Slow Down", "Retry-After: 0\r\n");
            }
            Some(Fault::TooMany) => {
                return status(stream, "429 Too Many Requests", "Retry-After: soon\r\n");
            }
            Some(Fault::Denied) => return status(stream, "403 Forbidden", ""),
            Some(Fault::Missing) => return status(stream, "404 Not Found", ""),
            Some(Fault::Redirect) => {
                return status(
                    stream,
                    "307 Temporary Redirect",
                    "Location: http://127.0.0.1:1/x\r\n",
                );
            }
            Some(Fault::Portal) => {
                let page = "<html><body>Please accept our terms</body></html>";
                return write_answer(
                    stream,
                    &format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n",
                        page.len()
                    ),
                    page.as_bytes(),
                    None,
                );
            }
            Some(Fault::Silent) => {
                // Until the client disconnects.
                let mut stream = stream;
                return stream.read(&mut [0]).map(drop);
            }
            Some(Fault::Twice) => self.plan.lock().unwrap().again = Some(request.clone()),
            _ => {}
        }
        let (head, mut body) = request.forward(self.server)?;
        let head = later(&head, self.plan.lock().unwrap().hours);
        if let Some(again) = again {
            drop(again.forward(self.server));
        }
        match fault {
            Some(Fault::CloseAfter) => return Ok(()),
            Some(Fault::ErrorAfter) => return status(stream, "500 Internal Server Error", ""),
            Some(Fault::Cut) => body.truncate(body.len() / 2),
            Some(Fault::Empty) => {
                let line = head.lines().next().unwrap_or_default();
                return write_answer(
                    stream,
                    &format!("{line}\r\nContent-Length: 0\r\n"),
                    b"",
                    None,
                );
            }
            Some(Fault::Flip) if !body.is_empty() => {
                let bit = usize::try_from(number).unwrap() % (body.len() * 8);
                body[bit / 8] ^= 1 << (bit % 8);
            }
            _ => {}
        }
        write_answer(stream, &head, &body, speed)
    }
}

impl Request {
    /// Reads a request. `None` if the client disconnects before it has sent one.
    fn read(stream: &TcpStream, speed: Option<u32>) -> Result<Option<Self>> {
        let mut reader = BufReader::new(stream);
        let Some((head, length)) = read_head(&mut reader)? else {
            return Ok(None);
        };
        let mut body = Vec::new();
        if head.to_ascii_lowercase().contains("expect: 100-continue") {
            let mut stream = stream;
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        match length {
            Length::Bytes(length) => slowly(&mut reader.take(length), speed, |bytes| {
                body.extend_from_slice(bytes);
                Ok(())
            })?,
            Length::Chunked => read_chunks(&mut reader, &mut body)?,
            Length::UntilEnd => {}
        }
        Ok(Some(Self {
            head: head.into_bytes(),
            body,
        }))
    }

    /// Sends the request to the server. Returns the head of the answer without its last line, and
    /// the body.
    fn forward(&self, server: SocketAddr) -> Result<(String, Vec<u8>)> {
        let mut stream = TcpStream::connect(server)?;
        stream.write_all(&self.head)?;
        stream.write_all(b"Connection: close\r\n\r\n")?;
        stream.write_all(&self.body)?;
        let mut reader = BufReader::new(&stream);
        let Some((head, length)) = read_head(&mut reader)? else {
            return Ok((String::new(), Vec::new()));
        };
        let mut body = Vec::new();
        match length {
            Length::Bytes(length) if !self.head.starts_with(b"HEAD ") => {
                reader.take(length).read_to_end(&mut body)?;
            }
            Length::Chunked => read_chunks(&mut reader, &mut body)?,
            Length::UntilEnd | Length::Bytes(_) => {}
        }
        // From here on, the body has a content length.
        let chunked = matches!(length, Length::Chunked);
        let lines = head
            .lines()
            .filter(|line| !line.to_ascii_lowercase().starts_with("transfer-encoding:"));
        let mut head: String = lines.flat_map(|line| [line, "\r\n"]).collect();
        if chunked {
            head.extend(["Content-Length: ", &body.len().to_string(), "\r\n"]);
        }
        Ok((head, body))
    }
}

/// The head with a date that is this many hours later.
fn later(head: &str, hours: u64) -> String {
    let line = |line: &str| match line.split_once(": ") {
        Some((name, date)) if name.eq_ignore_ascii_case("date") => {
            let date = httpdate::parse_http_date(date).unwrap() + Duration::from_hours(hours);
            format!("{name}: {}\r\n", httpdate::fmt_http_date(date))
        }
        _ => format!("{line}\r\n"),
    };
    head.lines().map(line).collect()
}

enum Length {
    Bytes(u64),
    Chunked,
    UntilEnd,
}

/// Reads the lines of a head without `Connection`, and how the body ends.
fn read_head(reader: &mut impl BufRead) -> Result<Option<(String, Length)>> {
    let mut head = String::new();
    let mut length = Length::UntilEnd;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let lower = line.trim_end().to_ascii_lowercase();
        if lower.is_empty() {
            return Ok(Some((head, length)));
        }
        if let Some(bytes) = lower.strip_prefix("content-length:") {
            length = Length::Bytes(bytes.trim().parse().unwrap_or(0));
        }
        if lower.starts_with("transfer-encoding:") {
            length = Length::Chunked;
        }
        if !lower.starts_with("connection:") {
            head += &line;
        }
    }
}

/// Reads the content of a chunked body.
fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let length =
            u64::from_str_radix(line.trim().split(';').next().unwrap_or("0"), 16).unwrap_or(0);
        reader.take(length).read_to_end(body)?;
        reader.read_line(&mut String::new())?;
        if length == 0 {
            return Ok(());
        }
    }
}

fn status(stream: &TcpStream, status: &str, line: &str) -> Result<()> {
    write_answer(
        stream,
        &format!("HTTP/1.1 {status}\r\n{line}Content-Length: 0\r\n"),
        b"",
        None,
    )
}

/// Writes an answer. `head` does not have its final empty line yet.
fn write_answer(mut stream: &TcpStream, head: &str, body: &[u8], speed: Option<u32>) -> Result<()> {
    stream.write_all(head.as_bytes())?;
    stream.write_all(b"Connection: close\r\n\r\n")?;
    slowly(&mut &*body, speed, |bytes| stream.write_all(bytes))?;
    stream.shutdown(Shutdown::Write)
}

/// Copies bytes at a limited rate per second.
fn slowly(
    from: &mut impl Read,
    speed: Option<u32>,
    mut to: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; 1 << 10];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        if let Some(speed) = speed {
            thread::sleep(Duration::from_secs(1) * u32::try_from(count).unwrap() / speed);
        }
        to(&buffer[..count])?;
    }
}
