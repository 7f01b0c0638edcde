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

    pub(crate) fn is(&self, held: &HeldVersion) -> bool {
        (self.version, &self.commit) == (held.version, &held.commit.to_string())
    }
}

/// A path for JSON.
fn as_text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::usage("the name is not UTF-8, and no server can be told of it").in_file(path))
}

/// What is asked of a server so that it gets a version.
trait Engine: Debug + Send + Sync {
    /// Whether the server says that it has this version. Asks little, and changes nothing.
    ///
    /// # Errors
    /// IO if it does not answer, or not as this engine does.
    fn has(&self, server: &Server, target: &Target) -> Result<bool>;

    /// Brings the server to this version. Gives how long it stood still, if it did.
    ///
    /// # Errors
    /// IO, and whether the server stays paused.
    fn bring(&self, server: &Server, target: &Target) -> Result<Option<Duration>, Trouble>;
}

/// Why a server was not brought to a version.
#[derive(Debug)]
struct Trouble {
    error: Error,
    /// It may hold parts of two versions, and has not been told to go on.
    stays_paused: bool,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self { error, stays_paused: false }
    }
}

/// A text in an answer of a server.
fn text<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer[key].as_str().unwrap_or_default()
}
