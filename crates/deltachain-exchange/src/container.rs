//! safetensors files as an envelope for compressed bytes under the names of tensors, each with a
//! note in `__metadata__`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use deltachain::files::{OutputFile, SafetensorsState};
use deltachain::tensor::{Dtype, State, TensorInfo, find};
use deltachain::{Error, Result};
use serde::Serialize;

use crate::refusal::malformed;
use crate::tensors::bytes_of;

/// The opened files of an envelope; only headers have been read.
#[derive(Debug)]
pub(crate) struct Envelope {
    state: SafetensorsState,
    /// `__metadata__` of all files.
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Envelope {
    /// Opens a file or a directory.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let state = SafetensorsState::open(path)?;
        let notes = state
            .layout()
            .files()
            .iter()
            .flat_map(|file| file.metadata.clone().unwrap_or_default());
        Ok(Self {
            metadata: notes.collect(),
            state,
        })
    }

    /// Returns the names of the entries, ascending.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.state.tensors().iter().map(TensorInfo::name)
    }

    /// Returns the number of the entry with this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        find(self.state.tensors(), name)
    }

    /// Reads an entry, which must have one dimension; returns its dtype and its bytes.
    pub(crate) fn entry(&self, number: usize) -> Result<(Dtype, Vec<u8>)> {
        let info = self
            .state
            .tensors()
            .get(number)
            .filter(|info| info.shape().len() == 1);
        let info = info
            .ok_or_else(|| malformed("an entry of the file does not have exactly one dimension"))?;
        Ok((info.dtype(), bytes_of(&self.state, number)?))
    }

    /// Reads an entry of compressed bytes.
    pub(crate) fn blob(&self, number: usize) -> Result<Vec<u8>> {
        match self.entry(number)? {
            (Dtype::U8, bytes) => Ok(bytes),
            (dtype, _) => Err(malformed(format!(
                "an entry of compressed bytes has the dtype {dtype}"
            ))),
        }
    }
}

/// An entry of one dimension, to be written.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Serialize)]
struct Extent<'a> {
    dtype: &'a str,
    shape: [u64; 1],
    data_offsets: [u64; 2],
}

/// Writes a safetensors file atomically; returns its length. Entries are sorted by dtype, the
/// widest first, and then by name.
pub(crate) fn write(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    entries: &mut [Entry],
) -> Result<u64> {
    entries.sort_by(|left, right| {
        right
            .dtype
            .cmp(&left.dtype)
            .then_with(|| left.name.cmp(&right.name))
    });
    let json = |error: serde_json::Error| Error::usage(error.to_string()).in_file(path);
    let mut header = String::from("{");
    if !metadata.is_empty() {
        header.extend([
            "\"__metadata__\":",
            &serde_json::to_string(metadata).map_err(json)?,
            ",",
        ]);
    }
    let mut end = 0_u64;
    for entry in entries.iter() {
        let (begin, length) = (end, entry.bytes.len() as u64);
        end += length;
        let placed = Extent {
            dtype: entry.dtype.name(),
            shape: [length / (entry.dtype.bits() / 8)],
            data_offsets: [begin, end],
        };
        let (name, placed) = (
            serde_json::to_string(&entry.name),
            serde_json::to_string(&placed),
        );
        header.extend([&name.map_err(json)?, ":", &placed.map_err(json)?, ","]);
    }
    if header.ends_with(',') {
        header.pop();
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut file = OutputFile::create(path, true)?;
    let mut put = |bytes: &[u8]| {
        file.write_all(bytes)
            .map_err(|error| Error::io("writing", error).in_file(path))
    };
    put(&(header.len() as u64).to_le_bytes())?;
    put(header.as_bytes())?;
    entries.iter().try_for_each(|entry| put(&entry.bytes))?;
    file.commit()?;
    Ok(8 + header.len() as u64 + end)
}

/// Writes a text file atomically; returns its length.
pub(crate) fn write_text(path: &Path, text: &[u8]) -> Result<u64> {
    let mut file = OutputFile::create(path, true)?;
    file.write_all(text)
        .map_err(|error| Error::io("writing", error).in_file(path))?;
    file.commit()?;
    Ok(text.len() as u64)
}

/// Creates the hidden directory that will become that of a step; call it after the base has been
/// read. It replaces files that an interrupted run has left there, and nothing else: the base may
/// be where the step will be.
pub(crate) fn create_directory(path: &Path, base: &dyn State) -> Result<PathBuf> {
    create_parent(path, base)?;
    let begun = path.with_file_name(format!(
        ".{}",
        path.file_name().unwrap_or_default().display()
    ));
    std::fs::create_dir_all(&begun)
        .map_err(|error| Error::io("creating", error).in_file(&begun))?;
    Ok(begun)
}

/// Makes the complete directory of a step visible.
pub(crate) fn finish_directory(begun: &Path, path: &Path) -> Result<()> {
    std::fs::rename(begun, path).map_err(|error| Error::io("writing", error).in_file(path))
}

/// Refuses a step that exists, and creates its parent directory; call it after the base has been
/// read.
pub(crate) fn create_parent(path: &Path, base: &dyn State) -> Result<()> {
    base.check_unchanged()?;
    if std::fs::symlink_metadata(path).is_ok() {
        return Err(Error::usage("the step exists already").in_file(path));
    }
    match path.parent() {
        Some(parent) => std::fs::create_dir_all(parent)
            .map_err(|error| Error::io("creating", error).in_file(parent)),
        None => Ok(()),
    }
}
