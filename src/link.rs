//! Reads links from memory, a file, or any other source of ranges of bytes.

use rayon::prelude::*;

use crate::codec::decode::{DecodedSegment, PartChanges};
use crate::codec::lane::Lane;
use crate::error::{Error, Result};
use crate::extension::{self, SUMS_BIT, SUMS_KIND};
use crate::format::{Coding, HEADER_BYTES, Header, Index, Part, Table, WrittenTensor};
use crate::limits::{Limits, address};
use crate::progress::Progress;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::sums::LinkSums;
use crate::tensor::Dtype;

/// A link whose header and index have been read and checked (steps 1 to 6 of SPEC section 10).
///
/// Segments are read when they are needed; each one is checked then. [`verify`](Self::verify)
/// checks all of them.
///
/// ```
/// use deltachain::{DiffOptions, Limits, LinkReader, diff};
/// use deltachain::tensor::{Dtype, MemoryState};
///
/// # fn main() -> deltachain::Result<()> {
/// let mut state = MemoryState::new();
/// state.insert("weight", Dtype::F32, &[2], [1.0_f32, 2.0].map(f32::to_le_bytes).concat())?;
/// let mut file = Vec::new();
/// diff(&MemoryState::new(), &state, &DiffOptions::default(), &mut file)?;
///
/// let link = LinkReader::open(&file, &Limits::default())?;
/// assert_eq!(link.index().tensors[0].name(), "weight");
/// link.verify(&())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LinkReader<S> {
    source: S,
    header: Header,
    index: Index,
    /// Parts of each segment.
    parts: Vec<Vec<Part>>,
    /// Offset of each segment in the file.
    offsets: Vec<u64>,
}

impl<S> LinkReader<S> {
    /// Replaces the source of the link's bytes; header and index are not read again. The caller
    /// must know that `source` has the same bytes, for example by their digest.
    pub fn with_source<T>(self, source: T) -> LinkReader<T> {
        LinkReader {
            source,
            header: self.header,
            index: self.index,
            parts: self.parts,
            offsets: self.offsets,
        }
    }
}

impl<S: Source> LinkReader<S> {
    /// Reads and checks header and index.
    ///
    /// # Errors
    /// The class and rule of the first of steps 1 to 6 of SPEC section 10 that fails; IO.
    pub fn open(source: S, limits: &Limits) -> Result<Self> {
        let length = source.length()?;
        let mut first = vec![0; address(length.min(HEADER_BYTES))?];
        source.read_at(0, &mut first)?;
        let header = Header::parse(&first)?;
        Index::check_length(&header, limits)?;
        let declared = header.file_length();
        ensure(length >= declared, &rules::HDR_09, || {
            format!("only {length} of {declared} bytes are present")
        })
        .map_err(|error| error.at(length))?;
        ensure(length == declared, &rules::HDR_10, || {
            format!("{} bytes follow the end", length - declared)
        })
        .map_err(|error| error.at(declared))?;
        let mut stored = vec![0; address(header.index_stored)?];
        source.read_at(HEADER_BYTES, &mut stored)?;
        let index = Index::parse(&stored, &header, limits)?;
        let mut offsets = Vec::with_capacity(index.segments.len());
        let mut offset = HEADER_BYTES + header.index_stored;
        for segment in &index.segments {
            offsets.push(offset);
            offset += segment.stored_length;
        }
        Ok(Self {
            parts: index.parts(),
            source,
            header,
            index,
            offsets,
        })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The source of the link's bytes.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The index: metadata, segments and tensors.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The parts of a segment, in the order in which it codes them; empty if there is no such
    /// segment.
    pub fn parts(&self, segment: usize) -> &[Part] {
        self.parts.get(segment).map_or(&[], Vec::as_slice)
    }

    /// Whether every segment has absolute values, so that patches can be read without a base (SPEC
    /// section 9.2).
    pub fn is_direct(&self) -> bool {
        !self
            .index
            .segments
            .iter()
            .any(|segment| segment.coding.is_relative())
    }

    /// The sums that the link carries (SPEC section 24.3); `None` if it has none, or if they are
    /// damaged.
    ///
    /// # Errors
    /// IO.
    pub fn sums(&self) -> Result<Option<LinkSums>> {
        let Some(expected) = LinkSums::record_bytes(&self.index) else {
            return Ok(None);
        };
        if self.header.compatible_features & SUMS_BIT == 0
            || self.header.extension_length < expected
        {
            return Ok(None);
        }
        // The area ends where the file does.
        let begin = self.header.file_length() - self.header.extension_length;
        let area = (begin, self.header.extension_length);
        let Some(data) = extension::record(&self.source, area, SUMS_KIND, expected)? else {
            return Ok(None);
        };
        let (rows, digests) = self.index.to_runs();
        let binding = LinkSums::binding(self.header.base, self.header.target, &[&rows, &digests]);
        Ok(LinkSums::parse(&data, binding, &self.index))
    }

    /// The tensor that an entry writes.
    pub(crate) fn written(&self, entry: usize) -> Result<&WrittenTensor> {
        // Parts and lineages are made from written tensors only.
        self.index.tensors[entry]
            .written()
            .ok_or_else(|| Error::usage("the tensor is removed"))
    }

    /// Reads, checks and decodes a segment: step 8 of SPEC section 10 as far as it does not need
    /// the base.
    ///
    /// # Errors
    /// The class and rule of the first check that fails; IO; USAGE if there is no such segment.
    pub fn segment(&self, number: usize) -> Result<Segment> {
        if number >= self.offsets.len() {
            return Err(Error::usage(format!("the link has no segment {number}")));
        }
        self.read_segment(number)
            .map_err(|error| error.in_segment(number).at(self.offsets[number]))
    }

    fn read_segment(&self, number: usize) -> Result<Segment> {
        let entry = self.index.segments[number];
        let mut bytes = vec![0; address(entry.stored_length)?];
        self.source.read_at(self.offsets[number], &mut bytes)?;
        ensure(crc32fast::hash(&bytes) == entry.crc, &rules::SEG_01, || {
            "the segment's checksum does not match".into()
        })?;
        let parts = self.parts[number]
            .iter()
            .map(|&part| {
                let info = &self.written(part.entry)?.info;
                let lanes = info.piece_lanes(part.piece);
                Ok((
                    info.dtype(),
                    u32::try_from(lanes.end - lanes.start).unwrap_or(u32::MAX),
                ))
            })
            .collect::<Result<Vec<_>>>()?;
        Segment::decode(&bytes, self.offsets[number], entry.coding, parts)
    }

    /// Checks every segment, without a base. Checks that need a base are made when the link is
    /// applied.
    ///
    /// # Errors
    /// The class and rule of the first check that fails; IO; errors of `progress`, which is called
    /// with the bytes of the file.
    pub fn verify(&self, progress: &dyn Progress) -> Result<()> {
        let check = |number: usize| {
            self.segment(number)?;
            progress.advance(self.index.segments[number].stored_length)
        };
        let checked: Vec<Result<()>> = (0..self.index.segments.len())
            .into_par_iter()
            .map(check)
            .collect();
        // The first failure in file order, whatever the threads did.
        checked.into_iter().collect()
    }

    /// The number, in a segment, of the part of a piece.
    pub(crate) fn part(&self, segment: usize, entry: usize, piece: u64) -> usize {
        self.parts(segment)
            .partition_point(|part| (part.entry, part.piece) < (entry, piece))
    }

    /// Adds segment, offset and tensor to the error of applying a part.
    pub(crate) fn locate<T>(&self, segment: usize, part: usize, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let name = self.index.tensors[self.parts[segment][part].entry].name();
            error
                .in_segment(segment)
                .at(self.offsets[segment])
                .of_tensor(name)
        })
    }
}

/// A decoded segment of any lane width.
#[derive(Debug)]
pub struct Segment(SegmentLanes);

/// A stream of a segment: its name in SPEC section 7, and its lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLengths {
    /// `table`, `gap low`, `plane 0` and so on.
    pub name: &'static str,
    /// Its raw length.
    pub raw: u64,
    /// Its length in the file.
    pub stored: u64,
}

/// The coded lanes of one part and context in order: see [`Segment::ranks`].
pub type Ranks<'a> = Box<dyn ExactSizeIterator<Item = (u64, u64)> + 'a>;

#[derive(Debug)]
enum SegmentLanes {
    One(DecodedSegment<u8>),
    Two(DecodedSegment<u16>),
    Four(DecodedSegment<u32>),
    Eight(DecodedSegment<u64>),
}

/// Runs `$body` with `$decoded` as the decoded segment, for any lane width.
macro_rules! each_width {
    ($segment:expr, $decoded:ident => $body:expr) => {
        match &$segment.0 {
            SegmentLanes::One($decoded) => $body,
            SegmentLanes::Two($decoded) => $body,
            SegmentLanes::Four($decoded) => $body,
            SegmentLanes::Eight($decoded) => $body,
        }
    };
}

impl Segment {
    /// Decodes a segment whose checksum matched. Does no IO: `bytes` is the segment, which begins
    /// at `offset` in the file; `parts` has dtype and number of lanes of each part.
    ///
    /// # Errors
    /// The class and rule of the first check that fails.
    pub fn decode(
        bytes: &[u8],
        offset: u64,
        coding: Coding,
        parts: Vec<(Dtype, u32)>,
    ) -> Result<Self> {
        Ok(Self(match coding.lane_bytes {
            1 => SegmentLanes::One(DecodedSegment::new(bytes, offset, coding, parts)?),
            2 => SegmentLanes::Two(DecodedSegment::new(bytes, offset, coding, parts)?),
            4 => SegmentLanes::Four(DecodedSegment::new(bytes, offset, coding, parts)?),
            _ => SegmentLanes::Eight(DecodedSegment::new(bytes, offset, coding, parts)?),
        }))
    }

    /// The segment's table.
    pub fn table(&self) -> &Table {
        each_width!(self, decoded => &decoded.table)
    }

    /// The segment's streams, in the order of SPEC section 7.
    pub fn streams(&self) -> impl Iterator<Item = StreamLengths> {
        let (coding, lengths) = each_width!(self, decoded => (decoded.coding, &decoded.streams));
        coding
            .stream_names()
            .zip(lengths)
            .map(|(name, &(raw, stored))| StreamLengths { name, raw, stored })
    }

    /// The coded lanes of a part, for each context: the rank among the context's members (with one
    /// context, the lane's number in its piece), and the value. The value is the new lane or, if
    /// the coding is relative, the difference of SPEC section 8.3 modulo 2^W. Empty if there is no
    /// such part.
    pub fn ranks(&self, part: usize) -> Vec<Ranks<'_>> {
        fn boxed<L: Lane>(decoded: &DecodedSegment<L>, part: usize) -> Vec<Ranks<'_>> {
            let ranks = decoded.ranks(part);
            ranks
                .map(|run| Box::new(run.map(|(rank, value)| (rank, value.to_u64()))) as Ranks<'_>)
                .collect()
        }
        each_width!(self, decoded => boxed(decoded, part))
    }

    /// Number of coded lanes of a part; 0 if there is no such part.
    pub fn coded_lanes(&self, part: usize) -> u64 {
        each_width!(self, decoded => decoded.coded(part))
    }

    /// Applies a part to the bytes of its piece, which hold the values that the tensor starts from.
    ///
    /// # Errors
    /// R-POS-01 or R-POS-02 if the part does not fit these bytes; USAGE if there is no such part.
    pub fn apply(&self, part: usize, bytes: &mut [u8]) -> Result<()> {
        if part >= each_width!(self, decoded => decoded.parts.len()) {
            return Err(Error::usage(format!("the segment has no part {part}")));
        }
        each_width!(self, decoded => decoded.apply(part, bytes))
    }

    /// Approximate size in memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        each_width!(self, decoded => decoded.memory())
    }

    /// The changes of a part, to be applied to one stretch of its piece after another.
    pub(crate) fn changes(&self, part: usize) -> Box<dyn PartChanges + '_> {
        each_width!(self, decoded => Box::new(decoded.changes(part)))
    }

    /// The coded lanes of a part with one context: ascending lane numbers in the piece (`None` if
    /// all of them are coded), and their values as little-endian bytes (new bits, or differences if
    /// the segment's coding is relative).
    ///
    /// # Errors
    /// USAGE if the part has several contexts.
    pub(crate) fn coded(&self, part: usize) -> Result<(Option<Vec<u32>>, Vec<u8>)> {
        fn bytes<L: Lane>(
            decoded: &DecodedSegment<L>,
            part: usize,
        ) -> Result<(Option<Vec<u32>>, Vec<u8>)> {
            let (lanes, values) = decoded.patches(part)?;
            let mut bytes = vec![0; size_of_val(values)];
            for (out, value) in L::chunks_mut(&mut bytes).iter_mut().zip(values) {
                *out = value.store();
            }
            Ok((lanes, bytes))
        }
        each_width!(self, decoded => bytes(decoded, part))
    }
}
