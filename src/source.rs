//! Where the bytes of a link come from: anything that gives ranges. The only place of the reader that does IO.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::read_at;

/// Bytes that can be read by range, from several threads.
pub trait Source: Sync {
    /// Number of bytes.
    ///
    /// # Errors
    /// IO.
    fn length(&self) -> Result<u64>;

    /// Fills `out` with the bytes that begin at `offset`; the caller stays inside the length.
    ///
    /// # Errors
    /// IO, also if there are not that many bytes.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;
}

impl Source for [u8] {
    fn length(&self) -> Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let bytes = usize::try_from(offset).ok().and_then(|start| self.get(start..start.checked_add(out.len())?));
        match bytes {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(Error::io("reading", std::io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

impl Source for Vec<u8> {
    fn length(&self) -> Result<u64> {
        self.as_slice().length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.as_slice().read_at(offset, out)
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn length(&self) -> Result<u64> {
        (**self).length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        (**self).read_at(offset, out)
    }
}

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
