//! The status of a subscriber's directory, for programs that do not manage it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use deltachain::chain::{Trust, VerifierKey};
use deltachain::{Error, Result};
use serde::Serialize;

use crate::access::store::Store;
use crate::directory::held::{BUILD_AGAIN, HeldVersion};
use crate::directory::marker::{DirectoryKind, MARKER};
use crate::directory::model_directory::{CURRENT, VERSIONS, current_in, target_of_current};
use crate::directory::names::is_real_directory;
use crate::directory::trust_record::{SeenHead, TrustRecord};
use crate::directory::versions::{files_of, held_if_there};
use crate::there::if_there;

/// The status of a subscriber's directory that holds a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DirectoryStatus {
    /// The held version, whose files `current` leads to.
    pub(crate) held: HeldVersion,
    /// When `current` was switched to it; `None` if the file system does not record this.
    pub(crate) switched: Option<SystemTime>,
    /// Names of its files that are missing or have another length than recorded, ascending. The
    /// content of files is not read.
    pub(crate) missing: Vec<String>,
    /// The record of signatures; `None` if unsigned versions are accepted.
    pub(crate) trust: Option<TrustStatus>,
}

/// The record of signatures in a subscriber's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TrustStatus {
    /// The trusted keys and the quorum that the process was given which manages the directory, or
    /// did last.
    #[serde(flatten)]
    pub trust: Trust,
    /// The newest signed head that was seen.
    pub(crate) seen: Option<SeenHead>,
    /// The trusted keys that are known to have signed the held version; empty if the version was
    /// built before the directory had trusted keys.
    pub signed_by: Vec<VerifierKey>,
    /// Message of the last plan about a newer version that too few of the trusted keys have signed.
    pub unsigned: Option<String>,
}

impl TrustStatus {
    /// Returns the reason why the held version does not count as signed; `None` if it does. A
    /// directory without a signed version is not healthy (SPEC section 23.3).
    pub fn problem(&self) -> Option<String> {
        let (by, quorum) = (self.signed_by.len(), self.trust.quorum());
        let text = || {
            format!(
                "the held version is not known to be signed by the trusted keys ({by} of {quorum} \
                 signatures)"
            )
        };
        (by < quorum).then(text)
    }
}

/// Reads the status of a subscriber's directory; `None` if it holds no version yet. Changes
/// nothing, and another process may manage the directory meanwhile.
///
/// # Errors
/// USAGE if it is not a subscriber's directory; IO, also if its content is damaged.
pub(crate) fn inspect_directory(directory: &Path) -> Result<Option<DirectoryStatus>> {
    if !DirectoryKind::Model.marks(directory)? {
        return Err(not_followed(directory));
    }
    let Some(held) = current_in(directory)? else {
        return Ok(None);
    };
    let model = &held.directory;
    if !is_real_directory(model) {
        let text = "missing files of the current version";
        return Err(Error::unusable(text, BUILD_AGAIN).in_file(model));
    }
    let there = files_of(model).map_err(|error| Error::io("listing", error).in_file(model))?;
    let missing = held
        .files
        .iter()
        .filter(|(name, length)| there.get(*name) != Some(*length));
    let missing = missing.map(|(name, _)| name.clone()).collect();
    let trust = TrustRecord::read(directory)?.map(|record| -> Result<TrustStatus> {
        let trust = record.trust()?;
        let signed = record
            .signed
            .into_iter()
            .find(|signed| signed.commit == held.commit);
        let mut signed_by = signed.map(|signed| signed.by).unwrap_or_default();
        // The trusted keys may have changed since.
        signed_by.retain(|key| trust.keys_of(held.chain).any(|trusted| trusted == key));
        Ok(TrustStatus {
            trust,
            seen: record.seen,
            signed_by,
            unsigned: record.unsigned,
        })
    });
    let switched = fs::symlink_metadata(directory.join(CURRENT))
        .and_then(|link| link.modified())
        .ok();
    Ok(Some(DirectoryStatus {
        trust: trust.transpose()?,
        switched,
        missing,
        held,
    }))
}

/// Returns the error for a directory that no follower manages.
pub(crate) fn not_followed(directory: &Path) -> Error {
    let text = if directory.join("chain.json").is_file() {
        "this is a chain, which `deltachain log` shows, and not a directory that `pull` or \
         `follow` manages"
    } else {
        "not a directory that `pull` or `follow` manages"
    };
    let error = Error::usage(text).in_file(directory);
    error.with_advice("give the directory of a follower")
}

/// Whether a follower manages this directory, or managed it before.
pub fn is_managed(directory: &Path) -> bool {
    DirectoryKind::Model
        .marks(directory)
        .is_ok_and(|is_marked| is_marked)
}

/// Returns the store's directory if a follower manages it and it contains no chain.
pub fn followed_directory(store: &Store) -> Option<PathBuf> {
    store
        .directory()
        .filter(|path| path.join(MARKER).is_file() && !path.join("chain.json").exists())
}

/// Finds a version in a subscriber's directory: the current one if `version` is `None`. Returns
/// `None` if the version is missing or being removed. A version that is found is complete, because
/// versions are renamed into place.
///
/// # Errors
/// IO, also if its record is damaged.
pub fn find_version(directory: &Path, version: Option<u64>) -> Result<Option<HeldVersion>> {
    let versions = directory.join(VERSIONS);
    let candidates = match version {
        None => target_of_current(directory)?.into_iter().collect(),
        Some(version) => named(&versions, version)
            .map_err(|error| Error::io("listing", error).in_file(&versions))?,
    };
    candidates
        .into_iter()
        .find_map(|name| held_if_there(&versions.join(name)).transpose())
        .transpose()
}

/// Names of the directories of a version, ascending.
fn named(versions: &Path, version: u64) -> io::Result<Vec<OsString>> {
    let Some(listed) = if_there(fs::read_dir(versions))? else {
        return Ok(Vec::new());
    };
    let begin = format!("{version:020}-");
    let mut names = listed
        .map(|entry| Ok(entry?.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.retain(|name| name.to_str().is_some_and(|name| name.starts_with(&begin)));
    names.sort_unstable();
    Ok(names)
}
