//! Ownership of directories: a directory that is not empty and has no marker is foreign.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use deltachain::{Error, Result};

use crate::directory::marker::{DirectoryKind, MARKER};
use crate::directory::{names, unfinished};
use crate::there::if_there;

/// Maximum number of names in a refusal.
const SHOWN: usize = 5;

/// Makes a directory managed, with a marker. It may be missing, empty, or managed already. Nothing
/// else in it is touched.
///
/// # Errors
/// USAGE if it is any other directory, with the names of some of its entries; IO.
pub(crate) fn own(directory: &Path, kind: DirectoryKind) -> Result<()> {
    let failed = |what| move |error| Error::io(what, error).in_file(directory);
    let entries = if_there(fs::read_dir(directory)).map_err(failed("opening a directory"))?;
    if entries.is_none() {
        fs::create_dir_all(directory).map_err(failed("creating"))?;
    }
    let entries = entries
        .into_iter()
        .flatten()
        .map(|entry| Ok(entry?.file_name()));
    let mut names: Vec<OsString> = entries
        .collect::<io::Result<_>>()
        .map_err(failed("listing"))?;
    if kind.marks(directory)? {
        return Ok(());
    }
    // Another process may be creating the same directory, or was killed while it did, and leaves
    // such a file.
    names.retain(|name| !names::is_unfinished(name));
    if !names.is_empty() {
        names.sort_unstable();
        let shown: Vec<String> = names
            .iter()
            .take(SHOWN)
            .map(|name| format!("{:?}", name.to_string_lossy()))
            .collect();
        let more = if names.len() > SHOWN {
            format!(" and {} more", names.len() - SHOWN)
        } else {
            String::new()
        };
        let message = format!(
            "the directory is not empty and not managed by deltachain (it has no {MARKER}); choose \
             an empty one. It contains {}{more}",
            shown.join(", ")
        );
        return Err(Error::usage(message).in_file(directory));
    }
    match write_own(directory, MARKER, kind.text().as_bytes()) {
        // Another process that opens the same directory may hold the lock by now, and remove
        // unfinished files. In that case it has already written the marker.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && directory.join(MARKER).exists() =>
        {
            Ok(())
        }
        written => written.map_err(failed("writing")),
    }
}

/// Refuses a directory that is the directory of a chain, or lies in it. Its files would become part
/// of the chain, or the chain would be among the files that are removed.
///
/// # Errors
/// USAGE; IO if the working directory is unknown.
pub(crate) fn check_outside(directory: &Path, chain: Option<&Path>) -> Result<()> {
    let real =
        |path| resolved(path).map_err(|error| Error::io("resolving the path", error).in_file(path));
    let Some(chain) = chain else { return Ok(()) };
    if real(directory)?.starts_with(real(chain)?) {
        let text = format!(
            "it is inside the chain's own directory, {:?}; choose one outside",
            chain.to_string_lossy()
        );
        return Err(Error::usage(text).in_file(directory));
    }
    Ok(())
}

/// Resolves the symbolic links of a path. Missing parts of the path count as directories to be
/// created.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut at = PathBuf::new();
    for component in std::path::absolute(path)?.components() {
        match component {
            Component::ParentDir => drop(at.pop()),
            component => at.push(component),
        }
        at = at.canonicalize().unwrap_or(at);
    }
    Ok(at)
}

/// Writes a file of the program atomically, and replaces one of this name. Blocks until the file is
/// on disk.
pub(crate) fn write_own(directory: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    replace(directory, name, content, true)
}

/// Same as [`write_own`], but without `sync` a crash of the machine may undo it.
pub(crate) fn replace(directory: &Path, name: &str, content: &[u8], sync: bool) -> io::Result<()> {
    let mut file = unfinished::shared_file(directory)?;
    file.write_all(content)?;
    if sync {
        file.as_file().sync_all()?;
    }
    file.persist(directory.join(name))
        .map_err(|failed| failed.error)?;
    if sync {
        sync_directory(directory)
    } else {
        Ok(())
    }
}

/// Syncs the names in a directory to disk, on systems where a directory can be opened.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(directory)?.sync_all()
    } else {
        Ok(())
    }
}

/// Same as [`sync_directory`], for the directory and all folders in it.
pub(crate) fn sync_folders(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync_directory(directory)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn several_may_begin_a_directory_at_once() {
        for _ in 0..200 {
            let place = tempfile::tempdir().unwrap();
            let directory = place.path().join("new");
            let begin = || {
                own(&directory, DirectoryKind::Model).unwrap();
                assert_eq!(
                    unfinished::remove(&directory).unwrap(),
                    Vec::<std::path::PathBuf>::new()
                );
            };
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(begin);
                }
            });
            let names: Vec<_> = fs::read_dir(&directory)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(names, [MARKER]);
        }
    }
}
