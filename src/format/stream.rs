//! Streams: bytes stored as they are or as one zstd frame, whichever is shorter (SPEC section 5).

use std::borrow::Cow;
use std::cell::RefCell;

use zstd::zstd_safe::{
    self, CCtx, CParameter, DCtx, InBuffer, OutBuffer, Strategy, zstd_sys::ZSTD_EndDirective,
};

use crate::error::{Error, ErrorClass, Result};
use crate::format::frame;
use crate::limits::address;
use crate::rules::{self, ensure};

/// Decodes a stream stored at absolute offset `offset`; nothing is copied if it is not compressed.
/// The caller has bounded `raw_length`.
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
    frame::check(stored, raw_length)?;
    decompress(stored, raw_length).map(Cow::Owned)
}

thread_local! {
    /// zstd's working memory: creating it costs more than decompressing a short stream.
    static CONTEXT: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Decompresses a frame whose structure has been checked, into a buffer of exactly the raw length.
fn decompress(stored: &[u8], raw_length: u64) -> Result<Vec<u8>> {
    let mut raw = Vec::with_capacity(address(raw_length)?);
    let result = CONTEXT.with_borrow_mut(|context| context.decompress(&mut raw, stored));
    let length = result.map_err(|code| {
        Error::broken(
            &rules::STR_02,
            format!("bad zstd frame: {}", zstd_safe::get_error_name(code)),
        )
    })?;
    ensure(length as u64 == raw_length, &rules::STR_02, || {
        format!("a zstd frame decompresses to {length} bytes instead of {raw_length}")
    })?;
    Ok(raw)
}

/// The way to compress a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Nearly random symbols: entropy coding of literals does the work, and short matches only add
    /// bytes.
    Symbols,
    /// Text and small integers with structure: search for matches.
    Text,
    /// The index: as text, with a content checksum (R-STR-08).
    Index,
}

/// Compresses streams; keeps zstd's working memory between them.
pub(crate) struct Compressor {
    context: CCtx<'static>,
}

impl Default for Compressor {
    fn default() -> Self {
        Self {
            context: CCtx::create(),
        }
    }
}

impl Compressor {
    /// Stores `runs`, one after another, as one stream. Each run gets zstd blocks of its own,
    /// because its statistics differ from its neighbours'. Returns the stored bytes: the raw bytes
    /// if zstd does not make them shorter.
    pub(crate) fn encode(&mut self, runs: &[&[u8]], effort: Effort) -> Result<Vec<u8>> {
        let raw_length: usize = runs.iter().map(|run| run.len()).sum();
        // No frame is shorter than this.
        if raw_length > 12 {
            let frame = self.frame(runs, raw_length, effort).map_err(|code| {
                Error::refused(
                    ErrorClass::Io,
                    format!("zstd: {}", zstd_safe::get_error_name(code)),
                )
            })?;
            if frame.len() < raw_length {
                return Ok(frame);
            }
        }
        Ok(runs.concat())
    }

    fn frame(
        &mut self,
        runs: &[&[u8]],
        raw_length: usize,
        effort: Effort,
    ) -> std::result::Result<Vec<u8>, usize> {
        let context = &mut self.context;
        context.reset(zstd_safe::ResetDirective::SessionAndParameters)?;
        match effort {
            Effort::Symbols => {
                context.set_parameter(CParameter::CompressionLevel(1))?;
                context.set_parameter(CParameter::Strategy(Strategy::ZSTD_fast))?;
                context.set_parameter(CParameter::MinMatch(7))?;
                context.set_parameter(CParameter::WindowLog(20))?;
                // The smallest table: in symbols like these, a larger one finds matches by chance,
                // which cost more than the literals they replace (5 % of the exponents of a
                // snapshot).
                context.set_parameter(CParameter::HashLog(6))?;
            }
            Effort::Text | Effort::Index => {
                // A higher level takes milliseconds to save less than a thousandth of a link.
                context.set_parameter(CParameter::CompressionLevel(7))?;
                context.set_parameter(CParameter::ChecksumFlag(effort == Effort::Index))?;
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
        let noise: Vec<u8> = (0..1000_u32)
            .flat_map(|i| blake3::hash(&i.to_le_bytes()).as_bytes()[..8].to_vec())
            .collect();
        for runs in [
            &[][..],
            &[b"".as_slice()],
            &[b"abc"],
            &[&zeros],
            &[&noise],
            &[&zeros, b"", &noise, &zeros, b""],
        ] {
            let raw = runs.concat();
            let stored = encode(runs);
            assert!(stored.len() <= raw.len());
            assert_eq!(decode(&stored, raw.len() as u64, 0).unwrap(), raw);
        }
        assert!(encode(&[&zeros]).len() < 64);
        assert_eq!(encode(&[&noise]), noise);
    }

    #[test]
    fn the_index_has_a_checksum_and_nothing_else_has() {
        let with = |length: usize, effort| {
            Compressor::default()
                .encode(&[&vec![7; length]], effort)
                .unwrap()
        };
        let has_checksum = |effort| with(1000, effort)[4] & 0b100 != 0;
        assert_eq!(
            [Effort::Index, Effort::Text, Effort::Symbols].map(has_checksum),
            [true, false, false]
        );
        let mut stored = with(1000, Effort::Index);
        assert_eq!(*decode(&stored, 1000, 0).unwrap(), [7; 1000]);
        *stored.last_mut().unwrap() ^= 1;
        assert_eq!(
            decode(&stored, 1000, 0).unwrap_err().rule(),
            Some("R-STR-02")
        );
        // A stream that only the checksum makes too long is stored as it is.
        let lengths = |effort| [20, 21].map(|length| with(length, effort).len());
        assert_eq!(lengths(Effort::Text), [16, 16]);
        assert_eq!(
            (lengths(Effort::Index), with(20, Effort::Index)),
            ([20, 20], vec![7; 20])
        );
    }

    #[test]
    fn other_frames_are_refused() {
        let raw: Vec<u8> = (0..5000_u32)
            .flat_map(|i| [(i % 7).to_le_bytes()[0], 7])
            .collect();
        let stored = encode(&[&raw]);
        let rule =
            |stored: &[u8], raw_length| decode(stored, raw_length, 9).unwrap_err().rule().unwrap();
        assert_eq!(rule(&raw, 9999), "R-STR-01");
        assert_eq!(rule(&stored, 9999), "R-STR-02");
        assert_eq!(rule(&stored, 10_001), "R-STR-02");
        assert_eq!(rule(&stored[..stored.len() - 1], 10_000), "R-STR-02");
        let doubled = [stored.clone(), stored.clone()].concat();
        assert_eq!(rule(&doubled, 20_000), "R-STR-02");
    }

    #[test]
    fn what_the_structure_does_not_show_is_refused_too() {
        // A frame of unknown size with one compressed block: raw literals, no sequences, then a
        // reserved mode instead of these.
        let frame = |content: &[u8]| {
            let header = ((content.len() as u64) << 3 | 2 << 1 | 1).to_le_bytes();
            [&[0x28, 0xB5, 0x2F, 0xFD, 0, 0][..], &header[..3], content].concat()
        };
        let literals: Vec<u8> = [&[20 << 3][..], &[7; 20]].concat();
        let good = frame(&[&literals[..], &[0]].concat());
        let decoded = |stored: &[u8], raw_length| {
            frame::check(stored, raw_length).and_then(|()| decompress(stored, raw_length))
        };
        assert_eq!(decoded(&good, 20).unwrap(), [7; 20]);
        for (stored, raw_length) in [
            // Fewer and more bytes than the frame gives.
            (&good, 21),
            (&good, 19),
            (&frame(&[&literals[..], &[1, 3]].concat()), 20),
            (&frame(&literals[..15]), 20),
        ] {
            assert_eq!(
                decoded(stored, raw_length).unwrap_err().rule(),
                Some("R-STR-02"),
                "{stored:?} {raw_length}"
            );
        }
        // A content checksum that is another one.
        let mut compressor = Compressor::default();
        compressor
            .context
            .set_parameter(CParameter::ChecksumFlag(true))
            .unwrap();
        let mut stored = vec![0; 100];
        let length = compressor
            .context
            .compress2(&mut stored[..], &[7; 1000])
            .unwrap();
        stored.truncate(length);
        assert_eq!(*decode(&stored, 1000, 0).unwrap(), [7; 1000]);
        stored[length - 1] ^= 1;
        assert_eq!(
            decode(&stored, 1000, 0).unwrap_err().rule(),
            Some("R-STR-02")
        );
    }
}
