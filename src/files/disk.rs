//! File operations that the standard library lacks: reads and writes by position, new files that
//! reach the disk, and the replacement of one directory by another.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::plain_name::is_of_tensors;

/// Fills `buffer` from the bytes at `offset`, whatever other threads do with the file.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

/// Fills `buffer` from the bytes at `offset`, whatever other threads do with the file.
#[cfg(windows)]
pub(crate) fn read_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// This platform has no files to read from.
#[cfg(not(any(unix, windows)))]
pub(crate) fn read_at(_file: &File, _buffer: &mut [u8], _offset: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Writes `bytes` at `offset`, whatever other threads do with the file.
#[cfg(unix)]
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Writes `bytes` at `offset`, whatever other threads do with the file.
#[cfg(windows)]
pub(super) fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// This platform has no files to write to.
#[cfg(not(any(unix, windows)))]
pub(super) fn write_at(_file: &File, _bytes: &[u8], _offset: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether there is nothing at `path`, not even a broken symbolic link.
pub(super) fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Refuses an output that has no name, or exists and may not be replaced.
pub(super) fn refuse_existing(out: &Path, replace: bool) -> Result<()> {
    if out.file_name().is_none() {
        return Err(Error::usage("the output has no name").in_file(out));
    }
    if replace || is_absent(out) {
        Ok(())
    } else {
        Err(exists(out))
    }
}

/// Refuses an output that is one of these inputs, lies in one, or contains one, under any name and
/// through any link.
///
/// # Errors
/// USAGE.
pub fn check_apart<'a>(out: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let whole = std::path::absolute(out).unwrap_or_default();
    let real = |place: &Path| {
        Some(
            fs::canonicalize(place)
                .ok()?
                .join(whole.strip_prefix(place).ok()?),
        )
    };
    let Some(place) = whole.ancestors().find_map(real) else {
        return Ok(());
    };
    for input in inputs {
        let Ok(real) = fs::canonicalize(input) else {
            continue;
        };
        if place.starts_with(&real) || real.starts_with(&place) || is_same_file(out, input) {
            let real = real.to_string_lossy();
            let message = format!(
                "the output is the input {real:?}, or one lies in the other: choose another place"
            );
            return Err(Error::usage(message).in_file(out));
        }
    }
    Ok(())
}

/// Whether two paths lead to the same file or directory.
pub fn is_same_file(left: &Path, right: &Path) -> bool {
    #[cfg(unix)]
    let id = |path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).map(|found| (found.dev(), found.ino()))
    };
    #[cfg(not(unix))]
    let id = |path| fs::canonicalize(path);
    matches!((id(left), id(right)), (Ok(left), Ok(right)) if left == right)
}

/// Refuses an output file that may not or cannot be replaced. Called before any work, and again
/// before renaming.
pub(super) fn check_file(out: &Path, replace: bool) -> Result<()> {
    refuse_existing(out, replace)?;
    if is_absent(out) || out.is_file() {
        return Ok(());
    }
    Err(Error::usage(
        "the output is a directory, which a file cannot replace: choose another output",
    )
    .in_file(out))
}

/// Refuses an output directory that cannot be replaced by one with these files, whose names begin
/// with their folders.
pub(super) fn check_directory(out: &Path, files: &BTreeSet<String>, replace: bool) -> Result<()> {
    refuse_existing(out, replace)?;
    if is_absent(out) {
        return Ok(());
    }
    if !out.is_dir() {
        return Err(Error::usage(
            "the output is a file, which a directory cannot replace: choose another output",
        )
        .in_file(out));
    }
    check_replaced(out, out, "", files)
}

/// Checks that a directory contains only files of tensors and files with a successor. Replacing it
/// removes everything in it, which a user who names a working tree by mistake does not want.
fn check_replaced(
    out: &Path,
    directory: &Path,
    folder: &str,
    files: &BTreeSet<String>,
) -> Result<()> {
    for entry in fs::read_dir(directory).map_err(|error| reading(error, directory))? {
        let entry = entry.map_err(|error| reading(error, directory))?;
        let path = entry.path();
        let last = entry.file_name().to_string_lossy().into_owned();
        let name = format!("{folder}{last}");
        let inner = format!("{name}/");
        if is_real_directory(&path) && files.iter().any(|file| file.starts_with(&inner)) {
            check_replaced(out, &path, &inner, files)?;
            continue;
        }
        let has_successor = files.contains(&name) || is_of_tensors(&last);
        if last.starts_with('.') || !path.is_file() || !has_successor {
            let message = format!(
                "the directory holds {name:?}, which would be lost if it were replaced: choose \
                 another output"
            );
            return Err(Error::usage(message).in_file(out));
        }
    }
    Ok(())
}

/// Whether `path` is a directory, and not a link to one.
fn is_real_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Creates the folder of a path name, and its parent folders, in a directory that no other process
/// writes to. Never follows a symbolic link.
pub(super) fn create_folder(directory: &Path, folder: &str) -> io::Result<()> {
    for (end, _) in folder.match_indices('/') {
        let path = directory.join(&folder[..end]);
        match fs::create_dir(&path) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && is_real_directory(&path) => {}
            made => made?,
        }
    }
    Ok(())
}

/// Makes a complete file visible at `out`, after its bytes have reached the disk.
pub(super) fn persist(file: NamedTempFile, out: &Path, replace: bool) -> Result<()> {
    file.as_file()
        .sync_all()
        .map_err(|error| writing(error, out))?;
    check_file(out, replace)?;
    let renamed = if replace {
        file.persist(out)
    } else {
        file.persist_noclobber(out)
    };
    renamed.map_err(|failed| match failed.error.kind() {
        io::ErrorKind::AlreadyExists => exists(out),
        _ => writing(failed.error, out),
    })?;
    sync_directory(parent_of(out))
}

fn exists(out: &Path) -> Error {
    Error::usage("the output exists").in_file(out)
}

/// Makes renames inside a directory survive a power cut. Only Unix can open a directory for that.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    if cfg!(unix) {
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| Error::io("synchronising", error).in_file(directory))?;
    }
    Ok(())
}

/// The directory that holds `out`.
pub(super) fn parent_of(out: &Path) -> &Path {
    match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// A temporary file or directory with the permissions that a new one usually has: `mode` less the
/// umask.
#[cfg_attr(not(unix), allow(unused_variables))]
pub(super) fn temporary(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(OsStr::new(".deltachain-"));
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    builder
}

pub(super) fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Replaces the directory `out` by the directory `staged`. If that fails, moves the old directory
/// back, or reports where it is now.
pub(super) fn replace_directory(staged: &Path, out: &Path) -> Result<()> {
    let parent = parent_of(out);
    let aside = temporary(0o700)
        .tempdir_in(parent)
        .map_err(|error| writing(error, out))?;
    let old = aside.path().join("replaced");
    fs::rename(out, &old).map_err(|error| writing(error, out))?;
    if let Err(error) = fs::rename(staged, out) {
        if fs::rename(&old, out).is_err() {
            let kept = aside.keep().join("replaced");
            return Err(Error::io(
                format!(
                    "replacing failed; the old files are now in {}",
                    kept.display()
                ),
                error,
            )
            .in_file(out));
        }
        return Err(writing(error, out));
    }
    sync_directory(parent)?;
    let place = aside.path().to_owned();
    aside.close().map_err(|error| {
        Error::io("the new files are in place; removing the old ones", error).in_file(place)
    })
}

/// The error that says that writing to `path` failed.
pub(super) fn writing(error: io::Error, path: &Path) -> Error {
    Error::io("writing", error).in_file(path)
}

/// The error that says that reading from `path` failed.
pub(super) fn reading(error: io::Error, path: &Path) -> Error {
    if error.kind() == io::ErrorKind::NotFound && path.is_symlink() {
        return Error::usage("a symbolic link to a missing file: download the file again")
            .in_file(path);
    }
    Error::io("reading", error).in_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;

    #[test]
    fn a_directory_that_cannot_be_replaced_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        fs::write(out.join("f"), "precious").unwrap();
        let error = replace_directory(&folder.path().join("missing"), &out).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Io);
        assert_eq!(fs::read(out.join("f")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
