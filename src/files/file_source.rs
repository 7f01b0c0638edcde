//! A file that is read by position: a link, or a file of a model. It can tell whether it has
//! changed since it was opened.

use std::fs::{self, File, Metadata};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::disk::{read_at, reading};
use crate::source::Source;

/// A file that is read by position.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    opened: Stamp,
}

/// Facts about a file that change with its content: its size, the time of its last change (ctime),
/// and its device and inode. Its modification time is not among them, because any program can set
/// it.
#[cfg(unix)]
type Stamp = (u64, (i64, i64), (u64, u64));

#[cfg(unix)]
fn stamp(found: &Metadata) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    (
        found.len(),
        (found.ctime(), found.ctime_nsec()),
        (found.dev(), found.ino()),
    )
}

/// Facts about a file that may change with its content: its size and its modification time. Systems
/// other than Unix do not tell more.
#[cfg(not(unix))]
type Stamp = (u64, Option<std::time::SystemTime>);

#[cfg(not(unix))]
fn stamp(found: &Metadata) -> Stamp {
    (found.len(), found.modified().ok())
}

impl FileSource {
    /// Opens a file for reading. Pipes and devices are refused without being opened, because some
    /// would block forever.
    ///
    /// # Errors
    /// USAGE if it is not a plain file; IO.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |error| Error::io("opening", error).in_file(path);
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::usage("not a regular file: give the path of one").in_file(path));
        }
        let file = File::open(path).map_err(failed)?;
        let opened = stamp(&file.metadata().map_err(failed)?);
        Ok(Self {
            file,
            path: path.to_owned(),
            opened,
        })
    }

    /// The file, to be read from its beginning.
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a file that was changed, replaced or removed since it was opened, as far as the file
    /// system tells. Call it after everything has been read.
    ///
    /// # Errors
    /// IO.
    pub fn check_unchanged(&self) -> Result<()> {
        let found = [self.file.metadata(), fs::metadata(&self.path)];
        if found
            .into_iter()
            .all(|found| found.is_ok_and(|found| stamp(&found) == self.opened))
        {
            return Ok(());
        }
        Err(Error::changed(&self.path))
    }
}

impl Source for FileSource {
    fn length(&self) -> Result<u64> {
        self.file
            .metadata()
            .map(|found| found.len())
            .map_err(|error| reading(error, &self.path))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        // A file that was truncated meanwhile is reported as changed.
        let failed = |error| {
            self.check_unchanged()
                .err()
                .unwrap_or_else(|| reading(error, &self.path))
        };
        read_at(&self.file, out, offset).map_err(failed)
    }
}
