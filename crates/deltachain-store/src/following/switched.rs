//! The report of a switch to a version.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use deltachain::memory::Proof;
use deltachain::tensor::Digest;

use crate::fallback::Fallback;

/// Durations of the phases. Downloading and building overlap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhaseTimes {
    /// Listing and reading documents.
    pub plan: Duration,
    /// Until the last byte arrived.
    pub download: Duration,
    /// Until everything was decoded and checked, and either on disk or prepared beside the memory.
    pub build: Duration,
    /// The switch.
    pub switch: Duration,
}

/// Lag of a version.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Lag {
    /// Number of versions behind the head.
    pub versions: u64,
    /// Seconds since its commit was stored, as far as the clocks agree; `None` if the store reports
    /// no times.
    pub seconds: Option<f64>,
}

/// The report of a switch.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SwitchReport<D = PathBuf> {
    /// The version that was held.
    pub from: Option<u64>,
    /// The version that is held now.
    pub version: u64,
    /// Its state digest.
    pub state: Digest,
    /// Digest of its commit's bytes.
    pub commit: Digest,
    /// Its commit's metadata.
    pub metadata: BTreeMap<String, String>,
    /// The directory of its files: the one that `current` leads to. `()` for a version in memory.
    pub directory: D,
    /// The routes that were applied, each with its base version, if it has one, and its target
    /// version.
    pub routes: Vec<(Option<u64>, u64)>,
    /// Bytes of links and assets that were downloaded.
    pub downloaded: u64,
    /// Bytes of links that were in the cache.
    pub from_cache: u64,
    /// Bytes of tensors that were written to the directory, or are kept beside the memory as
    /// changes and whole tensors.
    pub written: u64,
    /// Durations of its phases.
    pub times: PhaseTimes,
    /// Level of proof that this is the version.
    pub proof: Proof,
    /// The reason why the version was loaded as a whole, for memory that is changed in place.
    /// `None` if it was taken in place, or is the first one.
    pub fallback: Option<Fallback>,
    /// Its lag. `None` unless [`Follower::follow`](crate::Follower::follow) has measured it.
    pub lag: Option<Lag>,
}
