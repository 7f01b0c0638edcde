//! The indexes and other files that a directory gets beside its files of tensors, and their
//! folders.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::files::disk::{check_directory, check_file};
use crate::files::weight_map::{INDEX_SUFFIX, index_name};
use crate::files::{Layout, LayoutFile, SafetensorsState};
use crate::plain_name::{fold_case, folder_of, lies_in};

/// Refuses an output that may not or cannot be replaced.
pub(super) fn check_out(
    out: &Path,
    layout: &Layout,
    other_files: &[(OsString, PathBuf)],
    replace: bool,
) -> Result<()> {
    if !layout.is_directory() {
        return check_file(out, replace);
    }
    let names = layout.files().iter().filter_map(|file| file.name.clone());
    let others = other_files
        .iter()
        .map(|(name, _)| name.to_string_lossy().into_owned());
    check_directory(out, &names.chain(others).collect(), replace)
}

/// The folder of a path name and the folders that it lies in, with the `/` at their ends.
pub(super) fn folders_of(name: &str) -> Vec<String> {
    name.match_indices('/')
        .map(|(end, _)| name[..=end].to_owned())
        .collect()
}

/// Names of the indexes of a directory, and the files that each index lists. A folder gets an index
/// if it has several files, or if the base has an index there.
pub(super) fn indexed<'a>(
    layout: &'a Layout,
    base: Option<&SafetensorsState>,
) -> BTreeMap<String, Vec<&'a LayoutFile>> {
    let mut folders: BTreeMap<&str, Vec<&LayoutFile>> = BTreeMap::new();
    layout
        .files()
        .iter()
        .for_each(|file| folders.entry(file.folder()).or_default().push(file));
    let mut indexed = BTreeMap::new();
    for (folder, files) in folders {
        if files.len() > 1 || base.is_some_and(|base| base.index(folder).is_some()) {
            let names = files
                .iter()
                .filter_map(|file| file.name.as_deref()?.strip_prefix(folder));
            indexed.insert(format!("{folder}{}", index_name(names)), files);
        }
    }
    indexed
}

/// The other files of the base whose names do not collide with a directory's own files. Names that
/// differ only in case collide, because some file systems treat them as one.
pub(super) fn others(
    base: &SafetensorsState,
    layout: &Layout,
    indexed: &BTreeMap<String, Vec<&LayoutFile>>,
) -> Vec<(OsString, PathBuf)> {
    let own: BTreeSet<String> = layout
        .files()
        .iter()
        .flat_map(|file| &file.name)
        .chain(indexed.keys())
        .map(|name| fold_case(name))
        .collect();
    let folders: BTreeSet<&str> = indexed.keys().map(|name| folder_of(name)).collect();
    let is_free = |name: &OsString| {
        let name = name.to_string_lossy();
        // With two indexes in a folder, a reader could not tell which one applies.
        if name.ends_with(INDEX_SUFFIX) && folders.contains(folder_of(&name)) {
            return false;
        }
        let name = fold_case(&name);
        !own.contains(&name)
            && !own
                .iter()
                .any(|own| lies_in(own, &name) || lies_in(&name, own))
    };
    base.other_paths()
        .filter(|(name, _)| is_free(name))
        .map(|(name, path)| (name.clone(), path))
        .collect()
}
