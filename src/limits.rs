//! Limits: the maxima of the format (SPEC section 13), and what a caller lets a file ask for.

use crate::error::{Error, Result};
use crate::rules;
use crate::tensor::PIECE_BYTES;

/// No index is longer, in raw bytes.
pub const MAX_INDEX_BYTES: u64 = 1 << 30;
/// No link has more metadata entries.
pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;
/// Metadata keys and values together are never longer.
pub const MAX_METADATA_BYTES: u64 = 1 << 26;
/// No tensor name is longer, in bytes.
pub const MAX_NAME_BYTES: u64 = (1 << 16) - 1;
/// No tensor has more dimensions.
pub const MAX_DIMENSIONS: u64 = 255;
/// No link lists more tensors.
pub const MAX_TENSORS: u64 = 1 << 24;
/// No link has more segments.
pub const MAX_SEGMENTS: u64 = 1 << 24;
/// No tensor is longer, in bytes.
pub const MAX_TENSOR_BYTES: u64 = 1 << 60;
/// The pieces of a segment never hold more bytes together.
pub const MAX_SEGMENT_BYTES: u64 = 2 * PIECE_BYTES;
/// No segment codes more pieces.
pub const MAX_SEGMENT_PARTS: u64 = 1 << 16;
/// No zstd frame has a larger window.
pub const MAX_WINDOW_BYTES: u64 = 1 << 25;

/// What a link may make a reader allocate or write. The maxima of the format hold besides.
///
/// Memory while a link is open is at most a small multiple of `index_bytes`; while segments are decoded, a bound that
/// depends on the format only (SPEC section 13) per thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Raw bytes of the index. Default: 256 MiB, enough for about two million tensors.
    pub index_bytes: u64,
    /// Bytes of *set* tensors, which can be large although the file is small: at most this many without regard to the
    /// file's length. Default: 1 GiB.
    pub set_bytes: u64,
    /// Bytes of *set* tensors for each byte of the file, where that is more than `set_bytes`. Default: 1024.
    pub set_bytes_per_file_byte: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { index_bytes: 1 << 28, set_bytes: 1 << 30, set_bytes_per_file_byte: 1024 }
    }
}

impl Limits {
    /// Only the maxima of the format: for trusted sources.
    pub fn unlimited() -> Self {
        Self { index_bytes: MAX_INDEX_BYTES, set_bytes: u64::MAX, set_bytes_per_file_byte: u64::MAX }
    }

    /// Bytes of *set* tensors that a file of this length may declare.
    pub(crate) fn set_bytes_for(&self, file_length: u64) -> u64 {
        self.set_bytes.max(self.set_bytes_per_file_byte.saturating_mul(file_length))
    }
}

/// A size of the file as a `usize`; R-LIM-01 where the address space is too small.
pub(crate) fn address(size: u64) -> Result<usize> {
    usize::try_from(size).map_err(|_| Error::broken(&rules::LIM_01, format!("{size} bytes exceed the address space")))
}
