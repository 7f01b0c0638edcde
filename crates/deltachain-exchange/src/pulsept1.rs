//! PULSEPT1 of basilica: one file for all tensors of a BF16 model.
//!
//! A file consists of `PULSEPT1`, the header's length (`u32`), a header of JSON, and one zstd frame
//! with positions and values, tensor by tensor in the order of names. The header lists all tensors
//! with the XXH3-128 of their new bytes. The state's digest is the XXH3-128 of these digests in
//! sequence; it covers neither names nor shapes. [Three versions](Version) differ in the coding of
//! positions and values.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use deltachain::tensor::{Dtype, State, StateWriter, TensorInfo};
use deltachain::{Error, FileSource, Progress, Result, Source as _};
use serde::{Deserialize, Serialize};

use crate::checksum::xxh3_128;
use crate::compressed::zstd;
use crate::container::{create_parent, write_text};
use crate::refusal::{corrupt, malformed, mismatch, unsupported, wrong_base};
use crate::rice::{
    read_classes, read_gaps, read_rice, read_steps, short, write_classes, write_gaps, write_rice,
    write_steps,
};
use crate::step::{Export, Import, Step};
use crate::tensors::{address, bytes_of, change_tensor, changed_pairs, each, pairs};

const MAGIC: &[u8; 8] = b"PULSEPT1";
/// Longer headers are refused: some 500 000 tensors fit.
const MOST_HEADER_BYTES: u32 = 1 << 27;
/// Frames with longer windows are refused; the layout's own writer uses 2^19 bytes.
const MOST_WINDOW_LOG: u32 = 27;
const LEVEL: i32 = 1;
const DIGEST_BEGIN: &str = "xxh3_128:";
/// Maximum size of positions in any version: bytes per changed element, and additional bytes per
/// tensor.
const MOST_POSITION_BYTES: [u64; 2] = [13, 4096];

/// Coding of positions and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Gaps of 16 bits; new values.
    V1,
    /// Rice codes; differences between the bits of new and old values.
    V2,
    /// Rice codes by the exponent of the old element; differences between the bits of new and old
    /// values.
    V3,
}

impl Version {
    fn number(self) -> u64 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// Returns the names of the codings of positions and of values in the header.
    fn names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::V1 => ("delta-u16-esc", None),
            Self::V2 => ("rice-gap", Some("zz-delta-u8esc")),
            Self::V3 => ("exp-class-rice", Some("zz-delta-u8esc")),
        }
    }

    fn read_places(self, bytes: &[u8], count: usize, old: &[u8]) -> Result<Vec<u32>> {
        let elements = old.len() as u64 / 2;
        match self {
            Self::V1 => read_gaps(bytes, count, elements),
            Self::V2 => read_rice(bytes, count, elements),
            Self::V3 => read_classes(bytes, count, old),
        }
    }
}

// The fields of these structs are in the order in which the layout's own writer has them.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(skip_serializing_if = "Option::is_none")]
    base_state_digest: Option<String>,
    base_step: u64,
    format_version: u64,
    model: Model,
    state_digest: String,
    step: u64,
    tensors: Vec<Tensor>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Model {
    digest: String,
    id: String,
    param_count: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "names are as in the file")]
struct Tensor {
    changed: u64,
    dtype: String,
    idx_bytes: u64,
    idx_enc: String,
    name: String,
    numel: u64,
    shape: Vec<u64>,
    tensor_digest: String,
    val_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    val_enc: Option<String>,
}

fn digest_text(digest: u128) -> String {
    format!("{DIGEST_BEGIN}{digest:032x}")
}

/// Computes the digest of a state from the digests of its tensors.
fn state_digest(digests: &[u128]) -> String {
    // The layout hashes digests with the most significant byte first.
    let bytes: Vec<u8> = digests
        .iter()
        .flat_map(|digest| digest.swap_bytes().to_le_bytes())
        .collect();
    digest_text(xxh3_128(&bytes))
}

/// Computes the digest of a state of BF16 tensors in this layout: the XXH3-128 of the digests of
/// all tensors, in the order of their names.
///
/// # Errors
/// Errors of reading `state`.
pub fn digest(state: &dyn State) -> Result<String> {
    Ok(state_digest(&each(state.tensors().len(), |tensor| {
        Ok(xxh3_128(&bytes_of(state, tensor)?))
    })?))
}

fn read_header(file: &mut impl Read, length: u64) -> Result<Header> {
    let mut begin = [0; 12];
    file.read_exact(&mut begin)
        .map_err(|_| malformed("the file is shorter than any PULSEPT1 file"))?;
    let [magic @ .., a, b, c, d] = begin;
    if magic != *MAGIC {
        return Err(malformed("the file does not begin with PULSEPT1"));
    }
    let header_bytes = u32::from_le_bytes([a, b, c, d]);
    if header_bytes > MOST_HEADER_BYTES || u64::from(header_bytes) > length.saturating_sub(12) {
        return Err(malformed(format!(
            "a header of {header_bytes} bytes does not fit the file, or is too long"
        )));
    }
    let mut json = vec![0; address(u64::from(header_bytes))?];
    file.read_exact(&mut json)
        .map_err(|error| Error::io("reading", error))?;
    serde_json::from_slice(&json)
        .map_err(|error| malformed(format!("the header is invalid: {error}")))
}

/// Checks the header's entries for tensors.
fn check_header(header: &Header, version: Version) -> Result<()> {
    if !header
        .tensors
        .is_sorted_by(|left, right| left.name < right.name)
    {
        return Err(malformed(
            "the tensors are not in the order of their names, or one is duplicate",
        ));
    }
    let (indices, values) = version.names();
    for tensor in &header.tensors {
        let Tensor {
            changed,
            idx_bytes,
            val_bytes,
            ..
        } = *tensor;
        let most = changed
            .saturating_mul(MOST_POSITION_BYTES[0])
            .saturating_add(MOST_POSITION_BYTES[1]);
        let sizes_fit = match version {
            Version::V1 => Some(val_bytes) == changed.checked_mul(2),
            Version::V2 | Version::V3 => (changed..=changed.saturating_mul(3)).contains(&val_bytes),
        };
        let problem = if tensor.dtype != "bf16" {
            "has a dtype other than bf16"
        } else if tensor.idx_enc != indices || tensor.val_enc.as_deref() != values {
            "is not coded as its version requires"
        } else if changed > tensor.numel || idx_bytes > most || !sizes_fit {
            "has lengths that do not fit its number of changes"
        } else {
            continue;
        };
        return Err(malformed(format!("a tensor {problem}")).of_tensor(&tensor.name));
    }
    Ok(())
}

/// Checks that the base has the tensors of the header and no others.
fn check_base(header: &Header, base: &dyn State) -> Result<()> {
    let mut listed = header.tensors.iter();
    for info in base.tensors() {
        let tensor = listed.next().filter(|tensor| tensor.name == info.name());
        let tensor = tensor.ok_or_else(|| {
            wrong_base("base and file do not have the same tensors").of_tensor(info.name())
        })?;
        if info.dtype() != Dtype::BF16
            || info.shape() != tensor.shape
            || info.elements() != tensor.numel
        {
            let message = format!(
                "the base has {} {:?} here, but the file has bf16 {:?}",
                info.dtype(),
                info.shape(),
                tensor.shape
            );
            return Err(wrong_base(message).of_tensor(info.name()));
        }
    }
    match listed.next() {
        Some(tensor) => {
            Err(wrong_base("the base does not have this tensor").of_tensor(&tensor.name))
        }
        None => Ok(()),
    }
}

pub(crate) fn apply(
    delta: &Path,
    base: &dyn State,
    out: &dyn StateWriter,
    progress: &dyn Progress,
) -> Result<Import> {
    let source = FileSource::open(delta)?;
    let length = source.length()?;
    let mut file = BufReader::new(source.file());
    let header = read_header(&mut file, length)?;
    let version = [Version::V1, Version::V2, Version::V3]
        .into_iter()
        .find(|one| one.number() == header.format_version);
    let version = version
        .ok_or_else(|| unsupported(format!("version {} of PULSEPT1", header.format_version)))?;
    check_header(&header, version)?;
    check_base(&header, base)?;
    if let Some(expected) = &header.base_state_digest
        && *expected != digest(base)?
    {
        return Err(wrong_base(format!(
            "the base does not have the digest {expected}"
        )));
    }

    let mut frame = Frame::open(file)?;
    let mut digests = Vec::with_capacity(header.tensors.len());
    for (number, tensor) in header.tensors.iter().enumerate() {
        digests.push(change_tensor(base, out, progress, number, |bytes| {
            restore(version, tensor, &mut frame, bytes)
        })?);
    }
    // A delta without changes may have no frame.
    if header.tensors.iter().any(|tensor| tensor.changed > 0) {
        frame.check_end()?;
    }
    if state_digest(&digests) != header.state_digest {
        return Err(malformed(
            "the digest of the state is not that of its tensors' digests",
        ));
    }
    let proof =
        "every tensor has the XXH3-128 that the file promises; names and shapes are in no digest";
    let base_proof = match header.base_state_digest {
        Some(_) => "the base has the digest that the file promises",
        None => "the file has no digest of the base; the result has been checked",
    };
    Ok(Import {
        format: format!("PULSEPT1, version {}", version.number()),
        version: Some(header.step.to_string()),
        base_version: Some(header.base_step.to_string()),
        remarks: vec![proof.to_owned(), base_proof.to_owned()],
    })
}

/// The zstd frame of a file, which is decompressed piece by piece.
struct Frame<R: BufRead> {
    decoder: zstd::stream::read::Decoder<'static, R>,
}

impl<R: BufRead> Frame<R> {
    fn open(file: R) -> Result<Self> {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(file)
            .map_err(|error| damaged(&error))?
            .single_frame();
        decoder
            .window_log_max(MOST_WINDOW_LOG)
            .map_err(|error| damaged(&error))?;
        Ok(Self { decoder })
    }

    /// Reads the next `length` bytes.
    fn read(&mut self, length: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.decoder
            .by_ref()
            .take(length)
            .read_to_end(&mut bytes)
            .map_err(|error| damaged(&error))?;
        if bytes.len() as u64 == length {
            Ok(bytes)
        } else {
            Err(corrupt("the zstd frame ends early"))
        }
    }

    /// Checks that nothing is left in the frame, and that nothing follows it.
    fn check_end(mut self) -> Result<()> {
        if self
            .decoder
            .read(&mut [0])
            .map_err(|error| damaged(&error))?
            != 0
        {
            return Err(malformed("the zstd frame holds more than the header says"));
        }
        let rest = self.decoder.finish().read(&mut [0]);
        if rest.map_err(|error| Error::io("reading", error))? != 0 {
            return Err(malformed("bytes follow the zstd frame"));
        }
        Ok(())
    }
}

fn damaged(error: &std::io::Error) -> Error {
    corrupt(format!("the zstd frame is damaged: {error}"))
}

/// Turns the bytes of a tensor into the new ones, and checks them. Returns their digest.
fn restore<R: BufRead>(
    version: Version,
    tensor: &Tensor,
    frame: &mut Frame<R>,
    bytes: &mut [u8],
) -> Result<u128> {
    let places = frame.read(tensor.idx_bytes)?;
    let values = frame.read(tensor.val_bytes)?;
    let count = address(tensor.changed)?;
    change_elements(version, bytes, count, &places, &values)?;
    let digest = xxh3_128(bytes);
    if tensor.tensor_digest == digest_text(digest) {
        Ok(digest)
    } else {
        Err(mismatch("XXH3-128"))
    }
}

fn change_elements(
    version: Version,
    bytes: &mut [u8],
    count: usize,
    places: &[u8],
    values: &[u8],
) -> Result<()> {
    let places = version.read_places(places, count, bytes)?;
    let values: Vec<u16> = match version {
        Version::V1 => pairs(values).collect(),
        Version::V2 | Version::V3 => read_steps(values, count)?,
    };
    let elements = bytes.as_chunks_mut::<2>().0;
    for (place, value) in places.iter().zip(values) {
        let element = usize::try_from(*place)
            .ok()
            .and_then(|place| elements.get_mut(place));
        let element = element.ok_or_else(|| malformed("a position is beyond the tensor's end"))?;
        let new = if version == Version::V1 {
            value
        } else {
            u16::from_le_bytes(*element).wrapping_add(value)
        };
        *element = new.to_le_bytes();
    }
    Ok(())
}

pub(crate) fn check(info: &TensorInfo) -> Result<()> {
    if info.dtype() != Dtype::BF16 {
        return Err(Error::usage(format!(
            "PULSEPT1 carries BF16 only, and the model has a tensor of {}",
            info.dtype()
        )));
    }
    if info.elements() >= 1 << 32 {
        return Err(Error::usage(
            "PULSEPT1 carries tensors of less than 2^32 elements",
        ));
    }
    Ok(())
}

pub(crate) fn write(
    version: Version,
    base: &dyn State,
    target: &dyn State,
    step: &Step<'_>,
    directory: &Path,
    progress: &dyn Progress,
) -> Result<Export> {
    let path = directory.join(format!("step_{:06}.pulse", step.number));
    let coded = each(target.tensors().len(), |number| {
        let info = &target.tensors()[number];
        check(info).map_err(|error| error.of_tensor(info.name()))?;
        let coded = encode(
            version,
            info,
            &bytes_of(base, number)?,
            &bytes_of(target, number)?,
        )?;
        progress.advance(info.bytes())?;
        Ok(coded)
    })?;
    let old_digests: Vec<_> = coded.iter().map(|coded| coded.old_digest).collect();
    let new_digests: Vec<_> = coded.iter().map(|coded| coded.new_digest).collect();
    let base_digest = state_digest(&old_digests);
    let payload: Vec<u8> = coded
        .iter()
        .flat_map(|coded| &coded.bytes)
        .copied()
        .collect();
    let header = Header {
        base_state_digest: Some(base_digest.clone()),
        base_step: step.number - 1,
        format_version: version.number(),
        model: Model {
            digest: step.first_digest.clone().unwrap_or(base_digest),
            id: step.model.clone(),
            param_count: target.tensors().iter().map(TensorInfo::elements).sum(),
        },
        state_digest: state_digest(&new_digests),
        step: step.number,
        tensors: coded.into_iter().map(|coded| coded.tensor).collect(),
    };
    let json = serde_json::to_vec(&header).map_err(|error| Error::usage(error.to_string()))?;
    let length = u32::try_from(json.len())
        .map_err(|_| Error::usage("the header is too long for PULSEPT1"))?;
    create_parent(&path, base)?;
    let file = [
        &MAGIC[..],
        &length.to_le_bytes(),
        &json,
        &zstd(&payload, LEVEL)?,
    ]
    .concat();
    let bytes = write_text(&path, &file)?;
    Ok(Export { path, bytes })
}

/// A tensor as it stands in a file.
struct Coded {
    /// Its line in the header.
    tensor: Tensor,
    /// Positions and values.
    bytes: Vec<u8>,
    old_digest: u128,
    new_digest: u128,
}

fn encode(version: Version, info: &TensorInfo, old: &[u8], new: &[u8]) -> Result<Coded> {
    let (indices, values) = version.names();
    let (places, bits) = changed_pairs(old, new);
    let places = places
        .into_iter()
        .map(short)
        .collect::<Result<Vec<u32>>>()?;
    let place_bytes = match version {
        Version::V1 => write_gaps(&places),
        Version::V2 => write_rice(&places)?,
        Version::V3 => write_classes(&places, old)?,
    };
    let value_bytes = match version {
        Version::V1 => bits.iter().flat_map(|[_, new]| new.to_le_bytes()).collect(),
        Version::V2 | Version::V3 => write_steps(&bits),
    };
    let new_digest = xxh3_128(new);
    let tensor = Tensor {
        changed: places.len() as u64,
        dtype: "bf16".to_owned(),
        idx_bytes: place_bytes.len() as u64,
        idx_enc: indices.to_owned(),
        name: info.name().to_owned(),
        numel: info.elements(),
        shape: info.shape().to_vec(),
        tensor_digest: digest_text(new_digest),
        val_bytes: value_bytes.len() as u64,
        val_enc: values.map(str::to_owned),
    };
    Ok(Coded {
        tensor,
        bytes: [place_bytes, value_bytes].concat(),
        old_digest: xxh3_128(old),
        new_digest,
    })
}
