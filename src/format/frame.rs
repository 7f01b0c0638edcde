//! The structure of a zstd frame, as far as it can be seen without decompressing a block (SPEC
//! section 5; RFC 8878, section 3.1.1).
//!
//! zstd decoders differ in the frames that they accept and in where they stop. This check is the
//! same in every reader.

use crate::error::{Error, Result};
use crate::limits::MAX_WINDOW_BYTES;
use crate::rules::{self, ensure};

const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
/// Maximum length of a block, both compressed and decompressed.
const MAX_BLOCK_BYTES: u64 = 1 << 17;
/// Minimum length of a compressed block that can be decoded: it begins with two headers.
const LEAST_COMPRESSED: u64 = 2;

/// Checks that `stored` is a frame whose structure allows it to decompress to exactly `raw_length`
/// bytes.
pub(super) fn check(stored: &[u8], raw_length: u64) -> Result<()> {
    let mut bytes = FrameBytes(stored);
    need(bytes.take(MAGIC.len() as u64)? == MAGIC, "not a zstd frame")?;
    let descriptor = bytes.number(1)?;
    need(descriptor & 0b11 == 0, "the zstd frame has a dictionary id")?;
    let is_single = descriptor & 0b10_0000 != 0;
    let size_bytes = match descriptor >> 6 {
        0 => u64::from(is_single),
        flag => 1 << flag,
    };
    let window_byte = bytes.number(u64::from(!is_single))?;
    // The two-byte form begins at 256.
    let base = if size_bytes == 2 { 256 } else { 0 };
    let content = bytes.number(size_bytes)?.saturating_add(base);
    let window = if is_single {
        content
    } else {
        (1 << (10 + (window_byte >> 3))) / 8 * (8 + (window_byte & 0b111))
    };
    ensure(window <= MAX_WINDOW_BYTES, &rules::STR_03, || {
        format!("the zstd frame has a window of {window} bytes")
    })?;
    need(
        descriptor & 0b1000 == 0,
        "the zstd frame sets a reserved bit",
    )?;
    need(
        size_bytes == 0 || content == raw_length,
        "the zstd frame declares another length",
    )?;

    let most_in_block = window.min(MAX_BLOCK_BYTES);
    // The bytes that raw and RLE blocks give, and the maximum that compressed blocks can give.
    let (mut plain, mut compressed) = (0, 0);
    let mut has_compressed = false;
    loop {
        let block = bytes.number(3)?;
        let size = block >> 3;
        need(size <= most_in_block, "a zstd block is too long")?;
        let kind = block >> 1 & 0b11;
        need(kind != 0b11, "a zstd block has the reserved type")?;
        // An RLE block has one byte, which it repeats.
        bytes.take(if kind == 1 { 1 } else { size })?;
        if kind == 2 {
            has_compressed = true;
            compressed += if size < LEAST_COMPRESSED {
                0
            } else {
                most_in_block
            };
        } else {
            plain += size;
        }
        need(
            plain <= raw_length,
            "the zstd frame decompresses to too many bytes",
        )?;
        if block & 1 != 0 {
            break;
        }
    }
    need(
        has_compressed || plain == raw_length,
        "the zstd frame decompresses to too few bytes",
    )?;
    bytes.take(if descriptor & 0b100 == 0 { 0 } else { 4 })?;
    need(bytes.0.is_empty(), "bytes follow the zstd frame")?;
    // Decompressing would fail. This check comes before memory is allocated for bytes that cannot
    // come out.
    need(
        raw_length.saturating_sub(plain) <= compressed,
        "the zstd frame cannot decompress to that many bytes",
    )
}

/// The remaining bytes of the frame.
struct FrameBytes<'a>(&'a [u8]);

impl<'a> FrameBytes<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let split = usize::try_from(count)
            .ok()
            .and_then(|count| self.0.split_at_checked(count));
        let (taken, rest) = split.ok_or_else(|| broken("the zstd frame is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads a little-endian number of at most eight bytes.
    fn number(&mut self, count: u64) -> Result<u64> {
        let bytes = self.take(count)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }
}

fn need(holds: bool, message: &str) -> Result<()> {
    ensure(holds, &rules::STR_02, || message.to_owned())
}

fn broken(message: &str) -> Error {
    Error::broken(&rules::STR_02, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: u64 = 0;
    const RLE: u64 = 1;
    const COMPRESSED: u64 = 2;

    fn block(kind: u64, size: u64, is_last: bool, content: &[u8]) -> Vec<u8> {
        let header = (size << 3 | kind << 1 | u64::from(is_last)).to_le_bytes();
        [&header[..3], content].concat()
    }

    /// A frame with this descriptor and rest of the header, and these blocks.
    fn frame(header: &[u8], blocks: &[Vec<u8>]) -> Vec<u8> {
        [&MAGIC[..], header, &blocks.concat()].concat()
    }

    fn rule(frame: &[u8], raw_length: u64) -> Option<&'static str> {
        check(frame, raw_length)
            .err()
            .map(|error| error.rule().unwrap())
    }

    const BROKEN: Option<&str> = Some("R-STR-02");

    #[test]
    fn headers_are_read_in_their_order() {
        let last = || [block(RLE, 100, true, &[7])];
        let with = |header: &[u8]| rule(&frame(header, &last()), 100);
        // A window of 1 KiB; a content size of one, two, four and eight bytes.
        for header in [
            &[0, 0][..],
            &[0x20, 100],
            &[0x80, 0, 100, 0, 0, 0],
            &[0xA0, 100, 0, 0, 0],
        ] {
            assert_eq!(with(header), None, "{header:?}");
        }
        assert_eq!(with(&[0xC0, 0, 100, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(
            rule(&frame(&[0x60, 100, 0], &[block(RLE, 356, true, &[7])]), 356),
            None
        );
        assert_eq!(
            rule(&frame(&[0x60, 100, 0], &[block(RLE, 355, true, &[7])]), 355),
            BROKEN
        );
        // The unused bit means nothing, the reserved one is refused, and so is a dictionary.
        assert_eq!(with(&[0x10, 0]), None);
        for descriptor in [0x08, 0x01, 0x02, 0x03] {
            assert_eq!(with(&[descriptor, 0]), BROKEN, "{descriptor:#x}");
        }
        // Cut off, or of another kind.
        let whole = frame(&[0xC0, 0, 100, 0, 0, 0, 0, 0, 0, 0], &last());
        for length in 0..whole.len() {
            assert_eq!(rule(&whole[..length], 100), BROKEN, "{length}");
        }
        assert_eq!(
            rule(
                &[&[0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0][..], &whole].concat(),
                100
            ),
            BROKEN
        );
        // The window comes after the dictionary and the rest of the header, and before the reserved
        // bit and the content size.
        let window = Some("R-STR-03");
        assert_eq!(with(&[0x00, 0x78]), None);
        assert_eq!(with(&[0x00, 0x79]), window);
        assert_eq!(with(&[0x00, 0xFF]), window);
        assert_eq!(with(&[0x08, 0x79]), window);
        assert_eq!(with(&[0x01, 0x79]), BROKEN);
        assert_eq!(with(&[0x80, 0x79, 1, 0, 0, 0]), window);
        assert_eq!(rule(&frame(&[0xC0, 0xFF, 1, 2], &[]), 100), BROKEN);
        assert_eq!(with(&[0xA0, 1, 0, 0, 2]), window);
        assert_eq!(
            with(&[0xE0, 255, 255, 255, 255, 255, 255, 255, 255]),
            window
        );
        // Content sizes that libzstd takes for "unknown" and "error".
        assert_eq!(
            with(&[0xC0, 0, 255, 255, 255, 255, 255, 255, 255, 255]),
            BROKEN
        );
        assert_eq!(
            with(&[0xC0, 0, 254, 255, 255, 255, 255, 255, 255, 255]),
            BROKEN
        );
    }

    #[test]
    fn blocks_add_up() {
        let with = |blocks: &[Vec<u8>], raw_length| rule(&frame(&[0, 0], blocks), raw_length);
        let raw = |size: usize, is_last| block(RAW, size as u64, is_last, &vec![1; size]);
        assert_eq!(
            with(&[raw(10, false), block(RLE, 90, true, &[7])], 100),
            None
        );
        assert_eq!(with(&[raw(0, false), raw(100, true)], 100), None);
        for blocks in [
            &[raw(99, true)][..],
            &[raw(101, true)],
            &[raw(100, false)],
            &[raw(100, true), raw(0, true)],
            &[block(RAW, 100, true, &[1; 99])],
            &[block(RLE, 100, true, &[])],
            &[block(3, 100, true, &[1; 100])],
            // Although there is a compressed block.
            &[block(COMPRESSED, 2, false, &[0; 2]), raw(101, true)],
            &[block(COMPRESSED, 3, true, &[0; 2])],
        ] {
            assert_eq!(with(blocks, 100), BROKEN, "{blocks:?}");
        }
        // A block has at most the bytes of the window, as long as the window is less than 2^17.
        assert_eq!(with(&[raw(1024, true)], 1024), None);
        assert_eq!(with(&[raw(1025, true)], 1025), BROKEN);
        assert_eq!(with(&[block(RLE, 1025, true, &[7])], 1025), BROKEN);
        assert_eq!(
            with(&[block(COMPRESSED, 1025, true, &[7; 1025])], 1025),
            BROKEN
        );
        let largest = |size| rule(&frame(&[0, 0x78], &[block(RLE, size, true, &[7])]), size);
        assert_eq!(
            (largest(MAX_BLOCK_BYTES), largest(MAX_BLOCK_BYTES + 1)),
            (None, BROKEN)
        );
        // A single segment is its own window.
        let single = |size: u64| {
            rule(
                &frame(
                    &[0x20, 100],
                    &[raw(0, false), block(COMPRESSED, size, true, &[0; 101])],
                ),
                100,
            )
        };
        assert_eq!(single(101), BROKEN);
        let checksum = |bytes: &[u8]| {
            rule(
                &[&frame(&[0x04, 0], &[raw(20, true)])[..], bytes].concat(),
                20,
            )
        };
        assert_eq!(
            [3, 4, 5].map(|length| checksum(&[0; 5][..length])),
            [BROKEN, None, BROKEN]
        );
    }

    #[test]
    fn no_more_is_allowed_than_blocks_can_give() {
        let with = |size: usize, raw_length| {
            let blocks = [
                block(RLE, 10, false, &[7]),
                block(COMPRESSED, size as u64, true, &vec![0; size]),
            ];
            rule(&frame(&[0, 0], &blocks), raw_length)
        };
        assert_eq!((with(2, 10 + 1024), with(2, 11 + 1024)), (None, BROKEN));
        // Too short to be one.
        assert_eq!((with(1, 10), with(1, 11)), (None, BROKEN));
    }
}
