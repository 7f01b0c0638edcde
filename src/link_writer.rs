//! Writes links. Segments are spooled until the index, which precedes them in the file, is known.

use std::io::{BufReader, Seek, Write};

use tempfile::SpooledTempFile;

use crate::error::{Error, Result};
use crate::extension::{self, SUMS_BIT, SUMS_KIND};
use crate::format::stream::{Compressor, Effort};
use crate::format::{Coding, Header, Index, SegmentEntry};
use crate::limits::Limits;
use crate::sums::LinkSums;
use crate::tensor::Digest;

/// Segments of up to this many bytes in total wait in memory; if there are more, in a temporary
/// file.
const SPOOL_BYTES: usize = 64 << 20;

/// Maximum bytes of segments that are written with one call.
const COPIED_AT_ONCE: usize = 1 << 20;

/// Collects segments, then writes header, index and segments. Needs `io::Write` only.
pub(crate) struct LinkWriter {
    segments: Vec<SegmentEntry>,
    length: u64,
    spool: SpooledTempFile,
}

impl LinkWriter {
    pub(crate) fn new() -> Self {
        Self {
            segments: Vec::new(),
            length: 0,
            spool: SpooledTempFile::new(SPOOL_BYTES),
        }
    }

    /// Adds a segment; returns its number.
    pub(crate) fn push(&mut self, coding: Coding, bytes: &[u8]) -> Result<usize> {
        let stored_length = bytes.len() as u64;
        self.segments.push(SegmentEntry {
            coding,
            stored_length,
            crc: crc32fast::hash(bytes),
        });
        self.length += stored_length;
        self.spool
            .write_all(bytes)
            .map_err(|error| Error::io("writing a temporary file", error))?;
        Ok(self.segments.len() - 1)
    }

    /// Whether every segment has absolute values.
    pub(crate) fn is_direct(&self) -> bool {
        !self
            .segments
            .iter()
            .any(|segment| segment.coding.is_relative())
    }

    /// Writes the whole link, with `sums` if they are given; `index.segments` is filled in here.
    /// Returns the link's length.
    pub(crate) fn finish(
        mut self,
        base: Digest,
        target: Digest,
        mut index: Index,
        sums: Option<&LinkSums>,
        out: &mut dyn Write,
    ) -> Result<u64> {
        index.segments = self.segments;
        let (rows, digests) = index.to_runs();
        let stored = Compressor::default().encode(&[&rows, &digests], Effort::Index)?;
        let area = sums.map_or_else(Vec::new, |sums| {
            let binding = LinkSums::binding(base, target, &[&rows, &digests]);
            extension::area(SUMS_KIND, &sums.to_record(binding, &index))
        });
        let header = Header {
            compatible_features: if area.is_empty() { 0 } else { SUMS_BIT },
            base,
            target,
            index_stored: stored.len() as u64,
            index_raw: (rows.len() + digests.len()) as u64,
            segments_length: self.length,
            extension_length: area.len() as u64,
            index_crc: crc32fast::hash(&stored),
        };
        // The writer is as strict as the reader: it writes only what the reader accepts.
        Index::parse(&stored, &header, &Limits::unlimited())?;
        let writing = |error| Error::io("writing the link", error);
        out.write_all(&header.to_bytes()).map_err(writing)?;
        out.write_all(&stored).map_err(writing)?;
        self.spool.rewind().map_err(writing)?;
        let copied = std::io::copy(
            &mut BufReader::with_capacity(COPIED_AT_ONCE, self.spool),
            out,
        )
        .map_err(writing)?;
        if copied != self.length {
            return Err(writing(std::io::ErrorKind::UnexpectedEof.into()));
        }
        out.write_all(&area).map_err(writing)?;
        out.flush().map_err(writing)?;
        Ok(header.file_length())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Positions, Start, TensorEntry, Values, WrittenTensor};
    use crate::tensor::{Dtype, PIECE_BYTES, TensorInfo};

    #[test]
    fn more_than_memory_should_hold_keeps_its_order() {
        let coding = Coding {
            lane_bytes: 1,
            positions: Positions::Dense,
            values: Values::Absolute,
        };
        let segments: Vec<Vec<u8>> = (0..6)
            .map(|number| vec![number; (SPOOL_BYTES >> 2) + 1])
            .collect();
        let mut writer = LinkWriter::new();
        let numbers = segments
            .iter()
            .map(|bytes| Ok(Some(writer.push(coding, bytes)?)));
        let pieces = numbers.collect::<Result<Vec<_>>>().unwrap();
        assert!(writer.spool.is_rolled());

        let info = TensorInfo::new("t", Dtype::U8, [6 * PIECE_BYTES]).unwrap();
        let written = WrittenTensor {
            info,
            start: Start::Zeros,
            pieces,
            digests: vec![Digest([0; 32]); 6],
        };
        let index = Index {
            tensors: vec![TensorEntry::Write(written.into())],
            ..Index::default()
        };
        let mut out = Vec::new();
        let length = writer
            .finish(Digest([1; 32]), Digest([2; 32]), index, None, &mut out)
            .unwrap();
        assert_eq!(length, out.len() as u64);
        // Not `assert_eq`, which would print them.
        assert!(out.ends_with(&segments.concat()));
    }
}
