//! Streams: bytes stored as they are or as one zstd frame, whichever is shorter (SPEC section 5).

use std::borrow::Cow;

use zstd::zstd_safe::{self, CCtx, CParameter, InBuffer, OutBuffer, Strategy, zstd_sys::ZSTD_EndDirective};

use crate::error::{Error, Result};
use crate::limits::{MAX_EXPANSION, MAX_WINDOW_BYTES, address};
use crate::rules::{self, ensure};

const FRAME_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Decodes a stream stored at absolute offset `offset`; nothing is copied if it is stored as it is. The caller has bounded
/// `raw_length`.
pub(crate) fn decode(stored: &[u8], raw_length: u64, offset: u64) -> Result<Cow<'_, [u8]>> {
    decode_inner(stored, raw_length).map_err(|error| error.at(offset))
}

fn decode_inner(stored: &[u8], raw_length: u64) -> Result<Cow<'_, [u8]>> {
    let stored_length = stored.len() as u64;
    if stored_length == raw_length {
        return Ok(stored.into());
    }
    ensure(stored_length < raw_length, &rules::STR_01, || {
        format!("a stream of {raw_length} bytes is stored in {stored_length}")
    })?;
    check_frame(stored, raw_length)?;
    // Before anything is allocated for what cannot come out.
    ensure(raw_length / MAX_EXPANSION <= stored_length, &rules::STR_02, || {
        format!("a zstd frame of {stored_length} bytes cannot give {raw_length}")
    })?;
    let mut raw = Vec::with_capacity(address(raw_length)?);
    let result = zstd_safe::decompress(&mut raw, stored);
    let length = result.map_err(|code| {
        Error::broken(&rules::STR_02, format!("bad zstd frame: {}", zstd_safe::get_error_name(code)))
    })?;
    ensure(length as u64 == raw_length, &rules::STR_02, || {
        format!("a zstd frame gives {length} bytes instead of {raw_length}")
    })?;
    Ok(raw.into())
}

/// What the decompressor does not check, or not in the order of SPEC section 5: one frame that ends at the last byte,
/// without dictionary, with a window and a content size within bounds. The header is parsed here (RFC 8878, section
/// 3.1.1.1), because libzstd takes some content sizes for "unknown".
fn check_frame(stored: &[u8], raw_length: u64) -> Result<()> {
    let broken = |message: &str| Error::broken(&rules::STR_02, message);
    ensure(stored.starts_with(&FRAME_MAGIC), &rules::STR_02, || "not a zstd frame".into())?;
    let cut_off = || broken("the zstd frame's header is cut off");
    let (&descriptor, rest) = stored[FRAME_MAGIC.len()..].split_first().ok_or_else(cut_off)?;
    ensure(descriptor & 0b11 == 0, &rules::STR_02, || "the zstd frame has a dictionary id".into())?;
    let single_segment = descriptor & 0b0010_0000 != 0;
    let (window_bytes, rest) = rest.split_at_checked(usize::from(!single_segment)).ok_or_else(cut_off)?;
    let size_bytes = match descriptor >> 6 {
        0 => usize::from(single_segment),
        flag => 1 << flag,
    };
    let (size, _) = rest.split_at_checked(size_bytes).ok_or_else(cut_off)?;
    let content = (size_bytes > 0).then(|| {
        let mut bytes = [0; 8];
        bytes[..size_bytes].copy_from_slice(size);
        // The two-byte form begins at 256.
        u64::from_le_bytes(bytes) + if size_bytes == 2 { 256 } else { 0 }
    });
    let window = match window_bytes {
        [byte] => {
            let base = 1_u64 << (10 + (byte >> 3));
            base + base / 8 * u64::from(byte & 0b111)
        }
        // A single-segment frame has its content size as its window.
        _ => content.unwrap_or(0),
    };
    ensure(window <= MAX_WINDOW_BYTES, &rules::STR_03, || format!("the zstd frame has a window of {window} bytes"))?;
    ensure(content.is_none_or(|content| content == raw_length), &rules::STR_02, || {
        format!("the zstd frame declares {content:?} bytes instead of {raw_length}")
    })?;
    let end = zstd_safe::find_frame_compressed_size(stored).map_err(|_| broken("the zstd frame is damaged"))?;
    ensure(end == stored.len(), &rules::STR_02, || "bytes follow the zstd frame".into())
}

/// How a stream is to be compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Symbols of an entropy-coded kind, nearly random: short matches only cost, literals do the work.
    Symbols,
    /// Text and small integers with structure: search for matches.
    Text,
}

/// Compresses streams; keeps zstd's working memory between them.
pub(crate) struct Compressor {
    context: CCtx<'static>,
}

impl Default for Compressor {
    fn default() -> Self {
        Self { context: CCtx::create() }
    }
}

impl Compressor {
    /// Stores `runs`, one after another, as one stream. Each run gets zstd blocks of its own, because its statistics
    /// differ from its neighbours'. Returns the stored bytes; they are the raw ones where zstd does not help.
    pub(crate) fn encode(&mut self, runs: &[&[u8]], effort: Effort) -> Result<Vec<u8>> {
        let raw_length: usize = runs.iter().map(|run| run.len()).sum();
        // No frame is shorter than this.
        if raw_length > 12 {
            let frame = self
                .frame(runs, raw_length, effort)
                .map_err(|code| Error::resource(format!("zstd: {}", zstd_safe::get_error_name(code))))?;
            if frame.len() < raw_length {
                return Ok(frame);
            }
        }
        Ok(runs.concat())
    }

    fn frame(&mut self, runs: &[&[u8]], raw_length: usize, effort: Effort) -> std::result::Result<Vec<u8>, usize> {
        let context = &mut self.context;
        context.reset(zstd_safe::ResetDirective::SessionAndParameters)?;
        match effort {
            Effort::Symbols => {
                context.set_parameter(CParameter::CompressionLevel(1))?;
                context.set_parameter(CParameter::Strategy(Strategy::ZSTD_fast))?;
                context.set_parameter(CParameter::MinMatch(7))?;
                context.set_parameter(CParameter::WindowLog(20))?;
                // The smallest table: what a larger one finds in symbols like these are matches by chance, which cost
                // more than the literals they replace (5 % of the exponents of a snapshot).
                context.set_parameter(CParameter::HashLog(6))?;
            }
            Effort::Text => {
                // More effort takes milliseconds for less than a thousandth of a link.
                context.set_parameter(CParameter::CompressionLevel(7))?;
            }
        }
        context.set_pledged_src_size(Some(raw_length as u64))?;
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(raw_length) + 64 * runs.len());
        let mut out = OutBuffer::around(&mut frame);
        let last = runs.iter().rposition(|run| !run.is_empty());
        for (index, run) in runs.iter().enumerate() {
            let directive = if Some(index) == last {
                ZSTD_EndDirective::ZSTD_e_end
            } else if run.is_empty() {
                continue;
            } else {
                ZSTD_EndDirective::ZSTD_e_flush
            };
            let mut input = InBuffer::around(run);
            while context.compress_stream2(&mut out, &mut input, directive)? != 0 {}
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(runs: &[&[u8]]) -> Vec<u8> {
        Compressor::default().encode(runs, Effort::Symbols).unwrap()
    }

    #[test]
    fn streams_round_trip() {
        let zeros = vec![0; 100_000];
        let noise: Vec<u8> =
            (0..1000_u32).flat_map(|i| blake3::hash(&i.to_le_bytes()).as_bytes()[..8].to_vec()).collect();
        for runs in [&[][..], &[b"".as_slice()], &[b"abc"], &[&zeros], &[&noise], &[&zeros, b"", &noise, &zeros, b""]] {
            let raw = runs.concat();
            let stored = encode(runs);
            assert!(stored.len() <= raw.len());
            assert_eq!(decode(&stored, raw.len() as u64, 0).unwrap(), raw);
        }
        assert!(encode(&[&zeros]).len() < 64);
        assert_eq!(encode(&[&noise]), noise);
    }

    #[test]
    fn other_frames_are_refused() {
        let raw = vec![7; 5000];
        let stored = encode(&[&raw]);
        let rule = |stored: &[u8], raw_length| decode(stored, raw_length, 9).unwrap_err().rule().unwrap();
        assert_eq!(rule(&raw, 4999), "R-STR-01");
        assert_eq!(rule(&stored, 4999), "R-STR-02");
        assert_eq!(rule(&stored, 5001), "R-STR-02");
        assert_eq!(rule(&stored[..stored.len() - 1], 5000), "R-STR-02");
        let doubled = [stored.clone(), stored.clone()].concat();
        assert_eq!(rule(&doubled, 10_000), "R-STR-02");
        let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0][..], &stored].concat();
        assert_eq!(rule(&skippable, 5000), "R-STR-02");
        let mut dictionary = stored.clone();
        dictionary[4] |= 1;
        assert_eq!(rule(&dictionary, 5000), "R-STR-02");
    }

    #[test]
    fn a_huge_window_is_refused() {
        // Frame header without content size, window descriptor of 2^41 bytes, one empty last block.
        let frame = [&FRAME_MAGIC[..], &[0x00, 0xF8, 0x01, 0x00, 0x00]].concat();
        assert_eq!(decode(&frame, 10, 0).unwrap_err().rule(), Some("R-STR-03"));
        // The largest window, an eighth more, and almost as much; one block of a byte that is repeated a hundred times.
        let window = |byte: u8| {
            let frame = [&FRAME_MAGIC[..], &[0x00, byte, 0x23, 0x03, 0x00, 7]].concat();
            decode(&frame, 100, 0).map(Cow::into_owned)
        };
        assert_eq!(window(0x78).unwrap(), [7; 100]);
        assert_eq!(window(0x79).unwrap_err().rule(), Some("R-STR-03"));
        assert_eq!(window(0x77).unwrap(), [7; 100]);
        // The same cut off in its header, and content sizes that libzstd takes for "unknown" and "error".
        let rule = |bytes: &[u8]| decode(&[&FRAME_MAGIC, bytes].concat(), 100, 0).unwrap_err().rule().unwrap();
        assert_eq!(rule(&[0xC0, 0xFF, 1, 2]), "R-STR-02");
        assert_eq!(rule(&[0xC0, 0x00, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0]), "R-STR-02");
        assert_eq!(rule(&[0xE0, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0]), "R-STR-03");
        assert_eq!(rule(&[0xE0, 254, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0]), "R-STR-03");
    }
}
