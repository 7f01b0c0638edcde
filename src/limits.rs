//! Limits: the maxima of the format (SPEC section 13), and those that a caller sets for files.

use crate::error::{Error, Result};
use crate::rules;

/// Maximum raw bytes of an index.
pub(crate) const MAX_INDEX_BYTES: u64 = 1 << 30;
/// Maximum number of metadata entries of a link.
pub(crate) const MAX_METADATA_ENTRIES: u64 = 1 << 16;
/// Maximum bytes of all metadata keys and values of a link.
pub(crate) const MAX_METADATA_BYTES: u64 = 1 << 26;
/// Maximum bytes of the name of a tensor.
pub(crate) const MAX_NAME_BYTES: u64 = (1 << 16) - 1;
/// Maximum number of dimensions of a tensor.
pub(crate) const MAX_DIMENSIONS: u64 = 255;
/// Maximum number of tensors that a link lists.
pub(crate) const MAX_TENSORS: u64 = 1 << 24;
/// Maximum number of segments of a link.
pub(crate) const MAX_SEGMENTS: u64 = 1 << 24;
/// Maximum bytes of a tensor.
pub(crate) const MAX_TENSOR_BYTES: u64 = 1 << 60;
/// Maximum total bytes of the pieces of a segment: twice
/// [`PIECE_BYTES`](crate::tensor::PIECE_BYTES).
pub(crate) const MAX_SEGMENT_BYTES: u64 = 1 << 25;
/// Maximum number of pieces of a segment.
pub(crate) const MAX_SEGMENT_PARTS: u64 = 1 << 16;
/// Maximum bytes of a document of a chain.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 1 << 26;
/// Maximum number of assets of a commit.
pub(crate) const MAX_ASSETS: u64 = 1 << 16;
/// Maximum bytes of an asset.
pub(crate) const MAX_ASSET_BYTES: u64 = 1 << 40;
/// Maximum number of bytes that a zstd frame gives for each of its own bytes: a block has at least
/// four, and gives at most 128 KiB.
pub(crate) const MAX_EXPANSION: u64 = 1 << 15;
/// Maximum window of a zstd frame.
pub(crate) const MAX_WINDOW_BYTES: u64 = 1 << 25;

crate::setters! {
    /// Limits of what a link or a document of a chain may make a reader allocate or write. The
    /// maxima of the format hold as well.
    ///
    /// [`memory_to_open`](Self::memory_to_open) and [`memory_to_decode`](Self::memory_to_decode)
    /// say how much memory that is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Limits {
        /// Raw bytes of the index: at most this many, regardless of the file's length. Default: 64
        /// MiB, which every reader has to support.
        pub index_bytes: u64 = 1 << 26,
        /// Raw bytes of the index for each byte of the file, if that is more than `index_bytes`.
        /// Default: 64, far above the compression ratio of an index whose tensors change.
        pub index_bytes_per_file_byte: u64 = 64,
        /// Bytes of *set* tensors, which can be large although the file is small: at most this
        /// many, regardless of the file's length. Default: 256 MiB.
        pub set_bytes: u64 = 1 << 28,
        /// Bytes of *set* tensors for each byte of the file, if that is more than `set_bytes`.
        /// Default: 1024.
        pub set_bytes_per_file_byte: u64 = 1024,
        /// Bytes of the pieces that have a part. This bounds the work of decoding a link, which may
        /// be large although the link is short. Default: any number, because an honest link of a
        /// few bytes may code pieces of 16 MiB that hardly change. For services that check links
        /// from strangers.
        pub coded_bytes: u64 = u64::MAX,
        /// Bytes of a document of a chain. Default: 16 MiB, which every reader has to support.
        pub document_bytes: u64 = 1 << 24,
        /// Assets of a commit. Default: 1024, which every reader has to support.
        pub assets: u64 = 1 << 10,
        /// Bytes of an asset. Default: 1 GiB, which every reader has to support.
        pub asset_bytes: u64 = 1 << 30,
    }
}

impl Limits {
    /// No limits except the maxima of the format: for trusted sources.
    pub fn unlimited() -> Self {
        Self {
            index_bytes: MAX_INDEX_BYTES,
            index_bytes_per_file_byte: 0,
            set_bytes: u64::MAX,
            set_bytes_per_file_byte: 0,
            coded_bytes: u64::MAX,
            document_bytes: MAX_DOCUMENT_BYTES,
            assets: MAX_ASSETS,
            asset_bytes: MAX_ASSET_BYTES,
        }
    }

    /// The most bytes that [`LinkReader::open`](crate::LinkReader::open) allocates for a file of
    /// `length` bytes: `2^16 + 4 * length + 40 * raw`, where `raw` bounds the raw bytes of its
    /// index: `min(max(index_bytes, index_bytes_per_file_byte * length), 2^15 * length)`.
    ///
    /// The working memory of the zstd library, below 2^18 bytes per thread, is not included, here
    /// and in [`memory_to_decode`](Self::memory_to_decode).
    pub fn memory_to_open(&self, length: u64) -> u64 {
        let raw = self
            .index_bytes_for(length)
            .min(MAX_EXPANSION.saturating_mul(length));
        (1_u64 << 16)
            .saturating_add(length.saturating_mul(4))
            .saturating_add(40 * raw)
    }

    /// The most bytes that are allocated while a link in a file of `length` bytes is open and up to
    /// `threads` segments of it are decoded:
    /// `memory_to_open(length) + min(2^30 * threads, 48 * 2^15 * length)`.
    ///
    /// A segment takes 2^30 bytes if its streams are as long as the format allows; real ones take a
    /// few bytes per changed lane. Applying needs no more than that, plus the memory of base and
    /// result. The two limits on *set* tensors bound the memory that these take in a result.
    /// [`LinkReader::patches`](crate::LinkReader::patches) keeps up to eight segments of a link
    /// decoded: count them as threads.
    pub fn memory_to_decode(&self, length: u64, threads: u64) -> u64 {
        let segments = threads
            .saturating_mul(1 << 30)
            .min((48 * MAX_EXPANSION).saturating_mul(length));
        self.memory_to_open(length).saturating_add(segments)
    }

    /// Raw bytes of the index that a file of this length may declare.
    pub(crate) fn index_bytes_for(&self, file_length: u64) -> u64 {
        self.index_bytes
            .max(self.index_bytes_per_file_byte.saturating_mul(file_length))
            .min(MAX_INDEX_BYTES)
    }

    /// Bytes of *set* tensors that a file of this length may declare.
    pub(crate) fn set_bytes_for(&self, file_length: u64) -> u64 {
        self.set_bytes
            .max(self.set_bytes_per_file_byte.saturating_mul(file_length))
    }
}

/// Converts a size in a file to `usize`; R-LIM-01 if the address space is too small.
pub(crate) fn address(size: u64) -> Result<usize> {
    usize::try_from(size).map_err(|_| {
        Error::broken(
            &rules::LIM_01,
            format!("{size} bytes exceed the address space"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = include_str!("../SPEC.md");

    /// A number as the tables write it.
    fn number(cell: &str) -> u64 {
        match cell.split_once('^') {
            Some((base, exponent)) => base.parse::<u64>().unwrap().pow(exponent.parse().unwrap()),
            None => cell.parse().unwrap(),
        }
    }

    #[test]
    fn limits_are_those_of_the_table() {
        // Each quantity with its default limit and the maximum of the format. For a quantity
        // without a limit of its own, readers take all that the format allows.
        let defaults = Limits::default();
        let maxima = [
            ("index raw length", defaults.index_bytes, MAX_INDEX_BYTES),
            (
                "metadata entries",
                MAX_METADATA_ENTRIES,
                MAX_METADATA_ENTRIES,
            ),
            (
                "metadata, bytes of keys and values together",
                MAX_METADATA_BYTES,
                MAX_METADATA_BYTES,
            ),
            ("name, bytes", MAX_NAME_BYTES, MAX_NAME_BYTES),
            ("dimensions", MAX_DIMENSIONS, MAX_DIMENSIONS),
            ("tensor entries", MAX_TENSORS, MAX_TENSORS),
            ("segments", MAX_SEGMENTS, MAX_SEGMENTS),
            ("tensor, bytes", MAX_TENSOR_BYTES, MAX_TENSOR_BYTES),
            (
                "segment, bytes of its pieces",
                MAX_SEGMENT_BYTES,
                MAX_SEGMENT_BYTES,
            ),
            (
                "segment, number of its pieces",
                MAX_SEGMENT_PARTS,
                MAX_SEGMENT_PARTS,
            ),
            (
                "document of a chain, bytes",
                defaults.document_bytes,
                MAX_DOCUMENT_BYTES,
            ),
            ("assets of a commit", defaults.assets, MAX_ASSETS),
            ("asset, bytes", defaults.asset_bytes, MAX_ASSET_BYTES),
        ];
        let section = SPEC.split_once("## 13. Limits").unwrap().1;
        let rows = section
            .lines()
            .skip_while(|line| !line.starts_with("|---"))
            .skip(1);
        let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), maxima.len());
        for (row, (quantity, default, most)) in rows.into_iter().zip(maxima) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            assert_eq!((cells[0], number(cells[2])), (quantity, most));
            assert!(number(cells[1]) <= default && default <= most, "{row}");
        }
        assert!(SPEC.contains("MUST NOT exceed 2^25 bytes") && MAX_WINDOW_BYTES == 1 << 25);
    }
}
