//! What an engine is: how a server is asked what it has, and brought to a version.

use std::fmt::Debug;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use deltachain::chain::version_name;
use deltachain::{Error, Result};
use serde_json::Value;

use crate::server::Server;

/// The pause between two questions whether a server has prepared a version.
pub(crate) const READY_POLL: Duration = Duration::from_millis(100);

/// An inference engine: which requests bring its servers to a version.
#[derive(Debug)]
pub struct Engine(pub(crate) Box<dyn Client>);

impl Engine {
    /// Whether a server downloads the chain of its own configuration; nothing if it does not answer.
    pub fn downloads(&self, server: &Server) -> Option<bool> {
        self.0.downloads(server)
    }
}

/// What becomes of the requests that a server is answering when it is paused for an update: `keep`, `wait` or `abort`.
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
    /// What users and servers call it.
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
        let found = [Self::Keep, Self::Wait, Self::Abort].into_iter().find(|pause| pause.name() == text);
        found.ok_or_else(|| "must be keep, wait or abort".to_owned())
    }
}

/// A version that servers shall have. Its files are on this machine, and proven; or the servers download it themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) version: Version,
    /// Digest of the commit, 64 hexadecimal digits: what tells two versions of the same number apart.
    pub(crate) commit: String,
    /// The directory of just this version, as an absolute path.
    pub(crate) directory: String,
}

impl Target {
    /// The version with this number, these digests of its state and its commit, 64 hexadecimal digits each, and its
    /// files in this directory.
    ///
    /// # Errors
    /// IO if the directory is not there; USAGE if its name cannot be told to a server.
    pub fn new(version: u64, state: String, commit: String, directory: &Path) -> Result<Self> {
        let resolved = directory.canonicalize();
        let resolved = resolved.map_err(|error| Error::io("looking for", error).in_file(directory))?;
        Ok(Self { version: Version { number: version, state }, commit, directory: as_text(&resolved)? })
    }
}

/// A path as servers can be given it.
///
/// # Errors
/// USAGE if it is not UTF-8.
pub fn as_text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::usage("the name is not UTF-8, so servers cannot be given it").in_file(path))
}

/// What is asked of a server so that it gets a version.
pub(crate) trait Client: Debug + Send + Sync {
    /// What the server has. Asks little, and changes nothing. `known` is the version that it was brought to from here,
    /// and to no other since, as far as is known: for engines that repeat what they have been told.
    ///
    /// # Errors
    /// IO if it does not answer, or not as this engine does, or belongs to somebody else.
    fn look(&self, server: &Server, target: &Target, known: Option<&Version>) -> Result<Found>;

    /// Whether the server says that it has one of these versions, by one question that costs it almost nothing. A
    /// server that has been started again does not. While it is being changed, it may say so, or be too busy to answer.
    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool;

    /// Whether the server refuses requests while it is brought to a version, instead of letting them wait.
    fn refuses(&self) -> bool {
        false
    }

    /// Whether the server can load this version without waiting for it, or waiting would not help. One that downloads
    /// versions itself prepares them while it serves.
    ///
    /// # Errors
    /// IO if it does not answer, or the version does not fit its model.
    fn readiness(&self, _server: &Server, _version: &Version) -> Result<Readiness> {
        Ok(Readiness::Ready)
    }

    /// Brings the server to this version. `before` is what a look has just seen there. Gives how long it stood still, if
    /// it did.
    ///
    /// # Errors
    /// IO, and what the server has then.
    fn bring(&self, server: &Server, target: &Target, before: Option<&Seen>) -> Result<Option<Duration>, Trouble>;

    /// Whether the server downloads versions itself; nothing if it does not answer.
    fn downloads(&self, _server: &Server) -> Option<bool> {
        Some(false)
    }

    /// Following ends: nobody looks at the server any more.
    fn leave(&self, _server: &Server) {}
}

/// Whether a server can load a version without waiting for it.
#[derive(Debug)]
pub(crate) enum Readiness {
    /// It can, or waiting would not help.
    Ready,
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
    /// What a server says that it has: `12@9417bf72d3e1`.
    pub(crate) fn name(&self) -> String {
        version_name(self.number, &self.state)
    }

    /// What a server has that serves it.
    pub(crate) fn seen(&self) -> Seen {
        Seen { held: Held::Version(self.clone()), is_paused: false }
    }
}

/// What a look at a server has found.
#[derive(Debug)]
pub(crate) struct Found {
    /// It serves the version that is wanted, and says so.
    pub(crate) is_wanted: bool,
    /// What its workers say; if they cannot be asked, the version that it is known to have and still names. Nothing if
    /// that is not known.
    pub(crate) seen: Option<Seen>,
}

/// What a server has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) held: Held,
    pub(crate) is_paused: bool,
}

impl Seen {
    /// It has been paused, and not told to go on.
    pub(crate) const TORN: Self = Self { held: Held::Torn, is_paused: true };
}

/// A model in a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Held {
    /// A version.
    Version(Version),
    /// It is whole, but no version of the chain; or it names itself otherwise, so that nobody knows.
    Other,
    /// It may be made of parts of two versions.
    Torn,
}

/// Why a server was not brought to a version.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) error: Error,
    /// What it has now; nothing if it goes on with what it had.
    pub(crate) left: Option<Seen>,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self { error, left: None }
    }
}

/// A text in an answer of a server.
pub(crate) fn text<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer[key].as_str().unwrap_or_default()
}
