//! Finds folders with the same files of tensors, each of which looks like a model of its own: a
//! directory of steps, or a model with another one in a folder beside its files.

use std::collections::{BTreeMap, BTreeSet};

use crate::plain_name::folder_of;
use crate::tensor::{Dtype, TensorInfo};

/// The tensors of a folder's files: each with the file's name below the folder, and its own name in
/// that file.
type Content<'a> = BTreeSet<(&'a str, TensorOfFile<'a>)>;

/// A tensor, named as in its file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TensorOfFile<'a> {
    name: &'a str,
    dtype: Dtype,
    shape: &'a [u64],
}

/// The files of tensors of a folder.
#[derive(Debug, Default)]
struct Folder<'a> {
    /// The tensors in the folder itself.
    own: Content<'a>,
    /// The tensors in the folder, and in all folders below it.
    all: Content<'a>,
}

/// Finds two folders with the same files of tensors, with the same names, dtypes and shapes:
/// siblings, or a folder and one in it. The directory itself has an empty name; the names of other
/// folders end in `/`. `files` are the names of the files, with the tensors that they hold.
pub(super) fn twin_folders<'a>(
    files: impl Iterator<Item = (&'a str, &'a [(TensorInfo, u64)])>,
) -> Option<(&'a str, &'a str)> {
    let mut folders: BTreeMap<&str, Folder<'_>> = BTreeMap::new();
    for (file, tensors) in files {
        for folder in folders_of(file) {
            let found = folders.entry(folder).or_default();
            let below = &file[folder.len()..];
            let of_file = || tensors.iter().map(|(tensor, _)| (below, tensor_of(tensor)));
            found.all.extend(of_file());
            if folder == folder_of(file) {
                found.own.extend(of_file());
            }
        }
    }
    let mut siblings = BTreeMap::new();
    for (&name, folder) in folders.iter().filter(|(name, _)| !name.is_empty()) {
        let parent = parent_of(name);
        let is_as_parent = folders
            .get(parent)
            .is_some_and(|parent| !parent.own.is_empty() && parent.own == folder.own);
        if is_as_parent {
            return Some((parent, name));
        }
        if folder.all.is_empty() {
            continue;
        }
        if let Some(other) = siblings.insert((parent, &folder.all), name) {
            return Some((other, name));
        }
    }
    None
}

fn tensor_of(tensor: &TensorInfo) -> TensorOfFile<'_> {
    TensorOfFile {
        name: tensor.name(),
        dtype: tensor.dtype(),
        shape: tensor.shape(),
    }
}

/// The folders that a file lies in, from the directory itself down.
fn folders_of(file: &str) -> impl Iterator<Item = &str> {
    let ends = file.match_indices('/').map(|(slash, _)| slash + 1);
    [0].into_iter().chain(ends).map(|end| &file[..end])
}

/// The folder that a folder lies in.
fn parent_of(folder: &str) -> &str {
    folder_of(folder.trim_end_matches('/'))
}
