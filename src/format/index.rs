//! The index: metadata, segment table and tensor table (SPEC section 6).

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::format::coding::Coding;
use crate::format::cursor::{Cursor, put_string};
use crate::format::header::{HEADER_BYTES, Header};
use crate::format::segment::TABLE_BYTES_PER_PART;
use crate::format::stream;
use crate::limits::{
    Limits, MAX_DIMENSIONS, MAX_METADATA_BYTES, MAX_METADATA_ENTRIES, MAX_NAME_BYTES,
    MAX_SEGMENT_BYTES, MAX_SEGMENT_PARTS, MAX_SEGMENTS, MAX_TENSOR_BYTES, MAX_TENSORS, address,
};
use crate::rules::{self, ensure};
use crate::tensor::{DescribedDtype, Digest, Dtype, TensorInfo};
use crate::varint::put_varint;

/// The content of the index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// Free text for tools and people; not part of any digest.
    pub metadata: BTreeMap<String, String>,
    /// The segments, in file order.
    pub segments: Vec<SegmentEntry>,
    /// The tensors that the link lists, ascending by name.
    pub tensors: Vec<TensorEntry>,
}

/// A segment's line in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentEntry {
    /// Coding of its parts.
    pub coding: Coding,
    /// Its length in the file.
    pub stored_length: u64,
    /// CRC-32 of its bytes in the file.
    pub crc: u32,
}

/// An entry of the index: how a link changes one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorEntry {
    /// The target does not have the tensor of this name.
    Remove(String),
    /// The target has this tensor. Boxed, because a removal takes few bytes of the file and should
    /// take few in memory.
    Write(Box<WrittenTensor>),
}

/// A tensor of the target that is built from a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenTensor {
    /// Name, dtype and shape in the target.
    pub info: TensorInfo,
    /// The values of the lanes before the parts are applied.
    pub start: Start,
    /// For each piece, the segment that holds its part; `None` if the piece has no part.
    pub pieces: Vec<Option<usize>>,
    /// Digest of each piece in the target, or of the tensor if it has no pieces. With one piece,
    /// both are the same.
    pub digests: Vec<Digest>,
}

impl WrittenTensor {
    /// The tensor's digest in the target.
    pub fn digest(&self) -> Digest {
        Digest::of_pieces(&self.digests)
    }
}

/// The values that a tensor starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// All zero bytes: operation *set*.
    Zeros,
    /// The base's tensor of the same name, dtype and length: operation *patch*.
    Base,
}

/// One piece of one tensor as coded in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Number of the tensor's entry in [`Index::tensors`].
    pub entry: usize,
    /// Number of the piece.
    pub piece: u64,
}

const REMOVE: u8 = 0;
const SET: u8 = 1;
const PATCH: u8 = 2;

impl TensorEntry {
    /// The tensor's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Remove(name) => name,
            Self::Write(written) => written.info.name(),
        }
    }

    /// The tensor in the target, unless it is removed.
    pub fn written(&self) -> Option<&WrittenTensor> {
        match self {
            Self::Remove(_) => None,
            Self::Write(written) => Some(written),
        }
    }
}

impl Index {
    /// Parses the index as stored, which belongs to `header`.
    ///
    /// # Errors
    /// Steps 3, 5 and 6 of SPEC section 10.
    pub fn parse(stored: &[u8], header: &Header, limits: &Limits) -> Result<Self> {
        Self::parse_inner(stored, header, limits)
            .map_err(|error| error.in_section("index").at(HEADER_BYTES))
    }

    /// Checks R-LIM-01 for the raw length of the index, before the index is read.
    pub(crate) fn check_length(header: &Header, limits: &Limits) -> Result<()> {
        let most = limits.index_bytes_for(header.file_length());
        ensure(header.index_raw <= most, &rules::LIM_01, || {
            format!(
                "the index has {} raw bytes, at most {most} are allowed",
                header.index_raw
            )
        })
        .map_err(|error| error.in_section("header").at(96))
    }

    fn parse_inner(stored: &[u8], header: &Header, limits: &Limits) -> Result<Self> {
        Self::check_length(header, limits)?;
        ensure(
            crc32fast::hash(stored) == header.index_crc,
            &rules::IDX_01,
            || "the index's checksum does not match".into(),
        )?;
        let raw = stream::decode(stored, header.index_raw, HEADER_BYTES)?;
        let mut cursor = if header.index_raw == header.index_stored {
            Cursor::in_file(&raw, HEADER_BYTES)
        } else {
            Cursor::in_stream(&raw, HEADER_BYTES)
        };
        let metadata = read_metadata(&mut cursor)?;
        let segments = read_segments(&mut cursor)?;
        let mut index = Self {
            metadata,
            tensors: read_tensors(&mut cursor, &segments)?,
            segments,
        };
        for entry in &mut index.tensors {
            if let TensorEntry::Write(written) = entry {
                // Nothing is allocated for digests that the bytes cannot hold.
                let count = written.pieces.len().max(1);
                written
                    .digests
                    .reserve_exact(count.min(cursor.remaining() / 32));
                for _ in 0..count {
                    written.digests.push(Digest(cursor.digest()?));
                }
            }
        }
        cursor.ensure(cursor.remaining() == 0, &rules::IDX_02, || {
            format!("{} bytes follow the last digest", cursor.remaining())
        })?;
        let coded_bytes = index.check(header)?;
        index.check_set_bytes(limits.set_bytes_for(header.file_length()))?;
        let most = limits.coded_bytes;
        ensure(coded_bytes <= most, &rules::LIM_08, || {
            format!("the pieces to decode have {coded_bytes} bytes, at most {most} are allowed")
        })?;
        Ok(index)
    }

    /// Checks the rules that concern the index as a whole. Returns the bytes of all pieces that
    /// have a part.
    fn check(&self, header: &Header) -> Result<u64> {
        // Bytes and parts of each segment.
        let mut sizes = vec![(0_u64, 0_u64); self.segments.len()];
        for written in self.tensors.iter().filter_map(TensorEntry::written) {
            for (piece, segment) in (0_u64..).zip(&written.pieces) {
                if let Some(segment) = *segment {
                    let range = written.info.piece(piece);
                    let (bytes, parts) = &mut sizes[segment];
                    *bytes = bytes.saturating_add(range.end - range.start);
                    *parts += 1;
                }
            }
        }
        for ((number, segment), &(bytes, parts)) in self.segments.iter().enumerate().zip(&sizes) {
            ensure(parts > 0, &rules::IDX_12, || {
                format!("no piece names segment {number}")
            })?;
            ensure(
                bytes <= MAX_SEGMENT_BYTES && parts <= MAX_SEGMENT_PARTS,
                &rules::LIM_02,
                || format!("segment {number} codes {parts} pieces of {bytes} bytes together"),
            )?;
            let most = most_stored(parts, bytes, segment.coding.lane_bytes as u64);
            ensure(segment.stored_length <= most, &rules::LIM_06, || {
                format!(
                    "segment {number} has {} bytes, at most {most} for what it codes",
                    segment.stored_length
                )
            })?;
        }
        let stored = self
            .segments
            .iter()
            .try_fold(0_u64, |sum, segment| sum.checked_add(segment.stored_length));
        ensure(
            stored == Some(header.segments_length),
            &rules::IDX_14,
            || "the segments' lengths do not add up to the header's".into(),
        )?;
        if header.base == Digest::of_empty_state() {
            let odd = self
                .tensors
                .iter()
                .find(|entry| entry.written().is_none_or(|w| w.start != Start::Zeros));
            ensure(odd.is_none(), &rules::IDX_17, || {
                "a snapshot removes or patches a tensor".into()
            })
            .map_err(|error| error.of_tensor(odd.map_or("", TensorEntry::name)))?;
        }
        ensure(
            !self.tensors.is_empty() || header.base == header.target,
            &rules::IDX_18,
            || "base and target differ, but no tensor is listed".into(),
        )?;
        Ok(sizes
            .iter()
            .map(|(bytes, _)| *bytes)
            .fold(0, u64::saturating_add))
    }

    /// Checks R-LIM-04, the caller's bound on the bytes of *set* tensors.
    fn check_set_bytes(&self, most: u64) -> Result<()> {
        let set = self
            .tensors
            .iter()
            .filter_map(TensorEntry::written)
            .filter(|written| written.start == Start::Zeros);
        let bytes = set
            .map(|written| written.info.bytes())
            .fold(0, u64::saturating_add);
        ensure(bytes <= most, &rules::LIM_04, || {
            format!("new tensors have {bytes} bytes, at most {most} are allowed")
        })
    }

    /// The index's raw bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut bytes, digests) = self.to_runs();
        bytes.extend_from_slice(&digests);
        bytes
    }

    /// The index's raw bytes in two runs, since they compress differently: everything before the
    /// digests, and the digests.
    pub(crate) fn to_runs(&self) -> (Vec<u8>, Vec<u8>) {
        let mut out = Vec::new();
        let mut digests = Vec::new();
        put_varint(&mut out, self.metadata.len() as u64);
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            put_string(&mut out, value);
        }
        put_varint(&mut out, self.segments.len() as u64);
        for segment in &self.segments {
            out.push(segment.coding.to_byte());
            put_varint(&mut out, segment.stored_length);
            out.extend_from_slice(&segment.crc.to_le_bytes());
        }
        put_varint(&mut out, self.tensors.len() as u64);
        for entry in &self.tensors {
            put_string(&mut out, entry.name());
            match entry {
                TensorEntry::Remove(_) => out.push(REMOVE),
                TensorEntry::Write(written) => {
                    out.push(match written.start {
                        Start::Zeros => SET,
                        Start::Base => PATCH,
                    });
                    written.info.dtype().put(&mut out);
                    put_varint(&mut out, written.info.shape().len() as u64);
                    for &dimension in written.info.shape() {
                        put_varint(&mut out, dimension);
                    }
                    for segment in &written.pieces {
                        put_varint(&mut out, segment.map_or(0, |number| number as u64 + 1));
                    }
                    digests.extend(written.digests.iter().flat_map(|digest| digest.0));
                }
            }
        }
        (out, digests)
    }

    /// The parts of each segment, in the order of SPEC section 6.2.
    pub(crate) fn parts(&self) -> Vec<Vec<Part>> {
        let mut parts = vec![Vec::new(); self.segments.len()];
        for (entry, written) in self
            .tensors
            .iter()
            .enumerate()
            .filter_map(|(n, entry)| Some((n, entry.written()?)))
        {
            for (piece, segment) in (0_u64..).zip(&written.pieces) {
                if let Some(segment) = *segment {
                    parts[segment].push(Part { entry, piece });
                }
            }
        }
        parts
    }

    /// The number of the entry for this tensor.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.tensors
            .binary_search_by(|entry| entry.name().cmp(name))
            .ok()
    }
}

/// Maximum bytes of a segment whose parts have `bytes` bytes in total (R-LIM-06).
fn most_stored(parts: u64, bytes: u64, lane_bytes: u64) -> u64 {
    let of_lanes = (lane_bytes + 8).saturating_mul(bytes / lane_bytes);
    of_lanes.saturating_add(512 + TABLE_BYTES_PER_PART.saturating_mul(parts))
}

fn read_metadata(cursor: &mut Cursor<'_>) -> Result<BTreeMap<String, String>> {
    let count = cursor.count(MAX_METADATA_ENTRIES, "metadata entries")?;
    let mut metadata = BTreeMap::new();
    let mut left = MAX_METADATA_BYTES;
    for _ in 0..count {
        let key = cursor.string(left, "bytes of metadata")?;
        let ascending = metadata
            .last_key_value()
            .is_none_or(|(last, _): (&String, _)| last.as_str() < key);
        cursor.ensure(ascending, &rules::IDX_03, || {
            format!("metadata key {key:?} is out of order")
        })?;
        left -= key.len() as u64;
        let value = cursor.string(left, "bytes of metadata")?;
        left -= value.len() as u64;
        metadata.insert(key.to_owned(), value.to_owned());
    }
    Ok(metadata)
}

fn read_segments(cursor: &mut Cursor<'_>) -> Result<Vec<SegmentEntry>> {
    let count = cursor.count(MAX_SEGMENTS, "segments")?;
    // Nothing is allocated for entries that the bytes cannot hold: each takes at least six.
    let mut segments = Vec::with_capacity(count.min(cursor.remaining() / 6));
    for _ in 0..count {
        let coding = Coding::from_byte(cursor.u8()?).map_err(|error| error.at(cursor.offset()))?;
        segments.push(SegmentEntry {
            coding,
            stored_length: cursor.varint()?,
            crc: cursor.u32()?,
        });
    }
    Ok(segments)
}

fn read_tensors(cursor: &mut Cursor<'_>, segments: &[SegmentEntry]) -> Result<Vec<TensorEntry>> {
    let count = cursor.count(MAX_TENSORS, "tensors")?;
    // Names differ, so few entries are shorter than five bytes.
    let mut tensors: Vec<TensorEntry> = Vec::with_capacity(count.min(cursor.remaining() / 5));
    let mut last_segments = LastSegments::new();
    for _ in 0..count {
        let name = cursor.string(MAX_NAME_BYTES, "bytes of a name")?;
        let ascending = tensors.last().is_none_or(|last| last.name() < name);
        cursor
            .ensure(ascending, &rules::IDX_06, || {
                "the name is out of order".into()
            })
            .map_err(|e| e.of_tensor(name))?;
        let entry = read_tensor(cursor, name, segments, &mut last_segments)
            .map_err(|error| error.of_tensor(name))?;
        tensors.push(entry);
    }
    Ok(tensors)
}

/// The last segment of the pieces of a dtype, for each coding byte: no later piece may be in an
/// earlier segment.
type LastSegments = BTreeMap<(Dtype, u8), usize>;

/// Reads the rest of a tensor entry after its name. The digests follow later.
fn read_tensor(
    cursor: &mut Cursor<'_>,
    name: &str,
    segments: &[SegmentEntry],
    last_segments: &mut LastSegments,
) -> Result<TensorEntry> {
    let start = match cursor.u8()? {
        REMOVE => return Ok(TensorEntry::Remove(name.to_owned())),
        SET => Start::Zeros,
        PATCH => Start::Base,
        other => {
            let message = format!("{other} is not an operation");
            return Err(Error::broken(&rules::IDX_07, message).at(cursor.offset()));
        }
    };
    let dtype = read_dtype(cursor)?;
    let dimensions = cursor.count(MAX_DIMENSIONS, "dimensions")?;
    let shape = (0..dimensions)
        .map(|_| cursor.varint())
        .collect::<Result<Vec<u64>>>()?;
    let bits = TensorInfo::bits(dtype, &shape);
    cursor.ensure(
        bits <= u128::from(MAX_TENSOR_BYTES) * 8,
        &rules::LIM_01,
        || format!("the tensor is longer than {MAX_TENSOR_BYTES} bytes"),
    )?;
    let info = TensorInfo::new(name, dtype, shape).ok_or_else(|| {
        Error::broken(
            &rules::IDX_09,
            "shape and dtype do not give a whole number of lanes",
        )
        .at(cursor.offset())
    })?;
    // Each piece takes at least one byte, so nothing is allocated for pieces that the bytes cannot
    // hold.
    let mut pieces = Vec::with_capacity(address(info.pieces().min(cursor.remaining() as u64))?);
    for _ in 0..info.pieces() {
        let number = read_segment_number(cursor, dtype, start, segments)?;
        if let Some(number) = number {
            let last = last_segments
                .entry((dtype, segments[number].coding.to_byte()))
                .or_insert(number);
            cursor.ensure(*last <= number, &rules::IDX_19, || {
                format!("segment {number} after segment {last}, for {dtype} in the same coding")
            })?;
            *last = number;
        }
        pieces.push(number);
    }
    Ok(TensorEntry::Write(Box::new(WrittenTensor {
        info,
        start,
        pieces,
        digests: Vec::new(),
    })))
}

/// Reads the code of a dtype, and the description of a described dtype.
fn read_dtype(cursor: &mut Cursor<'_>) -> Result<Dtype> {
    let code = cursor.u8()?;
    if code != Dtype::DESCRIBED {
        return Dtype::from_code(code).ok_or_else(|| {
            Error::broken(&rules::IDX_08, format!("{code} is not a dtype")).at(cursor.offset())
        });
    }
    let name = cursor.string(MAX_NAME_BYTES, "bytes of a name")?;
    let (bits, lane_bytes) = (u32::try_from(cursor.varint()?).ok(), cursor.u8()?);
    let exponent_bits = match (cursor.u8()?, cursor.u8()?) {
        (0, 0) => Some(None),
        (1, bits) => Some(Some(bits)),
        _ => None,
    };
    let described = bits
        .zip(exponent_bits)
        .and_then(|(bits, exponent)| DescribedDtype::new(name, bits, lane_bytes, exponent));
    described.map(Dtype::Described).ok_or_else(|| {
        Error::broken(
            &rules::IDX_20,
            format!("the description of dtype {name:?} is not allowed"),
        )
        .at(cursor.offset())
    })
}

fn read_segment_number(
    cursor: &mut Cursor<'_>,
    dtype: Dtype,
    start: Start,
    segments: &[SegmentEntry],
) -> Result<Option<usize>> {
    let number = cursor.varint()?;
    let Some(number) = number.checked_sub(1) else {
        return Ok(None);
    };
    let found = usize::try_from(number)
        .ok()
        .and_then(|number| Some((number, segments.get(number)?)));
    let Some((number, segment)) = found else {
        let message = format!(
            "the tensor refers to segment {number}, but there are {}",
            segments.len()
        );
        return Err(Error::broken(&rules::IDX_10, message).at(cursor.offset()));
    };
    cursor.ensure(
        segment.coding.lane_bytes == dtype.lane_bytes(),
        &rules::IDX_11,
        || {
            format!(
                "{dtype} in a segment with lanes of {} bytes",
                segment.coding.lane_bytes
            )
        },
    )?;
    cursor.ensure(
        start == Start::Base || !segment.coding.is_relative(),
        &rules::IDX_16,
        || format!("a set tensor in segment {number} with relative values"),
    )?;
    Ok(Some(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::coding::{Positions, Values};
    use crate::tensor::PIECE_BYTES;

    /// Reads an index that is stored as it is, of a snapshot of some state.
    fn read(bytes: &[u8], segments_length: u64) -> Result<Index> {
        read_within(bytes, segments_length, &Limits::default())
    }

    fn read_within(bytes: &[u8], segments_length: u64, limits: &Limits) -> Result<Index> {
        let length = bytes.len() as u64;
        let header = Header {
            compatible_features: 0,
            base: Digest::of_empty_state(),
            target: Digest([1; 32]),
            index_stored: length,
            index_raw: length,
            segments_length,
            extension_length: 0,
            index_crc: crc32fast::hash(bytes),
        };
        Index::parse(bytes, &header, limits)
    }

    #[test]
    fn every_segment_is_named() {
        let coding = Coding {
            lane_bytes: 1,
            positions: Positions::Dense,
            values: Values::Absolute,
        };
        let segment = SegmentEntry {
            coding,
            stored_length: 5,
            crc: 7,
        };
        let tensor = |name: &str, pieces: Vec<Option<usize>>| {
            let info = TensorInfo::new(name, Dtype::U8, [3]).unwrap();
            TensorEntry::Write(Box::new(WrittenTensor {
                info,
                start: Start::Zeros,
                pieces,
                digests: vec![Digest([9; 32])],
            }))
        };
        let tensors = vec![
            tensor("a", vec![Some(0)]),
            tensor("b", vec![None]),
            tensor("c", vec![Some(1)]),
        ];
        let mut index = Index {
            metadata: BTreeMap::new(),
            segments: vec![segment; 2],
            tensors,
        };
        assert_eq!(read(&index.to_bytes(), 10).unwrap(), index);
        assert_eq!((index.find("b"), index.find("d")), (Some(1), None));
        assert_eq!(
            index.parts(),
            [[Part { entry: 0, piece: 0 }], [Part { entry: 2, piece: 0 }]]
        );
        index.segments.push(segment);
        assert_eq!(
            read(&index.to_bytes(), 15).unwrap_err().rule(),
            Some("R-IDX-12")
        );
    }

    #[test]
    fn segments_ascend_with_the_pieces_of_a_dtype() {
        let coding = |positions| Coding {
            lane_bytes: 1,
            positions,
            values: Values::Absolute,
        };
        let (dense, sparse) = (coding(Positions::Dense), coding(Positions::Sparse));
        let described = |bits| Dtype::Described(DescribedDtype::new("X", bits, 1, None).unwrap());
        let rule = |codings: [Coding; 2], dtypes: [Dtype; 2]| {
            let tensor = |(name, dtype, segment): (&str, Dtype, usize)| {
                let info = TensorInfo::new(name, dtype, [8]).unwrap();
                let (pieces, digests) = (vec![Some(segment)], vec![Digest([9; 32])]);
                TensorEntry::Write(Box::new(WrittenTensor {
                    info,
                    start: Start::Zeros,
                    pieces,
                    digests,
                }))
            };
            let index = Index {
                metadata: BTreeMap::new(),
                segments: codings
                    .map(|coding| SegmentEntry {
                        coding,
                        stored_length: 5,
                        crc: 7,
                    })
                    .into(),
                tensors: [("a", dtypes[0], 1), ("b", dtypes[1], 0)]
                    .map(tensor)
                    .into(),
            };
            read(&index.to_bytes(), 10)
                .err()
                .map(|error| (error.rule(), error.tensor().map(str::to_owned)))
        };
        let refused = Some((Some("R-IDX-19"), Some("b".to_owned())));
        assert_eq!(rule([dense; 2], [Dtype::U8; 2]), refused);
        assert_eq!(rule([dense, sparse], [Dtype::U8; 2]), None);
        assert_eq!(rule([dense; 2], [Dtype::U8, Dtype::I8]), None);
        assert_eq!(rule([dense; 2], [described(8); 2]), refused);
        assert_eq!(rule([dense; 2], [described(8), described(16)]), None);
    }

    #[test]
    fn pieces_have_digests() {
        for (bytes, pieces, digests) in [(0, 0, 1), (1, 1, 1), (PIECE_BYTES + 1, 2, 2)] {
            let info = TensorInfo::new("t", Dtype::U8, [bytes]).unwrap();
            let digests: Vec<Digest> = (0..digests).map(|number| Digest([number; 32])).collect();
            let written = WrittenTensor {
                info,
                start: Start::Zeros,
                pieces: vec![None; pieces],
                digests,
            };
            assert_eq!(written.digest() == written.digests[0], pieces < 2);
            let tensors = vec![TensorEntry::Write(Box::new(written))];
            let index = Index {
                metadata: BTreeMap::new(),
                segments: Vec::new(),
                tensors,
            };
            let bytes = index.to_bytes();
            assert_eq!(read(&bytes, 0).unwrap(), index);
            assert_eq!(
                read(&bytes[..bytes.len() - 1], 0).unwrap_err().rule(),
                Some("R-INT-03")
            );
            assert_eq!(
                read(&[&bytes[..], &[0; 32]].concat(), 0)
                    .unwrap_err()
                    .rule(),
                Some("R-IDX-02")
            );
        }
    }

    #[test]
    fn dtypes_are_described() {
        // Then a dimension and a piece without a part, and the digest.
        let read = |description: &[u8]| {
            let bytes = [
                &[0, 0, 1, 1, b'a', SET, 255],
                description,
                &[1, 8, 0],
                &[9; 32],
            ]
            .concat();
            let length = HEADER_BYTES + 7 + description.len() as u64;
            read(&bytes, 0).map_err(|error| {
                (
                    error.rule().unwrap_or_default(),
                    error.offset() == Some(length),
                )
            })
        };
        for (lane_bytes, sign, exponent) in [(1, 0, 0), (1, 1, 7), (8, 1, 11)] {
            let description = [2, b'F', b'7', 7, lane_bytes, sign, exponent];
            let index = read(&description);
            let exponent = (sign == 1).then_some(exponent);
            let Ok(Index { tensors, .. }) = index else {
                // Seven bytes are not a lane of eight.
                assert_eq!((lane_bytes, index), (8, Err(("R-IDX-09", false))));
                continue;
            };
            let dtype =
                Dtype::Described(DescribedDtype::new("F7", 7, lane_bytes, exponent).unwrap());
            assert_eq!(
                tensors[0].written().unwrap().info,
                TensorInfo::new("a", dtype, [8]).unwrap()
            );
        }
        for description in [
            &[0, 7, 1, 0, 0][..],
            &[1, b'f', 7, 1, 0, 0],
            &[2, b'U', b'8', 8, 1, 0, 0],
            &[1, b'F', 0, 1, 0, 0],
            &[1, b'F', 0x81, 0x80, 0x04, 1, 0, 0],
            &[1, b'F', 0x87, 0x80, 0x80, 0x80, 0x10, 1, 0, 0],
            &[1, b'F', 7, 3, 0, 0],
            &[1, b'F', 7, 1, 2, 0],
            &[1, b'F', 7, 1, 0, 1],
            &[1, b'F', 7, 1, 1, 8],
            &[&[33][..], &[b'F'; 33], &[7, 1, 0, 0]].concat(),
        ] {
            assert_eq!(
                read(description),
                Err(("R-IDX-20", true)),
                "{description:?}"
            );
        }
        assert_eq!(read(&[1, 0xFF, 7, 1, 0, 0]), Err(("R-INT-04", false)));
        // The bits are a varint: of its own rules first, then of the bound, when all fields have
        // been read.
        assert_eq!(
            read(&[1, b'F', 0x80, 0x80, 0x04, 1, 0, 0]).map(|index| index.tensors.len()),
            Ok(1)
        );
        assert_eq!(
            read(&[1, b'F', 0x87, 0x00, 3, 0, 0]),
            Err(("R-INT-01", false))
        );
        // The limit of any name comes before the bytes are missed.
        assert_eq!(read(&[0x80, 0x80, 4]), Err(("R-LIM-01", true)));
        assert_eq!(read(&[0xFF, 0xFF, 3]), Err(("R-INT-03", true)));
    }

    #[test]
    fn elements_may_be_long() {
        // So many that the bits need more than 64 of their own.
        let described = |bits| Dtype::Described(DescribedDtype::new("X", bits, 8, None).unwrap());
        let rule = |bits: u32, shape: &[u64]| {
            let mut index = vec![0, 0, 1, 1, b'a', SET];
            described(bits).put(&mut index);
            put_varint(&mut index, shape.len() as u64);
            shape
                .iter()
                .for_each(|&dimension| put_varint(&mut index, dimension));
            read(&index, 0).unwrap_err().rule()
        };
        // 2^60 bytes, whose pieces are missing; then one lane more; then a product beyond any type.
        assert_eq!(rule(1 << 16, &[1 << 47]), Some("R-INT-03"));
        assert_eq!(rule(1 << 16, &[(1 << 47) + 1]), Some("R-LIM-01"));
        assert_eq!(rule(1 << 16, &[u64::MAX; 3]), Some("R-LIM-01"));
        // Elements of 144 bits: 18 bytes, of which four are nine lanes.
        assert_eq!(rule(144, &[3]), Some("R-IDX-09"));
        assert_eq!(rule(144, &[4]), Some("R-INT-03"));
        // The limit comes first.
        assert_eq!(rule(65535, &[(1 << 47) + (1 << 40)]), Some("R-LIM-01"));
        assert_eq!(rule(65535, &[1 << 40, 3]), Some("R-INT-03"));
        assert_eq!(rule(65535, &[3]), Some("R-IDX-09"));
    }

    #[test]
    fn a_caller_bounds_what_is_decoded() {
        let coding = Coding {
            lane_bytes: 1,
            positions: Positions::Dense,
            values: Values::Absolute,
        };
        let tensor = |name: &str, length: u64, pieces: Vec<Option<usize>>| {
            let info = TensorInfo::new(name, Dtype::U8, [length]).unwrap();
            let digests = vec![Digest([9; 32]); pieces.len()];
            TensorEntry::Write(Box::new(WrittenTensor {
                info,
                start: Start::Zeros,
                pieces,
                digests,
            }))
        };
        // The first piece of the second tensor has no part.
        let index = Index {
            metadata: BTreeMap::new(),
            segments: vec![
                SegmentEntry {
                    coding,
                    stored_length: 5,
                    crc: 7
                };
                2
            ],
            tensors: vec![
                tensor("a", 7, vec![Some(0)]),
                tensor("b", PIECE_BYTES + 3, vec![None, Some(1)]),
            ],
        };
        let rule = |change: fn(&mut Limits)| {
            let mut limits = Limits::unlimited();
            change(&mut limits);
            read_within(&index.to_bytes(), 10, &limits)
                .err()
                .map(|error| error.rule().unwrap_or_default())
        };
        assert_eq!(rule(|limits| limits.coded_bytes = 10), None);
        assert_eq!(rule(|limits| limits.coded_bytes = 9), Some("R-LIM-08"));
        // After the limit on new tensors, which counts all their bytes.
        assert_eq!(
            rule(|limits| (limits.coded_bytes, limits.set_bytes) = (9, 1 << 24)),
            Some("R-LIM-04")
        );
    }

    #[test]
    fn metadata_ascend() {
        for keys in [*b"ba", *b"aa"] {
            let bytes = [2, 1, keys[0], 1, b'1', 1, keys[1], 1, b'2', 0, 0];
            let error = read(&bytes, 0).unwrap_err();
            // Where the second key ends.
            assert_eq!(
                (error.rule(), error.offset()),
                (Some("R-IDX-03"), Some(HEADER_BYTES + 7))
            );
        }
    }

    #[test]
    fn tensors_are_bounded() {
        let rule = |bytes: u64| {
            let mut index = vec![0, 0, 1, 1, b'a', SET, Dtype::U8.code(), 1];
            put_varint(&mut index, bytes);
            read(&index, 0).unwrap_err().rule()
        };
        // The pieces are missing.
        assert_eq!(rule(MAX_TENSOR_BYTES), Some("R-INT-03"));
        assert_eq!(rule(MAX_TENSOR_BYTES + 1), Some("R-LIM-01"));
    }

    #[test]
    fn names_ascend() {
        for names in [*b"ba", *b"aa"] {
            let bytes = [0, 0, 2, 1, names[0], REMOVE, 1, names[1], REMOVE];
            assert_eq!(read(&bytes, 0).unwrap_err().rule(), Some("R-IDX-06"));
        }
        // Then they cannot stand in a snapshot.
        assert_eq!(
            read(&[0, 0, 2, 1, b'a', REMOVE, 1, b'b', REMOVE], 0)
                .unwrap_err()
                .rule(),
            Some("R-IDX-17")
        );
    }

    #[test]
    fn metadata_are_bounded_together() {
        // A key and a value of two bytes each, then a key that is not there.
        let rule = |length: u64| {
            let mut bytes = vec![2, 2, b'k', b'1', 2, b'v', b'1'];
            put_varint(&mut bytes, length);
            read(&bytes, 0).unwrap_err().rule()
        };
        assert_eq!(rule(MAX_METADATA_BYTES - 4), Some("R-INT-03"));
        assert_eq!(rule(MAX_METADATA_BYTES - 3), Some("R-LIM-01"));
    }

    #[test]
    fn segments_are_bounded_in_bytes_and_in_parts() {
        let read_with = |count: usize, length: u64, stored_length: u64| {
            let coding = Coding {
                lane_bytes: 1,
                positions: Positions::Dense,
                values: Values::Absolute,
            };
            let tensor = |number: usize| {
                let info = TensorInfo::new(format!("{number:05}"), Dtype::U8, [length]).unwrap();
                let pieces = vec![Some(0); usize::try_from(info.pieces()).unwrap()];
                TensorEntry::Write(Box::new(WrittenTensor {
                    info,
                    start: Start::Zeros,
                    digests: vec![Digest([9; 32]); pieces.len()],
                    pieces,
                }))
            };
            let index = Index {
                metadata: BTreeMap::new(),
                segments: vec![SegmentEntry {
                    coding,
                    stored_length,
                    crc: 7,
                }],
                tensors: (0..count).map(tensor).collect(),
            };
            let result = read(&index.to_bytes(), stored_length);
            result
                .map(drop)
                .map_err(|error| error.rule().unwrap_or_default())
        };
        let read = |count, length| read_with(count, length, 5);
        let most = usize::try_from(MAX_SEGMENT_PARTS).unwrap();
        assert_eq!(read(most, 1), Ok(()));
        assert_eq!(read(most + 1, 1), Err("R-LIM-02"));
        assert_eq!(read(1, MAX_SEGMENT_BYTES), Ok(()));
        assert_eq!(read(1, MAX_SEGMENT_BYTES + 1), Err("R-LIM-02"));
        // So much for all, for each part, and for each lane.
        assert_eq!(read_with(3, 7, 512 + 94 * 3 + 9 * 21), Ok(()));
        assert_eq!(read_with(3, 7, 512 + 94 * 3 + 9 * 21 + 1), Err("R-LIM-06"));
        assert_eq!(most_stored(2, 24, 8), 512 + 94 * 2 + 16 * 3);
        // After the rule before it, of the same segment.
        assert_eq!(
            read_with(1, MAX_SEGMENT_BYTES + 1, u64::MAX >> 2),
            Err("R-LIM-02")
        );
    }
}
