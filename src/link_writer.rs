//! Writing links: segments are spooled until the index, which precedes them in the file, is known.

use std::io::{Read, Seek, SeekFrom, Write};

use crate::error::{Error, Result};
use crate::format::stream::{Compressor, Effort};
use crate::format::{Coding, Header, Index, SegmentEntry};
use crate::limits::Limits;
use crate::tensor::Digest;

/// Segments up to this many bytes together wait in memory, more of them in a temporary file.
const SPOOL_BYTES: usize = 64 << 20;

/// Collects segments, then writes header, index and segments. Needs `io::Write` only.
pub(crate) struct LinkWriter {
    spool: tempfile::SpooledTempFile,
    segments: Vec<SegmentEntry>,
    length: u64,
}

impl LinkWriter {
    pub(crate) fn new() -> Self {
        Self { spool: tempfile::spooled_tempfile(SPOOL_BYTES), segments: Vec::new(), length: 0 }
    }

    /// Adds a segment; returns its number.
    pub(crate) fn push(&mut self, coding: Coding, bytes: &[u8]) -> Result<usize> {
        self.spool.write_all(bytes).map_err(|error| Error::io("writing a temporary file", error))?;
        let stored_length = bytes.len() as u64;
        self.segments.push(SegmentEntry { coding, stored_length, crc: crc32fast::hash(bytes) });
        self.length += stored_length;
        Ok(self.segments.len() - 1)
    }

    /// Writes the whole link; `index.segments` is filled in here. Returns the link's length.
    pub(crate) fn finish(mut self, base: Digest, target: Digest, mut index: Index, out: &mut dyn Write) -> Result<u64> {
        index.segments = self.segments;
        let (rows, digests) = index.to_runs();
        let stored = Compressor::default().encode(&[&rows, &digests], Effort::Text)?;
        let header = Header {
            compatible_features: 0,
            base,
            target,
            index_stored: stored.len() as u64,
            index_raw: (rows.len() + digests.len()) as u64,
            segments_length: self.length,
            index_crc: crc32fast::hash(&stored),
        };
        // The writer is never laxer than the reader: what it is about to write has to pass.
        Index::parse(&stored, &header, &Limits::unlimited())?;
        let writing = |error| Error::io("writing the link", error);
        out.write_all(&header.to_bytes()).map_err(writing)?;
        out.write_all(&stored).map_err(writing)?;
        self.spool.seek(SeekFrom::Start(0)).map_err(writing)?;
        let copied = std::io::copy(&mut self.spool.take(self.length), out).map_err(writing)?;
        if copied != self.length {
            return Err(writing(std::io::ErrorKind::UnexpectedEof.into()));
        }
        out.flush().map_err(writing)?;
        Ok(header.file_length())
    }
}
