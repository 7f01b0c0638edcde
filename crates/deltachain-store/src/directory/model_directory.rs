//! The directory in which a subscriber keeps a model, so that a crash at any instant leaves one
//! whole version in it:
//!
//! ```text
//! deltachain.directory   marks the directory as managed; written first
//! current                -> versions/VERSION-COMMIT/model: a symbolic link; renaming another one over it is the switch
//! versions/              the versions
//! cache/DIGEST.dcf       links
//! trust.json             trusted keys and newest signed head, if only signed versions are taken
//! lock                   locked by the one process that writes here
//! skip-N/                an older version that a publisher keeps: a directory of the same kind
//! .tmp-deltachain-*      unfinished, removed when the directory is opened
//! ```
//!
//! A directory that has no marker and is not empty is foreign. In a managed directory, other files
//! than these are foreign, and stay.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use deltachain::{Error, Result};

use crate::directory::held::HeldVersion;
use crate::directory::lock::{LOCK, open_lock};
use crate::directory::marker::DirectoryKind;
use crate::directory::names::{is_version, make_real_directory, version_names};
use crate::directory::own::{own, sync_directory, write_own};
use crate::directory::unfinished::{self, UnfinishedDirectory};
use crate::directory::versions::{self, MODEL, RECORD, files_of, held_in};
use crate::observer::Observer;
use crate::there::if_there;

pub(crate) const CURRENT: &str = "current";
pub(crate) const VERSIONS: &str = "versions";
const REMOVE_CURRENT: &str =
    "remove it: `pull` and `follow` recreate the link, and need the name `current` for it";
const CACHE: &str = "cache";

/// A directory that is locked for this process.
#[derive(Debug)]
pub(crate) struct ModelDirectory {
    pub(crate) path: PathBuf,
    /// Closing the file unlocks the directory.
    lock: File,
    /// Foreign files with names like ours that were found when the directory was opened.
    foreign: Vec<PathBuf>,
    /// The foreign files that have been reported to the observer.
    told: Mutex<BTreeSet<PathBuf>>,
}

impl ModelDirectory {
    /// Creates the directory if it does not exist, locks it, and removes unfinished files.
    ///
    /// # Errors
    /// USAGE if another process holds the lock, or if the directory is foreign, which is then not
    /// touched; IO, also if a foreign file is in the place of `current`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        check_current(path)?;
        own(path, DirectoryKind::Model)?;
        let lock = open_lock(&path.join(LOCK))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                Error::in_use("another process manages this directory").in_file(path)
            }
            TryLockError::Error(error) => Error::io("locking", error).in_file(path),
        })?;
        make_real_directory(&path.join(VERSIONS))?;
        let failed = |error| Error::io("removing unfinished files", error).in_file(path);
        let foreign = unfinished::remove(path).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            lock,
            foreign,
            told: Mutex::default(),
        })
    }

    /// True if this is still the directory that was opened, and not a new one in its place.
    pub(crate) fn is_there(&self) -> bool {
        let lock = self.path.join(LOCK);
        fs::symlink_metadata(lock).is_ok_and(|found| {
            self.lock
                .metadata()
                .is_ok_and(|ours| is_same(&found, &ours))
        })
    }

    /// The directory of downloaded files.
    pub(crate) fn cache(&self) -> PathBuf {
        self.path.join(CACHE)
    }

    /// Removes all versions except the target of `current`, and begins a new one. Returns an
    /// unfinished directory, and in it the directory of the new version. Foreign files stay, and
    /// are reported to the observer.
    ///
    /// # Errors
    /// IO, also if a symbolic link is in the place of one of our directories.
    pub(crate) fn begin(&self, observer: &dyn Observer) -> Result<(UnfinishedDirectory, PathBuf)> {
        let versions = self.path.join(VERSIONS);
        make_real_directory(&versions)?;
        // A dangling link is ignored.
        let current = target_of_current(&self.path).ok().flatten();
        let failed = |error| Error::io("removing old versions", error).in_file(&versions);
        let mut foreign = self.foreign.clone();
        for entry in fs::read_dir(&versions).map_err(failed)? {
            let (name, version) = entry
                .map(|entry| (entry.file_name(), entry.path()))
                .map_err(failed)?;
            let is_gone = Some(&name) == current.as_ref()
                || (is_version(&name) && versions::remove(&version).map_err(failed)?);
            if !is_gone {
                foreign.push(version);
            }
        }
        self.tell(foreign, observer);
        let made = UnfinishedDirectory::new(&self.path);
        let made =
            made.map_err(|error| Error::io("creating a directory", error).in_file(&self.path))?;
        let version = made.path().join("version");
        fs::create_dir(&version).map_err(|error| Error::io("creating", error).in_file(&version))?;
        Ok((made, version))
    }

    /// Reports each foreign file that stays to the observer, once.
    fn tell(&self, foreign: Vec<PathBuf>, observer: &dyn Observer) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for path in foreign {
            let text = format!(
                "{:?} is kept, because deltachain may not have made it",
                path.to_string_lossy()
            );
            if told.insert(path) {
                observer.remark(&text);
            }
        }
    }

    /// Moves a finished version to the others. All files of its model must be on disk already.
    ///
    /// # Errors
    /// IO, also if all names for it are taken.
    pub(crate) fn complete(&self, made: &Path, held: HeldVersion) -> Result<HeldVersion> {
        let writing = |error| Error::io("writing", error).in_file(made);
        let mut held = HeldVersion {
            files: files_of(&made.join(MODEL)).map_err(writing)?,
            ..held
        };
        write_own(made, RECORD, &held.to_bytes()?).map_err(writing)?;
        let versions = self.path.join(VERSIONS);
        make_real_directory(&versions)?;
        // `current` may lead to a directory of this version that is damaged or lacks shards.
        let is_free = |version: &PathBuf| fs::symlink_metadata(version).is_err();
        let version = version_names(&held.directory_name())
            .map(|name| versions.join(name))
            .find(is_free);
        let taken = || {
            let text = "other files have all the names that the new version could have";
            Error::unusable(
                text,
                "move the files that deltachain did not make out of the directory",
            )
        };
        let version = version.ok_or_else(|| taken().in_file(&versions))?;
        fs::rename(made, &version)
            .and_then(|()| sync_directory(&versions))
            .map_err(writing)?;
        held.directory = version.join(MODEL);
        Ok(held)
    }

    /// Points `current` to a complete version.
    ///
    /// # Errors
    /// IO, also if the version has been removed, or if `current` is foreign.
    pub(crate) fn switch(&self, model: &Path) -> Result<()> {
        let current = self.path.join(CURRENT);
        let switching = |error| Error::io("switching", error).in_file(&current);
        if !self.is_there() {
            return Err(switching(io::ErrorKind::NotFound.into()));
        }
        check_current(&self.path)?;
        if !model.is_dir() {
            return Err(prepared_was_removed(model));
        }
        let name = model
            .parent()
            .and_then(Path::file_name)
            .ok_or_else(|| prepared_was_removed(model))?;
        let place = UnfinishedDirectory::new(&self.path).map_err(switching)?;
        let link = place.path().join(CURRENT);
        let target = [VERSIONS.as_ref(), name, OsStr::new(MODEL)]
            .iter()
            .collect::<PathBuf>();
        symbolic_link(&target, &link).map_err(switching)?;
        fs::rename(&link, &current)
            .and_then(|()| sync_directory(&self.path))
            .map_err(switching)
    }
}

fn prepared_was_removed(model: &Path) -> Error {
    let text = "the prepared version has been removed, by a later `prepare` or by another program";
    Error::unusable(text, "prepare the version again").in_file(model)
}

/// Reads the record of the version that `current` in a directory leads to; `None` if there is no
/// `current`.
///
/// # Errors
/// IO, also if `current` is not a link to a version, or the record is damaged.
pub(crate) fn current_in(directory: &Path) -> Result<Option<HeldVersion>> {
    let Some(name) = target_of_current(directory)? else {
        return Ok(None);
    };
    held_in(&directory.join(VERSIONS).join(name)).map(Some)
}

/// Returns the name of the version's directory that `current` leads to.
pub(crate) fn target_of_current(directory: &Path) -> Result<Option<OsString>> {
    let current = directory.join(CURRENT);
    let reading = |error| Error::io("reading", error).in_file(&current);
    let Some(found) = if_there(fs::symlink_metadata(&current)).map_err(reading)? else {
        return Ok(None);
    };
    if !found.is_symlink() {
        let text = "not a symbolic link to a version, as after a copy that follows links";
        return Err(Error::unusable(text, REMOVE_CURRENT).in_file(current));
    }
    let Some(target) = if_there(fs::read_link(&current)).map_err(reading)? else {
        return Ok(None);
    };
    match target.components().collect::<Vec<_>>()[..] {
        [
            Component::Normal(versions),
            Component::Normal(name),
            Component::Normal(model),
        ] if versions == VERSIONS && model == MODEL => Ok(Some(name.to_owned())),
        _ => {
            let text = "the link does not lead to a version in this directory";
            Err(Error::unusable(text, REMOVE_CURRENT).in_file(current))
        }
    }
}

/// Refuses a `current` that another program has made. Only a link to a version in this directory
/// may be replaced.
fn check_current(directory: &Path) -> Result<()> {
    target_of_current(directory).map(drop)
}

#[cfg(unix)]
fn is_same(left: &fs::Metadata, right: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (left.dev(), left.ino()) == (right.dev(), right.ino())
}

#[cfg(not(unix))]
fn is_same(left: &fs::Metadata, right: &fs::Metadata) -> bool {
    left.is_file() && right.is_file()
}

#[cfg(unix)]
fn symbolic_link(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symbolic_link(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_dir(target, link)
}
