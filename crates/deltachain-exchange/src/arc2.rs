//! ARC of Fireworks, versions 1 and 2, which its hot load accepts.
//!
//! For each file of the base there is a safetensors file of the same name; a base with folders
//! becomes one file. Under the name of every tensor, changed or not, the file holds the exclusive
//! or of all old and new bytes as `U8`: a zlib stream (version 1) or a zstd frame (version 2).
//! `__metadata__` has the Adler-32 of the new bytes as a decimal number.
//!
//! Version 3 holds pickled data, which can run any program when it is unpickled. It is refused.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::files::LayoutFile;
use deltachain::tensor::{Dtype, State, StateWriter, TensorInfo};
use deltachain::{Error, Progress, Result};
use serde::Serialize;

use crate::checksum::adler32;
use crate::compressed::{unzlib, unzstd, zlib, zstd};
use crate::container::{
    Entry, Envelope, create_directory, create_parent, finish_directory, write as write_file,
    write_text,
};
use crate::refusal::{malformed, mismatch, unsupported, wrong_base};
use crate::step::{Export, Import, Step};
use crate::tensors::{bytes_of, change_tensors, each, xor};

const INDEX: &str = "model.safetensors.index.json";
const ZSTD_BEGIN: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const PICKLE_BEGIN: &[u8] = b"ARC3_ENVELOPE\0";
/// The zstd program's default level, which ARC uses.
const LEVEL: i32 = 3;

/// Compression of the exclusive or.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `arc_v1`: zlib.
    V1,
    /// `arc_v2`: zstd.
    V2,
}

pub(crate) fn apply(
    delta: &Path,
    base: &dyn State,
    out: &dyn StateWriter,
    progress: &dyn Progress,
) -> Result<Import> {
    let envelope = Envelope::open(delta)?;
    check_names(&envelope, base)?;
    let versions = change_tensors(base, out, progress, |info, bytes| {
        restore(&envelope, info, bytes)
    })?;
    let format = if versions.contains(&Version::V1) {
        "ARC 1, zlib"
    } else {
        "ARC 2, zstd"
    };
    let remark = "every tensor has the Adler-32 that the file promises: 32 bits, which detect \
                  damage but no attack";
    Ok(Import {
        format: format.to_owned(),
        version: None,
        base_version: None,
        remarks: vec![remark.to_owned()],
    })
}

/// Checks that the file has the tensors of the base, and a checksum of each.
fn check_names(envelope: &Envelope, base: &dyn State) -> Result<()> {
    let names: Vec<&str> = base.tensors().iter().map(TensorInfo::name).collect();
    if let Some(name) = envelope
        .names()
        .find(|name| names.binary_search(name).is_err())
    {
        return Err(wrong_base("the base does not have this tensor").of_tensor(name));
    }
    for name in names {
        if envelope.find(name).is_none() {
            return Err(
                wrong_base("the delta does not have this tensor of the base").of_tensor(name),
            );
        }
        if !envelope.metadata.contains_key(name) {
            return Err(malformed("the file has no checksum of the tensor").of_tensor(name));
        }
    }
    Ok(())
}

/// Turns the bytes of a tensor into the new ones, and checks them. Returns how the difference was
/// compressed.
fn restore(envelope: &Envelope, info: &TensorInfo, bytes: &mut [u8]) -> Result<Version> {
    let number = envelope
        .find(info.name())
        .ok_or_else(|| wrong_base("the delta does not have this tensor"))?;
    let blob = envelope.blob(number)?;
    let version = if blob.starts_with(PICKLE_BEGIN) {
        return Err(unsupported(
            "version 3 of ARC holds pickled data, which can run any program when it is read; use \
             version 2",
        ));
    } else if blob.starts_with(&ZSTD_BEGIN) {
        let others = unzstd(&blob, bytes.len())?;
        xor(bytes, &others);
        Version::V2
    } else {
        let others = unzlib(&blob, bytes.len())?;
        xor(bytes, &others);
        Version::V1
    };
    if envelope.metadata[info.name()] != adler32(bytes).to_string() {
        return Err(mismatch("Adler-32"));
    }
    Ok(version)
}

/// A tensor as it stands in the file.
struct Coded {
    bytes: Vec<u8>,
    checksum: String,
}

#[derive(Serialize)]
struct Index<'a> {
    metadata: BTreeMap<&'a str, u64>,
    weight_map: BTreeMap<&'a str, &'a str>,
}

pub(crate) fn write(
    version: Version,
    base: &dyn State,
    target: &dyn State,
    step: &Step<'_>,
    directory: &Path,
    progress: &dyn Progress,
) -> Result<Export> {
    let coded = each(target.tensors().len(), |tensor| {
        let info = &target.tensors()[tensor];
        let (mut difference, new) = (bytes_of(base, tensor)?, bytes_of(target, tensor)?);
        xor(&mut difference, &new);
        let blob = match version {
            Version::V1 => zlib(&difference)?,
            Version::V2 => zstd(&difference, LEVEL)?,
        };
        progress.advance(info.bytes())?;
        let checksum = adler32(&new).to_string();
        Ok((
            info.name(),
            Coded {
                bytes: blob,
                checksum,
            },
        ))
    })?;
    let mut coded: BTreeMap<&str, Coded> = coded.into_iter().collect();

    let path = directory.join(format!("step_{:06}", step.number));
    // ARC has no folders.
    let layout = step
        .layout
        .filter(|layout| layout.is_directory() && layout.folders().is_empty());
    let files: &[LayoutFile] = layout.map_or(&[], |layout| layout.files());
    if files.is_empty() {
        let path = path.with_extension("safetensors");
        create_parent(&path, base)?;
        let names = target.tensors().iter().map(TensorInfo::name);
        let bytes = write_tensors(&path, names, &mut coded)?;
        return Ok(Export { path, bytes });
    }
    let begun = create_directory(&path, base)?;
    let bytes = write_files(&begun, files, &mut coded)?;
    finish_directory(&begun, &path)?;
    Ok(Export { path, bytes })
}

/// Writes a file of these tensors, which `coded` has no more then. Returns its length.
fn write_tensors<'a>(
    path: &Path,
    names: impl Iterator<Item = &'a str>,
    coded: &mut BTreeMap<&str, Coded>,
) -> Result<u64> {
    let mut entries = Vec::new();
    let mut checksums = BTreeMap::new();
    for name in names {
        let tensor = coded.remove(name);
        let Coded { bytes, checksum } = tensor.ok_or_else(|| {
            Error::usage("the delta does not have the layout of the base").of_tensor(name)
        })?;
        entries.push(Entry {
            name: name.to_owned(),
            dtype: Dtype::U8,
            bytes,
        });
        checksums.insert(name.to_owned(), checksum);
    }
    write_file(path, &checksums, &mut entries)
}

/// Writes the files of a layout and their index. Returns their bytes.
fn write_files(
    directory: &Path,
    files: &[LayoutFile],
    coded: &mut BTreeMap<&str, Coded>,
) -> Result<u64> {
    let mut bytes = 0;
    let mut weight_map = BTreeMap::new();
    for file in files {
        let name = file.name.as_deref().unwrap_or_default();
        let tensors = file.tensors.iter().map(String::as_str);
        bytes += write_tensors(&directory.join(name), tensors, coded)?;
        weight_map.extend(file.tensors.iter().map(|tensor| (tensor.as_str(), name)));
    }
    let index = serde_json::to_vec_pretty(&Index {
        metadata: [("total_size", bytes)].into(),
        weight_map,
    });
    bytes += write_text(
        &directory.join(INDEX),
        &index.map_err(|error| Error::usage(error.to_string()))?,
    )?;
    Ok(bytes)
}
