//! The versions in a subscriber's directory, each in a directory of its own:
//!
//! ```text
//! versions/VERSION-COMMIT/held.json     record of the version
//! versions/VERSION-COMMIT/model/        safetensors files, indexes, other files; some in folders
//! ```
//!
//! Only files and directories that the program has created are removed from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path};

use deltachain::files::SafetensorsState;
use deltachain::{Error, Result};

use crate::directory::held::HeldVersion;
use crate::directory::names::{is_real_directory, is_real_file};
use crate::directory::unfinished::remove_empty;
use crate::there::if_there;

/// Name of the directory of a version's model.
pub(crate) const MODEL: &str = "model";
/// Name of the file with the record of a version.
pub(crate) const RECORD: &str = "held.json";

/// Reads the version in this directory from its `held.json`.
///
/// # Errors
/// IO, also if the record is damaged, or if the directory is a symbolic link.
pub(crate) fn held_in(version: &Path) -> Result<HeldVersion> {
    let missing =
        || Error::io("reading", io::ErrorKind::NotFound.into()).in_file(version.join(RECORD));
    held_if_there(version)?.ok_or_else(missing)
}

/// Same as [`held_in`], but `None` if there is no such version.
pub(crate) fn held_if_there(version: &Path) -> Result<Option<HeldVersion>> {
    if fs::symlink_metadata(version).is_ok_and(|found| found.is_symlink()) {
        let text = "a symbolic link instead of a version's directory";
        return Err(Error::unusable(text, "remove the link").in_file(version));
    }
    let path = version.join(RECORD);
    let bytes =
        if_there(fs::read(&path)).map_err(|error| Error::io("reading", error).in_file(&path))?;
    let held = bytes
        .map(|bytes| HeldVersion::parse(&bytes))
        .transpose()
        .map_err(|error| error.in_file(path))?;
    Ok(held.map(|held| HeldVersion {
        directory: version.join(MODEL),
        ..held
    }))
}

/// Lists the files of a model, with their lengths. The name of a file in a folder is its path below
/// the model, with `/` between the parts.
///
/// # Errors
/// IO.
pub(crate) fn files_of(model: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut files = BTreeMap::new();
    add_files(model, "", &mut files)?;
    Ok(files)
}

fn add_files(directory: &Path, folder: &str, files: &mut BTreeMap<String, u64>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let found = entry.metadata()?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if found.is_dir() {
            add_files(&entry.path(), &format!("{folder}{name}/"), files)?;
        } else if found.is_file() {
            files.insert(format!("{folder}{name}"), found.len());
        }
    }
    Ok(())
}

/// Opens the safetensors files of the version that its record names, and ignores other files beside
/// them.
///
/// # Errors
/// Same errors as [`SafetensorsState::open_files`].
pub(crate) fn open_model(held: &HeldVersion) -> Result<SafetensorsState> {
    let is_of_tensors = |name: &&str| name.ends_with(".safetensors");
    SafetensorsState::open_files(
        &held.directory,
        held.files.keys().map(String::as_str).filter(is_of_tensors),
    )
}

/// Removes a version. Returns false if something stays: foreign files, with the record, so that
/// this can be called again, or a directory whose record cannot be read.
///
/// # Errors
/// IO.
pub(crate) fn remove(version: &Path) -> io::Result<bool> {
    if !is_real_directory(version) {
        return Ok(false);
    }
    let model = version.join(MODEL);
    if !is_real_file(&version.join(RECORD)) {
        return remove_empty(version);
    }
    let Ok(held) = held_in(version) else {
        return Ok(false);
    };
    if is_real_directory(&model) {
        let mut folders = BTreeSet::new();
        'files: for name in held.files.keys().map(Path::new) {
            if !name
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
            {
                continue;
            }
            let mut folder = model.clone();
            for part in name.parent().into_iter().flat_map(Path::components) {
                folder.push(part);
                // Symbolic links are not followed. A missing folder was removed before an
                // interruption.
                if !is_real_directory(&folder) {
                    continue 'files;
                }
                folders.insert(folder.clone());
            }
            let file = model.join(name);
            if is_real_file(&file) {
                fs::remove_file(file)?;
            }
        }
        // In ascending order a folder comes after its parents, so the reverse order removes it
        // first.
        for folder in folders.iter().rev() {
            remove_empty(folder)?;
        }
        if !remove_empty(&model)? {
            return Ok(false);
        }
    }
    let others = fs::read_dir(version)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    if others.iter().any(|name| name != RECORD) {
        return Ok(false);
    }
    fs::remove_file(version.join(RECORD))?;
    remove_empty(version)
}
