//! Properties of raw bytes: readers of any bytes return without a panic, and within a bound of
//! memory that follows from the length and the limits.

use std::io::{Seek, Write};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use arbitrary::Unstructured;
use deltachain::files::SafetensorsState;
use deltachain::format::{Coding, Header, Index, Positions, Values};
use deltachain::tensor::{DescribedDtype, Dtype, State, TensorInfo};
use deltachain::{ErrorClass, Limits, LinkReader, Result, Segment, Source};
use tempfile::NamedTempFile;

use crate::memory::{peak_of, single_threaded};
use crate::seal::{Parts, Stream, streams};

const INDEX_BYTES: u64 = 1 << 16;

/// Limits for the readers of raw targets: low, so that useless allocations show.
pub(crate) fn limits() -> Limits {
    Limits::default()
        .index_bytes(INDEX_BYTES)
        .index_bytes_per_file_byte(0)
        .set_bytes(1 << 16)
        .set_bytes_per_file_byte(16)
}

/// The limits for a file with this header, which cannot allocate more for the index than the header
/// declares.
fn limits_for(header: &Header) -> Limits {
    limits().index_bytes(INDEX_BYTES.min(header.index_raw))
}

/// Checks that a refusal names a rule.
pub(crate) fn refused_by_rule<T>(result: &Result<T>) {
    if let Err(error) = result {
        assert!(error.rule().is_some(), "a refusal without a rule: {error}");
    }
}

/// Parses bytes as a header and an index.
pub fn header_index(data: &[u8]) {
    single_threaded();
    let header = Header::parse(&data[..data.len().min(128)]);
    refused_by_rule(&header);
    let Ok(header) = header else { return };
    let (index, peak) = peak_of(|| Index::parse(&data[128..], &header, &limits()));
    refused_by_rule(&index);
    let bound = limits_for(&header).memory_to_open(data.len() as u64);
    assert!(
        peak <= bound,
        "{} bytes made the reader allocate {peak}, at most {bound}",
        data.len()
    );
}

/// A file and the number of its bytes that have been read.
struct Counted<'a>(&'a [u8], AtomicU64);

impl Source for Counted<'_> {
    fn length(&self) -> Result<u64> {
        self.0.length()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.1.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.0.read_at(offset, out)
    }
}

/// Checks a whole link, as [`LinkReader::verify`] does.
pub fn link(data: &[u8]) {
    single_threaded();
    let source = Counted(data, AtomicU64::new(0));
    let (result, peak) = peak_of(|| LinkReader::open(&source, &limits())?.verify(&()));
    refused_by_rule(&result);
    if let Ok(link) = LinkReader::open(data, &limits()) {
        let sums = link.sums().expect("memory can be read");
        assert!(sums.is_none_or(|sums| sums.entries.len() == link.index().tensors.len()));
    }
    let length = data.len() as u64;
    let read = source.1.into_inner();
    assert!(
        read <= length,
        "{read} bytes of {length} were read, so some were read twice"
    );
    let limits = Header::parse(&data[..data.len().min(128)])
        .map_or_else(|_| limits(), |header| limits_for(&header));
    let bound = limits.memory_to_decode(length, 1);
    assert!(
        peak <= bound,
        "{length} bytes made the reader allocate {peak}, at most {bound}"
    );
    // Segments are only decoded behind valid checksums, and most have plain streams: then a tighter
    // bound holds.
    if peak > limits.memory_to_open(length)
        && let Some(parts) = Parts::of(data)
    {
        let declared = parts
            .segments
            .iter()
            .zip(parts.codings())
            .map(|(segment, coding)| declared(segment, coding));
        let bound = limits.memory_to_open(length) + declared.max().unwrap_or(0);
        assert!(
            peak <= bound,
            "{length} bytes made the reader allocate {peak}, at most {bound}"
        );
    }
}

/// Maximum allocation for decoding a segment with the raw lengths that its streams declare.
fn declared(segment: &[u8], coding: u8) -> u64 {
    let raw = |stream: &Stream| stream.raw_length.min((stream.stored.len() as u64) << 15);
    let raw: u64 = streams(segment, coding)
        .unwrap_or_default()
        .iter()
        .map(raw)
        .sum();
    64 * raw + 4096
}

/// Decodes a segment without its link, with any parts.
pub fn segment(data: &[u8]) {
    single_threaded();
    let Some(SegmentInput {
        coding,
        parts,
        bytes,
    }) = read_segment_input(data)
    else {
        return;
    };
    let (decoded, peak) = peak_of(|| Segment::decode(bytes, 0, coding, parts.clone()));
    refused_by_rule(&decoded);
    let bound = declared(bytes, coding_byte(coding)) + 1024 * parts.len() as u64;
    assert!(
        peak <= bound,
        "{} bytes made the reader allocate {peak}, at most {bound}",
        bytes.len()
    );
    let Ok(decoded) = decoded else { return };
    let table =
        streams(bytes, coding_byte(coding)).and_then(|streams| Some(streams.first()?.raw()));
    assert_eq!(
        Some(decoded.table().to_bytes()),
        table,
        "writing the table again gives other bytes"
    );
    for (number, (dtype, lanes)) in parts.into_iter().enumerate() {
        // Lanes of all magnitudes, as many as are cheap to make.
        let mut piece: Vec<u8> = (0..lanes.min(1 << 12))
            .flat_map(|lane| lane.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        piece.resize(lanes as usize * dtype.lane_bytes(), 0);
        let before = piece.clone();
        let coded = decoded.coded_lanes(number);
        let applied = decoded.apply(number, &mut piece);
        refused_by_rule(&applied);
        if applied.is_ok() {
            let lanes = |bytes: &[u8]| {
                bytes
                    .chunks_exact(dtype.lane_bytes())
                    .map(<[u8]>::to_vec)
                    .collect::<Vec<_>>()
            };
            let changed = lanes(&piece)
                .iter()
                .zip(&lanes(&before))
                .filter(|(new, old)| new != old)
                .count() as u64;
            assert!(
                changed <= coded,
                "{changed} lanes changed, {coded} are coded"
            );
            let all_differ = coding.is_relative() && coding.positions == Positions::Sparse;
            assert!(
                !all_differ || changed == coded,
                "{changed} lanes changed, {coded} are coded"
            );
        }
    }
}

/// Maximum number of parts of a segment in this target, and of lanes in each.
const PARTS: u8 = 4;
const LANES: u32 = 1 << 14;

/// A segment and what its index would say about it.
struct SegmentInput<'a> {
    coding: Coding,
    /// Dtype and lanes of each part.
    parts: Vec<(Dtype, u32)>,
    bytes: &'a [u8],
}

/// Reads the coding byte, the number of parts, the dtype's code and the lanes (two bytes) of each
/// part, and the segment.
fn read_segment_input(data: &[u8]) -> Option<SegmentInput<'_>> {
    let (&[coding, parts], mut rest) = data.split_first_chunk()?;
    let coding = coding_of(coding)?;
    let count = parts % (PARTS + 1);
    let mut parts = Vec::new();
    for _ in 0..count {
        let (&[dtype, low, high], others) = rest.split_first_chunk()?;
        let dtype = dtype_of(dtype).filter(|dtype| dtype.lane_bytes() == coding.lane_bytes)?;
        parts.push((
            dtype,
            u32::from(u16::from_le_bytes([low, high])) % (LANES + 1),
        ));
        rest = others;
    }
    Some(SegmentInput {
        coding,
        parts,
        bytes: rest,
    })
}

/// Returns the dtype that a byte stands for in the inputs of [`segment`]: its code, or a described
/// dtype with lanes of `1 << (byte % 4)` bytes and the next five bits for the exponent.
fn dtype_of(byte: u8) -> Option<Dtype> {
    let lane_bytes = 1 << (byte & 0b11);
    let exponent_bits = Some(byte >> 2 & 0b1_1111).filter(|&bits| bits < 31);
    let described = || {
        DescribedDtype::new("X", 8 * u32::from(lane_bytes), lane_bytes, exponent_bits)
            .map(Dtype::Described)
    };
    Dtype::all()
        .find(|dtype| dtype.code() == byte)
        .or_else(described)
}

/// The properties of a dtype that the decoder of a segment uses.
fn lanes_of(dtype: Dtype) -> (usize, Option<u32>) {
    (dtype.lane_bytes(), dtype.exponent_bits())
}

/// Makes inputs of [`segment`] from the segments of a good link that have few enough parts.
pub(crate) fn segment_inputs(file: &[u8]) -> Vec<Vec<u8>> {
    let Ok(link) = LinkReader::open(file, &Limits::default()) else {
        return Vec::new();
    };
    let Some(parts) = Parts::of(file) else {
        return Vec::new();
    };
    let mut inputs = Vec::new();
    for (number, (segment, coding)) in parts.segments.iter().zip(parts.codings()).enumerate() {
        let own = link.parts(number);
        let mut input = vec![coding, u8::try_from(own.len()).unwrap_or(u8::MAX)];
        for part in own {
            let Some(info) = link.index().tensors[part.entry]
                .written()
                .map(|written| &written.info)
            else {
                continue;
            };
            let piece = info.piece(part.piece);
            let lanes = (piece.end - piece.start) / info.dtype().lane_bytes() as u64;
            let is_alike =
                |&byte: &u8| dtype_of(byte).map(lanes_of) == Some(lanes_of(info.dtype()));
            input.push((0..=u8::MAX).find(is_alike).unwrap_or(0));
            input.extend(u16::try_from(lanes).unwrap_or(u16::MAX).to_le_bytes());
        }
        input.extend_from_slice(segment);
        if own.len() <= PARTS.into() {
            inputs.push(input);
        }
    }
    inputs
}

fn coding_of(byte: u8) -> Option<Coding> {
    let positions = if byte & 0b100 == 0 {
        Positions::Dense
    } else {
        Positions::Sparse
    };
    let values = match byte >> 3 {
        0 => Values::Absolute,
        1 => Values::RelativePlanes,
        2 if positions == Positions::Sparse => Values::RelativeSmall,
        _ => return None,
    };
    Some(Coding {
        lane_bytes: 1 << (byte & 0b11),
        positions,
        values,
    })
}

fn coding_byte(coding: Coding) -> u8 {
    (0..0x20)
        .find(|&byte| coding_of(byte) == Some(coding))
        .expect("every coding has a byte")
}

/// The one file for the bytes of the target `safetensors`: the reader takes paths.
static FILE: LazyLock<Mutex<NamedTempFile>> = LazyLock::new(|| {
    // In memory if the system has such a folder.
    let file = tempfile::NamedTempFile::new_in("/dev/shm").or_else(|_| NamedTempFile::new());
    Mutex::new(file.expect("a temporary file can be made"))
});

/// Reads bytes as a safetensors file.
pub fn safetensors(data: &[u8]) {
    single_threaded();
    let mut file = FILE.lock().expect("no other thread has panicked");
    let file = &mut *file;
    file.as_file()
        .set_len(0)
        .and_then(|()| file.rewind())
        .expect("a temporary file can be emptied");
    file.write_all(data)
        .expect("a temporary file can be written");
    let (state, peak) = peak_of(|| SafetensorsState::open(file.path()));
    let bound = 64 * data.len() as u64 + (16 << 10);
    assert!(
        peak <= bound,
        "{} bytes made the reader allocate {peak}, at most {bound}",
        data.len()
    );
    let state = match state {
        Ok(state) => state,
        Err(error) => {
            assert_eq!(error.class(), ErrorClass::Usage, "{error}");
            return;
        }
    };
    assert!(
        state
            .tensors()
            .is_sorted_by(|left, right| left.name() < right.name())
    );
    // The safetensors crate accepts what this library accepts, with the same tensors.
    let theirs = safetensors::SafeTensors::deserialize(data)
        .expect("the safetensors crate refuses the file");
    assert_eq!(theirs.len(), state.tensors().len());
    for (number, info) in state.tensors().iter().enumerate() {
        let view = theirs
            .tensor(info.name())
            .expect("the safetensors crate does not know the tensor");
        let mut bytes = vec![0; view.data().len()];
        state
            .read(number, 0, &mut bytes)
            .expect("a tensor of an accepted file can be read");
        assert!(bytes == view.data() && view.dtype().to_string() == info.dtype().name());
        assert!(
            view.shape()
                .iter()
                .map(|&dimension| dimension as u64)
                .eq(info.shape().iter().copied())
        );
    }
}

/// Reads a layout (`deltachain.layout`) for tensors whose names are in the first line; the rest is
/// its JSON.
pub fn layout(data: &[u8]) {
    use deltachain::files::Layout;

    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (names, json) = text.split_once('\n').unwrap_or(("", text));
    let mut names: Vec<&str> = names.split_whitespace().collect();
    names.sort_unstable();
    names.dedup();
    let tensors: Vec<TensorInfo> = names
        .into_iter()
        .filter_map(|name| TensorInfo::new(name, Dtype::U8, [1]))
        .collect();
    let (layout, peak) = peak_of(|| Layout::parse(json, &tensors));
    refused_by_rule(&layout);
    let bound = 64 * data.len() as u64 + (16 << 10);
    assert!(
        peak <= bound,
        "{} bytes made the reader allocate {peak}, at most {bound}",
        data.len()
    );
    let Ok(layout) = layout else { return };
    assert_eq!(
        layout.to_json(),
        json,
        "writing the layout again gives another text"
    );
    let mut listed: Vec<&str> = layout
        .files()
        .iter()
        .flat_map(|file| &file.tensors)
        .map(String::as_str)
        .collect();
    listed.sort_unstable();
    assert!(
        listed
            .iter()
            .copied()
            .eq(tensors.iter().map(TensorInfo::name))
    );
    for name in layout
        .files()
        .iter()
        .filter_map(|file| file.name.as_deref())
    {
        let path = Path::new(name);
        let parts = path.components().map(|part| match part {
            Component::Normal(part) => part.to_str().expect("it is a part of a string"),
            _ => panic!("{name:?} leads out of the directory"),
        });
        assert!(parts.eq(name.split('/')), "{name:?}");
    }
    assert_eq!(
        layout
            .carried_over(&tensors)
            .expect("the layout has all tensors"),
        layout
    );
}

/// Parses bytes as a header and an index; writing accepted ones again gives the same bytes.
pub fn reserialise(data: &[u8]) {
    let mut bytes = Unstructured::new(data);
    let Ok(mut header) = bytes.arbitrary::<[u8; 128]>() else {
        return;
    };
    let index = bytes.take_rest();
    // Most inputs get valid fields: magic and version, the index stored uncompressed, checksums.
    header[..16].copy_from_slice(&[
        0x89, b'D', b'C', b'F', b'\r', b'\n', 0x1A, b'\n', 1, 0, 0, 0, 0, 0, 0, 0,
    ]);
    for at in [88, 96] {
        header[at..at + 8].copy_from_slice(&(index.len() as u64).to_le_bytes());
    }
    header[120..124].copy_from_slice(&crc32fast::hash(index).to_le_bytes());
    let crc = crc32fast::hash(&header[..124]);
    header[124..].copy_from_slice(&crc.to_le_bytes());
    let Ok(header) = Header::parse(&header).inspect(|parsed| assert_eq!(parsed.to_bytes(), header))
    else {
        return;
    };
    let (parsed, peak) = peak_of(|| Index::parse(index, &header, &limits()));
    refused_by_rule(&parsed);
    let bound = limits_for(&header).memory_to_open(128 + index.len() as u64);
    assert!(
        peak <= bound,
        "{} bytes made the reader allocate {peak}, at most {bound}",
        index.len()
    );
    let Ok(parsed) = parsed else { return };
    assert_eq!(parsed.to_bytes(), index);
}
