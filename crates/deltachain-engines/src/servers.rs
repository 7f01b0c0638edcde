//! Servers of vLLM into which a trainer loads each version: all of them at the same time, in the
//! steps of vLLM's own interface. They stay paused until the trainer resumes them.

use std::mem;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};

use crate::engine::{Client, Failure, Pause, Preparation, Version, locked};
use crate::server::{Ask, Server, parse_url};
use crate::vllm::Vllm;
use crate::workers::{Update, Workers};

/// Maximum timeout.
const LONGEST: Duration = Duration::from_hours(24);

/// Pause between two requests to a server that does not answer yet.
const POLL: Duration = Duration::from_millis(500);

/// Servers of vLLM with the backend `deltachain` of the Python package.
#[derive(Debug)]
pub struct Servers {
    vllm: Workers<Vllm>,
    /// Each server with its update.
    updates: Vec<(Server, Mutex<Update>)>,
    /// The failures of servers that have dropped out of the running update.
    failed: Mutex<Vec<Failure>>,
}

impl Servers {
    /// Makes servers at these URLs. `backend` is a JSON object for their backend, the `init_info`
    /// of integrations/docs/integrations.md; `name` is the name of this process; `timeout` limits
    /// each request, up to a day, and the wait for a server that does not answer at first; `pause`
    /// says what happens to running requests. Sends no request yet.
    ///
    /// # Errors
    /// USAGE if an argument is invalid; IO if this machine cannot make connections.
    pub fn new(
        urls: &[String],
        backend: &str,
        name: String,
        timeout: Duration,
        pause: Pause,
    ) -> Result<Self> {
        let timeout = timeout.min(LONGEST);
        let server = |url: &String| {
            let url = parse_url(url).map_err(|text| Error::usage(format!("{url}: {text}")))?;
            Ok((Server::new(&url, None, timeout)?, Mutex::default()))
        };
        let vllm = Vllm::workers(backend, name, Duration::ZERO, pause)?;
        Ok(Self {
            vllm,
            updates: urls.iter().map(server).collect::<Result<_>>()?,
            failed: Mutex::default(),
        })
    }

    /// Waits until all servers answer, and tells their backends where versions are. Calls `wait`
    /// from several threads whenever it must wait for a server: with the time to wait, and with an
    /// error if another process updates the server. An error from `wait` ends the waiting.
    ///
    /// # Errors
    /// The failures of servers that do not answer in time, refuse, or still belong to another
    /// process after the wait.
    pub fn begin(
        &self,
        wait: &(dyn Fn(Duration, Option<&Error>) -> Result<()> + Sync),
    ) -> Result<(), Vec<Failure>> {
        self.all(|server, _| {
            let began = Instant::now();
            while let Err(error) = server.get("/health", Ask::Question) {
                if began.elapsed() >= server.timeout {
                    return Err(Failure {
                        is_late: true,
                        ..error.into()
                    });
                }
                wait(POLL, None)?;
            }
            // The other process may have been killed; it may even be this trainer before a restart.
            match self.vllm.claim(server) {
                Err(Failure {
                    error,
                    lease: Some(lease),
                    ..
                }) => {
                    wait(lease, Some(&error))?;
                    self.vllm.claim(server)?;
                }
                claimed => claimed?,
            }
            Ok(self.vllm.requests.init(server, true)?)
        })
    }

    /// Waits until the servers can load this version without delay, or waiting would not help:
    /// servers that download versions themselves prepare them while they serve. A server that fails
    /// here fails in [`start`](Self::start), too. Calls `wait` from several threads between two
    /// requests; an error from `wait` ends the waiting.
    ///
    /// # Errors
    /// The errors of `wait`.
    pub fn prepare(
        &self,
        version: u64,
        wait: &(dyn Fn(Duration) -> Result<()> + Sync),
    ) -> Result<(), Vec<Failure>> {
        self.all(|server, _| {
            let began = Instant::now();
            let mut is_first = true;
            while let Ok(Preparation::Waits { pause, .. }) =
                self.vllm.readiness(server, version, None, is_first)
                && began.elapsed() < server.timeout
            {
                is_first = false;
                wait(pause)?;
            }
            Ok(())
        })
    }

    /// Pauses all servers, and begins an update of each. A server that fails, here or in a later
    /// step, drops out: it continues with its model if that is whole, and [`finish`](Self::finish)
    /// returns its failure.
    ///
    /// # Errors
    /// The failures of all servers, if none is left in the update.
    pub fn start(&self) -> Result<(), Vec<Failure>> {
        locked(&self.failed).clear();
        self.step(|server, update| {
            // If another process updates the server, nothing else is sent to it.
            self.vllm.claim(server).map_err(|failure| failure.error)?;
            update.start(&self.vllm, server, true).map(drop)
        });
        self.left()
    }

    /// Loads this version into the servers.
    ///
    /// # Errors
    /// The failures of all servers, if none is left in the update; USAGE if no update has been
    /// started.
    pub fn update(&self, version: u64, state: &str) -> Result<(), Vec<Failure>> {
        let version = Version {
            number: version,
            state: state.to_owned(),
        };
        self.left()?;
        self.step(|server, update| update.load(&self.vllm, server, &version));
        self.left()
    }

    /// Ends the update. The servers report this name for their weights, and stay paused until
    /// [`resume`](Self::resume). If a server has failed, all others are resumed.
    ///
    /// # Errors
    /// The failures of all servers since the update was started; USAGE if none was started.
    pub fn finish(&self, name: &str) -> Result<(), Vec<Failure>> {
        self.left()?;
        self.step(|server, update| update.finish(&self.vllm, server, name));
        let mut failed = mem::take(&mut *locked(&self.failed));
        if failed.is_empty() {
            return Ok(());
        }
        failed.extend(self.resume().err().into_iter().flatten());
        Err(failed)
    }

    /// Resumes the servers that have a new version, and ends an update that has not been finished:
    /// its servers continue with their model if that is whole.
    ///
    /// # Errors
    /// The failures of servers that stay paused.
    pub fn resume(&self) -> Result<(), Vec<Failure>> {
        self.all(|server, update| update.resume(&self.vllm, server))
    }

    /// Ends this process's claim, so that other processes may update the servers.
    pub fn end(&self) {
        // The claim on a server that does not answer expires.
        drop(self.all(|server, _| {
            self.vllm.leave(server);
            Ok(())
        }));
    }

    /// Runs a step of an update on all servers. A server that fails drops out, and continues with
    /// its model.
    fn step(&self, act: impl Fn(&Server, &mut Update) -> Result<()> + Sync) {
        let done = self.all(|server, update| {
            act(server, update).map_err(|error| update.fail(&self.vllm, server, error))
        });
        locked(&self.failed).extend(done.err().into_iter().flatten());
    }

    /// Checks that a server is left in the update.
    fn left(&self) -> Result<(), Vec<Failure>> {
        if self
            .updates
            .iter()
            .any(|(_, update)| matches!(*locked(update), Update::Begun { .. }))
        {
            return Ok(());
        }
        let failed = mem::take(&mut *locked(&self.failed));
        Err(if failed.is_empty() {
            vec![Error::usage("no update was started").into()]
        } else {
            failed
        })
    }

    /// Calls `act` with all servers at the same time.
    fn all(
        &self,
        act: impl Fn(&Server, &mut Update) -> Result<(), Failure> + Sync,
    ) -> Result<(), Vec<Failure>> {
        let act = &|(server, update): &(Server, Mutex<Update>)| act(server, &mut locked(update));
        let failures: Vec<Failure> = thread::scope(|scope| {
            let start = |server| thread::Builder::new().spawn_scoped(scope, move || act(server));
            let started: Vec<_> = self.updates.iter().map(start).collect();
            let done = started.into_iter().map(|thread| match thread {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => Err(Error::io("starting a thread", error).into()),
            });
            done.filter_map(Result::err).collect()
        });
        if failures.is_empty() {
            Ok(())
        } else {
            Err(failures)
        }
    }
}
