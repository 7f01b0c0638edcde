//! A new file that nobody sees before it is complete: written next to its place, brought to disk, renamed.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use deltachain::{Error, Result};
use tempfile::NamedTempFile;

use crate::interrupt;

/// A file being written. [`commit`](Self::commit) makes it visible; dropped without, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    replace: bool,
    file: BufWriter<NamedTempFile>,
}

impl OutputFile {
    /// Prepares to write `path`; with `replace`, a file that is there will be replaced.
    ///
    /// # Errors
    /// USAGE if there is something that is not to be replaced; IO.
    pub(crate) fn create(path: &Path, replace: bool) -> Result<Self> {
        refuse_existing(path, replace)?;
        if path.exists() && !path.is_file() {
            return Err(Error::usage("only a file can be replaced by a file").in_file(path));
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".deltachain-").suffix(".tmp");
        #[cfg(unix)]
        {
            // As any other new file; what the user's mask takes away stays away.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let file = builder.tempfile_in(parent_of(path)).map_err(|error| failed("creating", error, path))?;
        Ok(Self { path: path.to_owned(), replace, file: BufWriter::new(file) })
    }

    /// Makes the file visible, at once and completely, after its bytes have reached the disk.
    ///
    /// # Errors
    /// IO; USAGE if meanwhile there is something at the path; an error if the user has interrupted.
    pub(crate) fn commit(self) -> Result<()> {
        let path = self.path;
        let file = self.file.into_inner().map_err(|error| failed("writing", error.into_error(), &path))?;
        file.as_file().sync_all().map_err(|error| failed("writing", error, &path))?;
        interrupt::check()?;
        let renamed = if self.replace { file.persist(&path) } else { file.persist_noclobber(&path) };
        renamed.map_err(|refused| match refused.error.kind() {
            io::ErrorKind::AlreadyExists => exists(&path),
            _ => failed("renaming", refused.error, &path),
        })?;
        sync_directory(parent_of(&path))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Refuses an output that exists, before any work is done for it.
///
/// # Errors
/// USAGE.
pub(crate) fn refuse_existing(path: &Path, replace: bool) -> Result<()> {
    if path.file_name().is_none() {
        return Err(Error::usage("the output has no name").in_file(path));
    }
    // Not `exists()`: a link that leads nowhere is something, too.
    if !replace && fs::symlink_metadata(path).is_ok() { Err(exists(path)) } else { Ok(()) }
}

/// The directory that holds `path`.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

fn exists(path: &Path) -> Error {
    Error::usage("the output exists; use --force to replace it").in_file(path)
}

fn failed(what: &str, error: io::Error, path: &Path) -> Error {
    Error::io(what, error).in_file(path)
}

/// Makes the renaming survive a power cut. Only Unix can open a directory for that.
fn sync_directory(directory: &Path) -> Result<()> {
    if cfg!(unix) {
        let synced = fs::File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| failed("synchronising", error, directory))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_file_appears_complete_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ein Link.dcf");
        let mut file = OutputFile::create(&path, false).unwrap();
        file.write_all(b"new").unwrap();
        assert!(!path.exists());
        drop(file);
        assert_eq!(count(directory.path()), 0);

        let mut file = OutputFile::create(&path, false).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(count(directory.path()), 1);
    }

    #[test]
    fn what_exists_stays_without_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("link");
        let late = OutputFile::create(&path, false).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(late.commit().is_err());
        assert!(OutputFile::create(&path, false).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        OutputFile::create(&path, true).unwrap().commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert!(OutputFile::create(directory.path(), true).is_err());
        assert!(OutputFile::create(Path::new(".."), true).is_err());
        assert_eq!(count(directory.path()), 1);
    }
}
