//! What `follow --metrics` shows to Prometheus, by HTTP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use deltachain_store::Switched;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::operation::records::FollowStatus;

/// How long, in time and in bytes, a request for the metrics may be.
const ASKING: Duration = Duration::from_secs(5);
const LONGEST_QUESTION: usize = 8192;

type Number = Gauge<i64>;
type Seconds = Gauge<f64, AtomicU64>;
type SecondsSum = Counter<f64, AtomicU64>;
/// A label: its name and value.
type Label = [(&'static str, String); 1];
/// A server and how a try ended.
type ServerResult = [(&'static str, String); 2];

/// Numbers about following.
#[derive(Debug, Default, Clone)]
pub(crate) struct Metrics {
    version: Number,
    head: Number,
    lag: Number,
    newest: Seconds,
    last_look: Seconds,
    last_success: Seconds,
    looks: Counter,
    failures: Family<Label, Counter>,
    switches: Counter,
    rollbacks: Counter,
    downloaded: Counter,
    from_cache: Counter,
    written: Counter,
    phases: Family<Label, SecondsSum>,
    command_runs: Family<Label, Counter>,
    command_seconds: SecondsSum,
    command_failing: Number,
    server_version: Family<Label, Number>,
    server_failing: Family<Label, Number>,
    server_updates: Family<ServerResult, Counter>,
    server_paused_seconds: Family<Label, SecondsSum>,
}

impl Metrics {
    /// Under their names.
    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("deltachain");
        let all = &mut registry;
        all.register("version", "Version in the directory, -1 if none", self.version.clone());
        all.register("head_version", "Newest version seen in the chain, -1 if none", self.head.clone());
        all.register("lag_versions", "Versions behind the newest one seen", self.lag.clone());
        all.register(
            "newest_timestamp_seconds",
            "When the directory was last seen to be at the newest version, 0 if never",
            self.newest.clone(),
        );
        all.register("last_look_timestamp_seconds", "When the chain was last polled", self.last_look.clone());
        all.register(
            "last_success_timestamp_seconds",
            "When the chain was last polled successfully, 0 if never",
            self.last_success.clone(),
        );
        all.register("looks", "Polls of the chain", self.looks.clone());
        all.register("failures", "Failed polls, by class of error", self.failures.clone());
        all.register("switches", "Switches to another version", self.switches.clone());
        all.register("rollbacks", "Rollbacks: switches to a lower version", self.rollbacks.clone());
        all.register("downloaded_bytes", "Bytes of links and assets that were fetched", self.downloaded.clone());
        all.register("cache_bytes", "Bytes of links that were in the cache", self.from_cache.clone());
        all.register("written_bytes", "Bytes of tensors that were written", self.written.clone());
        all.register("phase_seconds", "Time of versions that were reached, by phase", self.phases.clone());
        all.register("command_runs", "Runs of the command of --exec, by result", self.command_runs.clone());
        all.register("command_seconds", "Time in which the command ran", self.command_seconds.clone());
        all.register(
            "command_failing",
            "1 if the command has failed and not yet succeeded for this version",
            self.command_failing.clone(),
        );
        all.register("server_version", "Version that a server was last updated to", self.server_version.clone());
        all.register("server_failing", "1 if the last attempt to update a server failed", self.server_failing.clone());
        all.register("server_updates", "Attempts to update a server, by result", self.server_updates.clone());
        all.register("server_paused_seconds", "Time in which a server was paused", self.server_paused_seconds.clone());
        registry
    }

    /// What a look has found out.
    pub(crate) fn looked(&self, held: Option<u64>, status: &FollowStatus) {
        self.looks.inc();
        self.version.set(number(held));
        self.head.set(number(status.head));
        let lag = held.zip(status.head).map_or(0, |(held, head)| head.saturating_sub(held));
        self.lag.set(i64::try_from(lag).unwrap_or(i64::MAX));
        let times = [
            (&self.newest, status.newest.map(|newest| newest.time)),
            (&self.last_look, status.last_look),
            (&self.last_success, status.last_success),
        ];
        for (gauge, time) in times {
            gauge.set(time.map_or(0.0, crate::operation::time::Time::unix_seconds));
        }
    }

    /// A look that failed.
    pub(crate) fn failed(&self, error: &Error) {
        self.failures.get_or_create(&[("class", error.class().name().to_owned())]).inc();
    }

    pub(crate) fn switched(&self, switched: &Switched) {
        self.switches.inc();
        if switched.from > Some(switched.version) {
            self.rollbacks.inc();
        }
        self.downloaded.inc_by(switched.downloaded);
        self.from_cache.inc_by(switched.from_cache);
        self.written.inc_by(switched.written);
        let times = &switched.times;
        let phases =
            [("plan", times.plan), ("download", times.download), ("build", times.build), ("switch", times.switch)];
        for (name, time) in phases {
            self.phases.get_or_create(&[("phase", name.to_owned())]).inc_by(time.as_secs_f64());
        }
    }

    /// A run of the command has ended.
    pub(crate) fn ran(&self, result: &str, time: Duration) {
        self.command_runs.get_or_create(&[("result", result.to_owned())]).inc();
        self.command_seconds.inc_by(time.as_secs_f64());
        self.command_failing.set(i64::from(result != "succeeded"));
    }

    /// A server has been brought to a version, and stood still for this time, if it did.
    pub(crate) fn server_has(&self, server: &str, version: u64, paused: Option<Duration>) {
        let label = [("server", server.to_owned())];
        self.server_version.get_or_create(&label).set(number(Some(version)));
        self.server_paused_seconds.get_or_create(&label).inc_by(paused.unwrap_or_default().as_secs_f64());
        self.server_tried(server, "updated", 0);
    }

    /// A server has not been brought to a version.
    pub(crate) fn server_failed(&self, server: &str) {
        self.server_tried(server, "failed", 1);
    }

    fn server_tried(&self, server: &str, result: &str, failing: i64) {
        let label = ("server", server.to_owned());
        self.server_failing.get_or_create(std::array::from_ref(&label)).set(failing);
        self.server_updates.get_or_create(&[label, ("result", result.to_owned())]).inc();
    }

    /// A version has come for which the command has not been run.
    pub(crate) fn command_is_new(&self) {
        self.command_failing.set(0);
    }
}

fn number(version: Option<u64>) -> i64 {
    version.map_or(-1, |version| i64::try_from(version).unwrap_or(i64::MAX))
}

/// Answers until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// With the port that the system has chosen if 0 was asked for.
    pub(crate) address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The thread waits for a connection. If none can be made, it ends with the program.
        if TcpStream::connect_timeout(&self.address, ASKING).is_ok() {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

/// Answers at this address from now on.
///
/// # Errors
/// USAGE if the address cannot be had.
pub(crate) fn serve(address: SocketAddr, metrics: &Metrics) -> Result<Server> {
    let refused = |error| Error::usage(format!("--metrics {address}: {error}"));
    let listener = TcpListener::bind(address).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let registry = Arc::new(metrics.registry());
    let ends = Arc::new(AtomicBool::new(false));
    let is_end = Arc::clone(&ends);
    let answering = move || {
        // One after the other: nobody can make the program hold many connections.
        for connection in listener.incoming() {
            match connection {
                _ if is_end.load(Ordering::Relaxed) => return,
                // A client that has gone away needs no answer.
                Ok(connection) => drop(answer(connection, &registry)),
                // No more files can be open, perhaps: not at once again.
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    let thread = thread::Builder::new().name("metrics".to_owned()).spawn(answering).map_err(refused)?;
    Ok(Server { address, ends, thread: Some(thread) })
}

fn answer(mut connection: TcpStream, registry: &Registry) -> io::Result<()> {
    connection.set_write_timeout(Some(ASKING))?;
    let question = question(&mut connection)?;
    let line = question.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => {
            let mut text = String::new();
            encode(&mut text, registry).map_err(io::Error::other)?;
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
        }
        ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()),
    };
    let length = body.len();
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    if method == "HEAD" { Ok(()) } else { connection.write_all(body.as_bytes()) }
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
    text.parse().map_err(|_| "an address is PORT or IP:PORT, such as 9464 or 0.0.0.0:9464".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::records::At;
    use crate::operation::time::Time;

    fn ask(address: SocketAddr, question: &str) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(question.as_bytes()).unwrap();
        let mut text = String::new();
        // A refused question may end with a reset.
        let _ = connection.read_to_string(&mut text);
        text
    }

    #[test]
    fn numbers_are_shown_and_questions_are_bounded() {
        let metrics = Metrics::default();
        let server = serve(parse_address("0").unwrap(), &metrics).unwrap();
        let address = server.address;
        assert!(address.ip().is_loopback());
        let time = Time::now();
        let status = FollowStatus {
            head: Some(7),
            newest: Some(At { version: 5, time }),
            last_success: Some(time),
            ..FollowStatus::default()
        };
        metrics.looked(Some(5), &status);
        metrics.failed(&Error::usage("x"));
        metrics.ran("failed", Duration::from_millis(1500));
        let text = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        for line in [
            "HTTP/1.1 200 OK\r",
            "deltachain_version 5",
            "deltachain_head_version 7",
            "deltachain_lag_versions 2",
            "deltachain_failures_total{class=\"USAGE\"} 1",
            "deltachain_command_runs_total{result=\"failed\"} 1",
            "deltachain_command_seconds_total 1.5",
            "deltachain_command_failing 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line.trim_end()), "{line}: {text}");
        }
        assert!(ask(address, "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(3 * LONGEST_QUESTION));
        assert_eq!(ask(address, &long), "");
        assert!(serve(address, &metrics).is_err(), "the port is taken");
        drop(server);
        assert_eq!(serve(address, &metrics).unwrap().address, address);
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
