//! The directories of slime, which miles, `SGLang`, Stitch and `ModelExpress` read, too.
//!
//! A directory `weight_vNNNNNN/` holds safetensors files with a zstd frame per changed tensor
//! (`U8`, under the tensor's name), and in `__metadata__` the checksum of the tensor's new bytes.
//! The directory is complete when it contains `model.safetensors.index.json`, whose `metadata`
//! gives the version, the base's version, the encoding and the checksum. A frame holds the
//! exclusive or of all old and new bytes (`xor`), or a `u32` count, that many `u32` positions of
//! bytes, and that many new bytes (`overwrite`).
//!
//! The layout has no dtypes, so it carries all of them. It has no digest of the base, and nothing
//! about tensors that do not change.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use deltachain::files::SafetensorsState;
use deltachain::tensor::{Dtype, State, StateWriter, TensorInfo, find};
use deltachain::{Error, FileSource, Progress, Result};
use serde::{Deserialize, Serialize};

use crate::checksum::{adler32, xxh3_128};
use crate::compressed::{unzstd, unzstd_up_to, zstd};
use crate::container::{
    Entry, Envelope, create_directory, finish_directory, write as write_file, write_text,
};
use crate::refusal::{malformed, mismatch, unsupported, wrong_base};
use crate::step::{Export, Import, Step};
use crate::tensors::{bytes_of, change_tensors, each, xor};

const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00001-of-00001.safetensors";
/// Longer indexes are refused: some 300 000 tensors fit.
const MOST_INDEX_BYTES: u64 = 1 << 26;
const LEVEL: i32 = 1;

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The exclusive or of all bytes. A reader must apply it exactly once.
    Xor,
    /// Positions of changed bytes, and the new bytes.
    Overwrite,
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Self::Xor => "xor",
            Self::Overwrite => "overwrite",
        }
    }
}

/// The checksum of a tensor's new bytes, in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// XXH3-128, which slime writes by default.
    Xxh3,
    /// BLAKE3.
    Blake3,
    /// Adler-32.
    Adler32,
}

impl Checksum {
    fn name(self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3-128",
            Self::Blake3 => "blake3",
            Self::Adler32 => "adler32",
        }
    }

    fn of(self, bytes: &[u8]) -> String {
        match self {
            Self::Xxh3 => format!("{:032x}", xxh3_128(bytes)),
            Self::Blake3 => blake3::hash(bytes).to_hex().to_string(),
            Self::Adler32 => format!("{:08x}", adler32(bytes)),
        }
    }

    /// True if `text` is the checksum of these bytes. Some writers give Adler-32 as a decimal
    /// number.
    fn is_of(self, text: &str, bytes: &[u8]) -> bool {
        text.eq_ignore_ascii_case(&self.of(bytes))
            || (self == Self::Adler32 && text == adler32(bytes).to_string())
    }
}

#[derive(Serialize, Deserialize)]
struct Index {
    metadata: IndexMetadata,
    weight_map: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct IndexMetadata {
    version: String,
    base_version: String,
    delta_encoding: String,
    compression_format: String,
    checksum_format: String,
}

/// Reads the index of a delta; `None` if it belongs to a whole checkpoint, which trainers write now
/// and then.
fn read_index(directory: &Path) -> Result<Option<Index>> {
    let path = directory.join(INDEX);
    let reading = |error| Error::io("reading", error).in_file(&path);
    let mut text = Vec::new();
    let file = FileSource::open(&path)?;
    file.file()
        .take(MOST_INDEX_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(reading)?;
    if text.len() as u64 > MOST_INDEX_BYTES {
        return Err(
            malformed(format!("the index is longer than {MOST_INDEX_BYTES} bytes")).in_file(&path),
        );
    }
    let refused = |error| malformed(format!("not the index of a delta: {error}")).in_file(&path);
    let index: serde_json::Value = serde_json::from_slice(&text).map_err(refused)?;
    let is_whole = index["weight_map"].is_object() && index["metadata"]["delta_encoding"].is_null();
    if is_whole {
        Ok(None)
    } else {
        serde_json::from_value(index).map(Some).map_err(refused)
    }
}

/// Copies the state of a whole checkpoint.
fn take(
    checkpoint: &Path,
    base: &dyn State,
    out: &dyn StateWriter,
    progress: &dyn Progress,
) -> Result<Import> {
    let state = SafetensorsState::open(checkpoint)?;
    let differs = |tensor: &&TensorInfo| {
        find(base.tensors(), tensor.name()).map(|at| &base.tensors()[at]) != Some(tensor)
    };
    if let Some(other) = state.tensors().iter().find(differs) {
        let text = "the checkpoint has a tensor that is missing in the base, or has another dtype \
                    or shape there";
        return Err(wrong_base(text).of_tensor(other.name()));
    }
    if state.tensors().len() != base.tensors().len() {
        return Err(wrong_base(
            "tensors of the base are missing in the checkpoint",
        ));
    }
    each(state.tensors().len(), |tensor| {
        out.write(tensor, 0, &bytes_of(&state, tensor)?)?;
        progress.advance(state.tensors()[tensor].bytes())
    })?;
    Ok(Import {
        format: "slime, a whole checkpoint".to_owned(),
        version: None,
        base_version: None,
        remarks: vec!["the checkpoint has no checksums, so it could not be verified".to_owned()],
    })
}

pub(crate) fn apply(
    delta: &Path,
    base: &dyn State,
    out: &dyn StateWriter,
    progress: &dyn Progress,
) -> Result<Import> {
    let Some(index) = read_index(delta)? else {
        return take(delta, base, out, progress);
    };
    let metadata = &index.metadata;
    let Coding { encoding, checksum } = Coding::of(metadata)?;
    // If nothing changes, there may be no file at all.
    let envelope = if index.weight_map.is_empty() {
        None
    } else {
        Some(Envelope::open(delta)?)
    };
    if let Some(envelope) = &envelope {
        check_names(envelope, base)?;
    }
    change_tensors(base, out, progress, |info, bytes| {
        if let Some(envelope) = &envelope
            && let Some(number) = envelope.find(info.name())
        {
            restore(encoding, bytes, &envelope.blob(number)?)?;
            if !checksum.is_of(&envelope.metadata[info.name()], bytes) {
                return Err(mismatch(checksum.name()));
            }
        }
        Ok(())
    })?;
    let changed = envelope
        .as_ref()
        .map_or(0, |envelope| envelope.names().len());
    let all = base.tensors().len();
    Ok(Import {
        format: format!("slime, {}, {}", encoding.name(), checksum.name()),
        version: Some(metadata.version.clone()),
        base_version: Some(metadata.base_version.clone()),
        remarks: vec![format!(
            "{changed} of {all} tensors have the {} that the layout promises; it says nothing of \
             the others",
            checksum.name()
        )],
    })
}

/// The coding that the index of a delta names.
struct Coding {
    encoding: Encoding,
    checksum: Checksum,
}

impl Coding {
    fn of(metadata: &IndexMetadata) -> Result<Self> {
        let encoding = [Encoding::Xor, Encoding::Overwrite]
            .into_iter()
            .find(|one| one.name() == metadata.delta_encoding);
        let encoding = encoding.ok_or_else(|| {
            unsupported(format!(
                "the encoding {:?} is not supported",
                metadata.delta_encoding
            ))
        })?;
        let checksum = [Checksum::Xxh3, Checksum::Blake3, Checksum::Adler32];
        let checksum = checksum
            .into_iter()
            .find(|one| one.name() == metadata.checksum_format);
        let checksum = checksum.ok_or_else(|| {
            unsupported(format!(
                "the checksum {:?} is not supported",
                metadata.checksum_format
            ))
        })?;
        if metadata.compression_format != "zstd" {
            return Err(unsupported(format!(
                "the compression {:?} is not supported",
                metadata.compression_format
            )));
        }
        Ok(Self { encoding, checksum })
    }
}

/// Checks that the base has all tensors of the file, and the file a checksum of each.
fn check_names(envelope: &Envelope, base: &dyn State) -> Result<()> {
    for name in envelope.names() {
        if find(base.tensors(), name).is_none() {
            return Err(
                wrong_base("the delta changes a tensor that the base does not have")
                    .of_tensor(name),
            );
        }
        if !envelope.metadata.contains_key(name) {
            return Err(malformed("the file has no checksum of the tensor").of_tensor(name));
        }
    }
    Ok(())
}

fn restore(encoding: Encoding, bytes: &mut [u8], frame: &[u8]) -> Result<()> {
    match encoding {
        Encoding::Xor => xor(bytes, &unzstd(frame, bytes.len())?),
        Encoding::Overwrite => {
            let payload = unzstd_up_to(frame, bytes.len().saturating_mul(5).saturating_add(4))?;
            let (count, rest) = payload
                .split_first_chunk()
                .ok_or_else(|| malformed("there is no count"))?;
            let count = usize::try_from(u32::from_le_bytes(*count)).unwrap_or(usize::MAX);
            if Some(rest.len()) != count.checked_mul(5) {
                return Err(malformed(format!(
                    "it lists {count} bytes to overwrite, but {} follow",
                    rest.len()
                )));
            }
            let (places, values) = rest.split_at(4 * count);
            for (place, value) in places.as_chunks().0.iter().zip(values) {
                let place = usize::try_from(u32::from_le_bytes(*place)).unwrap_or(usize::MAX);
                let byte = bytes.get_mut(place);
                *byte.ok_or_else(|| {
                    wrong_base(format!("byte {place} is beyond the tensor's end"))
                })? = *value;
            }
        }
    }
    Ok(())
}

pub(crate) fn check(encoding: Encoding, info: &TensorInfo, changes: bool) -> Result<()> {
    if encoding == Encoding::Overwrite && changes && info.bytes() > u64::from(u32::MAX) {
        return Err(Error::usage(
            "the overwrite encoding cannot carry a tensor of 4 GiB or more; xor can",
        ));
    }
    Ok(())
}

fn payload(encoding: Encoding, mut old: Vec<u8>, new: &[u8]) -> Result<Vec<u8>> {
    match encoding {
        Encoding::Xor => {
            xor(&mut old, new);
            Ok(old)
        }
        Encoding::Overwrite => {
            let (mut places, mut values) = (Vec::new(), Vec::new());
            for (place, (old, new)) in old.iter().zip(new).enumerate() {
                if old != new {
                    let place =
                        u32::try_from(place).map_err(|_| Error::usage("the tensor is too long"))?;
                    places.extend(place.to_le_bytes());
                    values.push(*new);
                }
            }
            let count =
                u32::try_from(values.len()).map_err(|_| Error::usage("the tensor is too long"))?;
            Ok([&count.to_le_bytes()[..], &places, &values].concat())
        }
    }
}

pub(crate) fn write(
    encoding: Encoding,
    checksum: Checksum,
    base: &dyn State,
    target: &dyn State,
    step: &Step<'_>,
    directory: &Path,
    progress: &dyn Progress,
) -> Result<Export> {
    let path = directory.join(format!("weight_v{:06}", step.number));
    let coded = each(target.tensors().len(), |tensor| {
        let info = &target.tensors()[tensor];
        let (old, new) = (bytes_of(base, tensor)?, bytes_of(target, tensor)?);
        let changes = old != new;
        check(encoding, info, changes).map_err(|error| error.of_tensor(info.name()))?;
        let coded = if changes {
            Some((
                zstd(&payload(encoding, old, &new)?, LEVEL)?,
                checksum.of(&new),
            ))
        } else {
            None
        };
        progress.advance(info.bytes())?;
        Ok(coded)
    })?;
    let begun = create_directory(&path, base)?;
    let mut entries = Vec::new();
    let mut checksums = BTreeMap::new();
    for (info, (bytes, checksum)) in target
        .tensors()
        .iter()
        .zip(coded)
        .filter_map(|(info, coded)| Some((info, coded?)))
    {
        entries.push(Entry {
            name: info.name().to_owned(),
            dtype: Dtype::U8,
            bytes,
        });
        checksums.insert(info.name().to_owned(), checksum);
    }
    let mut bytes = write_file(&begun.join(SHARD), &checksums, &mut entries)?;
    let metadata = IndexMetadata {
        version: format!("{:06}", step.number),
        base_version: format!("{:06}", step.number - 1),
        delta_encoding: encoding.name().to_owned(),
        compression_format: "zstd".to_owned(),
        checksum_format: checksum.name().to_owned(),
    };
    bytes += write_index(&begun, metadata, checksums.into_keys())?;
    finish_directory(&begun, &path)?;
    Ok(Export { path, bytes })
}

/// Writes the index of a delta that changes these tensors. Returns its length.
fn write_index(
    directory: &Path,
    metadata: IndexMetadata,
    names: impl Iterator<Item = String>,
) -> Result<u64> {
    let weight_map = names.map(|name| (name, SHARD.to_owned())).collect();
    let text = serde_json::to_vec_pretty(&Index {
        metadata,
        weight_map,
    });
    write_text(
        &directory.join(INDEX),
        &text.map_err(|error| Error::usage(error.to_string()))?,
    )
}
