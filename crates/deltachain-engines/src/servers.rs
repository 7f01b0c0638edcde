//! Servers of vLLM that a trainer brings to each version: all of them at the same time, and they stay paused until it
//! says that they may go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};

use crate::engine::{Pause, Trouble, Version};
use crate::server::{Ask, Server, parse_url};
use crate::vllm::{Denied, Vllm, resume};

/// No timeout is longer.
const LONGEST: Duration = Duration::from_hours(24);

/// The pause between two questions to a server that does not answer yet.
const POLL: Duration = Duration::from_millis(500);

/// Servers of vLLM with the backend `deltachain` of the Python package.
#[derive(Debug)]
pub struct Servers {
    vllm: Vllm,
    seats: Vec<Seat>,
    timeout: Duration,
}

#[derive(Debug)]
struct Seat {
    server: Server,
    /// It has been brought to a version, and not told to go on.
    is_paused: AtomicBool,
}

/// Why something was not done with a server.
#[derive(Debug)]
pub struct Failure {
    /// Why, and which server.
    pub error: Error,
    /// It was not there in time.
    pub is_late: bool,
    /// It stays paused: it may hold parts of two versions, or was not told to go on.
    pub stays_paused: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, is_late: false, stays_paused: false }
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        denied.error.into()
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        let stays_paused = trouble.left.is_some_and(|left| left.is_paused);
        Self { stays_paused, ..trouble.error.into() }
    }
}

impl Servers {
    /// Servers at these URLs, whose backend is told this JSON object: what docs/integrations.md says of `init_info`.
    /// `name` is what this process calls itself; `timeout` is that of each request, of a day at most, and of a server
    /// that does not answer at first; `pause` is what becomes of running requests. Asks nothing of them yet.
    ///
    /// # Errors
    /// USAGE; IO if this machine cannot make connections.
    pub fn new(urls: &[String], backend: &str, name: String, timeout: Duration, pause: Pause) -> Result<Self> {
        let timeout = timeout.min(LONGEST);
        let seat = |url: &String| {
            let url = parse_url(url).map_err(|text| Error::usage(format!("{url}: {text}")))?;
            Ok(Seat { server: Server::new(&url, None, timeout)?, is_paused: AtomicBool::new(false) })
        };
        let vllm = Vllm::new(backend, name, Duration::ZERO, pause)?;
        Ok(Self { vllm, seats: urls.iter().map(seat).collect::<Result<_>>()?, timeout })
    }

    /// Waits until all servers answer, and tells their backends where versions are. `wait` is called, from several
    /// threads, when a server is to be waited for: for how long, and why if another process brings it. What it returns
    /// ends the waiting.
    ///
    /// # Errors
    /// Those of servers that are not there in time, refuse, or belong to another process after it was waited for.
    pub fn begin(&self, wait: &(dyn Fn(Duration, Option<&Error>) -> Result<()> + Sync)) -> Result<(), Vec<Failure>> {
        self.all(|Seat { server, .. }| {
            let began = Instant::now();
            while let Err(error) = server.get("/health", Ask::Question) {
                if began.elapsed() >= self.timeout {
                    return Err(Failure { is_late: true, ..error.into() });
                }
                wait(POLL, None)?;
            }
            // Another process may be one that was killed, such as this trainer before it was started again.
            match self.vllm.claim(server) {
                Err(Denied { error, left: Some(left) }) => {
                    wait(left, Some(&error))?;
                    self.vllm.claim(server)?;
                }
                claimed => claimed?,
            }
            Ok(self.vllm.init(server)?)
        })
    }

    /// Brings all servers to this version. They are paused afterwards, until [`resume`](Self::resume). If that fails
    /// with some, all that hold a whole version go on.
    ///
    /// # Errors
    /// Those of servers that refuse, do not answer, or belong to another process.
    pub fn update(&self, version: u64, state: &str) -> Result<(), Vec<Failure>> {
        let version = Version { number: version, state: state.to_owned() };
        let updated = self.all(|Seat { server, is_paused }| {
            is_paused.store(false, Ordering::Relaxed);
            // Nothing else is asked of a server that another process brings.
            self.vllm.claim(server)?;
            self.vllm.update(server, &version, true)?;
            is_paused.store(true, Ordering::Relaxed);
            Ok(())
        });
        updated.map_err(|mut failures| {
            failures.extend(self.resume().err().into_iter().flatten());
            failures
        })
    }

    /// Lets the servers go on that have been brought to a version.
    ///
    /// # Errors
    /// Those of servers that do not.
    pub fn resume(&self) -> Result<(), Vec<Failure>> {
        self.all(|Seat { server, is_paused }| {
            if is_paused.load(Ordering::Relaxed) {
                resume(server).map_err(|error| Failure { stays_paused: true, ..error.into() })?;
                is_paused.store(false, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    /// Other processes may bring the servers versions.
    pub fn end(&self) {
        // One that does not answer gives it up by itself.
        drop(self.all(|Seat { server, .. }| {
            self.vllm.give_up(server);
            Ok(())
        }));
    }

    /// Does a step with all servers at the same time.
    fn all(&self, step: impl Fn(&Seat) -> Result<(), Failure> + Sync) -> Result<(), Vec<Failure>> {
        let failures: Vec<Failure> = thread::scope(|scope| {
            let step = &step;
            let start = |seat| thread::Builder::new().spawn_scoped(scope, move || step(seat));
            let started: Vec<_> = self.seats.iter().map(start).collect();
            let done = started.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => Err(Error::io("starting a thread", error).into()),
            });
            done.filter_map(Result::err).collect()
        });
        if failures.is_empty() { Ok(()) } else { Err(failures) }
    }
}
