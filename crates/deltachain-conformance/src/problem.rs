//! Errors that stop the program: a wrong command line, or a problem with the vectors or the testee.

use std::fmt::{self, Display};
use std::path::Path;

/// Result of everything that may stop the program.
pub(crate) type Result<T = (), E = Problem> = std::result::Result<T, E>;

/// The error that stopped the program, in words.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The command line makes no sense: exit code 2.
    Usage(String),
    /// Anything else: exit code 1.
    Failed(String),
}

impl Problem {
    pub(crate) fn usage(message: impl Display) -> Self {
        Self::Usage(message.to_string())
    }

    pub(crate) fn failed(message: impl Display) -> Self {
        Self::Failed(message.to_string())
    }

    /// Describes a file's error, for `map_err`.
    pub(crate) fn with_file<E: Display>(path: &Path) -> impl FnOnce(E) -> Self {
        move |error| Self::Failed(format!("{}: {error}", path.display()))
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(message) | Self::Failed(message)) = self;
        f.write_str(message)
    }
}

impl From<deltachain::Error> for Problem {
    fn from(error: deltachain::Error) -> Self {
        // The alternate form includes the operating system's message.
        Self::Failed(format!("{error:#}"))
    }
}
