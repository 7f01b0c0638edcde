//! A new file that becomes visible when it is complete: written next to its place, synced, then
//! renamed.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::Result;
use crate::files::disk::{check_file, parent_of, persist, temporary, writing};

/// A file being written. [`commit`](Self::commit) makes it visible; if dropped without that, it
/// leaves nothing behind.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    replace: bool,
    file: BufWriter<NamedTempFile>,
}

impl OutputFile {
    /// Prepares to write `path`; with `replace`, an existing file will be replaced.
    ///
    /// # Errors
    /// USAGE if the output exists and may not or cannot be replaced; IO.
    pub fn create(path: &Path, replace: bool) -> Result<Self> {
        check_file(path, replace)?;
        let file = temporary(0o666)
            .tempfile_in(parent_of(path))
            .map_err(|error| writing(error, path))?;
        Ok(Self {
            path: path.to_owned(),
            replace,
            file: BufWriter::new(file),
        })
    }

    /// The file, for writers that write at offsets and do not use [`Write`].
    pub(super) fn file(&self) -> &File {
        self.file.get_ref().as_file()
    }

    /// Makes the file visible atomically, after its bytes have reached the disk.
    ///
    /// # Errors
    /// IO; USAGE if something has appeared at the path meanwhile.
    pub fn commit(self) -> Result<()> {
        let file = self
            .file
            .into_inner()
            .map_err(|error| writing(error.into_error(), &self.path))?;
        persist(file, &self.path, self.replace)
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

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn what_exists_stays_unless_it_is_to_be_replaced() {
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
