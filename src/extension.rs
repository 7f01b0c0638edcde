//! The extension area: records of compatible additions (SPEC section 4.2). It is never a reason to refuse a file.

use crate::error::Result;
use crate::limits::address;
use crate::source::Source;

/// The area begins with this.
const MAGIC: [u8; 8] = *b"\x89DCX\r\n\x1a\n";

/// Bytes of kind, checksum and length.
const RECORD_HEADER: usize = 16;

/// The compatible feature bit and the record of sums (SPEC section 24.3).
pub(crate) const SUMS_BIT: u32 = 1;
pub(crate) const SUMS_KIND: u32 = 1;

/// The data of the record of this kind in an area of a file, which begins at `offset` and has `length` bytes, if the record
/// has `expected` bytes. `None` if it is not there, damaged, or of another length. Takes no memory for other records.
///
/// # Errors
/// IO.
pub(crate) fn record(
    source: &impl Source,
    (offset, length): (u64, u64),
    kind: u32,
    expected: u64,
) -> Result<Option<Vec<u8>>> {
    let magic_bytes = MAGIC.len() as u64;
    let mut magic = [0; MAGIC.len()];
    if length < magic_bytes {
        return Ok(None);
    }
    source.read_at(offset, &mut magic)?;
    if magic != MAGIC {
        return Ok(None);
    }
    let header_bytes = RECORD_HEADER as u64;
    let mut found = None;
    let mut last = None;
    let (mut place, mut left) = (offset + magic_bytes, length - magic_bytes);
    while left > 0 {
        if left < header_bytes {
            return Ok(None);
        }
        let mut header = [0; RECORD_HEADER];
        source.read_at(place, &mut header)?;
        let ([own, crc, ..], [_, data_length]) = (header.as_chunks().0, header.as_chunks().0) else { return Ok(None) };
        let (own, crc, data_length) =
            (u32::from_le_bytes(*own), u32::from_le_bytes(*crc), u64::from_le_bytes(*data_length));
        left -= header_bytes;
        if data_length > left || last.is_some_and(|last| own <= last) {
            return Ok(None);
        }
        if own == kind && data_length == expected {
            found = Some((place + header_bytes, crc));
        }
        last = Some(own);
        left -= data_length;
        place += header_bytes + data_length;
    }
    let Some((place, crc)) = found else { return Ok(None) };
    let mut data = vec![0; address(expected)?];
    source.read_at(place, &mut data)?;
    Ok((crc32fast::hash(&data) == crc).then_some(data))
}

/// An area with one record.
pub(crate) fn area(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(data).to_le_bytes());
    bytes.extend_from_slice(&(data.len() as u64).to_le_bytes());
    bytes.extend_from_slice(data);
    bytes
}
