//! Engines: the requests that find out a server's version and load another one.

use std::fmt::Debug;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deltachain::chain::version_name;
use deltachain::{Error, Result};
use deltachain_store::HeldVersion;
use serde_json::Value;

use crate::fit::Fit;
use crate::server::Server;

/// Pause between two requests that ask whether a server has prepared a version.
pub(crate) const READY_POLL: Duration = Duration::from_millis(100);

/// An inference engine: the requests that load a version into its servers.
#[derive(Debug)]
pub struct Engine {
    pub(crate) client: Box<dyn Client>,
    /// True if a server refuses requests during an update, instead of letting them wait.
    pub(crate) refuses: bool,
    /// True if a version is sent to a server even if nothing shows that it fits.
    pub(crate) sends_unchecked: bool,
}

impl Engine {
    /// True if a server downloads the chain of its own configuration; `None` if it does not answer.
    pub fn downloads(&self, server: &Server) -> Option<bool> {
        self.client.downloads(server)
    }
}

/// The treatment of requests that a server is answering when it is paused for an update: `keep`,
/// `wait` or `abort`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pause {
    /// They are paused, and continue with the new version: one answer comes from two versions.
    #[default]
    Keep,
    /// They complete before the update.
    Wait,
    /// They end at once, with the tokens so far.
    Abort,
}

impl Pause {
    /// Returns the name of this treatment for users and servers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Wait => "wait",
            Self::Abort => "abort",
        }
    }
}

impl FromStr for Pause {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Self::Keep, Self::Wait, Self::Abort]
            .into_iter()
            .find(|pause| pause.name() == text);
        found.ok_or_else(|| "must be keep, wait or abort".to_owned())
    }
}

/// A version that servers should have. Its files are verified and on this machine, or the servers
/// download it themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) version: Version,
    /// Digest of the commit, 64 hexadecimal digits. It distinguishes two versions with the same
    /// number.
    pub(crate) commit: String,
    /// Digest of the chain document, 64 hexadecimal digits. It distinguishes two chains.
    pub(crate) chain: String,
    /// The directory of this version alone, as an absolute path.
    pub(crate) directory: String,
}

impl Target {
    /// Makes a target from the version that a follower's directory has.
    ///
    /// # Errors
    /// IO if the directory does not exist; USAGE if its name cannot be sent to a server.
    pub fn new(held: &HeldVersion) -> Result<Self> {
        let directory = &held.directory;
        let resolved = directory.canonicalize();
        let resolved =
            resolved.map_err(|error| Error::io("resolving the path", error).in_file(directory))?;
        Ok(Self {
            version: Version {
                number: held.version,
                state: held.state.to_string(),
            },
            commit: held.commit.to_string(),
            chain: held.chain.to_string(),
            directory: as_text(&resolved)?,
        })
    }
}

/// Converts a path to text, as servers get it.
///
/// # Errors
/// USAGE if the path is not UTF-8.
pub fn as_text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Error::usage("the name is not UTF-8, so servers cannot be given it").in_file(path)
    })
}

/// The requests that load a version into a server and find out its condition.
pub(crate) trait Client: Debug + Send + Sync {
    /// Finds out which version the server has, with cheap requests that change nothing. `known` is
    /// the last version that this process loaded into it, for engines that only repeat the version
    /// that they were given.
    ///
    /// # Errors
    /// IO if the server does not answer, answers unlike this engine, or is updated by another
    /// process.
    fn look(&self, server: &Server, target: &Target, known: Option<&Version>) -> Result<Look>;

    /// True if the server says that it has one of these versions, in answer to one request that
    /// costs it almost nothing. A restarted server does not say so. During an update it may, or be
    /// too busy to answer.
    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool;

    /// Asks whether the server can load this version without delay. A server that downloads
    /// versions itself prepares them while it serves. `begins` is true for the first question of an
    /// attempt: a server that has failed to prepare a version then tries again.
    ///
    /// # Errors
    /// IO if the server does not answer, or cannot take the version: it does not fit its model, is
    /// of another chain, or cannot be prepared.
    fn preparation(
        &self,
        _server: &Server,
        _target: &Target,
        _begins: bool,
    ) -> Result<Preparation> {
        Ok(Preparation::Done)
    }

    /// Compares the version with the server's model, before anything is changed there.
    ///
    /// # Errors
    /// IO if the server does not answer.
    fn compare(&self, _server: &Server, _target: &Target) -> Result<Fit> {
        Ok(Fit::Fits)
    }

    /// Loads this version into the server. `before` is its condition at the last poll. Returns the
    /// length of the pause, if there was one.
    ///
    /// # Errors
    /// IO, and the condition of the server after the failure.
    fn bring(
        &self,
        server: &Server,
        target: &Target,
        before: Option<&Condition>,
    ) -> Result<Option<Duration>, Failure>;

    /// True if the server downloads versions itself; `None` if it does not answer.
    fn downloads(&self, _server: &Server) -> Option<bool> {
        Some(false)
    }

    /// Called when following ends and the server is no longer polled.
    fn leave(&self, _server: &Server) {}
}

/// Readiness of a server to load a version.
#[derive(Debug)]
pub(crate) enum Preparation {
    /// The server can load the version without delay, or waiting would not help.
    Done,
    /// The version is not ready yet.
    Waits {
        /// The error, if preparing it has failed.
        why: Option<String>,
        /// Pause before the next question.
        pause: Duration,
    },
}

/// A version: its number and its state digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) state: String,
}

impl Version {
    /// Returns the name by which a server says that it has this version: `12@9417bf72d3e1`.
    pub(crate) fn name(&self) -> String {
        version_name(self.number, &self.state)
    }

    /// Returns the condition of a server that serves this version.
    pub(crate) fn served(&self) -> Condition {
        Condition {
            model: Model::Version(self.clone()),
            is_paused: false,
        }
    }
}

/// Result of polling a server.
#[derive(Debug)]
pub(crate) enum Look {
    /// The server serves the wanted version, and says so.
    Wanted,
    /// The server's condition, as its workers report it; if they cannot be asked, with the version
    /// that this process knows and the server still names. `None` if it is unknown.
    Other(Option<Condition>),
}

/// The condition of a server: its model, and whether it is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) model: Model,
    pub(crate) is_paused: bool,
}

impl Condition {
    /// A server that was paused for an update and not resumed.
    pub(crate) const TORN: Self = Self {
        model: Model::Torn,
        is_paused: true,
    };
}

/// A model in a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Model {
    /// A version.
    Version(Version),
    /// A whole model that is not a version of the chain, or whose version is unknown because the
    /// server calls it something else.
    Other,
    /// A model that may consist of parts of two versions.
    Torn,
}

/// Failure of an operation on a server.
#[derive(Debug)]
pub struct Failure {
    /// The error, which names the server.
    pub error: Error,
    /// True if the server did not answer in time.
    pub is_late: bool,
    /// The condition of the server now; `None` if it continues with its previous model.
    pub(crate) left: Option<Condition>,
    /// Remaining time of another process's claim on the server.
    pub(crate) lease: Option<Duration>,
    /// True if the server is still preparing the version, and says why it is not ready.
    pub(crate) is_waited_for: bool,
}

impl Failure {
    /// True if the server stays paused: it may hold parts of two versions, or was not resumed.
    pub fn stays_paused(&self) -> bool {
        self.left.as_ref().is_some_and(|left| left.is_paused)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            is_late: false,
            left: None,
            lease: None,
            is_waited_for: false,
        }
    }
}

/// Locks a mutex, even if a thread that held it has panicked.
pub(crate) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a text in a server's answer; empty if it is missing.
pub(crate) fn text<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer[key].as_str().unwrap_or_default()
}
