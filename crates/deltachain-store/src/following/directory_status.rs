//! What a subscriber's directory holds, for programs that want to know without keeping it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use deltachain::tensor::Digest;
use deltachain::{Error, Result};

use crate::directory::marker::Kind;
use crate::directory::names::is_real_directory;
use crate::following::model_directory::{Current, current_in, time_of_switch};
use crate::following::versions::files_of;

/// The version that a subscriber's directory shows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirectoryStatus {
    /// The version.
    pub version: u64,
    /// Digest of the commit's bytes.
    pub commit: Digest,
    /// Digest of the bytes of the chain document.
    pub chain: Digest,
    /// State digest of the whole version, also if only some shards or tensors are here.
    pub state: Digest,
    /// The directory of its files: the one that `current` leads to.
    pub directory: PathBuf,
    /// When `current` was switched to it; `None` if the file system does not tell.
    pub switched: Option<SystemTime>,
    /// Names of its files that are missing or have another length than when they were made, ascending. Their content is not
    /// read.
    pub missing: Vec<String>,
}

/// Says what a subscriber's directory holds; `None` if it holds no version yet. Nothing is changed, and the directory may be
/// kept by another process meanwhile.
///
/// # Errors
/// USAGE if it is not a subscriber's directory, or its content cannot be read; IO.
pub fn inspect_directory(directory: &Path) -> Result<Option<DirectoryStatus>> {
    if !Kind::Model.marks(directory)? {
        return Err(Error::usage("not a directory that `pull` or `follow` keeps").in_file(directory));
    }
    let Some(Current { record, model }) = current_in(directory)? else { return Ok(None) };
    let there = if is_real_directory(&model) {
        files_of(&model).map_err(|error| Error::io("listing", error).in_file(&model))?
    } else {
        return Err(Error::usage("missing files of the current version").in_file(model));
    };
    let files = record.files.into_iter();
    Ok(Some(DirectoryStatus {
        version: record.version,
        commit: record.commit,
        chain: record.chain,
        state: record.state,
        switched: time_of_switch(directory),
        missing: files.filter(|(name, length)| there.get(name) != Some(length)).map(|(name, _)| name).collect(),
        directory: model,
    }))
}
