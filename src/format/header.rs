//! The header (SPEC section 4.1).

use crate::error::{Error, Result};
use crate::format::cursor::Cursor;
use crate::rules::{self, ensure};
use crate::tensor::Digest;

/// First bytes of every link.
pub const MAGIC: [u8; 8] = *b"\x89DCF\r\n\x1a\n";
/// Length of the header in bytes.
pub const HEADER_BYTES: u64 = HEADER_LENGTH as u64;
/// The version that this library reads and writes.
pub const VERSION: u32 = 1;

const HEADER_LENGTH: usize = 128;
/// Incompatible feature bits that this library knows.
const KNOWN_INCOMPATIBLE: u32 = 0;

/// The fields of the header that are not constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bits that a reader may ignore; kept when a file is rewritten.
    pub compatible_features: u32,
    /// State digest of the base.
    pub base: Digest,
    /// State digest of the target.
    pub target: Digest,
    /// Length of the index as stored.
    pub index_stored: u64,
    /// Length of the index when decompressed.
    pub index_raw: u64,
    /// Length of all segments together.
    pub segments_length: u64,
    /// Length of the extension area, which follows the segments. A reader skips it; it is kept when
    /// a file is rewritten.
    pub extension_length: u64,
    /// CRC-32 of the index as stored.
    pub index_crc: u32,
}

impl Header {
    /// Parses the first bytes of a file; `bytes` are the first 128, or all if there are fewer.
    ///
    /// # Errors
    /// R-HDR-01 to R-HDR-08 and R-STR-01, in the order of SPEC section 10.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Self::parse_inner(bytes).map_err(|error| error.in_section("header"))
    }

    fn parse_inner(bytes: &[u8]) -> Result<Self> {
        let magic_present = bytes.len().min(MAGIC.len());
        ensure(
            bytes[..magic_present] == MAGIC[..magic_present],
            &rules::HDR_01,
            || "the file does not begin with the magic of a link".into(),
        )
        .map_err(|error| error.at(0))?;
        let Some(bytes) = bytes.first_chunk::<HEADER_LENGTH>() else {
            return Err(Error::broken(
                &rules::HDR_02,
                format!("the file ends after {} bytes", bytes.len()),
            )
            .at(bytes.len() as u64));
        };
        let (covered, crc) = bytes.split_at(HEADER_LENGTH - 4);
        let crc = Cursor::in_file(crc, HEADER_BYTES - 4).u32()?;
        ensure(crc32fast::hash(covered) == crc, &rules::HDR_03, || {
            "the header's checksum does not match".into()
        })
        .map_err(|error| error.at(HEADER_BYTES - 4))?;

        let mut cursor = Cursor::in_file(covered, 0);
        cursor.take(MAGIC.len())?;
        let version = cursor.u32()?;
        cursor.ensure(version == VERSION, &rules::HDR_04, || {
            format!("the link has version {version} of the format, but this reader knows {VERSION}")
        })?;
        let incompatible = cursor.u32()?;
        let unknown = incompatible & !KNOWN_INCOMPATIBLE;
        cursor.ensure(unknown == 0, &rules::HDR_05, || {
            format!("unknown incompatible feature bits {unknown:#x}")
        })?;
        let compatible_features = cursor.u32()?;
        let reserved = cursor.u32()?;
        let header = Self {
            compatible_features,
            base: Digest(cursor.digest()?),
            target: Digest(cursor.digest()?),
            index_stored: cursor.u64()?,
            index_raw: cursor.u64()?,
            segments_length: cursor.u64()?,
            extension_length: cursor.u64()?,
            index_crc: cursor.u32()?,
        };
        let Self {
            index_stored,
            index_raw,
            ..
        } = header;
        cursor.ensure(reserved == 0, &rules::HDR_06, || {
            "the reserved field is not 0".into()
        })?;
        cursor.ensure(index_stored <= index_raw, &rules::STR_01, || {
            format!(
                "the index is stored in {index_stored} bytes, more than its {index_raw} raw bytes"
            )
        })?;
        cursor.ensure(header.file_length() < 1 << 63, &rules::HDR_08, || {
            "the declared lengths exceed 2^63".into()
        })?;
        Ok(header)
    }

    /// The header's bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LENGTH] {
        let fields: [&[u8]; 13] = [
            &MAGIC,
            &VERSION.to_le_bytes(),
            &KNOWN_INCOMPATIBLE.to_le_bytes(),
            &self.compatible_features.to_le_bytes(),
            &[0; 4],
            &self.base.0,
            &self.target.0,
            &self.index_stored.to_le_bytes(),
            &self.index_raw.to_le_bytes(),
            &self.segments_length.to_le_bytes(),
            &self.extension_length.to_le_bytes(),
            &self.index_crc.to_le_bytes(),
            &[0; 4],
        ];
        let mut bytes = [0; HEADER_LENGTH];
        let mut offset = 0;
        for field in fields {
            bytes[offset..offset + field.len()].copy_from_slice(field);
            offset += field.len();
        }
        let (covered, crc) = bytes.split_at_mut(HEADER_LENGTH - 4);
        crc.copy_from_slice(&crc32fast::hash(covered).to_le_bytes());
        bytes
    }

    /// Length of the whole file; `parse` has made sure that it does not overflow.
    pub fn file_length(&self) -> u64 {
        [
            self.index_stored,
            self.segments_length,
            self.extension_length,
        ]
        .into_iter()
        .fold(HEADER_BYTES, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            compatible_features: 0x8000_0001,
            base: Digest([1; 32]),
            target: Digest([2; 32]),
            index_stored: 3,
            index_raw: 4,
            segments_length: 5,
            extension_length: 6,
            index_crc: 7,
        }
    }

    fn rule_after(edit: impl FnOnce(&mut [u8; 128])) -> &'static str {
        let mut bytes = header().to_bytes();
        edit(&mut bytes);
        let crc = crc32fast::hash(&bytes[..124]);
        bytes[124..].copy_from_slice(&crc.to_le_bytes());
        Header::parse(&bytes).unwrap_err().rule().unwrap()
    }

    #[test]
    fn headers_round_trip() {
        assert_eq!(Header::parse(&header().to_bytes()).unwrap(), header());
        assert_eq!(header().file_length(), 128 + 3 + 5 + 6);
    }

    #[test]
    fn each_rule_is_enforced() {
        assert_eq!(Header::parse(b"").unwrap_err().rule(), Some("R-HDR-02"));
        assert_eq!(
            Header::parse(b"\x89DC").unwrap_err().rule(),
            Some("R-HDR-02")
        );
        assert_eq!(
            Header::parse(b"\x89DX").unwrap_err().rule(),
            Some("R-HDR-01")
        );
        assert_eq!(
            Header::parse(&[0; 200]).unwrap_err().rule(),
            Some("R-HDR-01")
        );
        let mut bytes = header().to_bytes();
        bytes[40] ^= 1;
        let error = Header::parse(&bytes).unwrap_err();
        assert_eq!(
            (error.rule(), error.offset()),
            (Some("R-HDR-03"), Some(124))
        );
        assert_eq!(rule_after(|bytes| bytes[8] = 0), "R-HDR-04");
        assert_eq!(rule_after(|bytes| bytes[8] = 2), "R-HDR-04");
        assert_eq!(rule_after(|bytes| bytes[15] = 1), "R-HDR-05");
        assert_eq!(rule_after(|bytes| bytes[20] = 1), "R-HDR-06");
        assert_eq!(rule_after(|bytes| bytes[88] = 5), "R-STR-01");
        assert_eq!(rule_after(|bytes| bytes[111] = 0x80), "R-HDR-08");
        assert_eq!(rule_after(|bytes| bytes[119] = 0x80), "R-HDR-08");
        // The order of step 2.
        assert_eq!(
            rule_after(|bytes| (bytes[20], bytes[88]) = (1, 5)),
            "R-HDR-06"
        );
        assert_eq!(
            rule_after(|bytes| (bytes[88], bytes[111]) = (5, 0x80)),
            "R-STR-01"
        );
        let mut longest = header();
        longest.extension_length =
            (1 << 63) - HEADER_BYTES - longest.index_stored - longest.segments_length - 1;
        assert_eq!(Header::parse(&longest.to_bytes()).unwrap(), longest);
        longest.extension_length += 1;
        assert_eq!(
            Header::parse(&longest.to_bytes()).unwrap_err().rule(),
            Some("R-HDR-08")
        );
    }
}
