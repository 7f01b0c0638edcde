//! Files that are locked, so that one process at a time works in a directory.

use std::fs::{self, File};
use std::path::Path;

use deltachain::{Error, Result};

/// The name of the file.
pub(crate) const LOCK: &str = "lock";

/// Opens the lock file of a directory, and makes it if there is none. Nothing but a regular file is opened: a pipe
/// would wait for ever, and a link may lead to somebody else's file.
///
/// # Errors
/// USAGE if it is something else; IO.
pub(crate) fn open_lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
        return Err(Error::usage("not a regular file, so it cannot be locked").in_file(path));
    }
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    opened.map_err(|error| Error::io("locking", error).in_file(path))
}
