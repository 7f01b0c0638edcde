//! What the standard library leaves to do with files: reading and writing by position, new files that reach the disk,
//! and putting one directory in the place of another.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use crate::error::{Error, Result};

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

/// There are no files to read from.
#[cfg(not(any(unix, windows)))]
pub(crate) fn read_at(_file: &File, _buffer: &mut [u8], _offset: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Copies a file's content, to the disk.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut copy = create_file(to)?;
    io::copy(&mut File::open(from)?, &mut copy)?;
    copy.sync_all()
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

/// There are no files to write to.
#[cfg(not(any(unix, windows)))]
pub(super) fn write_at(_file: &File, _bytes: &[u8], _offset: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Makes renames inside a directory survive a power cut. Only Unix can open a directory for that.
pub(super) fn sync_directory(directory: &Path) -> Result<()> {
    if cfg!(unix) {
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(|error| Error::io("synchronising", error).in_file(directory))?;
    }
    Ok(())
}

pub(super) fn parent_of(out: &Path) -> &Path {
    match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// A temporary file or directory with the permissions that a new one usually has: `mode` less the umask.
#[cfg_attr(not(unix), allow(unused_variables))]
pub(super) fn temporary(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(OsStr::new(".deltachain-"));
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    builder
}

pub(super) fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// Puts the directory `staged` in the place of the directory `out`, or leaves everything as it is.
pub(super) fn replace_directory(staged: &Path, out: &Path) -> Result<()> {
    let parent = parent_of(out);
    let aside = temporary(0o700).tempdir_in(parent).map_err(|error| writing(error, out))?;
    let old = aside.path().join("replaced");
    fs::rename(out, &old).map_err(|error| writing(error, out))?;
    if let Err(error) = fs::rename(staged, out) {
        if fs::rename(&old, out).is_err() {
            let kept = aside.keep().join("replaced");
            return Err(
                Error::io(format!("replacing failed, the old files are now in {}", kept.display()), error).in_file(out)
            );
        }
        return Err(writing(error, out));
    }
    sync_directory(parent)?;
    let place = aside.path().to_owned();
    aside.close().map_err(|error| Error::io("the new files are in place; removing the old ones", error).in_file(place))
}

/// That writing to `path` failed.
pub(super) fn writing(error: io::Error, path: &Path) -> Error {
    Error::io("writing", error).in_file(path)
}

/// That reading from `path` failed.
pub(super) fn reading(error: io::Error, path: &Path) -> Error {
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
