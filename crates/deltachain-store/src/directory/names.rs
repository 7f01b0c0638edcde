//! Names of the files and directories that the program creates in its directories. It never removes
//! anything with another name.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use deltachain::{Error, Result};

/// Prefix of the names of unfinished files and directories.
pub(crate) const UNFINISHED: &str = ".tmp-deltachain-";
/// Number of random letters and digits after the prefix.
pub(crate) const RANDOM: usize = 12;

/// Whether this is the name of an unfinished file or directory.
pub(crate) fn is_unfinished(name: &OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(UNFINISHED));
    rest.is_some_and(|rest| {
        rest.len() == RANDOM && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Whether this is the name of a downloaded link: `DIGEST.dcf`.
pub(crate) fn is_link(name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| name.strip_suffix(".dcf"))
        .is_some_and(|digest| is_hex(digest, 64))
}

/// Maximum number of directories of one version at a time.
const MAKINGS: usize = 10;

/// Returns the names that the directory of a version may have. The first is `name`; the others are
/// used if it is taken, for example by a damaged version that `current` still leads to.
pub(crate) fn version_names(name: &str) -> impl Iterator<Item = String> {
    (0..MAKINGS).map(move |making| match making {
        0 => name.to_owned(),
        1 => format!("{name}-again"),
        _ => format!("{name}-again{making}"),
    })
}

/// Whether this is the name of a version's directory: `VERSION-COMMIT`, or one of the other names
/// for it.
pub(crate) fn is_version(name: &OsStr) -> bool {
    let Some(whole) = name.to_str() else {
        return false;
    };
    let first = whole.split_once("-again").map_or(whole, |(first, _)| first);
    let is_first = first.split_once('-').is_some_and(|(version, commit)| {
        version.len() == 20
            && version.bytes().all(|byte| byte.is_ascii_digit())
            && is_hex(commit, 16)
    });
    is_first && version_names(first).any(|name| name == whole)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether the path is a directory, and not a symbolic link to one.
pub(crate) fn is_real_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Whether the path is a regular file, and not a symbolic link to one.
pub(crate) fn is_real_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

/// Creates a directory if it does not exist.
///
/// # Errors
/// IO, also if the path is a symbolic link, which may lead to foreign files.
pub(crate) fn make_real_directory(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(found) if found.is_symlink() => {
            let text = "a symbolic link, which is not followed; a directory is needed here";
            let advice = "remove the link, or let the whole directory be on the other disk";
            Err(Error::unusable(text, advice).in_file(path))
        }
        Ok(_) => {
            Err(Error::io("opening a directory", io::ErrorKind::NotADirectory.into()).in_file(path))
        }
        Err(_) => {
            fs::create_dir_all(path).map_err(|error| Error::io("creating", error).in_file(path))
        }
    }
}

/// Returns the path of a file in a directory of the program, and creates the folders that contain
/// it.
///
/// # Errors
/// USAGE if a folder has this name; IO, also if a symbolic link is in the place of a folder.
pub(crate) fn make_place(directory: &Path, name: &str) -> Result<PathBuf> {
    for (end, _) in name.match_indices('/') {
        make_real_directory(&directory.join(&name[..end]))?;
    }
    let place = directory.join(name);
    if is_real_directory(&place) {
        let message = "a folder of the model has this name, so no other file can";
        return Err(Error::usage(message).in_file(place));
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_our_shape_are_ours() {
        type Shape = fn(&OsStr) -> bool;
        let digest = "0123456789abcdef".repeat(4);
        let version = "00000000000000000007-0123456789abcdef";
        let cases: [(Shape, &[&str], &[&str]); 3] = [
            (
                is_unfinished,
                &[".tmp-deltachain-abcXYZ012789"],
                &[".tmp-deltachain-", ".tmp-x", ".tmp-deltachain-abc/YZ01278"],
            ),
            (
                is_link,
                &[&format!("{digest}.dcf")],
                &[
                    ".dcf",
                    "a.dcf",
                    &format!("{}.dcf", digest.to_uppercase()),
                    &digest,
                ],
            ),
            (
                is_version,
                &[
                    version,
                    &format!("{version}-again"),
                    &format!("{version}-again2"),
                ],
                &[
                    "3.11",
                    "7-0123456789abcdef",
                    &format!("{version}-more"),
                    &format!("{version}-again-again"),
                    &format!("{version}-again02"),
                    &version[1..],
                ],
            ),
        ];
        for (is_ours, ours, others) in cases {
            assert!(
                ours.iter().all(|name| is_ours(OsStr::new(name))),
                "{ours:?}"
            );
            assert!(
                !others.iter().any(|name| is_ours(OsStr::new(name))),
                "{others:?}"
            );
        }
    }
}
