//! Paths from the command line: states in safetensors files, links, and outputs.

use std::fs;
use std::path::{Path, PathBuf};

use deltachain::tensor::{State, StateDigests, total_bytes};
use deltachain::{Error, FileSource, Limits, LinkReader, Result};

use crate::output::Output;

/// A link, with the path that it was opened with.
#[derive(Debug)]
pub struct OpenedLink {
    /// The path.
    pub path: PathBuf,
    /// The reader of the link.
    pub reader: LinkReader<FileSource>,
}

impl OpenedLink {
    /// Opens a link.
    ///
    /// # Errors
    /// Same errors as [`LinkReader::open`]; USAGE if the file does not exist.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        require([path])?;
        let reader = FileSource::open(path)
            .and_then(|source| LinkReader::open(source, limits))
            .map_err(|error| error.in_file(path))?;
        Ok(Self {
            path: path.to_owned(),
            reader,
        })
    }
}

/// Checks that paths exist. A missing one is an error of the user, USAGE, not of the operating
/// system.
///
/// # Errors
/// USAGE.
pub fn require<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let is_missing = |path: &&Path| {
        fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    match paths.into_iter().find(is_missing) {
        Some(path) => {
            let error = Error::usage("there is no such file or directory");
            Err(error.with_advice("check the path").in_file(path))
        }
        None => Ok(()),
    }
}

/// Refuses an output that exists, unless `force` is set. The library refuses it, too, but its error
/// cannot name --force.
///
/// # Errors
/// USAGE.
pub fn refuse_existing(path: &Path, force: bool) -> Result<()> {
    // Not `exists()`, which is false for a symbolic link without a target.
    if !force && path.file_name().is_some() && fs::symlink_metadata(path).is_ok() {
        return Err(Error::usage("the output exists; --force replaces it").in_file(path));
    }
    Ok(())
}

/// Reads and hashes a state, with a progress bar.
pub(crate) fn digests_of(state: &dyn State, output: Output) -> Result<StateDigests> {
    StateDigests::of(
        state,
        &output.meter("hashing", total_bytes(state.tensors())),
    )
}
