//! Reads and writes the primitive types of SPEC section 1; [`put_varint`] has a module of its own.

use crate::error::{Error, Result};
use crate::rules::{self, Rule, ensure};
use crate::varint::put_varint;

/// A reader of primitives from a structure, which knows its place in the file.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Absolute offset of `bytes` in the file, or of the compressed stream that they come from.
    origin: u64,
    /// Whether `position` counts in the file; false for decompressed bytes.
    in_file: bool,
}

impl<'a> Cursor<'a> {
    /// A cursor over bytes that begin at `origin` in the file.
    pub(crate) fn in_file(bytes: &'a [u8], origin: u64) -> Self {
        Self {
            bytes,
            position: 0,
            origin,
            in_file: true,
        }
    }

    /// A cursor over the raw bytes of the stream that is stored at `origin`.
    pub(crate) fn in_stream(bytes: &'a [u8], origin: u64) -> Self {
        Self {
            bytes,
            position: 0,
            origin,
            in_file: false,
        }
    }

    /// Absolute offset for errors.
    pub(crate) fn offset(&self) -> u64 {
        if self.in_file {
            self.origin + self.position as u64
        } else {
            self.origin
        }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Reports `rule` as broken at the cursor, unless `holds`.
    pub(crate) fn ensure(
        &self,
        holds: bool,
        rule: &'static Rule,
        message: impl FnOnce() -> String,
    ) -> Result<()> {
        ensure(holds, rule, message).map_err(|error| error.at(self.offset()))
    }

    /// Takes the bytes of a field, which must end inside the structure (R-INT-03).
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let end = self
            .position
            .checked_add(length)
            .filter(|end| *end <= self.bytes.len());
        match end {
            Some(end) => {
                let taken = &self.bytes[self.position..end];
                self.position = end;
                Ok(taken)
            }
            None => {
                let message = format!(
                    "a field of {length} bytes begins {} bytes before the end",
                    self.remaining()
                );
                Err(Error::broken(&rules::INT_03, message).at(self.offset()))
            }
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn digest(&mut self) -> Result<[u8; 32]> {
        self.array()
    }

    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for index in 0..10 {
            let byte = self.u8()?;
            let group = u64::from(byte & 0x7F);
            // R-INT-02: the tenth byte holds the top bit only.
            if index == 9 && byte > 1 {
                break;
            }
            value |= group << (7 * index);
            if byte & 0x80 == 0 {
                // R-INT-01: the last byte of a longer varint is not zero.
                self.ensure(index == 0 || byte != 0, &rules::INT_01, || {
                    "varint is longer than needed".into()
                })?;
                return Ok(value);
            }
        }
        Err(Error::broken(&rules::INT_02, "varint exceeds 64 bits").at(self.offset()))
    }

    /// Reads a varint that counts things; R-LIM-01, with `what` in the message, if it exceeds
    /// `most`.
    pub(crate) fn count(&mut self, most: u64, what: &str) -> Result<usize> {
        let count = self.varint()?;
        let fits = usize::try_from(count).ok().filter(|_| count <= most);
        fits.ok_or_else(|| {
            Error::broken(&rules::LIM_01, format!("{count} {what}, at most {most}"))
                .at(self.offset())
        })
    }

    /// Reads a string; R-LIM-01, with `what` in the message, if it has more than `most` bytes.
    pub(crate) fn string(&mut self, most: u64, what: &str) -> Result<&'a str> {
        let length = self.count(most, what)?;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes)
            .map_err(|_| Error::broken(&rules::INT_04, "string is not UTF-8").at(self.offset()))
    }
}

pub(crate) fn put_string(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_in_their_one_form() {
        for value in [
            0,
            1,
            127,
            128,
            300,
            16_383,
            16_384,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let mut cursor = Cursor::in_file(&bytes, 7);
            assert_eq!(cursor.varint().unwrap(), value);
            assert_eq!(cursor.remaining(), 0);
            assert_eq!(cursor.offset(), 7 + bytes.len() as u64);
        }
        let mut bytes = Vec::new();
        put_varint(&mut bytes, 300);
        assert_eq!(bytes, [0xAC, 0x02]);
    }

    #[test]
    fn other_forms_are_refused() {
        let rule = |bytes: &[u8]| {
            Cursor::in_file(bytes, 0)
                .varint()
                .unwrap_err()
                .rule()
                .unwrap()
        };
        assert_eq!(rule(&[]), "R-INT-03");
        assert_eq!(rule(&[0x80]), "R-INT-03");
        assert_eq!(rule(&[0x80, 0x00]), "R-INT-01");
        assert_eq!(
            rule(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02]),
            "R-INT-02"
        );
        assert_eq!(rule(&[0x80; 11]), "R-INT-02");
    }

    #[test]
    fn varints_are_those_of_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/functions.json");
        // The published package is without it.
        let Ok(text) = std::fs::read(path) else {
            return;
        };
        let tables: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let rows = tables["tables"]["varint"]["rows"].as_array().unwrap();
        assert!(rows.len() >= 8);
        for row in rows {
            let digits = row["bytes"].as_str().unwrap();
            let bytes: Vec<u8> = (0..digits.len() / 2)
                .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
                .collect();
            match Cursor::in_file(&bytes, 0).varint() {
                Ok(value) => {
                    assert_eq!(
                        row["value"].as_str(),
                        Some(value.to_string().as_str()),
                        "{row}"
                    );
                    let mut written = Vec::new();
                    put_varint(&mut written, value);
                    assert_eq!(written, bytes, "{row}");
                }
                Err(error) => {
                    assert_eq!(
                        (row["class"].as_str(), row["rule"].as_str()),
                        (Some(error.class().name()), error.rule())
                    );
                }
            }
        }
    }

    #[test]
    fn strings_are_bounded_utf8() {
        let rule = |bytes: &[u8]| {
            Cursor::in_file(bytes, 0)
                .string(3, "bytes")
                .unwrap_err()
                .rule()
                .unwrap()
        };
        assert_eq!(rule(&[4, b'a', b'b', b'c', b'd']), "R-LIM-01");
        assert_eq!(rule(&[3, b'a']), "R-INT-03");
        assert_eq!(rule(&[2, 0xC3, 0x28]), "R-INT-04");
        assert_eq!(rule(&[3, 0xED, 0xA0, 0x80]), "R-INT-04");
        assert_eq!(
            Cursor::in_file(&[1, 0], 0).string(3, "bytes").unwrap(),
            "\0"
        );
    }
}
