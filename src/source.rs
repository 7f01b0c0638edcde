//! Sources of a link's bytes: anything that can read ranges.

use crate::error::{Error, Result};

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
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(out.len())?));
        let bytes =
            bytes.ok_or_else(|| Error::io("reading", std::io::ErrorKind::UnexpectedEof.into()))?;
        out.copy_from_slice(bytes);
        Ok(())
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
