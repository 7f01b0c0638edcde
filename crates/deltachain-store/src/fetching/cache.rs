//! Downloaded files of a chain, in a directory of their own: `DIGEST.dcf`, as in the store.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use deltachain::chain::FileReference;
use deltachain::tensor::Digest;
use deltachain::{Error, FileSource, Result};
use tempfile::NamedTempFile;

use crate::directory::names::{is_link, is_real_file, make_real_directory};
use crate::directory::unfinished;

/// Downloaded files. A file gets its name after its digest was verified. Files are not synced to
/// disk, so a crash may damage one: the digest is verified again when the file is used.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    directory: PathBuf,
    /// Maximum number of bytes to keep.
    limit: u64,
}

/// Reads a file and returns its digest and length.
pub(crate) fn hashed(path: &Path) -> io::Result<FileReference> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(FileReference {
        digest: Digest(*hasher.finalize().as_bytes()),
        size: hasher.count(),
    })
}

impl Cache {
    /// Opens a cache in a directory of the program. Creates the directory if it does not exist, and
    /// removes unfinished files.
    pub(crate) fn open(directory: PathBuf, limit: u64) -> Result<Self> {
        make_real_directory(&directory)?;
        let failed = |error| Error::io("removing unfinished files", error).in_file(&directory);
        unfinished::remove(&directory).map_err(failed)?;
        Ok(Self { directory, limit })
    }

    fn path(&self, file: &FileReference) -> PathBuf {
        self.directory.join(format!("{}.dcf", file.digest))
    }

    /// True if the file exists and has the right length; its bytes are not read.
    pub(crate) fn has(&self, file: &FileReference) -> bool {
        fs::symlink_metadata(self.path(file))
            .is_ok_and(|found| found.is_file() && found.len() == file.size)
    }

    /// Creates a file for a download.
    pub(crate) fn create(&self) -> Result<NamedTempFile> {
        make_real_directory(&self.directory)?;
        unfinished::file(&self.directory)
            .map_err(|error| Error::io("creating a file", error).in_file(&self.directory))
    }

    /// Moves a file whose digest was verified into the cache.
    pub(crate) fn keep(&self, fetched: NamedTempFile, file: &FileReference) -> Result<()> {
        let path = self.path(file);
        if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
            let text = "not a regular file, so the cache does not replace it";
            return Err(Error::unusable(text, "remove it").in_file(path));
        }
        let kept = fetched.persist(&path).map(drop);
        kept.map_err(|failed| Error::io("renaming", failed.error).in_file(path))
    }

    /// Copies a file that is known to have this digest into the cache.
    pub(crate) fn add(&self, from: &Path, file: &FileReference) -> Result<()> {
        let mut copy = self.create()?;
        let copied = File::open(from).and_then(|mut from| io::copy(&mut from, copy.as_file_mut()));
        copied.map_err(|error| Error::io("copying", error).in_file(from))?;
        self.keep(copy, file)
    }

    /// Opens the file, or returns `None` if it is missing or has another digest.
    pub(crate) fn find(&self, file: &FileReference) -> Result<Option<FileSource>> {
        if !self.has(file) {
            return Ok(None);
        }
        let path = self.path(file);
        let found = hashed(&path).map_err(|error| Error::io("reading", error).in_file(&path))?;
        if found == *file {
            FileSource::open(path).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Removes the oldest files until the rest is within the limit. Other files than links stay.
    pub(crate) fn trim(&self) -> Result<()> {
        let failed = |error| Error::io("clearing the cache", error).in_file(&self.directory);
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if is_link(&entry.file_name()) && is_real_file(&entry.path()) {
                let metadata = entry.metadata().map_err(failed)?;
                files.push((
                    metadata.modified().map_err(failed)?,
                    metadata.len(),
                    entry.path(),
                ));
            }
        }
        files.sort_unstable();
        let mut bytes: u64 = files.iter().map(|(_, length, _)| length).sum();
        for (_, length, path) in files {
            if bytes <= self.limit {
                break;
            }
            fs::remove_file(path).map_err(failed)?;
            bytes -= length;
        }
        Ok(())
    }
}
