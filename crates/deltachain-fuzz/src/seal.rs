//! Takes links apart and puts them together again with correct lengths and checksums, even if their
//! content is broken.
//!
//! The parsers here are lenient on purpose and share no code with the library's: they find what
//! they can and ignore the rest.

/// Maximum length of a stream or index that is decompressed for mutation.
const MOST_BYTES: usize = 1 << 18;
const HEADER_BYTES: usize = 128;

/// A link's header, its raw index, and its segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The header, as in the file.
    pub(crate) header: [u8; HEADER_BYTES],
    /// The index, decompressed if it was compressed.
    pub(crate) index: Vec<u8>,
    /// The segments, as in the file: as many as the index names and the file contains.
    pub(crate) segments: Vec<Vec<u8>>,
    /// The bytes after the segments.
    pub(crate) extension: Vec<u8>,
}

impl Parts {
    /// Takes a file apart; `None` if its header is incomplete.
    pub(crate) fn of(file: &[u8]) -> Option<Self> {
        let (header, rest) = file.split_first_chunk::<HEADER_BYTES>()?;
        let stored = u64_at(header, 88);
        let raw = u64_at(header, 96);
        let (stored, mut rest) = rest.split_at(
            usize::try_from(stored)
                .unwrap_or(usize::MAX)
                .min(rest.len()),
        );
        let index = unpacked(stored, raw);
        let mut segments = Vec::new();
        for entry in SegmentEntries::of(&index)
            .into_iter()
            .flat_map(|found| found.entries)
        {
            let length = usize::try_from(entry.length)
                .unwrap_or(usize::MAX)
                .min(rest.len());
            let (segment, others) = rest.split_at(length);
            segments.push(segment.to_vec());
            rest = others;
        }
        Some(Self {
            header: *header,
            index,
            segments,
            extension: rest.to_vec(),
        })
    }

    /// Writes a file with the correct lengths and checksums for these parts.
    pub(crate) fn join(&self, compress: bool) -> Vec<u8> {
        let mut index = self.index.clone();
        if let Some(found) = SegmentEntries::of(&index) {
            let mut entries = Vec::new();
            for (number, entry) in found.entries.iter().enumerate() {
                let segment = self.segments.get(number).map_or(&[][..], Vec::as_slice);
                entries.push(entry.coding);
                put_varint(&mut entries, segment.len() as u64);
                entries.extend_from_slice(&crc32fast::hash(segment).to_le_bytes());
            }
            index.splice(found.begin..found.end, entries);
        }
        let stored = packed(&index, compress);
        let mut file = self.header.to_vec();
        let segments = self.segments.concat();
        let lengths = [
            (88, stored.len()),
            (96, index.len()),
            (104, segments.len()),
            (112, self.extension.len()),
        ];
        for (at, length) in lengths {
            file[at..at + 8].copy_from_slice(&(length as u64).to_le_bytes());
        }
        file[120..124].copy_from_slice(&crc32fast::hash(&stored).to_le_bytes());
        let crc = crc32fast::hash(&file[..124]);
        file[124..].copy_from_slice(&crc.to_le_bytes());
        file.extend_from_slice(&stored);
        file.extend_from_slice(&segments);
        file.extend_from_slice(&self.extension);
        file
    }

    /// Returns the coding byte of each segment that the index names.
    pub(crate) fn codings(&self) -> Vec<u8> {
        let found = SegmentEntries::of(&self.index);
        found
            .into_iter()
            .flat_map(|found| found.entries)
            .map(|entry| entry.coding)
            .collect()
    }
}

/// Position of the segment entries in an index, and their content.
struct SegmentEntries {
    begin: usize,
    end: usize,
    entries: Vec<Entry>,
}

struct Entry {
    coding: u8,
    length: u64,
}

impl SegmentEntries {
    /// Finds all complete entries; `None` if the metadata before them cannot be skipped.
    fn of(index: &[u8]) -> Option<Self> {
        let mut rest = index;
        for _ in 0..varint(&mut rest)? {
            for _ in ["key", "value"] {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                rest = rest.get(length..)?;
            }
        }
        let count = varint(&mut rest)?;
        let begin = index.len() - rest.len();
        let mut end = begin;
        let mut entries = Vec::new();
        for _ in 0..count {
            let Some(entry) = Entry::read(&mut rest) else {
                break;
            };
            entries.push(entry);
            end = index.len() - rest.len();
        }
        Some(Self {
            begin,
            end,
            entries,
        })
    }
}

impl Entry {
    fn read(rest: &mut &[u8]) -> Option<Self> {
        let (&coding, after) = rest.split_first()?;
        *rest = after;
        let length = varint(rest)?;
        *rest = rest.get(4..)?;
        Some(Self { coding, length })
    }
}

/// A stream of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Raw length, as the segment declares it.
    pub(crate) raw_length: u64,
    /// The bytes in the file.
    pub(crate) stored: Vec<u8>,
}

impl Stream {
    /// Returns the raw bytes, or the stored ones if they cannot be decompressed.
    pub(crate) fn raw(&self) -> Vec<u8> {
        unpacked(&self.stored, self.raw_length)
    }

    /// Makes a stream from raw bytes.
    pub(crate) fn of(raw: &[u8], compress: bool) -> Self {
        Self {
            raw_length: raw.len() as u64,
            stored: packed(raw, compress),
        }
    }
}

/// Returns the streams of a segment with this coding byte; `None` if its directory cannot be read.
pub(crate) fn streams(segment: &[u8], coding: u8) -> Option<Vec<Stream>> {
    let positions = if coding & 0b100 == 0 { 0 } else { 4 };
    let values = if coding >> 3 == 2 {
        3
    } else {
        1 << (coding & 0b11)
    };
    let mut rest = segment;
    let mut lengths = Vec::new();
    for _ in 0..1 + positions + values {
        lengths.push((varint(&mut rest)?, varint(&mut rest)?));
    }
    let mut streams = Vec::new();
    for (raw_length, stored) in lengths {
        let (stored, others) = rest.split_at(
            usize::try_from(stored)
                .unwrap_or(usize::MAX)
                .min(rest.len()),
        );
        streams.push(Stream {
            raw_length,
            stored: stored.to_vec(),
        });
        rest = others;
    }
    Some(streams)
}

/// Makes a segment from these streams.
pub(crate) fn join_streams(streams: &[Stream]) -> Vec<u8> {
    let mut segment = Vec::new();
    for stream in streams {
        put_varint(&mut segment, stream.raw_length);
        put_varint(&mut segment, stream.stored.len() as u64);
    }
    streams
        .iter()
        .for_each(|stream| segment.extend_from_slice(&stream.stored));
    segment
}

fn unpacked(stored: &[u8], raw_length: u64) -> Vec<u8> {
    let capacity = usize::try_from(raw_length)
        .unwrap_or(usize::MAX)
        .min(MOST_BYTES);
    if stored.len() as u64 >= raw_length {
        return stored.to_vec();
    }
    zstd::bulk::decompress(stored, capacity).unwrap_or_else(|_| stored.to_vec())
}

fn packed(raw: &[u8], compress: bool) -> Vec<u8> {
    let frame = compress
        .then(|| zstd::bulk::compress(raw, 1))
        .and_then(Result::ok);
    frame
        .filter(|frame| frame.len() < raw.len())
        .unwrap_or_else(|| raw.to_vec())
}

fn u64_at(header: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    leb128::read::unsigned(rest).ok()
}

fn put_varint(out: &mut Vec<u8>, value: u64) {
    leb128::write::unsigned(out, value).expect("memory can be written");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::{MIXED, link};
    use deltachain::{Limits, LinkReader, Profile};

    #[test]
    fn a_link_that_was_taken_apart_is_whole_again() {
        for profile in [Profile::Compact, Profile::Direct] {
            let file = link(&MIXED.0, &MIXED.1, profile);
            let mut parts = Parts::of(&file).unwrap();
            assert!(!parts.segments.is_empty());
            let codings = parts.codings();
            for (segment, coding) in parts.segments.iter_mut().zip(codings) {
                let streams = streams(segment, coding).unwrap();
                assert_eq!(join_streams(&streams), *segment);
                let repacked: Vec<Stream> = streams
                    .iter()
                    .map(|stream| Stream::of(&stream.raw(), false))
                    .collect();
                *segment = join_streams(&repacked);
            }
            parts.extension = vec![7; 9];
            for compress in [false, true] {
                let file = parts.join(compress);
                assert_eq!(
                    Parts::of(&file).unwrap().index,
                    Parts::of(&parts.join(false)).unwrap().index
                );
                LinkReader::open(file, &Limits::default())
                    .unwrap()
                    .verify(&())
                    .unwrap();
            }
        }
        assert_eq!(Parts::of(&[0; 127]), None);
    }
}
