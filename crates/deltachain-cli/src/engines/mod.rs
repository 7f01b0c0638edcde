//! Inference servers that `follow --engine` brings to each version: what an engine is, and which there are.
//!
//! ```text
//! fleet.rs    a thread for each server: tries until the server has the version, and looks whether it still has it
//! server.rs   requests to one server
//! vllm.rs, sglang.rs, lora.rs   what is asked of a server, in which order
//! args.rs     the options
//! ```

pub(crate) mod args;
pub(crate) mod fleet;
mod lora;
mod server;
mod sglang;
mod vllm;

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use deltachain::{Error, Result};
use deltachain_store::HeldVersion;
use serde_json::Value;

use crate::engines::server::Server;

/// Digits of the state digest in the name of a version.
const STATE_DIGITS: usize = 12;

/// A version that servers shall have. Its files are on this machine, and proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    version: u64,
    /// State digest, 64 hexadecimal digits.
    state: String,
    /// Digest of the commit, 64 hexadecimal digits: what tells two versions of the same number apart.
    commit: String,
    /// The directory of just this version, as an absolute path.
    directory: String,
}

impl Target {
    /// # Errors
    /// IO if the directory is not there; USAGE if its name cannot be told to a server.
    pub(crate) fn of(held: &HeldVersion) -> Result<Self> {
        let resolved = held.directory.canonicalize();
        let resolved = resolved.map_err(|error| Error::io("looking for", error).in_file(&held.directory))?;
        Ok(Self {
            version: held.version,
            state: held.state.to_string(),
            commit: held.commit.to_string(),
            directory: as_text(&resolved)?,
        })
    }

    /// What a server says that it has: `12@9417bf72d3e1`.
    fn name(&self) -> String {
        name_of(self.version, &self.state)
    }

    /// What a server has that serves it.
    fn seen(&self) -> Seen {
        Seen { held: Held::Version(self.version, self.state.clone()), is_paused: false }
    }

    pub(crate) fn is(&self, held: &HeldVersion) -> bool {
        (self.version, &self.commit) == (held.version, &held.commit.to_string())
    }
}

/// What a server calls a version: its number, and digits of its state digest.
pub(crate) fn name_of(version: u64, state: &str) -> String {
    format!("{version}@{}", state.get(..STATE_DIGITS).unwrap_or(state))
}

/// A path for JSON.
fn as_text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::usage("the name is not UTF-8, so servers cannot be given it").in_file(path))
}

/// What is asked of a server so that it gets a version.
trait Engine: Debug + Send + Sync {
    /// What the server has. Asks little, and changes nothing. `is_known` is whether it has been brought to this version
    /// from here, and to no other since, as far as is known: for engines that repeat what they have been told.
    ///
    /// # Errors
    /// IO if it does not answer, or not as this engine does, or belongs to somebody else.
    fn look(&self, server: &Server, target: &Target, is_known: bool) -> Result<Found>;

    /// Brings the server to this version. Gives how long it stood still, if it did.
    ///
    /// # Errors
    /// IO, and what the server has then.
    fn bring(&self, server: &Server, target: &Target) -> Result<Option<Duration>, Trouble>;

    /// Following ends: nobody looks at the server any more.
    fn leave(&self, _server: &Server) {}
}

/// What a look at a server has found.
#[derive(Debug)]
struct Found {
    /// It serves the version that is wanted, and says so.
    is_wanted: bool,
    /// What its workers say; nothing if they cannot be asked.
    seen: Option<Seen>,
}

/// What a server has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    held: Held,
    is_paused: bool,
}

impl Seen {
    /// It has been paused, and not told to go on.
    const TORN: Self = Self { held: Held::Torn, is_paused: true };
}

/// A model in a server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Held {
    /// A version and its state digest.
    Version(u64, String),
    /// It is whole, but no version of the chain.
    Other,
    /// It may be made of parts of two versions.
    Torn,
}

/// Why a server was not brought to a version.
#[derive(Debug)]
struct Trouble {
    error: Error,
    /// What it has now; nothing if it goes on with what it had.
    left: Option<Seen>,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self { error, left: None }
    }
}

/// A text in an answer of a server.
fn text<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer[key].as_str().unwrap_or_default()
}
