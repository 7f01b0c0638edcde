//! The extension area: records of compatible additions (SPEC section 4.2). It is never a reason to
//! refuse a file.

use crate::error::Result;
use crate::limits::address;
use crate::source::Source;

/// The first bytes of the area.
const MAGIC: [u8; 8] = *b"\x89DCX\r\n\x1a\n";

/// Bytes of kind, checksum and length.
const RECORD_HEADER: usize = 16;

/// The compatible feature bit and the record of sums (SPEC section 24.3).
pub(crate) const SUMS_BIT: u32 = 1;
pub(crate) const SUMS_KIND: u32 = 1;

/// Reads the data of the record of this kind, which must have `expected` bytes, in the area of a
/// file that begins at `offset` and has `length` bytes. Returns `None` if the record is missing,
/// damaged, or of another length. Takes no memory for other records.
///
/// # Errors
/// IO.
pub(crate) fn record(
    source: &impl Source,
    (offset, length): (u64, u64),
    kind: u32,
    expected: u64,
) -> Result<Option<Vec<u8>>> {
    let end = offset + length;
    // Fills the buffer, unless the area ends before.
    let read = |place: u64, bytes: &mut [u8]| {
        let fits = bytes.len() as u64 <= end - place;
        if fits {
            source.read_at(place, bytes).map(|()| true)
        } else {
            Ok(false)
        }
    };
    let (mut magic, mut header) = ([0; MAGIC.len()], [0; RECORD_HEADER]);
    if !read(offset, &mut magic)? || magic != MAGIC {
        return Ok(None);
    }
    let (mut found, mut last) = (None, None);
    let mut place = offset + MAGIC.len() as u64;
    while place < end {
        if !read(place, &mut header)? {
            return Ok(None);
        }
        let ([own, crc, ..], [_, data_length]) = (header.as_chunks().0, header.as_chunks().0)
        else {
            return Ok(None);
        };
        let (own, crc) = (u32::from_le_bytes(*own), u32::from_le_bytes(*crc));
        let data_length = u64::from_le_bytes(*data_length);
        place += RECORD_HEADER as u64;
        if data_length > end - place || last.is_some_and(|last| own <= last) {
            return Ok(None);
        }
        if own == kind && data_length == expected {
            found = Some((place, crc));
        }
        last = Some(own);
        place += data_length;
    }
    let Some((place, crc)) = found else {
        return Ok(None);
    };
    let mut data = vec![0; address(expected)?];
    source.read_at(place, &mut data)?;
    Ok((crc32fast::hash(&data) == crc).then_some(data))
}

/// Makes an area with one record.
pub(crate) fn area(kind: u32, data: &[u8]) -> Vec<u8> {
    let (crc, length) = (crc32fast::hash(data), data.len() as u64);
    [
        &MAGIC[..],
        &kind.to_le_bytes(),
        &crc.to_le_bytes(),
        &length.to_le_bytes(),
        data,
    ]
    .concat()
}
