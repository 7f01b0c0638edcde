//! Engines: how a server is asked what it has, and brought to a version.

use std::fmt::Debug;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deltachain::chain::version_name;
use deltachain::{Error, Result};
use serde_json::Value;

use crate::fit::Fit;
use crate::server::Server;

/// The pause between two questions whether a server has prepared a version.
pub(crate) const READY_POLL: Duration = Duration::from_millis(100);

/// An inference engine: which requests bring its servers to a version.
#[derive(Debug)]
pub struct Engine {
    pub(crate) client: Box<dyn Client>,
    /// Whether a server refuses requests while it is brought to a version, instead of letting them
    /// wait.
    pub(crate) refuses: bool,
}

impl Engine {
    /// Whether a server downloads the chain of its own configuration; nothing if it does not
    /// answer.
    pub fn downloads(&self, server: &Server) -> Option<bool> {
        self.client.downloads(server)
    }
}

/// The treatment of requests that a server is answering when it is paused for an update: `keep`,
/// `wait` or `abort`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pause {
    /// They stand still, and go on with the new version: one answer is made of two versions.
    #[default]
    Keep,
    /// They end first.
    Wait,
    /// They end at once, with what they have.
    Abort,
}

impl Pause {
    /// The name of this treatment for users and servers.
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

/// A version that servers shall have. Its files are on this machine, and proven; or the servers
/// download it themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) version: Version,
    /// Digest of the commit, 64 hexadecimal digits: what tells two versions of the same number
    /// apart.
    pub(crate) commit: String,
    /// The directory of just this version, as an absolute path.
    pub(crate) directory: String,
}

impl Target {
    /// The version with this number, these digests of its state and its commit, 64 hexadecimal
    /// digits each, and its files in this directory.
    ///
    /// # Errors
    /// IO if the directory is not there; USAGE if its name cannot be told to a server.
    pub fn new(version: u64, state: String, commit: String, directory: &Path) -> Result<Self> {
        let resolved = directory.canonicalize();
        let resolved =
            resolved.map_err(|error| Error::io("resolving the path", error).in_file(directory))?;
        Ok(Self {
            version: Version {
                number: version,
                state,
            },
            commit,
            directory: as_text(&resolved)?,
        })
    }
}

/// A path as servers can be given it.
///
/// # Errors
/// USAGE if it is not UTF-8.
pub fn as_text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Error::usage("the name is not UTF-8, so servers cannot be given it").in_file(path)
    })
}

/// The requests that bring a server to a version, and look at what it has.
pub(crate) trait Client: Debug + Send + Sync {
    /// Finds out which version the server has, by cheap requests that change nothing. `known` is
    /// the last version that this process brought it to, for engines that only repeat the version
    /// that they were given.
    ///
    /// # Errors
    /// IO if it does not answer, or not as this engine does, or belongs to somebody else.
    fn look(&self, server: &Server, target: &Target, known: Option<&Version>) -> Result<Look>;

    /// Whether the server says that it has one of these versions, by one question that costs it
    /// almost nothing. A server that has been started again does not. While it is being changed, it
    /// may say so, or be too busy to answer.
    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool;

    /// Whether the server can load this version without waiting for it, or waiting would not help.
    /// One that downloads versions itself prepares them while it serves.
    ///
    /// # Errors
    /// IO if it does not answer, or the version does not fit its model.
    fn preparation(&self, _server: &Server, _version: u64) -> Result<Preparation> {
        Ok(Preparation::Done)
    }

    /// Whether the version fits the server's model, before anything is changed there.
    ///
    /// # Errors
    /// IO if it does not answer, or the version is not to be sent without a comparison.
    fn compare(&self, _server: &Server, _target: &Target) -> Result<Fit> {
        Ok(Fit::Fits)
    }

    /// Brings the server to this version. `before` is what a look has just seen there. Gives how
    /// long it stood still, if it did.
    ///
    /// # Errors
    /// IO, and what the server has then.
    fn bring(
        &self,
        server: &Server,
        target: &Target,
        before: Option<&Condition>,
    ) -> Result<Option<Duration>, Failure>;

    /// Whether the server downloads versions itself; nothing if it does not answer.
    fn downloads(&self, _server: &Server) -> Option<bool> {
        Some(false)
    }

    /// Called when following ends and the server is not polled any more.
    fn leave(&self, _server: &Server) {}
}

/// Whether a server can load a version without waiting for it.
#[derive(Debug)]
pub(crate) enum Preparation {
    /// It can, or waiting would not help.
    Done,
    /// Not yet; and what has failed there.
    Waits(Option<String>),
}

/// A version: its number, and the state digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) number: u64,
    pub(crate) state: String,
}

impl Version {
    /// The name by which a server says that it has this version: `12@9417bf72d3e1`.
    pub(crate) fn name(&self) -> String {
        version_name(self.number, &self.state)
    }

    /// The condition of a server that serves it.
    pub(crate) fn served(&self) -> Condition {
        Condition {
            model: Model::Version(self.clone()),
            is_paused: false,
        }
    }
}

/// The result of a look at a server.
#[derive(Debug)]
pub(crate) enum Look {
    /// It serves the version that is wanted, and says so.
    Wanted,
    /// Its condition, as its workers report it; if they cannot be asked, the version that it is
    /// known to have and still names. Nothing if that is not known.
    Other(Option<Condition>),
}

/// The condition of a server: the model that it has, and whether it is paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) model: Model,
    pub(crate) is_paused: bool,
}

impl Condition {
    /// It has been paused, and not told to go on.
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
    /// A whole model that is not a version of the chain, or that the server names otherwise, so
    /// that its version is unknown.
    Other,
    /// It may be made of parts of two versions.
    Torn,
}

/// Why something was not done with a server.
#[derive(Debug)]
pub struct Failure {
    /// Why, and which server.
    pub error: Error,
    /// It was not there in time.
    pub is_late: bool,
    /// The condition of the server now; nothing if it goes on with what it had.
    pub(crate) left: Option<Condition>,
    /// For how long another process updates it.
    pub(crate) lease: Option<Duration>,
}

impl Failure {
    /// It stays paused: it may hold parts of two versions, or was not told to go on.
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
        }
    }
}

/// The value, also if a thread that had it has panicked.
pub(crate) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A text in an answer of a server.
pub(crate) fn text<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer[key].as_str().unwrap_or_default()
}
