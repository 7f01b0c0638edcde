//! A link in a file.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::disk::read_at;
use crate::source::Source;

/// A file that is read by position.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
}

impl FileSource {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// IO.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| Error::io("opening", error).in_file(path))?;
        Ok(Self { file, path: path.to_owned() })
    }
}

impl Source for FileSource {
    fn length(&self) -> Result<u64> {
        let metadata = self.file.metadata().map_err(|error| Error::io("reading", error).in_file(&self.path))?;
        // A directory opens like a file, but has no bytes.
        if metadata.is_file() { Ok(metadata.len()) } else { Err(Error::usage("not a file").in_file(&self.path)) }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        read_at(&self.file, out, offset).map_err(|error| Error::io("reading", error).in_file(&self.path))
    }
}
