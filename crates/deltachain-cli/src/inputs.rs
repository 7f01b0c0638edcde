//! The paths that the user names: states in safetensors files, links, and places for outputs.

use std::fs;
use std::path::{Path, PathBuf};

use deltachain::tensor::{State, StateDigests, total_bytes};
use deltachain::{Error, FileSource, Limits, LinkReader, Result};

use crate::output::Output;

/// A link with the path that it was opened by.
#[derive(Debug)]
pub struct OpenedLink {
    /// The path.
    pub path: PathBuf,
    /// Reads it.
    pub reader: LinkReader<FileSource>,
}

impl OpenedLink {
    /// Opens it.
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

/// A path that leads nowhere is the user's mistake, not the operating system's.
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

/// Refuses an output that exists, unless the user wants to replace it. The library does so, too,
/// but knows no arguments.
///
/// # Errors
/// USAGE.
pub fn refuse_existing(path: &Path, force: bool) -> Result<()> {
    // Not `exists()`: a link that leads nowhere is something, too.
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
