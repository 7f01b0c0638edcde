//! Whether a follower's directory is healthy, by what it holds and what `follow` has written down.

use std::path::Path;
use std::time::Duration;

use deltachain::{Error, ErrorClass, Result};
use deltachain_engines::{ServerState, name_of};
use deltachain_store::{DirectoryStatus, inspect_directory};

use crate::operation::records::{CommandStatus, FollowStatus, Ran, Records, ServerRecord};
use crate::operation::time::Time;

/// How far behind is healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaxLag {
    Versions(u64),
    Time(Duration),
}

impl MaxLag {
    /// Why a version is too far behind.
    fn exceeded(self, version: u64, status: &FollowStatus) -> Option<String> {
        match (self, status.head, status.newest(version)) {
            (Self::Time(_), _, Some(newest)) if newest.is_in_future() => {
                Some(format!("it was the newest at {newest}, which is in the future: a clock was wrong"))
            }
            (Self::Versions(most), Some(head), _) => {
                let lag = head.saturating_sub(version);
                (lag > most).then(|| format!("{lag} versions behind the newest one seen, more than {most}"))
            }
            (Self::Time(most), _, Some(newest)) => {
                let behind = newest.age();
                let (seconds, limit) = (behind.as_secs(), most.as_secs_f64());
                (behind > most).then(|| format!("it was the newest {seconds} s ago, more than {limit} s"))
            }
            (Self::Versions(_), None, _) => Some("no poll of the chain has been recorded".to_owned()),
            (Self::Time(_), _, None) => Some("it was never seen to be the newest".to_owned()),
        }
    }
}

/// Why a server is not ready for requests: what `GET /ready` says of it, and `status --max-lag`. `None` if it is.
pub(crate) fn unready(server: &ServerState, status: &FollowStatus, most: MaxLag, is_followed: bool) -> Option<String> {
    let ServerState { version, state, paused, .. } = server;
    let state = state.as_deref().unwrap_or_default();
    match version {
        _ if !is_followed => Some("nobody follows the chain".to_owned()),
        _ if *paused => Some("it is paused".to_owned()),
        None => Some("it does not answer with a version of the chain".to_owned()),
        Some(version) if !status.versions.iter().any(|known| known.is(*version, state)) => {
            Some(format!("its version {} is none that the directory has held", name_of(*version, state)))
        }
        Some(version) => most.exceeded(*version, status).map(|text| format!("its version is {version}: {text}")),
    }
}

/// All that is known of a directory, and its faults.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) held: Option<DirectoryStatus>,
    pub(crate) status: FollowStatus,
    pub(crate) command: Option<CommandHealth>,
    /// The servers of --engine.
    pub(crate) servers: Vec<ServerRecord>,
    /// Whether a process follows.
    pub(crate) is_followed: bool,
    /// Versions behind the newest one that has been seen; `None` if none has been seen.
    pub(crate) lag: Option<u64>,
    /// How long ago the directory was seen to be at the newest version.
    pub(crate) behind: Option<Duration>,
    /// Whether all servers are ready for requests; `None` without servers, or if nobody says how far behind is healthy.
    pub(crate) ready: Option<bool>,
    /// Why it is not healthy.
    pub(crate) problems: Vec<String>,
}

/// How the command of --exec does for the version held.
#[derive(Debug)]
pub(crate) struct CommandHealth {
    /// When it succeeded.
    pub(crate) succeeded: Option<Time>,
    pub(crate) status: CommandStatus,
}

impl Health {
    /// Reads the records of a directory.
    ///
    /// # Errors
    /// USAGE if the directory does not exist.
    pub(crate) fn of(directory: &Path, max_lag: Option<MaxLag>) -> Result<Self> {
        if !directory.is_dir() {
            return Err(Error::usage("there is no such directory").in_file(directory));
        }
        let mut problems = Vec::new();
        let records = Records::in_directory(directory);
        let held = usable(inspect_directory(directory), &mut problems);
        let status = usable(records.status(), &mut problems).unwrap_or_default();
        let ran = usable(records.ran(), &mut problems);
        let servers = usable(records.servers(), &mut problems).map(|record| record.servers).unwrap_or_default();
        let is_followed = records.is_locked();
        if held.is_none() && problems.is_empty() {
            problems.push("it holds no version".to_owned());
        }
        if let Some(held) = held.as_ref().filter(|held| !held.missing.is_empty()) {
            problems.push(format!("files are missing or have another length: {}", held.missing.join(", ")));
        }
        let version = held.as_ref().map(|held| held.version);
        let lag = version.zip(status.head).map(|(version, head)| head.saturating_sub(version));
        let behind = version.and_then(|version| status.newest(version)).map(Time::age);
        let command = status.command.clone().map(|status| CommandHealth::of(status, held.as_ref(), ran.as_ref()));
        let mut health = Self { held, status, command, servers, is_followed, lag, behind, ready: None, problems };
        health.problems.extend(health.of_times());
        health.problems.extend(health.of_looks());
        health.problems.extend(health.of_command());
        health.problems.extend(max_lag.and_then(|max_lag| health.of_lag(max_lag)));
        let unready = |server: &ServerRecord| {
            max_lag.and_then(|max_lag| unready(&server.server, &health.status, max_lag, health.is_followed))
        };
        let unready: Vec<_> = health.servers.iter().map(unready).collect();
        health.ready = max_lag.filter(|_| !unready.is_empty()).map(|_| unready.iter().all(Option::is_none));
        health.problems.extend(health.of_servers(&unready));
        Ok(health)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.problems.is_empty()
    }

    /// Ages by times that have not come yet would be 0 for ever.
    fn of_times(&self) -> Option<String> {
        let FollowStatus { last_look, last_success, .. } = &self.status;
        let time = (*last_look).max(*last_success).filter(|time| time.is_in_future())?;
        Some(format!("the last poll was at {time}, which is in the future: a clock was wrong"))
    }

    fn of_looks(&self) -> Option<String> {
        let error = self.status.last_error.as_ref().filter(|_| self.status.failing)?;
        // A network that is down for a while is what --max-lag is for.
        (error.class != ErrorClass::Io.name()).then(|| format!("the last poll failed: {}", error.message))
    }

    fn of_command(&self) -> Option<String> {
        let (command, held) = (self.command.as_ref()?, self.held.as_ref()?);
        let CommandStatus { failures, last_failure, .. } = &command.status;
        let text = last_failure.as_deref().unwrap_or_default();
        match command.succeeded {
            Some(_) => None,
            None if *failures > 0 => {
                Some(format!("failures of the command for version {}: {failures}; {text}", held.version))
            }
            None if self.is_followed => None,
            None => {
                Some(format!("the command has not been run for version {}, and no follower is running", held.version))
            }
        }
    }

    /// `unready` is why each server is not ready.
    fn of_servers(&self, unready: &[Option<String>]) -> Vec<String> {
        let problem = |(server, unready): (&ServerRecord, &Option<String>)| {
            let ServerState { url, version, changing, failures, last_failure, paused, .. } = &server.server;
            let paused = if *paused { "; it is paused" } else { "" };
            let text = last_failure.as_deref().unwrap_or_default();
            match failures {
                1.. => Some(format!("failures of server {url}: {failures}; {text}{paused}")),
                0 if !self.is_followed => {
                    Some(format!("the version of server {url} is unknown: no follower is running{paused}"))
                }
                0 if version.is_none() && !changing => Some(format!("the version of server {url} is unknown")),
                0 => unready.as_ref().map(|text| format!("server {url} is not ready: {text}")),
            }
        };
        self.servers.iter().zip(unready).filter_map(problem).collect()
    }

    fn of_lag(&self, max_lag: MaxLag) -> Option<String> {
        let version = self.held.as_ref()?.version;
        let follower =
            if self.is_followed || matches!(max_lag, MaxLag::Versions(_)) { "" } else { "; no follower is running" };
        max_lag.exceeded(version, &self.status).map(|text| text + follower)
    }
}

impl CommandHealth {
    fn of(status: CommandStatus, held: Option<&DirectoryStatus>, ran: Option<&Ran>) -> Self {
        let fits = |ran: &&Ran| held.is_some_and(|held| ran.is(held.version, held.commit, &status.digest));
        Self { succeeded: ran.filter(fits).map(|ran| ran.time), status }
    }
}

/// What could be read. What could not is a problem.
fn usable<T>(read: Result<Option<T>>, problems: &mut Vec<String>) -> Option<T> {
    read.unwrap_or_else(|error| {
        problems.push(format!("{error:#}"));
        None
    })
}
