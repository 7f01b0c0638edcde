//! Why a version is loaded as a whole into memory that is otherwise changed in place.

use std::fmt;

use deltachain::{Error, ErrorClass};

/// Why a version was, or will be, loaded as a whole and not taken in place. The first version is
/// loaded as a whole without a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fallback {
    /// No path from the version held can be taken in place, or one from nothing is shorter.
    NoRoute,
    /// The changes take more memory than the model, or than there is.
    Budget,
    /// The lanes that links code did not hold what the version held says: the memory was written
    /// to, or is faulty.
    Proof,
    /// A check found that the memory is not the version held.
    Check,
    /// The memory may hold parts of two versions.
    Torn,
    /// The memory lies elsewhere than before, or it is not known where.
    Place,
}

impl Fallback {
    /// The name in events and metrics: `no_route`, `budget`, `proof`, `check`, `torn` or `place`.
    pub fn name(self) -> &'static str {
        self.texts().0
    }

    /// Its name, and what texts say.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::NoRoute => (
                "no_route",
                "no path from the held version can be taken in place",
            ),
            Self::Budget => ("budget", "the changes take too much memory"),
            Self::Proof => (
                "proof",
                "the memory does not hold the values of the held version where it would change",
            ),
            Self::Check => (
                "check",
                "a check found that the memory does not hold its version",
            ),
            Self::Torn => ("torn", "the memory may hold parts of two versions"),
            Self::Place => ("place", "the memory has moved, or its place is unknown"),
        }
    }

    /// Whether an error of taking links in place is a reason to load the version as a whole. Other
    /// errors are faults of a link, or end the work. A wrong result of a piece is one here: what is
    /// wrong is rather the memory than the link.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        match error.class() {
            ErrorClass::StateMismatch => Some(Self::Proof),
            ErrorClass::Unsupported if error.rule().is_none() => Some(Self::NoRoute),
            ErrorClass::Usage => Some(Self::Budget),
            _ => None,
        }
    }
}

/// The reason, as texts say it.
impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)
    }
}
