//! The versions in a subscriber's directory, each in one of its own:
//!
//! ```text
//! versions/VERSION-COMMIT/held.json     what the version is
//! versions/VERSION-COMMIT/model/        safetensors files, index, other files
//! ```
//!
//! Of these only what the program has made is removed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path};

use deltachain::{Error, Result};

use crate::directory::names::{is_real_directory, is_real_file};
use crate::directory::unfinished::remove_empty;
use crate::following::held::Record;

/// The name of a version's model.
pub(crate) const MODEL: &str = "model";
/// The name of what says what a version is.
pub(crate) const RECORD: &str = "held.json";

/// What the version in this directory is.
///
/// # Errors
/// USAGE if that cannot be read, or if the directory is a symbolic link; IO.
pub(crate) fn record_of(version: &Path) -> Result<Record> {
    if fs::symlink_metadata(version).is_ok_and(|found| found.is_symlink()) {
        return Err(Error::usage("a symbolic link in the place of a version").in_file(version));
    }
    let path = version.join(RECORD);
    let bytes = fs::read(&path).map_err(|error| Error::io("reading", error).in_file(&path))?;
    Record::parse(&bytes).map_err(|error| error.in_file(path))
}

/// The files of a model and their lengths.
///
/// # Errors
/// IO.
pub(crate) fn files_of(model: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(model)? {
        let entry = entry?;
        let found = entry.metadata()?;
        if let (true, Ok(name)) = (found.is_file(), entry.file_name().into_string()) {
            files.insert(name, found.len());
        }
    }
    Ok(files)
}

/// Removes a version. Whether it is gone; otherwise something in it is not ours, and that stays, with the record, so that this
/// can be called again.
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
    let Ok(record) = record_of(version) else { return Ok(false) };
    if is_real_directory(&model) {
        let files: Vec<OsString> = match record.files {
            Some(files) => files.into_keys().map(OsString::from).collect(),
            // Programs before this one did not list them, and put nothing but files there.
            None => fs::read_dir(&model)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?,
        };
        for name in &files {
            let is_name = matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
            let file = model.join(name);
            if is_name && is_real_file(&file) {
                fs::remove_file(file)?;
            }
        }
        if !remove_empty(&model)? {
            return Ok(false);
        }
    }
    let others = fs::read_dir(version)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    if others.iter().any(|name| name != RECORD) {
        return Ok(false);
    }
    fs::remove_file(version.join(RECORD))?;
    remove_empty(version)
}
