//! The directory in which a subscriber keeps a model, so that a crash at any instant leaves one whole version in it:
//!
//! ```text
//! current   -> versions/VERSION-COMMIT/model     a symbolic link, replaced by renaming another one: the switch
//! versions/VERSION-COMMIT/held.json              what the version is
//! versions/VERSION-COMMIT/model/                 safetensors files, index, other files
//! cache/DIGEST.dcf                               links
//! lock                                           held by the one process that writes here
//! .tmp-*                                         unfinished, removed when the directory is opened
//! ```

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use deltachain::{Error, Result};
use tempfile::TempDir;

use crate::following::held::Record;

/// What the names of unfinished things begin with.
pub(crate) const UNFINISHED: &str = ".tmp-";

const CURRENT: &str = "current";
const VERSIONS: &str = "versions";
const MODEL: &str = "model";
const RECORD: &str = "held.json";

/// A directory that is locked for this process.
#[derive(Debug)]
pub(crate) struct ModelDirectory {
    path: PathBuf,
    /// Unlocked when it is closed.
    _lock: File,
}

/// The version that `current` leads to.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) record: Record,
    pub(crate) model: PathBuf,
}

/// A version that is being made.
#[derive(Debug)]
pub(crate) struct Unfinished(TempDir);

impl ModelDirectory {
    /// Makes the directory if there is none, locks it, and removes what has not been finished.
    ///
    /// # Errors
    /// USAGE if another process has locked it, or if it is something else; IO.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path.join(VERSIONS)).map_err(|error| Error::io("creating", error).in_file(path))?;
        let lock = File::create(path.join("lock")).map_err(|error| Error::io("locking", error).in_file(path))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::usage("another process keeps a model in this directory").in_file(path),
            TryLockError::Error(error) => Error::io("locking", error).in_file(path),
        })?;
        let current = path.join(CURRENT);
        if fs::symlink_metadata(&current).is_ok_and(|found| !found.is_symlink()) {
            return Err(Error::usage("not a symbolic link, so it is not replaced").in_file(current));
        }
        remove_unfinished(path)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The directory of fetched files.
    pub(crate) fn cache(&self) -> PathBuf {
        self.path.join("cache")
    }

    /// The version that `current` leads to, if any.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub(crate) fn current(&self) -> Result<Option<Current>> {
        let Some(version) = self.current_version()? else { return Ok(None) };
        let path = version.join(RECORD);
        let bytes = fs::read(&path).map_err(|error| Error::io("reading", error).in_file(&path))?;
        let record = Record::parse(&bytes).map_err(|error| error.in_file(&path))?;
        Ok(Some(Current { record, model: version.join(MODEL) }))
    }

    /// The directory of the version that `current` leads to.
    fn current_version(&self) -> Result<Option<PathBuf>> {
        let current = self.path.join(CURRENT);
        let target = match fs::read_link(&current) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            target => target.map_err(|error| Error::io("reading", error).in_file(&current))?,
        };
        match target.components().collect::<Vec<_>>()[..] {
            [Component::Normal(versions), Component::Normal(name), Component::Normal(model)]
                if versions == VERSIONS && model == MODEL =>
            {
                Ok(Some(self.path.join(VERSIONS).join(name)))
            }
            _ => Err(Error::usage("the link does not lead to a version in this directory").in_file(current)),
        }
    }

    /// Removes all versions but that which `current` leads to, and begins a new one.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn begin(&self) -> Result<Unfinished> {
        // Where it leads is of no interest if it leads nowhere.
        let current = self.current_version().ok().flatten();
        let versions = self.path.join(VERSIONS);
        let failed = |error| Error::io("removing old versions", error).in_file(&versions);
        for entry in fs::read_dir(&versions).map_err(failed)? {
            let version = entry.map_err(failed)?.path();
            if Some(&version) != current.as_ref() {
                fs::remove_dir_all(version).map_err(failed)?;
            }
        }
        let made = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(&self.path);
        let unfinished =
            Unfinished(made.map_err(|error| Error::io("creating a directory", error).in_file(&self.path))?);
        let version = unfinished.version();
        fs::create_dir(&version).map_err(|error| Error::io("creating", error).in_file(version))?;
        Ok(unfinished)
    }

    /// Puts a version that has been made among the others. All files of its model have reached the disk.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn complete(&self, unfinished: &Unfinished, record: Record) -> Result<Current> {
        let made = unfinished.version();
        let writing = |error| Error::io("writing", error).in_file(&made);
        let bytes = record.to_bytes()?;
        let written = File::create_new(made.join(RECORD))
            .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()));
        written.and_then(|()| sync_directory(&made)).map_err(writing)?;
        let versions = self.path.join(VERSIONS);
        let name = record.directory_name();
        // The version that `current` leads to may be this one, and be damaged or lack shards.
        let mut version = versions.join(&name);
        if fs::symlink_metadata(&version).is_ok() {
            version = versions.join(name + "-again");
        }
        fs::rename(&made, &version).and_then(|()| sync_directory(&versions)).map_err(writing)?;
        Ok(Current { record, model: version.join(MODEL) })
    }

    /// Lets `current` lead to a version that is complete.
    ///
    /// # Errors
    /// USAGE if the version is not there any more; IO.
    pub(crate) fn switch(&self, model: &Path) -> Result<()> {
        let name = model.parent().and_then(Path::file_name).filter(|_| model.is_dir());
        let name =
            name.ok_or_else(|| Error::usage("the version has been removed since it was prepared").in_file(model))?;
        let current = self.path.join(CURRENT);
        let switching = |error| Error::io("switching", error).in_file(&current);
        let place = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(&self.path).map_err(switching)?;
        let link = place.path().join(CURRENT);
        let target = [VERSIONS.as_ref(), name, OsStr::new(MODEL)].iter().collect::<PathBuf>();
        symbolic_link(&target, &link).map_err(switching)?;
        fs::rename(&link, &current).and_then(|()| sync_directory(&self.path)).map_err(switching)
    }
}

impl Unfinished {
    /// Where the model is to be made.
    pub(crate) fn model(&self) -> PathBuf {
        self.version().join(MODEL)
    }

    fn version(&self) -> PathBuf {
        self.0.path().join("version")
    }
}

/// Removes what a process left behind that was killed.
pub(crate) fn remove_unfinished(directory: &Path) -> Result<()> {
    let failed = |error| Error::io("removing what is unfinished", error).in_file(directory);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            let is_directory = entry.file_type().map_err(failed)?.is_dir();
            let removed = if is_directory { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
            removed.map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn symbolic_link(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symbolic_link(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_dir(target, link)
}

/// A directory that is removed with everything in it when this is dropped.
pub(crate) fn temporary_directory() -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("deltachain-").tempdir();
    made.map_err(|error| Error::io("creating a temporary directory", error))
}

/// Lets the names in a directory reach the disk, where a directory can be opened.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}
