//! Servers that follow a chain. A thread for each server loads the wanted version, and polls
//! whether the server still has it. A server that fails does not delay the others.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use deltachain_store::{Records, ServerRecord, ServersRecord, Time};

use crate::engine::{
    Condition, Engine, Failure, Look, Model, Preparation, READY_POLL, Target, Version, locked,
};
use crate::fit::{Fit, Shapes, compare_shapes, not_sent, shapes};
use crate::server::Server;

/// Maximum number of requests for a server's version while it changes.
const GLANCES: usize = 4;

/// Time for preparing a version on a server that serves no version, because it is paused or has
/// another model.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Report on an attempt to load a version into a server.
#[derive(Debug, Clone)]
pub struct News {
    /// URL of the server.
    pub server: String,
    /// The version to be loaded.
    pub version: u64,
    /// Duration of the attempt.
    pub took: Duration,
    /// Result of the attempt.
    pub result: AttemptResult,
}

/// Result of an attempt.
#[derive(Debug, Clone)]
pub enum AttemptResult {
    /// The server has the version, and was paused for this time, if it was.
    Has(Option<Duration>),
    /// The version is sent to the server although nothing shows that it fits, for this reason.
    /// Reported once for each server.
    Unchecked(String),
    /// The attempt failed; it is repeated after a pause.
    Failed {
        /// The error.
        text: String,
        /// True if the server stays paused until then.
        stays_paused: bool,
        /// True if the server did not answer, or is preparing the version: the next attempt follows
        /// as soon as it is ready.
        is_waited_for: bool,
        /// True if the last attempt failed with the same error.
        is_repeated: bool,
        /// Duration of the pause.
        pause: Duration,
    },
}

/// All servers, each with its thread.
#[derive(Debug)]
pub struct Fleet {
    shared: Arc<FleetCore>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct FleetCore {
    engine: Engine,
    servers: Vec<Server>,
    /// Records of the states of the servers, for a later process.
    records: Records,
    /// Pause between two polls, and before the first retry.
    poll: Duration,
    state: Mutex<FleetState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct FleetState {
    target: Option<Target>,
    stop: bool,
    servers: Vec<FollowedServer>,
    news: Vec<News>,
    /// The last record that was written.
    written: ServersRecord,
    /// The error if the record could not be written.
    unwritten: Option<String>,
}

/// All that is known about a server.
#[derive(Debug, Default)]
struct FollowedServer {
    record: ServerRecord,
    /// The version that the server had at the last poll, if it has had no other since.
    known: Option<Version>,
    /// The version that is being loaded into the server.
    busy: Option<Target>,
    /// The commit of the last version that was tried.
    tried: Option<String>,
    /// Time of the next poll.
    next: Option<Instant>,
    /// True if the last poll got no answer.
    is_silent: bool,
    /// True if it has been reported that versions are sent to the server unchecked.
    is_told_unchecked: bool,
    /// The shapes of the last version that the server took from this process's directory.
    took: Option<Shapes>,
    /// The last failure that was reported, and the commit of its version.
    said: Option<(String, String)>,
    /// After a failure: the time of the next attempt, and the pause before it.
    again: Option<Instant>,
    pause: Duration,
}

impl Fleet {
    /// Starts the threads, which wait for a version. `before` is the last record that was written
    /// to `records`; `poll` is the pause between two polls of a server, and before the first retry.
    ///
    /// # Errors
    /// IO if a thread cannot be started.
    pub fn start(
        engine: Engine,
        servers: Vec<Server>,
        records: Records,
        before: ServersRecord,
        poll: Duration,
    ) -> Result<Self> {
        let followed = servers
            .iter()
            .map(|server| FollowedServer::new(server, &before))
            .collect();
        let state = FleetState {
            servers: followed,
            written: before,
            ..FleetState::default()
        };
        let shared = Arc::new(FleetCore {
            engine,
            servers,
            records,
            poll,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        shared.write(&mut shared.lock());
        let fleet = Self {
            shared,
            threads: Mutex::default(),
        };
        for at in 0..fleet.shared.servers.len() {
            let shared = Arc::clone(&fleet.shared);
            let thread = thread::Builder::new()
                .name(format!("server {at}"))
                .spawn(move || shared.serve(at));
            locked(&fleet.threads)
                .push(thread.map_err(|error| Error::io("starting a thread", error))?);
        }
        Ok(fleet)
    }

    /// Sets the version that is wanted from now on.
    pub fn bring_to(&self, target: Target) {
        self.shared.lock().target = Some(target);
        self.shared.changed.notify_all();
    }

    /// True if the version of this commit is wanted.
    pub fn wants(&self, commit: &str) -> bool {
        self.shared.lock().wants(commit)
    }

    /// True if a version that is no longer wanted is still being loaded into a server. The
    /// version's files must stay until then.
    pub fn is_at_an_older_version(&self) -> bool {
        let state = self.shared.lock();
        state.servers.iter().any(|followed| {
            followed
                .busy
                .as_ref()
                .is_some_and(|busy| !state.wants(&busy.commit))
        })
    }

    /// True if the wanted version has been tried on each server, and no attempt is running.
    pub fn has_been_tried(&self) -> bool {
        self.shared.lock().has_been_tried()
    }

    /// True if each server has the wanted version.
    pub fn has(&self) -> bool {
        let state = self.shared.lock();
        state.has_been_tried()
            && state
                .servers
                .iter()
                .all(|followed| state.is_target_served(followed))
    }

    /// Returns the reports on attempts since the last call.
    pub fn news(&self) -> Vec<News> {
        std::mem::take(&mut self.shared.lock().news)
    }

    /// Returns the states of the servers at the last poll of each.
    pub fn servers(&self) -> Vec<ServerRecord> {
        self.shared
            .lock()
            .servers
            .iter()
            .map(|followed| followed.record.clone())
            .collect()
    }

    /// Returns the states of the servers now, after asking each server whether it still has the
    /// version of the last poll. A server that does not confirm this counts as having none, and is
    /// polled again. Takes a few seconds at most.
    pub fn ask(&self) -> Vec<ServerRecord> {
        let shared = &*self.shared;
        thread::scope(|scope| {
            let ask = |at| thread::Builder::new().spawn_scoped(scope, move || shared.glance(at));
            let asked: Vec<_> = (0..shared.servers.len()).map(ask).collect();
            let answers = asked.into_iter().enumerate().map(|(at, asked)| {
                let answer = asked.ok().and_then(|thread| thread.join().ok());
                answer.unwrap_or_else(|| ServerRecord {
                    url: shared.servers[at].url.clone(),
                    ..ServerRecord::default()
                })
            });
            answers.collect()
        })
    }

    /// Returns the error if the states of the servers could not be recorded.
    pub fn unwritten(&self) -> Option<String> {
        self.shared.lock().unwritten.clone()
    }

    /// Returns the last error of the first server that does not have the wanted version.
    pub fn failure(&self) -> Option<String> {
        let state = self.shared.lock();
        let failed = state
            .servers
            .iter()
            .find(|followed| followed.record.failures > 0)?;
        failed.record.last_failure.clone()
    }

    /// Stops all threads. Updates that are running complete first, so that this call leaves no
    /// server paused.
    pub fn stop(&self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        // A thread that panicked has already reported it.
        locked(&self.threads)
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}

impl FleetState {
    fn wants(&self, commit: &str) -> bool {
        self.target
            .as_ref()
            .is_some_and(|target| target.commit == commit)
    }

    fn tell(&mut self, server: &Server, target: &Target, took: Duration, result: AttemptResult) {
        self.news.push(News {
            server: server.url.clone(),
            version: target.version.number,
            took,
            result,
        });
    }

    fn has_been_tried(&self) -> bool {
        self.servers.iter().all(|followed| self.is_tried(followed))
    }

    /// True if an attempt to update a server to the wanted version has ended.
    fn is_tried(&self, followed: &FollowedServer) -> bool {
        followed.busy.is_none()
            && followed
                .tried
                .as_ref()
                .is_some_and(|tried| self.wants(tried))
    }

    /// True if a server serves the wanted version.
    fn is_target_served(&self, followed: &FollowedServer) -> bool {
        self.target
            .as_ref()
            .is_some_and(|target| followed.serves(target))
    }
}

/// Returns the version that a server has.
fn version(record: &ServerRecord) -> Option<Version> {
    Some(Version {
        number: record.version?,
        state: record.state.clone()?,
    })
}

/// True if the server is neither being updated nor paused.
fn is_at_rest(record: &ServerRecord) -> bool {
    !record.changing && !record.paused
}

/// Returns the time that a server has for preparing a version.
fn patience(server: &Server, condition: Option<&Condition>) -> Duration {
    let serves = matches!(
        condition,
        Some(Condition {
            model: Model::Version(_),
            is_paused: false
        })
    );
    if serves {
        server.timeout
    } else {
        server.timeout.min(PATIENCE)
    }
}

/// Adds the time since which the server has its version, from the records that were written last.
fn with_since(record: &ServerRecord, last: &[ServerRecord]) -> ServerRecord {
    let is_same = |other: &&ServerRecord| {
        (&other.url, other.version, &other.state) == (&record.url, record.version, &record.state)
    };
    let since = last.iter().find(is_same).and_then(|other| other.since);
    ServerRecord {
        since: record.version.map(|_| since.unwrap_or_else(Time::now)),
        ..record.clone()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop();
    }
}

impl FleetCore {
    fn lock(&self) -> MutexGuard<'_, FleetState> {
        locked(&self.state)
    }

    /// Runs the thread of a server.
    fn serve(&self, at: usize) {
        let mut has_looked = false;
        while let Some(target) = self.wait(at) {
            self.look(at, &target);
            has_looked = true;
        }
        if has_looked {
            self.engine.client.leave(&self.servers[at]);
        }
    }

    /// Waits until it is time to poll a server. Returns the wanted version, or `None` at the end.
    fn wait(&self, at: usize) -> Option<Target> {
        let mut state = self.lock();
        loop {
            if state.stop {
                return None;
            }
            let followed = &state.servers[at];
            let left = match &state.target {
                None => None,
                Some(target) if followed.tried.as_ref() != Some(&target.commit) => {
                    Some(Duration::ZERO)
                }
                Some(_) => followed
                    .next
                    .map(|next| next.saturating_duration_since(Instant::now())),
            };
            state = match left {
                Some(Duration::ZERO) => return state.target.clone(),
                Some(left) => {
                    self.changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Polls a server, and loads the wanted version if the server does not have it.
    fn look(&self, at: usize, target: &Target) {
        let began = Instant::now();
        let server = &self.servers[at];
        let found = self
            .engine
            .client
            .look(server, target, self.known(at).as_ref());
        let mut state = self.lock();
        if state.stop || state.target.as_ref() != Some(target) {
            return;
        }
        let before = state.servers[at].record.clone();
        let is_due = state.servers[at].saw(target, &found);
        let result = match found {
            // Nothing was done to a server that already has its version.
            Ok(Look::Wanted) => state.servers[at]
                .has(target)
                .then_some(AttemptResult::Has(None)),
            _ if !is_due => None,
            Ok(Look::Other(found)) => {
                // The server's condition is recorded at once, because the next steps can take long.
                if state.servers[at].record != before {
                    self.write(&mut state);
                }
                let updated;
                (state, updated) = self.update(state, at, target, found.as_ref());
                let Some(result) = updated else { return };
                Some(result)
            }
            Err(error) => Some(state.servers[at].failed(target, error.into(), self.poll)),
        };
        let followed = &mut state.servers[at];
        followed.next = Some(Instant::now() + self.poll);
        let is_written = result.is_none() && followed.record == before;
        if let Some(result) = result {
            state.tell(server, target, began.elapsed(), result);
        }
        if !is_written {
            self.write(&mut state);
        }
        self.changed.notify_all();
    }

    /// Brings a server to a version when the server has prepared it. Returns no result if the
    /// version is no longer wanted then.
    fn update<'a>(
        &'a self,
        state: MutexGuard<'a, FleetState>,
        at: usize,
        target: &Target,
        before: Option<&Condition>,
    ) -> (MutexGuard<'a, FleetState>, Option<AttemptResult>) {
        let patience = patience(&self.servers[at], before);
        let (state, ready) = self.prepare(state, at, target, patience);
        let (mut state, ready) = match ready {
            Ok(true) => self.fits(state, at, target, before),
            other => (state, other),
        };
        let brought = match ready {
            Ok(true) => {
                let brought;
                (state, brought) = self.bring_recorded(state, at, target, before);
                brought
            }
            Ok(false) => return (state, None),
            Err(failure) => Err(failure),
        };
        let followed = &mut state.servers[at];
        let result = match brought {
            Ok(stood) => {
                followed.has(target);
                followed.took = shapes(Path::new(&target.directory));
                AttemptResult::Has(stood)
            }
            Err(failure) => followed.failed(target, failure, self.poll),
        };
        (state, Some(result))
    }

    /// Brings a server to a version. Meanwhile, the state is unlocked and the record says that the
    /// server is being changed.
    fn bring_recorded<'a>(
        &'a self,
        mut state: MutexGuard<'a, FleetState>,
        at: usize,
        target: &Target,
        before: Option<&Condition>,
    ) -> (
        MutexGuard<'a, FleetState>,
        Result<Option<Duration>, Failure>,
    ) {
        let followed = &mut state.servers[at];
        followed.busy = Some(target.clone());
        let flags = (followed.record.changing, followed.record.paused);
        followed.record.changing = true;
        followed.record.paused |= self.engine.refuses;
        // If this process is killed, the next one and `status` can tell that the server was being
        // changed.
        self.write(&mut state);
        drop(state);
        let brought = self.engine.client.bring(&self.servers[at], target, before);
        let mut state = self.lock();
        let followed = &mut state.servers[at];
        followed.busy = None;
        (followed.record.changing, followed.record.paused) = flags;
        (state, brought)
    }

    /// Waits until a server has prepared a version, at most for the time `patience`. Returns true
    /// if the version is still wanted. A server that cannot prepare it, and says why, is not sent
    /// the version: it would be paused in vain.
    fn prepare<'a>(
        &'a self,
        mut state: MutexGuard<'a, FleetState>,
        at: usize,
        target: &Target,
        patience: Duration,
    ) -> (MutexGuard<'a, FleetState>, Result<bool, Failure>) {
        let server = &self.servers[at];
        let end = Instant::now() + patience;
        let mut is_first = true;
        let mut why = None;
        while Instant::now() < end {
            drop(state);
            let preparation = self.engine.client.preparation(server, target, is_first);
            is_first = false;
            state = self.lock();
            if state.stop || state.target.as_ref() != Some(target) {
                return (state, Ok(false));
            }
            let pause = match preparation {
                Ok(Preparation::Done) => return (state, Ok(true)),
                Ok(Preparation::Waits { why: told, pause }) => {
                    if let Some(text) = &told {
                        self.waits(&mut state, at, target, text);
                    }
                    why = told;
                    pause
                }
                Err(error) => return (state, Err(error.into())),
            };
            state = self
                .changed
                .wait_timeout(state, pause)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let ready = match why {
            None => Ok(true),
            Some(why) => Err(Failure {
                is_waited_for: true,
                ..not_sent(server, &why).into()
            }),
        };
        (state, ready)
    }

    /// Compares a version with a server's model, as far as that can be known. Returns true if the
    /// version is to be sent and is still wanted.
    fn fits<'a>(
        &'a self,
        state: MutexGuard<'a, FleetState>,
        at: usize,
        target: &Target,
        before: Option<&Condition>,
    ) -> (MutexGuard<'a, FleetState>, Result<bool, Failure>) {
        let holds_version = before.is_some_and(|before| matches!(before.model, Model::Version(_)));
        let took = if holds_version {
            state.servers[at].took.clone()
        } else {
            None
        };
        drop(state);
        let server = &self.servers[at];
        let fit = match self.engine.client.compare(server, target) {
            // The server has taken a version of these shapes.
            Ok(Fit::Unknown(why)) => Ok(took
                .and_then(|took| compare_shapes(&took, &target.directory))
                .unwrap_or(Fit::Unknown(why))),
            fit => fit,
        };
        let state = self.lock();
        if state.stop || state.target.as_ref() != Some(target) {
            return (state, Ok(false));
        }
        match fit {
            Err(error) => (state, Err(error.into())),
            Ok(Fit::Fits) => (state, Ok(true)),
            Ok(Fit::Misfit(why)) => (state, Err(not_sent(server, &why).into())),
            Ok(Fit::Unknown(why)) if self.engine.sends_unchecked => {
                (self.tell_unchecked(state, at, target, why), Ok(true))
            }
            Ok(Fit::Unknown(why)) => {
                let why = format!(
                    "{why}, so the version cannot be compared with the model, and the server \
                     crashes if it does not fit; --send-unchecked sends it anyway"
                );
                (state, Err(not_sent(server, &why).into()))
            }
        }
    }

    /// Records that a server cannot prepare a version yet, with the reason.
    fn waits(&self, state: &mut FleetState, at: usize, target: &Target, why: &str) {
        let text = format!("{:#}", not_sent(&self.servers[at], why));
        let followed = &mut state.servers[at];
        if followed.is_said(target, &text) {
            return;
        }
        let record = &mut followed.record;
        record.failures = record.failures.saturating_add(1);
        record.last_failure = Some(text.clone());
        let result = AttemptResult::Failed {
            text,
            stays_paused: record.paused,
            is_waited_for: true,
            is_repeated: false,
            pause: READY_POLL,
        };
        state.tell(&self.servers[at], target, Duration::ZERO, result);
        self.write(state);
    }

    /// Reports that versions are sent to a server unchecked, once for each server.
    fn tell_unchecked<'a>(
        &'a self,
        mut state: MutexGuard<'a, FleetState>,
        at: usize,
        target: &Target,
        why: String,
    ) -> MutexGuard<'a, FleetState> {
        let is_told = std::mem::replace(&mut state.servers[at].is_told_unchecked, true);
        if !is_told {
            let result = AttemptResult::Unchecked(why);
            state.tell(&self.servers[at], target, Duration::ZERO, result);
        }
        state
    }

    fn known(&self, at: usize) -> Option<Version> {
        let followed = &self.lock().servers[at];
        if is_at_rest(&followed.record) {
            followed.known.clone()
        } else {
            None
        }
    }

    /// Returns the state of a server now.
    fn glance(&self, at: usize) -> ServerRecord {
        let mut before = self.lock().servers[at].expected();
        for _ in 0..GLANCES {
            let (expected, is_changing) = &before;
            let is_so = !expected.is_empty()
                && self
                    .engine
                    .client
                    .says(&self.servers[at], expected, *is_changing);
            let followed = &mut self.lock().servers[at];
            let now = followed.expected();
            if is_so || now.0.is_empty() {
                return followed.record.clone();
            }
            if now == before {
                break;
            }
            // The expected version has changed since the request.
            before = now;
        }
        let followed = &mut self.lock().servers[at];
        followed.next = Some(Instant::now());
        self.changed.notify_all();
        ServerRecord {
            version: None,
            ..followed.record.clone()
        }
    }

    /// Writes the record of all servers, also before one is changed. If this fails, updates
    /// continue nevertheless.
    fn write(&self, state: &mut FleetState) {
        let last = &state.written.servers;
        let servers = state.servers.iter();
        state.written.servers = servers
            .map(|followed| with_since(&followed.record, last))
            .collect();
        state.unwritten = self
            .records
            .write_servers(Some(&state.written))
            .err()
            .map(|error| format!("{error:#}"));
    }
}

impl FollowedServer {
    /// Begins with what an earlier process, which wrote `before`, knew of the server.
    fn new(server: &Server, before: &ServersRecord) -> Self {
        let record = before
            .servers
            .iter()
            .find(|record| record.url == server.url)
            .cloned()
            .unwrap_or_default();
        let known = if is_at_rest(&record) {
            version(&record)
        } else {
            None
        };
        // The first poll will find out what has happened to the server in the meantime.
        let record = ServerRecord {
            url: server.url.clone(),
            version: None,
            since: None,
            ..record
        };
        Self {
            record,
            known,
            ..Self::default()
        }
    }

    /// True if the server serves this version, and has not failed since.
    fn serves(&self, target: &Target) -> bool {
        is_at_rest(&self.record)
            && version(&self.record).as_ref() == Some(&target.version)
            && self.record.failures == 0
    }

    /// Returns the versions that the server may report, which are none if its version is unknown;
    /// and whether it is being changed.
    fn expected(&self) -> (Vec<Version>, bool) {
        let mut versions = Vec::new();
        if let Some(version) = version(&self.record) {
            versions.push(version);
            versions.extend(self.busy.as_ref().map(|busy| busy.version.clone()));
        }
        (versions, self.busy.is_some())
    }

    /// Records the result of a poll. Returns true if an attempt is due.
    fn saw(&mut self, target: &Target, found: &Result<Look>) -> bool {
        let was_silent = std::mem::replace(&mut self.is_silent, found.is_err());
        match found {
            Ok(Look::Wanted) => self.record(&target.version.served()),
            Ok(Look::Other(Some(condition))) => self.record(condition),
            // The server's version is unknown.
            _ => self.record.version = None,
        }
        let is_back = was_silent && found.is_ok();
        let is_new = self.tried.as_ref() != Some(&target.commit);
        is_new || is_back || self.again.is_none_or(|again| again <= Instant::now())
    }

    /// Records that the server has the wanted version. Returns true if it had failed before.
    fn has(&mut self, target: &Target) -> bool {
        self.record(&target.version.served());
        self.tried = Some(target.commit.clone());
        self.again = None;
        self.record.last_failure = None;
        self.said = None;
        std::mem::take(&mut self.record.failures) > 0
    }

    /// Returns whether this failure was the last one that was reported, and notes it.
    fn is_said(&mut self, target: &Target, text: &str) -> bool {
        let now = Some((target.commit.clone(), text.to_owned()));
        let before = std::mem::replace(&mut self.said, now.clone());
        before == now
    }

    fn failed(&mut self, target: &Target, failure: Failure, poll: Duration) -> AttemptResult {
        let stays_paused = failure.stays_paused();
        let Failure {
            error,
            left,
            is_waited_for,
            ..
        } = failure;
        let was_tried = self.tried.replace(target.commit.clone()).as_ref() == Some(&target.commit);
        let is_first = self.record.failures == 0 || !was_tried;
        left.iter().for_each(|left| self.record(left));
        let text = format!("{error:#}");
        let is_repeated = self.is_said(target, &text);
        self.record.failures = self.record.failures.saturating_add(1);
        self.record.last_failure = Some(text.clone());
        self.pause = if is_first || is_waited_for {
            poll
        } else {
            self.pause.saturating_mul(2).min(LONGEST_PAUSE)
        };
        self.again = Some(Instant::now() + self.pause);
        AttemptResult::Failed {
            text,
            stays_paused,
            is_waited_for: is_waited_for || self.is_silent,
            is_repeated,
            pause: self.pause,
        }
    }

    fn record(&mut self, condition: &Condition) {
        self.known = match &condition.model {
            Model::Version(version) => Some(version.clone()),
            Model::Other | Model::Torn => None,
        };
        let (version, state) = self
            .known
            .clone()
            .map(|known| (known.number, known.state))
            .unzip();
        let changing = condition.model == Model::Torn;
        let paused = condition.is_paused;
        self.record = ServerRecord {
            version,
            state,
            changing,
            paused,
            ..std::mem::take(&mut self.record)
        };
    }
}
