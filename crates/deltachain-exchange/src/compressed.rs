//! zstd frames and zlib streams whose length is known before they are decompressed, so that they
//! cannot ask for more memory.

use std::io::{Read, Write};

use deltachain::{Error, Result};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

use crate::refusal::corrupt;

/// A block of a frame has at least four bytes, and yields at most 128 KiB.
const MOST_EXPANSION: usize = 1 << 15;

/// Decompresses a zstd frame to exactly `length` bytes.
pub(crate) fn unzstd(frame: &[u8], length: usize) -> Result<Vec<u8>> {
    let bytes = unzstd_up_to(frame, length)?;
    if bytes.len() == length {
        Ok(bytes)
    } else {
        Err(other_length(length))
    }
}

/// Decompresses a zstd frame to at most `most` bytes. Allocates these, and no window.
pub(crate) fn unzstd_up_to(frame: &[u8], most: usize) -> Result<Vec<u8>> {
    let room = most.min(frame.len().saturating_mul(MOST_EXPANSION));
    zstd::bulk::decompress(frame, room)
        .map_err(|error| corrupt(format!("a zstd frame is damaged or too long: {error}")))
}

/// Decompresses a zlib stream to exactly `length` bytes.
pub(crate) fn unzlib(stream: &[u8], length: usize) -> Result<Vec<u8>> {
    // Reads one byte more, to notice a longer stream.
    let mut bytes = Vec::new();
    let mut decoder = ZlibDecoder::new(stream).take(length as u64 + 1);
    decoder
        .read_to_end(&mut bytes)
        .map_err(|error| corrupt(format!("a zlib stream is damaged: {error}")))?;
    if bytes.len() == length {
        Ok(bytes)
    } else {
        Err(other_length(length))
    }
}

fn other_length(length: usize) -> Error {
    corrupt(format!(
        "the compressed bytes do not give the tensor's {length}"
    ))
}

/// Compresses bytes to a zstd frame that states its length.
pub(crate) fn zstd(bytes: &[u8], level: i32) -> Result<Vec<u8>> {
    zstd::bulk::compress(bytes, level).map_err(|error| Error::io("compressing", error))
}

/// Compresses bytes to a zlib stream.
pub(crate) fn zlib(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .map_err(|error| Error::io("compressing", error))
}
