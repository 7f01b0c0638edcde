//! What a follower's directory holds, by its records alone. Read only, and without a lock.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use serde::Deserialize;

use crate::operation::time::Time;

/// The version that `current` leads to.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) version: u64,
    pub(crate) commit: Digest,
    pub(crate) chain: String,
    pub(crate) state: String,
    /// The directory of its files.
    pub(crate) files: PathBuf,
    /// When the directory was switched to it.
    pub(crate) switched: Option<Time>,
}

/// What is needed of `held.json`.
#[derive(Deserialize)]
struct Record {
    version: u64,
    commit: String,
    chain: String,
    state: String,
}

/// The version in a directory; `None` if there is none yet.
///
/// # Errors
/// USAGE if there is no such directory, or if the record is not one; IO.
pub(crate) fn read(directory: &Path) -> Result<Option<Held>> {
    if !directory.is_dir() {
        return Err(Error::usage("there is no such directory").in_file(directory));
    }
    let current = directory.join("current");
    let target = match fs::read_link(&current) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        target => target.map_err(|error| Error::io("reading", error).in_file(&current))?,
    };
    let files = directory.join(target);
    let path = files.with_file_name("held.json");
    let bytes = fs::read(&path).map_err(|error| Error::io("reading", error).in_file(&path))?;
    let no_record = |text: String| Error::usage(text).in_file(&path);
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| no_record(format!("cannot be read: {error}")))?;
    let commit = Digest::from_hex(&record.commit).ok_or_else(|| no_record("the commit is no digest".to_owned()))?;
    if !files.is_dir() {
        return Err(Error::usage("the version's files are not there").in_file(files));
    }
    let Record { version, chain, state, .. } = record;
    let switched = fs::symlink_metadata(&current).and_then(|found| found.modified()).ok().map(Time::from);
    Ok(Some(Held { version, commit, chain, state, files, switched }))
}
