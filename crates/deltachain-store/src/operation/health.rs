//! The health of a follower's directory, by its content and by the records of `follow`.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use deltachain::chain::version_name;
use deltachain::{Error, ErrorClass, Result};
use serde::Serialize;

use crate::directory::held::HeldVersion;
use crate::directory::status::{TrustStatus, inspect_directory};
use crate::operation::records::{
    CommandStatus, Failure, FollowStatus, Ran, Records, ServerRecord, StoreRecord,
};
use crate::operation::time::Time;

/// Limit of a healthy lag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxLag {
    /// Versions behind the newest one that has been seen.
    Versions(u64),
    /// Time since the version was last seen to be the newest.
    Time(Duration),
}

/// Parses a number of versions, or a time such as `90s`, `10m` or `2h`.
impl FromStr for MaxLag {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(versions) = text.parse() {
            return Ok(Self::Versions(versions));
        }
        let time = humantime::parse_duration(text);
        time.map(Self::Time)
            .map_err(|_| "must be a number of versions, or a time such as 90s, 10m or 2h")
    }
}

impl MaxLag {
    /// Returns the reason why a version is too far behind; `None` if it is not.
    fn exceeded(self, version: u64, status: &FollowStatus) -> Option<String> {
        match (self, status.head, status.newest(version)) {
            (Self::Time(_), _, Some(newest)) if newest.is_in_future() => Some(format!(
                "it was the newest at {newest}, which is in the future: a clock was wrong"
            )),
            (Self::Versions(most), Some(head), _) => {
                let lag = head.saturating_sub(version);
                (lag > most)
                    .then(|| format!("{lag} versions behind the newest one seen, more than {most}"))
            }
            (Self::Time(most), _, Some(newest)) => {
                let behind = newest.age();
                let (seconds, limit) = (behind.as_secs(), most.as_secs_f64());
                (behind > most)
                    .then(|| format!("it was the newest {seconds} s ago, more than {limit} s"))
            }
            (Self::Versions(_), None, _) => {
                Some("no poll of the chain has been recorded".to_owned())
            }
            (Self::Time(_), _, None) => Some("it was never seen as the newest".to_owned()),
        }
    }
}

/// Returns the reason why a server is not ready for requests, as `GET /ready` and
/// `status --max-lag` report it; `None` if it is ready.
pub fn unready(
    server: &ServerRecord,
    status: &FollowStatus,
    most: MaxLag,
    is_followed: bool,
) -> Option<String> {
    let ServerRecord {
        version,
        state,
        paused,
        ..
    } = server;
    let state = state.as_deref().unwrap_or_default();
    match version {
        _ if !is_followed => Some("no follower is running".to_owned()),
        _ if *paused => Some("it is paused".to_owned()),
        _ if status.unsigned.is_some() => status.unsigned.clone(),
        None => Some("it does not answer with a version of the chain".to_owned()),
        Some(version)
            if !status
                .versions
                .iter()
                .any(|known| known.is(*version, state)) =>
        {
            Some(format!(
                "the directory never held its version, {}",
                version_name(*version, state)
            ))
        }
        Some(version) => most
            .exceeded(*version, status)
            .map(|text| format!("its version is {version}: {text}")),
    }
}

/// The state of a follower's directory, and its problems.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// Whether there are no problems.
    pub healthy: bool,
    /// Why it is not healthy.
    pub problems: Vec<String>,
    /// The held version. Without one, this and the fields up to `switched` are `None`.
    pub version: Option<u64>,
    /// Its state digest.
    pub state: Option<String>,
    /// Digest of its commit's bytes.
    pub commit: Option<String>,
    /// Digest of the bytes of the chain document.
    pub chain: Option<String>,
    /// Its commit's metadata.
    pub metadata: Option<BTreeMap<String, String>>,
    /// The directory of its files.
    pub directory: Option<String>,
    /// Level of proof of its files when they were built, as
    /// [`Proof::name`](deltachain::memory::Proof::name).
    pub proof: Option<&'static str>,
    /// The record of signatures; `None` if unsigned versions are accepted.
    pub trust: Option<TrustStatus>,
    /// When `current` was switched to it.
    pub switched: Option<Time>,
    /// When its commit was stored.
    pub stored: Option<Time>,
    /// Seconds since its commit was stored.
    pub age_seconds: Option<f64>,
    /// The newest version that has been seen.
    head: Option<u64>,
    /// Versions behind the newest one that has been seen; `None` if none has been seen.
    pub lag_versions: Option<u64>,
    /// Seconds since the directory was last seen at the newest version.
    pub lag_seconds: Option<f64>,
    /// The last poll.
    last_look: Option<Time>,
    /// The last poll that succeeded.
    pub last_success: Option<Time>,
    /// Whether the last poll failed.
    pub failing: bool,
    /// The last failure, even if polls have succeeded since.
    pub last_error: Option<Failure>,
    /// Whether a follower is running.
    following: bool,
    /// The process ID of the follower.
    pub process: Option<u32>,
    /// The stores that the follower, or the last one, has used: the chain's own, and copies.
    pub stores: Vec<StoreRecord>,
    /// The command of --exec; `None` without one.
    pub command: Option<CommandHealth>,
    /// The servers of --engine.
    pub servers: Vec<ServerRecord>,
    /// The reason why servers that download the chain themselves load its versions as a whole;
    /// `None` if they do not.
    pub whole: Option<String>,
    /// True if all servers are ready for requests; `None` without servers or without a limit of the
    /// lag.
    ready: Option<bool>,
}

/// Status of the command of --exec for the held version.
#[derive(Debug, Serialize)]
pub struct CommandHealth {
    /// When it succeeded.
    pub succeeded: Option<Time>,
    /// Whether it is running.
    pub running: bool,
    /// Number of failures for this version.
    failures: u64,
    /// Why it failed last.
    last_failure: Option<String>,
}

impl Health {
    /// Reads the records of a directory.
    ///
    /// # Errors
    /// USAGE if the directory does not exist.
    pub fn of(directory: &Path, max_lag: Option<MaxLag>) -> Result<Self> {
        if !directory.is_dir() {
            let error = Error::usage("there is no such directory");
            return Err(error.with_advice("check the path").in_file(directory));
        }
        let mut problems = Vec::new();
        let records = Records::in_directory(directory);
        let found = usable(inspect_directory(directory), &mut problems);
        let status = usable(records.status(), &mut problems).unwrap_or_default();
        let ran = usable(records.ran(), &mut problems);
        let servers = usable(records.servers(), &mut problems)
            .map(|record| record.servers)
            .unwrap_or_default();
        let is_followed = records.is_locked();
        if found.is_none() && problems.is_empty() {
            problems.push("it holds no version".to_owned());
        }
        if let Some(found) = &found
            && !found.missing.is_empty()
        {
            problems.push(format!(
                "files are missing or have another length: {}",
                found.missing.join(", ")
            ));
        }
        let held = found.as_ref().map(|found| &found.held);
        let version = held.map(|held| held.version);
        let trust = found.as_ref().and_then(|found| found.trust.as_ref());
        if let Some(problem) = trust.and_then(TrustStatus::problem) {
            problems.push(problem);
        }
        problems.extend(of_polls(&status));
        let command = status
            .command
            .as_ref()
            .map(|command| CommandHealth::of(command, ran.as_ref(), held, is_followed));
        if let Some(version) = version {
            if let Some(command) = &command {
                problems.extend(command.problem(version, is_followed));
            }
            if let Some(most) = max_lag {
                problems.extend(of_lag(most, version, &status, is_followed));
            }
        }
        let mut are_ready = true;
        for server in &servers {
            let unready = max_lag.and_then(|most| unready(server, &status, most, is_followed));
            are_ready &= unready.is_none();
            problems.extend(of_server(server, unready.as_deref(), is_followed));
        }
        let stored = match &status.stored {
            Some(stored) if Some(stored.version) == version => Some(stored.time),
            _ => None,
        };
        Ok(Self {
            healthy: problems.is_empty(),
            problems,
            version,
            state: held.map(|held| held.state.to_string()),
            commit: held.map(|held| held.commit.to_string()),
            chain: held.map(|held| held.chain.to_string()),
            metadata: held.map(|held| held.metadata.clone()),
            directory: held.map(|held| held.directory.to_string_lossy().into_owned()),
            proof: held.map(|held| held.proof.name()),
            trust: trust.cloned(),
            switched: found.as_ref().and_then(|found| found.switched).map(Time),
            stored,
            age_seconds: stored.map(|stored| stored.age().as_secs_f64()),
            head: status.head,
            lag_versions: version
                .zip(status.head)
                .map(|(version, head)| head.saturating_sub(version)),
            lag_seconds: version
                .and_then(|version| status.newest(version))
                .map(|time| time.age().as_secs_f64()),
            last_look: status.last_look,
            last_success: status.last_success,
            failing: status.failing,
            last_error: status.last_error,
            following: is_followed,
            process: is_followed.then_some(status.pid),
            stores: status.stores,
            command,
            ready: (max_lag.is_some() && !servers.is_empty()).then_some(are_ready),
            servers,
            whole: status.whole,
        })
    }
}

/// Problems that the last polls have shown.
fn of_polls(status: &FollowStatus) -> Vec<String> {
    let mut problems = Vec::new();
    // With a time in the future, the age of the last poll would be 0 until then.
    if let Some(time) = status.last_look.max(status.last_success)
        && time.is_in_future()
    {
        problems.push(format!(
            "the last poll was at {time}, which is in the future: a clock was wrong"
        ));
    }
    if let Some(error) = &status.last_error
        && status.failing
        // A network that is down for a while is not a problem here: --max-lag covers it.
        && (error.is_local || error.class != ErrorClass::Io.name())
    {
        problems.push(format!("the last poll failed: {}", error.message));
    }
    problems
}

fn of_lag(
    max_lag: MaxLag,
    version: u64,
    status: &FollowStatus,
    is_followed: bool,
) -> Option<String> {
    let follower = if is_followed || matches!(max_lag, MaxLag::Versions(_)) {
        ""
    } else {
        "; no follower is running"
    };
    max_lag
        .exceeded(version, status)
        .map(|text| text + follower)
}

/// Returns the problem of a server. `unready` is the reason why it is not ready.
fn of_server(server: &ServerRecord, unready: Option<&str>, is_followed: bool) -> Option<String> {
    let ServerRecord {
        url,
        version,
        changing,
        failures,
        last_failure,
        paused,
        ..
    } = server;
    let is_paused = *paused;
    let paused = if is_paused { "; it is paused" } else { "" };
    let text = last_failure.as_deref().unwrap_or_default();
    match failures {
        1.. => Some(format!(
            "failures of server {url}: {failures}; {text}{paused}"
        )),
        0 if !is_followed => Some(format!(
            "the version of server {url} is unknown: no follower is running{paused}"
        )),
        // During an update, the record still has the previous version.
        0 if version.is_none() => Some(format!("the version of server {url} is unknown{paused}")),
        0 if is_paused && !changing => Some(format!("server {url} is paused")),
        0 => unready.map(|text| format!("server {url} is not ready: {text}")),
    }
}

impl CommandHealth {
    fn of(
        command: &CommandStatus,
        ran: Option<&Ran>,
        held: Option<&HeldVersion>,
        is_followed: bool,
    ) -> Self {
        let succeeded = match (ran, held) {
            (Some(ran), Some(held)) if ran.is(held.version, held.commit, &command.digest) => {
                Some(ran.time)
            }
            _ => None,
        };
        Self {
            succeeded,
            running: command.running && is_followed,
            failures: command.failures,
            last_failure: command.last_failure.clone(),
        }
    }

    fn problem(&self, version: u64, is_followed: bool) -> Option<String> {
        let text = self.last_failure.as_deref().unwrap_or_default();
        match self.succeeded {
            Some(_) => None,
            None if self.failures > 0 => Some(format!(
                "failures of the command for version {version}: {}; {text}",
                self.failures
            )),
            None if is_followed => None,
            None => Some(format!(
                "the command has not been run for version {version}, and no follower is running"
            )),
        }
    }
}

/// Returns the value that was read. An error becomes a problem.
fn usable<T>(read: Result<Option<T>>, problems: &mut Vec<String>) -> Option<T> {
    read.unwrap_or_else(|error| {
        problems.push(format!("{error:#}"));
        None
    })
}
