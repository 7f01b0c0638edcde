//! Servers that follow a chain: a thread for each brings it to the version that is wanted, and looks whether it still
//! has it. A server that fails holds up no other.

use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deltachain::{Error, Result};

use crate::engine::{Client, Engine, Found, Held, READY_POLL, Readiness, Seen, Target, Trouble, Version};
use crate::server::Server;

/// How often a server is asked what it has while that changes.
const GLANCES: usize = 4;

/// How long a server may take to prepare a version while it serves none: it is paused, or its model is another one.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// A server, and the version that it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerState {
    /// Where it is.
    pub url: String,
    /// The version that it had at the last look; nothing if none, or if it is not known which.
    pub version: Option<u64>,
    /// State digest of the version that it was last seen to have.
    pub state: Option<String>,
    /// It is being changed, or was when it was last heard of: it may hold parts of two versions.
    pub changing: bool,
    /// It has been paused, and not told to go on; not while it is being changed and requests wait for that.
    pub paused: bool,
    /// How often it has failed since it last had the version that was wanted.
    pub failures: u64,
    /// Why it failed last.
    pub last_failure: Option<String>,
}

/// Where it is written down how the servers are, for a process that comes later.
pub trait Records: Debug + Send + Sync {
    /// Writes it down, also before a server is changed.
    ///
    /// # Errors
    /// Whatever prevents it. Servers are brought to versions all the same.
    fn write(&self, servers: &[ServerState]) -> Result<()>;
}

/// What has happened to a server.
#[derive(Debug, Clone)]
pub struct News {
    /// Where it is.
    pub server: String,
    /// The version that it was to have.
    pub version: u64,
    /// How long all of it took.
    pub took: Duration,
    /// How the try ended.
    pub outcome: Outcome,
}

/// How a try ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The server has the version, and stood still for this time, if it did.
    Has(Option<Duration>),
    /// It is tried again after a pause.
    Failed {
        /// Why.
        text: String,
        /// Whether it stays paused until then.
        stays_paused: bool,
        /// Whether it did not answer, or waits for the version itself: it is tried as soon as it is ready.
        is_waited_for: bool,
        /// How long the pause is.
        pause: Duration,
    },
}

/// All servers, each with its thread.
#[derive(Debug)]
pub struct Fleet {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    client: Box<dyn Client>,
    servers: Vec<Server>,
    records: Box<dyn Records>,
    /// The pause between two looks, and the first one after a failure.
    poll: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    target: Option<Target>,
    stop: bool,
    seats: Vec<Seat>,
    news: Vec<News>,
    /// Why the record could not be written.
    unwritten: Option<String>,
}

/// What is known of a server.
#[derive(Debug, Default)]
struct Seat {
    record: ServerState,
    /// The version that it was last seen to have, if it has had no other since.
    known: Option<Version>,
    /// The version that it is being brought to.
    busy: Option<Target>,
    /// The commit of the version that was tried last.
    tried: Option<String>,
    /// The next look.
    next: Option<Instant>,
    /// Whether the last look got no answer.
    is_silent: bool,
    /// After a failure: the next try, and the pause before it.
    again: Option<Instant>,
    pause: Duration,
}

impl Fleet {
    /// Starts the threads, which wait for a version. `before` is what was written down last; `poll` the pause between
    /// two looks at a server, and the first one after a failure.
    ///
    /// # Errors
    /// IO.
    pub fn start(
        engine: Engine,
        servers: Vec<Server>,
        before: &[ServerState],
        records: Box<dyn Records>,
        poll: Duration,
    ) -> Result<Self> {
        let seats = servers.iter().map(|server| {
            let record = before.iter().find(|record| record.url == server.url()).cloned().unwrap_or_default();
            let known = record.has();
            // What has happened to it meanwhile, the first look will see.
            let record = ServerState { url: server.url().to_owned(), version: None, ..record };
            Seat { record, known, ..Seat::default() }
        });
        let state = State { target: None, stop: false, seats: seats.collect(), news: Vec::new(), unwritten: None };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { client: engine.0, servers, records, poll, state, changed });
        shared.write(&mut shared.lock());
        let fleet = Self { shared, threads: Mutex::default() };
        for at in 0..fleet.shared.servers.len() {
            let shared = Arc::clone(&fleet.shared);
            let thread = thread::Builder::new().name(format!("server {at}")).spawn(move || shared.serve(at));
            fleet.threads().push(thread.map_err(|error| Error::io("starting a thread", error))?);
        }
        Ok(fleet)
    }

    /// From now on this version is wanted.
    pub fn bring_to(&self, target: Target) {
        self.shared.lock().target = Some(target);
        self.shared.changed.notify_all();
    }

    /// Whether the version of this commit is wanted.
    pub fn wants(&self, commit: &str) -> bool {
        self.shared.lock().wants(commit)
    }

    /// Whether a server is being brought to a version that is not wanted any more. Its files must stay until then.
    pub fn is_at_an_older_version(&self) -> bool {
        let state = self.shared.lock();
        state.seats.iter().any(|seat| seat.busy.as_ref().is_some_and(|busy| !state.wants(&busy.commit)))
    }

    /// Whether each server has been tried with the version that is wanted, and is at rest.
    pub fn has_been_tried(&self) -> bool {
        self.shared.lock().has_been_tried()
    }

    /// Whether each server has the version that is wanted.
    pub fn has(&self) -> bool {
        let state = self.shared.lock();
        let has = |seat: &Seat| state.target.as_ref().is_some_and(|target| seat.record.serves(target));
        state.has_been_tried() && state.seats.iter().all(has)
    }

    /// What has happened since the last call.
    pub fn news(&self) -> Vec<News> {
        std::mem::take(&mut self.shared.lock().news)
    }

    /// How the servers are, by the last look at each.
    pub fn servers(&self) -> Vec<ServerState> {
        self.shared.lock().seats.iter().map(|seat| seat.record.clone()).collect()
    }

    /// How the servers are, now: each is asked whether it still has the version that it had at the last look. If it does
    /// not say so, it has none, and is looked at. Takes some seconds at most.
    pub fn ask(&self) -> Vec<ServerState> {
        let shared = &*self.shared;
        thread::scope(|scope| {
            let ask = |at| thread::Builder::new().spawn_scoped(scope, move || shared.glance(at));
            let asked: Vec<_> = (0..shared.servers.len()).map(ask).collect();
            let answers = asked.into_iter().enumerate().map(|(at, asked)| {
                let answer = asked.ok().and_then(|thread| thread.join().ok());
                answer.unwrap_or_else(|| ServerState {
                    url: shared.servers[at].url().to_owned(),
                    ..ServerState::default()
                })
            });
            answers.collect()
        })
    }

    /// Why it cannot be written down how the servers are.
    pub fn unwritten(&self) -> Option<String> {
        self.shared.lock().unwritten.clone()
    }

    /// The last failure of the first server that does not have what is wanted.
    pub fn failure(&self) -> Option<String> {
        let state = self.shared.lock();
        let failed = state.seats.iter().find(|seat| seat.record.failures > 0)?;
        failed.record.last_failure.clone()
    }

    /// Ends all threads. A server that is being changed is waited for, so that none stays paused for this.
    pub fn stop(&self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        // A thread that has panicked has said so.
        self.threads().drain(..).for_each(|thread| drop(thread.join()));
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wants(&self, commit: &str) -> bool {
        self.target.as_ref().is_some_and(|target| target.commit == commit)
    }

    fn has_been_tried(&self) -> bool {
        let is_tried = |seat: &Seat| seat.busy.is_none() && seat.tried.as_ref().is_some_and(|tried| self.wants(tried));
        self.seats.iter().all(is_tried)
    }
}

impl ServerState {
    /// The version that it has.
    fn version(&self) -> Option<Version> {
        Some(Version { number: self.version?, state: self.state.clone()? })
    }

    /// The version that it has, if it is at rest.
    fn has(&self) -> Option<Version> {
        self.version().filter(|_| !self.changing && !self.paused)
    }

    /// Whether it serves this version, and has not failed since.
    fn serves(&self, target: &Target) -> bool {
        self.has().as_ref() == Some(&target.version) && self.failures == 0
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread of a server.
    fn serve(&self, at: usize) {
        let mut has_looked = false;
        while let Some(target) = self.wait(at) {
            self.look(at, &target);
            has_looked = true;
        }
        if has_looked {
            self.client.leave(&self.servers[at]);
        }
    }

    /// Waits until it is time to look at a server. Gives the version that is wanted; nothing at the end.
    fn wait(&self, at: usize) -> Option<Target> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            let seat = &state.seats[at];
            let left = match &state.target {
                None => None,
                Some(target) if seat.tried.as_ref() != Some(&target.commit) => Some(Duration::ZERO),
                Some(_) => seat.next.map(|next| next.saturating_duration_since(Instant::now())),
            };
            state = match left {
                Some(Duration::ZERO) => return state.target.clone(),
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Looks at a server, and brings it to a version if it does not have it.
    fn look(&self, at: usize, target: &Target) {
        let began = Instant::now();
        let server = &self.servers[at];
        let found = self.client.look(server, target, self.known(at).as_ref());
        let mut state = self.lock();
        if state.stop || state.target.as_ref() != Some(target) {
            return;
        }
        let before = state.seats[at].record.clone();
        let is_due = state.seats[at].saw(target, &found);
        let found = match found {
            Ok(found) if is_due && !found.is_wanted => {
                // What it has is known, whatever comes now and however long it takes.
                if state.seats[at].record != before {
                    self.write(&mut state);
                }
                let serves = matches!(found.seen, Some(Seen { held: Held::Version(_), is_paused: false }));
                let patience = if serves { server.timeout() } else { server.timeout().min(PATIENCE) };
                let ready;
                (state, ready) = self.prepare(state, at, target, patience);
                match ready {
                    Ok(true) => Ok(found),
                    Ok(false) => return,
                    Err(error) => Err(error),
                }
            }
            found => found,
        };
        let outcome = match found {
            // Nothing has happened to a server that was found with its version.
            Ok(found) if found.is_wanted => state.seats[at].has(target).then_some(Outcome::Has(None)),
            _ if !is_due => None,
            Ok(Found { seen, .. }) => {
                let seat = &mut state.seats[at];
                seat.busy = Some(target.clone());
                let flags = (seat.record.changing, seat.record.paused);
                seat.record.changing = true;
                seat.record.paused |= self.client.refuses();
                // If this process is killed, the next one knows, and so does `status`.
                self.write(&mut state);
                drop(state);
                let brought = self.client.bring(server, target, seen.as_ref());
                state = self.lock();
                let seat = &mut state.seats[at];
                seat.busy = None;
                (seat.record.changing, seat.record.paused) = flags;
                match brought {
                    Ok(stood) => {
                        seat.has(target);
                        Some(Outcome::Has(stood))
                    }
                    Err(trouble) => Some(seat.failed(target, trouble, self.poll)),
                }
            }
            Err(error) => Some(state.seats[at].failed(target, error.into(), self.poll)),
        };
        let seat = &mut state.seats[at];
        seat.next = Some(Instant::now() + self.poll);
        let is_written = outcome.is_none() && seat.record == before;
        if let Some(outcome) = outcome {
            let (server, version) = (server.url().to_owned(), target.version.number);
            state.news.push(News { server, version, took: began.elapsed(), outcome });
        }
        if !is_written {
            self.write(&mut state);
        }
        self.changed.notify_all();
    }

    /// Waits until a server that is to be changed has prepared a version, for this time at most. Whether it is still
    /// wanted then.
    fn prepare<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        at: usize,
        target: &Target,
        patience: Duration,
    ) -> (MutexGuard<'a, State>, Result<bool>) {
        let (server, end) = (&self.servers[at], Instant::now() + patience);
        while Instant::now() < end {
            drop(state);
            let readiness = self.client.readiness(server, &target.version);
            state = self.lock();
            if state.stop || state.target.as_ref() != Some(target) {
                return (state, Ok(false));
            }
            match readiness {
                Ok(Readiness::Ready) => return (state, Ok(true)),
                Ok(Readiness::Waits(None)) => {}
                Ok(Readiness::Waits(Some(text))) => self.waits(&mut state, at, target, text),
                Err(error) => return (state, Err(error)),
            }
            state = self.changed.wait_timeout(state, READY_POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        (state, Ok(true))
    }

    /// A server cannot prepare a version yet, for this reason.
    fn waits(&self, state: &mut State, at: usize, target: &Target, text: String) {
        let record = &mut state.seats[at].record;
        if record.last_failure.as_ref() == Some(&text) {
            return;
        }
        record.failures = record.failures.saturating_add(1);
        record.last_failure = Some(text.clone());
        let outcome = Outcome::Failed { text, stays_paused: record.paused, is_waited_for: true, pause: READY_POLL };
        let (server, version) = (record.url.clone(), target.version.number);
        state.news.push(News { server, version, took: Duration::ZERO, outcome });
        self.write(state);
    }

    fn known(&self, at: usize) -> Option<Version> {
        let seat = &self.lock().seats[at];
        seat.known.clone().filter(|_| !seat.record.changing && !seat.record.paused)
    }

    /// How a server is now.
    fn glance(&self, at: usize) -> ServerState {
        let mut before = self.lock().seats[at].expected();
        for _ in 0..GLANCES {
            let (expected, is_changing) = &before;
            let is_so = !expected.is_empty() && self.client.says(&self.servers[at], expected, *is_changing);
            let seat = &mut self.lock().seats[at];
            let now = seat.expected();
            if is_so || now.0.is_empty() {
                return seat.record.clone();
            }
            if now == before {
                break;
            }
            // It has been changed meanwhile.
            before = now;
        }
        let seat = &mut self.lock().seats[at];
        seat.next = Some(Instant::now());
        self.changed.notify_all();
        ServerState { version: None, ..seat.record.clone() }
    }

    fn write(&self, state: &mut State) {
        let servers: Vec<_> = state.seats.iter().map(|seat| seat.record.clone()).collect();
        state.unwritten = self.records.write(&servers).err().map(|error| format!("{error:#}"));
    }
}

impl Seat {
    /// What the server may say that it has; nothing if it is not known to have a version. And whether it is being
    /// changed.
    fn expected(&self) -> (Vec<Version>, bool) {
        let version = self.record.version();
        let next = self.busy.as_ref().filter(|_| version.is_some()).map(|busy| busy.version.clone());
        (version.into_iter().chain(next).collect(), self.busy.is_some())
    }

    /// After a look. Gives whether it is time for a try.
    fn saw(&mut self, target: &Target, found: &Result<Found>) -> bool {
        let was_silent = std::mem::replace(&mut self.is_silent, found.is_err());
        match found {
            Ok(Found { is_wanted: true, .. }) => self.record(&target.version.seen()),
            Ok(Found { seen: Some(seen), .. }) => self.record(seen),
            // It may have become anything.
            _ => self.record.version = None,
        }
        let is_back = was_silent && found.is_ok();
        let is_new = self.tried.as_ref() != Some(&target.commit);
        is_new || is_back || self.again.is_none_or(|again| again <= Instant::now())
    }

    /// It has the version that is wanted. Gives whether it had failed before.
    fn has(&mut self, target: &Target) -> bool {
        self.record(&target.version.seen());
        self.tried = Some(target.commit.clone());
        self.again = None;
        self.record.last_failure = None;
        std::mem::take(&mut self.record.failures) > 0
    }

    fn failed(&mut self, target: &Target, trouble: Trouble, poll: Duration) -> Outcome {
        let Trouble { error, left } = trouble;
        let was_tried = self.tried.replace(target.commit.clone()).as_ref() == Some(&target.commit);
        let is_first = self.record.failures == 0 || !was_tried;
        left.iter().for_each(|left| self.record(left));
        let text = format!("{error:#}");
        self.record.failures = self.record.failures.saturating_add(1);
        self.record.last_failure = Some(text.clone());
        self.pause = if is_first { poll } else { self.pause.saturating_mul(2).min(LONGEST_PAUSE) };
        self.again = Some(Instant::now() + self.pause);
        let stays_paused = left.is_some_and(|left| left.is_paused);
        Outcome::Failed { text, stays_paused, is_waited_for: self.is_silent, pause: self.pause }
    }

    fn record(&mut self, seen: &Seen) {
        self.known = match &seen.held {
            Held::Version(version) => Some(version.clone()),
            Held::Other | Held::Torn => None,
        };
        let (version, state) = self.known.clone().map(|known| (known.number, known.state)).unzip();
        let (changing, paused) = (seen.held == Held::Torn, seen.is_paused);
        self.record = ServerState { version, state, changing, paused, ..std::mem::take(&mut self.record) };
    }
}
