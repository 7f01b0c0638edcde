//! Limits: the maxima of the format (SPEC section 13), and what a caller lets a file ask for.

use crate::error::{Error, Result};
use crate::rules;

/// No index is longer, in raw bytes.
pub(crate) const MAX_INDEX_BYTES: u64 = 1 << 30;
/// No link has more metadata entries.
pub(crate) const MAX_METADATA_ENTRIES: u64 = 1 << 16;
/// Metadata keys and values together are never longer.
pub(crate) const MAX_METADATA_BYTES: u64 = 1 << 26;
/// No tensor name is longer, in bytes.
pub(crate) const MAX_NAME_BYTES: u64 = (1 << 16) - 1;
/// No tensor has more dimensions.
pub(crate) const MAX_DIMENSIONS: u64 = 255;
/// No link lists more tensors.
pub(crate) const MAX_TENSORS: u64 = 1 << 24;
/// No link has more segments.
pub(crate) const MAX_SEGMENTS: u64 = 1 << 24;
/// No tensor is longer, in bytes.
pub(crate) const MAX_TENSOR_BYTES: u64 = 1 << 60;
/// The pieces of a segment never hold more bytes together: two of
/// [`PIECE_BYTES`](crate::tensor::PIECE_BYTES).
pub(crate) const MAX_SEGMENT_BYTES: u64 = 1 << 25;
/// No segment codes more pieces.
pub(crate) const MAX_SEGMENT_PARTS: u64 = 1 << 16;
/// No document of a chain is longer, in bytes.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 1 << 26;
/// No commit has more assets.
pub(crate) const MAX_ASSETS: u64 = 1 << 16;
/// No asset is longer, in bytes.
pub(crate) const MAX_ASSET_BYTES: u64 = 1 << 40;
/// No zstd frame gives more bytes for each of its own: a block has at least four, and gives at most
/// 128 KiB.
pub(crate) const MAX_EXPANSION: u64 = 1 << 15;
/// No zstd frame has a larger window.
pub(crate) const MAX_WINDOW_BYTES: u64 = 1 << 25;

crate::setters! {
    /// Limits of what a link or a document of a chain may make a reader allocate or write. The
    /// maxima of the format hold as well.
    ///
    /// [`memory_to_open`](Self::memory_to_open) and [`memory_to_decode`](Self::memory_to_decode)
    /// say how much memory that is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Limits {
        /// Raw bytes of the index: at most this many without regard to the file's length. Default:
        /// 64 MiB, which every reader has to support.
        pub index_bytes: u64 = 1 << 26,
        /// Raw bytes of the index for each byte of the file, where that is more than `index_bytes`.
        /// Default: 64, far more than an index can be compressed whose tensors change.
        pub index_bytes_per_file_byte: u64 = 64,
        /// Bytes of *set* tensors, which can be large although the file is small: at most this many
        /// without regard to the file's length. Default: 256 MiB.
        pub set_bytes: u64 = 1 << 28,
        /// Bytes of *set* tensors for each byte of the file, where that is more than `set_bytes`.
        /// Default: 1024.
        pub set_bytes_per_file_byte: u64 = 1024,
        /// Bytes of the pieces that have a part: what decoding a link may have to do, whose length
        /// need not tell. Default: any number, because an honest link of some bytes may code pieces
        /// of 16 MiB that hardly change. For who checks what strangers upload.
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
    /// Only the maxima of the format: for trusted sources.
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
    /// The working memory of the zstd library, below 2^18 bytes per thread, comes on top, here and
    /// below.
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
    /// 2^30 is what a segment takes whose streams are as long as the format allows; real ones take
    /// a few bytes per changed lane. Applying needs no more than that and the memory of base and
    /// result. The two limits on *set* tensors bound what these take in a result in memory.
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

/// A size of the file as a `usize`; R-LIM-01 where the address space is too small.
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
