//! The report of a round of copying.

use deltachain::Error;
use serde::Serialize;

use crate::advice::problems;

/// The report of a round of copying.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct MirrorReport {
    /// The newest version of the copy; `None` if there is none.
    pub version: Option<u64>,
    /// The newest version of the source, of those that are signed if keys are trusted; `None` if
    /// there is none.
    pub head: Option<u64>,
    /// How many documents were copied now: commits, routes and signatures.
    pub documents: usize,
    /// How many files were copied now.
    pub files: usize,
    /// The bytes of these files.
    pub bytes: u64,
    /// True if everything was compared, and not only what comes after the newest version.
    pub whole: bool,
    /// Faults of the source or of the copy that this round has met and not mended.
    #[serde(serialize_with = "problems")]
    pub problems: Vec<Error>,
}
