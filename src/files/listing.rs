//! The files of a model's directory and of its folders.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::files::disk::reading;
use crate::plain_name::{MOST_PARTS, fold_case, is_of_tensors};

/// Prefix of the names of folders in which trainers store checkpoints beside the model.
const CHECKPOINT: &str = "checkpoint-";
/// The name of a file that lies in a chain's own directory.
const CHAIN: &str = "chain.json";
/// The name of the file that marks each directory that this program manages, for a subscriber or
/// for its own work.
pub const MARKER: &str = "deltachain.directory";
/// Directories that are not models: the names by which they are recognized, what they are, and what
/// to give instead.
const NO_MODELS: [(&[&str], &str, &str); 3] = [
    (
        &[MARKER],
        "the directory of a follower",
        "its folder \"current\"",
    ),
    (
        &[CHAIN, "commits"],
        "a chain",
        "a directory that `deltachain pull` manages",
    ),
    (
        &["blobs", "snapshots"],
        "a repository in a hub's cache",
        "its folder snapshots/REVISION",
    ),
];
/// The folder in which model repositories keep a second copy of the model, in the original format
/// of its authors.
const ORIGINAL: &str = "original";
/// The name of a folder at the root of file systems that users cannot read.
const LOST: &str = "lost+found";

/// The files of a directory and of the folders in it that may belong to a model.
///
/// Symbolic links to files are followed, since caches of models consist of them; links to folders
/// are not. Left out are hidden files and folders, a trainer's checkpoints (`checkpoint-*`), the
/// model in its authors' own format (`original`, as in many repositories of models), `lost+found`,
/// chains, directories that subscribers manage, repositories in a hub's cache, and folders in which
/// the name of a file would have more than eight parts.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ModelListing {
    /// Names below the directory, with `/` after each folder, ascending.
    pub files: Vec<OsString>,
    /// Names of the entries that were left out, each with the reason in parentheses, ascending.
    pub left_out: Vec<String>,
}

impl ModelListing {
    /// Lists a directory.
    ///
    /// # Errors
    /// IO if the directory or a folder in it cannot be listed, or if a link with the name of a file
    /// of tensors leads nowhere; USAGE if the directory itself is a chain, managed by a subscriber,
    /// or a repository in a hub's cache, or if names differ in case only.
    pub fn of(directory: &Path) -> Result<Self> {
        if let Some((_, what, instead)) = no_model(directory) {
            return Err(
                Error::usage(format!("this is {what}, not a model: give {instead}"))
                    .in_file(directory),
            );
        }
        let mut listing = Self::default();
        listing.add(directory, OsStr::new(""), 1)?;
        listing.files.sort_unstable();
        listing.left_out.sort_unstable();
        listing
            .check_case()
            .map_err(|error| error.in_file(directory))?;
        Ok(listing)
    }

    /// Refuses names that differ in case only: some file systems treat them as one, so no version
    /// of a chain has both.
    fn check_case(&self) -> Result<()> {
        let mut names = BTreeMap::new();
        for name in self
            .files
            .iter()
            .flat_map(|name| Path::new(name).ancestors())
        {
            let other = *names
                .entry(fold_case(&name.to_string_lossy()))
                .or_insert(name);
            if other != name {
                let [other, name] = [other, name].map(Path::to_string_lossy);
                let message = format!(
                    "{other:?} and {name:?} differ in case only: rename or remove one of them"
                );
                return Err(Error::usage(message));
            }
        }
        Ok(())
    }

    /// Adds the files of a folder, whose names have this many parts.
    fn add(&mut self, directory: &Path, folder: &OsStr, parts: usize) -> Result<()> {
        for entry in fs::read_dir(directory).map_err(|error| reading(error, directory))? {
            let entry = entry.map_err(|error| reading(error, directory))?;
            let (last, path) = (entry.file_name(), entry.path());
            let kind = entry.file_type().map_err(|error| reading(error, &path))?;
            let mut name = folder.to_owned();
            name.push(&last);
            if kind.is_dir() {
                match why_left_out(&path, &last, parts) {
                    Some(why) => self.leave(&name, why),
                    None => {
                        name.push("/");
                        self.add(&path, &name, parts + 1)?;
                    }
                }
                continue;
            }
            if is_hidden(&last) {
                self.leave(&name, "hidden");
                continue;
            }
            match fs::metadata(&path) {
                Ok(found) if found.is_file() => self.files.push(name),
                Ok(found) if found.is_dir() => self.leave(&name, "a symbolic link to a folder"),
                Ok(_) => self.leave(&name, "is not a file"),
                // The model would be incomplete without this file.
                Err(error) if is_of_tensors(&last.to_string_lossy()) => {
                    return Err(reading(error, &path));
                }
                Err(_) => self.leave(&name, "cannot be read"),
            }
        }
        Ok(())
    }

    fn leave(&mut self, name: &OsStr, why: &str) {
        self.left_out
            .push(format!("{} ({why})", name.to_string_lossy()));
    }
}

/// The kind of a directory that is not a model; `None` if it may be one.
fn no_model(path: &Path) -> Option<(&'static [&'static str], &'static str, &'static str)> {
    let is_one = |holds: &[&str]| {
        holds
            .iter()
            .all(|name| fs::symlink_metadata(path.join(name)).is_ok())
    };
    NO_MODELS.into_iter().find(|(holds, ..)| is_one(holds))
}

/// The reason why a folder is left out; `None` if it is not.
fn why_left_out(path: &Path, name: &OsStr, parts: usize) -> Option<&'static str> {
    if is_hidden(name) {
        Some("hidden")
    } else if name.as_encoded_bytes().starts_with(CHECKPOINT.as_bytes()) {
        Some("a trainer's checkpoint")
    } else if name == ORIGINAL {
        Some("the model in its vendor's own format")
    } else if name == LOST {
        Some("the file system's own")
    } else if fs::symlink_metadata(path.join(CHAIN)).is_ok() {
        Some("a chain")
    } else if let Some((_, what, _)) = no_model(path) {
        Some(what)
    } else if parts == MOST_PARTS {
        Some("a folder that is nested too deeply")
    } else {
        None
    }
}

/// Whether this is the name of a hidden file or folder.
fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorClass;

    fn make(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    #[test]
    fn folders_are_listed_but_for_those_of_others() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            "a",
            "a.b/c",
            "d/e/f/g/h/i/j/k",
            ".hidden",
            "d/.hidden",
            "checkpoint-",
            "chain.json",
        ];
        make(root.path(), &files);
        let others = [
            ".git/config",
            "checkpoint-500/model.safetensors",
            "d/checkpoint-best/model.safetensors",
            "original/consolidated.safetensors",
            "store/chain.json",
            "models--a--b/blobs/x",
            "models--a--b/snapshots/1/model.safetensors",
            "d/follower/deltachain.directory",
            "lost+found/x",
            "d/e/f/g/h/i/j/too deep/x",
        ];
        make(root.path(), &others);
        let listing = ModelListing::of(root.path()).unwrap();
        let mut expected = files.to_vec();
        expected.retain(|name| !name.contains(".hidden"));
        expected.sort_unstable();
        assert_eq!(listing.files, expected);
        let left = [
            ".git (hidden)",
            ".hidden (hidden)",
            "checkpoint-500 (a trainer's checkpoint)",
            "d/.hidden (hidden)",
            "d/checkpoint-best (a trainer's checkpoint)",
            "d/e/f/g/h/i/j/too deep (a folder that is nested too deeply)",
            "d/follower (the directory of a follower)",
            "lost+found (the file system's own)",
            "models--a--b (a repository in a hub's cache)",
            "original (the model in its vendor's own format)",
            "store (a chain)",
        ];
        assert_eq!(listing.left_out, left);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_to_files_alone() {
        use std::os::unix::fs::symlink;

        let root = tempfile::tempdir().unwrap();
        make(root.path(), &["blobs/x", "snapshot/a"]);
        let snapshot = root.path().join("snapshot");
        symlink("../blobs/x", snapshot.join("model.safetensors")).unwrap();
        symlink("../blobs", snapshot.join("blobs")).unwrap();
        symlink(".", snapshot.join("loop")).unwrap();
        symlink("nowhere", snapshot.join("dangling")).unwrap();
        symlink("nowhere", snapshot.join(".#m.safetensors")).unwrap();
        let listing = ModelListing::of(&snapshot).unwrap();
        assert_eq!(listing.files, ["a", "model.safetensors"]);
        let left = [
            ".#m.safetensors (hidden)",
            "blobs (a symbolic link to a folder)",
            "dangling (cannot be read)",
            "loop (a symbolic link to a folder)",
        ];
        assert_eq!(listing.left_out, left);
        fs::create_dir(snapshot.join("vae")).unwrap();
        symlink("nowhere", snapshot.join("vae/b.safetensors")).unwrap();
        let error = ModelListing::of(&snapshot).unwrap_err();
        assert!(
            error.class() == ErrorClass::Usage
                && error
                    .message()
                    .contains("a symbolic link to a missing file"),
            "{error}"
        );
        assert!(
            error.file().unwrap().ends_with("vae/b.safetensors"),
            "{error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_cannot_be_listed_is_an_error() {
        use std::os::unix::fs::PermissionsExt;

        let root = tempfile::tempdir().unwrap();
        make(root.path(), &["vae/model.safetensors"]);
        let vae = root.path().join("vae");
        fs::set_permissions(&vae, fs::Permissions::from_mode(0o000)).unwrap();
        // Some users may list everything.
        if fs::read_dir(&vae).is_err() {
            let error = ModelListing::of(root.path()).unwrap_err();
            assert_eq!(
                (error.class(), error.file()),
                (ErrorClass::Io, vae.to_str())
            );
        }
        fs::set_permissions(&vae, fs::Permissions::from_mode(0o700)).unwrap();
    }
}
