//! The report of a round of copying.

use deltachain::Error;
use serde::Serialize;

use crate::advice::problems;

/// The report of a round of copying.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct MirrorReport {
    /// The newest version of the copy; `None` if the copy has no version.
    pub version: Option<u64>,
    /// The newest version of the source, or the newest signed one if keys are trusted; `None` if it
    /// does not exist.
    pub head: Option<u64>,
    /// Number of documents copied in this round: commits, routes and signatures.
    pub documents: usize,
    /// Number of files copied in this round.
    pub files: usize,
    /// The bytes of these files.
    pub bytes: u64,
    /// True if everything was compared, and not only what comes after the newest version.
    pub whole: bool,
    /// Faults of the source or of the copy that this round has found and not repaired.
    #[serde(serialize_with = "problems")]
    pub problems: Vec<Error>,
}
