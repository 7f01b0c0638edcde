//! `model.safetensors.index.json`, the file that says which shard of a directory holds which tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::files::Layout;
use crate::files::disk::reading;
use crate::files::header::{MAX_HEADER_BYTES, UniqueStrings, printable};
use crate::tensor::{TensorInfo, total_bytes};

/// Name of the file.
pub(super) const INDEX_NAME: &str = "model.safetensors.index.json";

/// The index of a directory.
#[derive(Debug)]
pub(super) struct Index {
    /// As in the file.
    pub(super) bytes: Vec<u8>,
    pub(super) metadata: BTreeMap<String, Value>,
    /// File name of each tensor.
    pub(super) weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        /// What the file holds; keys of others are ignored.
        #[derive(Deserialize)]
        struct IndexJson {
            metadata: Option<BTreeMap<String, Value>>,
            weight_map: UniqueStrings,
        }

        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| reading(error, path))?;
        file.take(MAX_HEADER_BYTES + 1).read_to_end(&mut bytes).map_err(|error| reading(error, path))?;
        if bytes.len() as u64 > MAX_HEADER_BYTES {
            return Err(Error::usage(format!("the index is longer than {MAX_HEADER_BYTES} bytes")).in_file(path));
        }
        let json: IndexJson = serde_json::from_slice(&bytes).map_err(|error| {
            Error::usage(format!("not an index of safetensors files: {}", printable(&error))).in_file(path)
        })?;
        Ok(Self { bytes, metadata: json.metadata.unwrap_or_default(), weight_map: json.weight_map.0 })
    }
}

/// The index of a directory: the base's if that says the same, otherwise a new one with the base's remarks. `base`: its
/// index and its tensors.
pub(super) fn index_text(
    layout: &Layout,
    tensors: &[TensorInfo],
    base: Option<(&Index, &[TensorInfo])>,
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct IndexJson<'a> {
        metadata: BTreeMap<&'a str, Value>,
        weight_map: BTreeMap<&'a str, &'a str>,
    }

    let mut weight_map = BTreeMap::new();
    for file in layout.files() {
        for tensor in &file.tensors {
            weight_map.insert(tensor.as_str(), file.name.as_deref().unwrap_or_default());
        }
    }
    let mut metadata = BTreeMap::new();
    if let Some((index, base)) = base {
        let theirs = index.weight_map.iter().map(|(tensor, file)| (tensor.as_str(), file.as_str()));
        if weight_map.iter().map(|(tensor, file)| (*tensor, *file)).eq(theirs)
            && total_bytes(base) == total_bytes(tensors)
        {
            return Ok(index.bytes.clone());
        }
        metadata.extend(index.metadata.iter().map(|(key, value)| (key.as_str(), value.clone())));
    }
    metadata.insert("total_size", Value::from(total_bytes(tensors)));
    let mut text = serde_json::to_vec_pretty(&IndexJson { metadata, weight_map })?;
    text.push(b'\n');
    Ok(text)
}
