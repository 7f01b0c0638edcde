//! `model.safetensors.index.json`, the file that says which shard of a folder holds which tensor.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::files::LayoutFile;
use crate::files::disk::reading;
use crate::files::file_source::FileSource;
use crate::files::header::{MAX_HEADER_BYTES, UniqueStrings};
use crate::json::printable;
use crate::layout::FILE_SUFFIX;
use crate::plain_name::flaw_of_plain_name;

/// Suffix of the names of indexes.
pub(super) const INDEX_SUFFIX: &str = ".safetensors.index.json";
/// Name of the index of files that are not numbered.
pub(super) const INDEX_NAME: &str = "model.safetensors.index.json";

/// The name of the index of a folder with these files, which are named without the folder:
/// `STEM.safetensors.index.json` if all have names like `STEM-00001-of-00002.safetensors`. That is
/// where libraries look for it.
pub(super) fn index_name<'a>(mut files: impl Iterator<Item = &'a str>) -> String {
    let first = files.next().and_then(stem);
    let stem = first.filter(|first| files.all(|file| stem(file) == Some(first)));
    let name = stem.map(|stem| format!("{stem}{INDEX_SUFFIX}"));
    name.filter(|name| flaw_of_plain_name(name).is_none())
        .unwrap_or_else(|| INDEX_NAME.to_owned())
}

/// The stem of the name of a numbered file.
pub(super) fn stem(file: &str) -> Option<&str> {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (numbered, _) = file
        .strip_suffix(FILE_SUFFIX)?
        .rsplit_once("-of-")
        .filter(|(_, count)| is_number(count))?;
    numbered
        .rsplit_once('-')
        .filter(|(_, number)| is_number(number))
        .map(|(stem, _)| stem)
}

/// The index of a folder.
#[derive(Debug)]
pub(super) struct FolderIndex {
    pub(super) source: FileSource,
    /// The bytes of the file.
    pub(super) bytes: Vec<u8>,
    pub(super) metadata: BTreeMap<String, Value>,
    /// File name of each tensor.
    pub(super) weight_map: BTreeMap<String, String>,
}

impl FolderIndex {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        /// The keys of the file that are read; other keys are ignored.
        #[derive(Deserialize)]
        struct IndexJson {
            metadata: Option<BTreeMap<String, Value>>,
            weight_map: UniqueStrings,
        }

        let mut bytes = Vec::new();
        let source = FileSource::open(path)?;
        source
            .file()
            .take(MAX_HEADER_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| reading(error, path))?;
        if bytes.len() as u64 > MAX_HEADER_BYTES {
            return Err(
                Error::usage(format!("the index is longer than {MAX_HEADER_BYTES} bytes"))
                    .in_file(path),
            );
        }
        let json: IndexJson = serde_json::from_slice(&bytes).map_err(|error| {
            Error::usage(format!(
                "not an index of safetensors files: {}",
                printable(&error)
            ))
            .in_file(path)
        })?;
        Ok(Self {
            source,
            bytes,
            metadata: json.metadata.unwrap_or_default(),
            weight_map: json.weight_map.0,
        })
    }
}

/// The text of the index of a folder with these files: that of the base's index if the content is
/// the same, otherwise a new one with the base's metadata. `bytes` is the size of the tensors;
/// `base` is the base's index of this folder, and the size of its tensors there.
pub(super) fn index_text(
    folder: &str,
    files: &[&LayoutFile],
    bytes: u64,
    base: Option<(&FolderIndex, u64)>,
) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct IndexJson<'a> {
        metadata: BTreeMap<&'a str, Value>,
        weight_map: BTreeMap<&'a str, &'a str>,
    }

    let mut weight_map = BTreeMap::new();
    for file in files {
        let name = file
            .name
            .as_deref()
            .and_then(|name| name.strip_prefix(folder))
            .unwrap_or_default();
        weight_map.extend(
            file.tensors
                .iter()
                .filter_map(|tensor| Some((tensor.strip_prefix(folder)?, name))),
        );
    }
    let mut metadata = BTreeMap::new();
    if let Some((index, base)) = base {
        let theirs = index
            .weight_map
            .iter()
            .map(|(tensor, file)| (tensor.as_str(), file.as_str()));
        if weight_map
            .iter()
            .map(|(tensor, file)| (*tensor, *file))
            .eq(theirs)
            && base == bytes
        {
            return Ok(index.bytes.clone());
        }
        metadata.extend(
            index
                .metadata
                .iter()
                .map(|(key, value)| (key.as_str(), value.clone())),
        );
    }
    metadata.insert("total_size", Value::from(bytes));
    let mut text = serde_json::to_vec_pretty(&IndexJson {
        metadata,
        weight_map,
    })?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_files_give_the_index_its_name() {
        let name = |files: &[&str]| index_name(files.iter().copied());
        let numbered =
            |stem: &str| [1, 2].map(|number| format!("{stem}-{number:05}-of-00002.safetensors"));
        for stem in [
            "model",
            "diffusion_pytorch_model",
            "a-b",
            "x-00001-of-00002",
        ] {
            let files = numbered(stem);
            assert_eq!(
                name(&files.each_ref().map(String::as_str)),
                format!("{stem}.safetensors.index.json")
            );
        }
        let [first, second] = numbered("model");
        for files in [
            &[][..],
            &["a.safetensors", "b.safetensors"],
            &[&first, "x-00002-of-00002.safetensors"],
            &[&first, &second, "x.safetensors"],
            &["m-0001-of-0002.safetensors"],
            &["m-00001-of-00002.bin"],
            &["00001-of-00002.safetensors"],
            &["-00001-of-00002.safetensors"],
            &["con-00001-of-00002.safetensors"],
            &["m-0000x-of-00002.safetensors"],
        ] {
            assert_eq!(name(files), INDEX_NAME, "{files:?}");
        }
    }
}
