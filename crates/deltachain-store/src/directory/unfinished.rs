//! Files and directories that are being written, under temporary names: `.tmp-deltachain-` and
//! twelve letters or digits. A directory has a marker inside, which identifies what a killed
//! process left behind. Nothing else is removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::directory::marker::{DirectoryKind, MARKER};
use crate::directory::names::{self, RANDOM, UNFINISHED, is_real_directory, is_real_file};
use crate::there::if_there;

/// A directory that is removed with everything in it when this is dropped.
#[derive(Debug)]
pub(crate) struct UnfinishedDirectory(PathBuf);

impl UnfinishedDirectory {
    /// Creates an unfinished directory in a directory of the program.
    pub(crate) fn new(place: &Path) -> io::Result<Self> {
        let made = Self(builder().tempdir_in(place)?.keep());
        fs::write(made.0.join(MARKER), DirectoryKind::Unfinished.text())?;
        Ok(made)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for UnfinishedDirectory {
    fn drop(&mut self) {
        // If this fails, the next process that opens the parent directory removes it.
        let _ = remove_marked(&self.0);
    }
}

/// Creates a file that is removed when it is dropped, unless it is renamed. Other users cannot read
/// it.
pub(crate) fn file(place: &Path) -> io::Result<NamedTempFile> {
    builder().tempfile_in(place)
}

/// Same as [`file()`], but with the usual permissions (umask).
pub(crate) fn shared_file(place: &Path) -> io::Result<NamedTempFile> {
    let mut builder = builder();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(place)
}

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED).rand_bytes(RANDOM);
    builder
}

/// Removes what a killed process left in a directory of the program. Returns the entries that look
/// alike but may not be ours: they stay.
pub(crate) fn remove(place: &Path) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(place)? {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path()))?;
        let is_gone = if !names::is_unfinished(&name) {
            !name.as_encoded_bytes().starts_with(b".tmp-")
        } else if is_real_file(&path) {
            // The process that created it may have removed it meanwhile.
            if_there(fs::remove_file(&path))?;
            true
        } else if is_real_directory(&path) {
            remove_directory(&path)?
        } else {
            fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if !is_gone {
            left.push(path);
        }
    }
    Ok(left)
}

/// Removes a directory with a name of ours if it has the marker or is empty. Returns true if it was
/// removed.
pub(crate) fn remove_directory(path: &Path) -> io::Result<bool> {
    let marker = path.join(MARKER);
    // A process that was killed while it wrote the marker leaves only its beginning.
    let is_marked = is_real_file(&marker)
        && fs::read(&marker).is_ok_and(|text| {
            DirectoryKind::Unfinished
                .text()
                .as_bytes()
                .starts_with(&text)
        });
    if is_marked {
        remove_marked(path)?;
        return Ok(true);
    }
    remove_empty(path)
}

/// Removes a directory. The marker goes last, so that the rest is recognised if this is
/// interrupted.
fn remove_marked(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() == MARKER {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_file(path.join(MARKER))?;
    fs::remove_dir(path)
}

/// Removes a directory if it is empty. Returns true if it was removed.
pub(crate) fn remove_empty(path: &Path) -> io::Result<bool> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        removed => removed.map(|()| true),
    }
}
