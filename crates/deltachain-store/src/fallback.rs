//! Reasons to load a whole version into memory that is otherwise changed in place.

use std::fmt;

use deltachain::{Error, ErrorClass};

/// Reason why a version was, or will be, loaded as a whole and not taken in place. The first
/// version, which is always loaded as a whole, has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fallback {
    /// No path from the held version can be taken in place, or a path from nothing is shorter.
    NoRoute,
    /// The changes need more memory than the model, or than is available.
    Budget,
    /// Coded lanes did not have the values of the held version: something wrote to the memory, or
    /// it is faulty.
    Proof,
    /// A check found that the memory does not contain the held version.
    Check,
    /// The memory may hold parts of two versions.
    Torn,
    /// The memory has moved, or its place is unknown.
    Place,
}

impl Fallback {
    /// Returns the name in events and metrics: `no_route`, `budget`, `proof`, `check`, `torn` or
    /// `place`.
    pub fn name(self) -> &'static str {
        self.texts().0
    }

    /// Returns the name and the description.
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

    /// Returns the reason to load the whole version after this error of a change in place. `None`
    /// for faults of a link and for errors that end the work. A wrong result of a piece counts as a
    /// reason: the memory is more likely wrong than the link.
    pub(crate) fn of(error: &Error) -> Option<Self> {
        match error.class() {
            ErrorClass::StateMismatch => Some(Self::Proof),
            ErrorClass::Unsupported if error.rule().is_none() => Some(Self::NoRoute),
            ErrorClass::Usage => Some(Self::Budget),
            _ => None,
        }
    }
}

/// Writes the description.
impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)
    }
}
