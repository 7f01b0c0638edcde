//! The files of a model's directory that hold no tensors, such as configuration and tokenizer, and where a subscriber takes
//! them from.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use deltachain::files::{Layout, SafetensorsState};
use deltachain::{Error, Result};

/// Where the other files of every version come from: configuration, tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OtherFiles {
    /// From the chain: they are the assets of the version.
    #[default]
    Assets,
    /// From this directory. They may become second names for the same files, so they are to be replaced rather than changed.
    Directory(PathBuf),
    /// From nowhere.
    None,
}

/// The name of the index of a directory of safetensors files.
const INDEX: &str = "model.safetensors.index.json";

/// Whether a file of a directory with this layout belongs to the tensors.
pub(crate) fn is_of_the_model(layout: &Layout, name: &str) -> bool {
    name == INDEX || layout.files().iter().any(|file| file.name.as_deref() == Some(name))
}

/// Makes a directory of the files of a model that hold the tensors.
///
/// # Errors
/// IO.
pub(crate) fn take_model(from: &SafetensorsState, to: &Path) -> Result<()> {
    fs::create_dir(to).map_err(failed_with("creating", to))?;
    take(from.path(), to, |name| is_of_the_model(from.layout(), name))
}

/// Puts the other files of the directory `from` into the directory `to`. Not taken: folders, hidden files, safetensors
/// files and their index.
///
/// # Errors
/// IO.
pub(crate) fn take_other_files(from: &Path, to: &Path) -> Result<()> {
    take(from, to, |name| {
        let name = name.to_ascii_lowercase();
        !(name.starts_with('.') || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))
    })
}

fn take(from: &Path, to: &Path, is_taken: impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(from).map_err(failed_with("listing", from))? {
        let entry = entry.map_err(failed_with("listing", from))?;
        let name = entry.file_name();
        if is_taken(&name.to_string_lossy()) && entry.path().is_file() {
            second_name(&entry.path(), &to.join(name)).map_err(failed_with("taking", &entry.path()))?;
        }
    }
    Ok(())
}

/// A second name for a file where that can be, a copy elsewhere. It has reached the disk then, but for its name.
pub(crate) fn second_name(from: &Path, to: &Path) -> io::Result<()> {
    // Not a second name for a symbolic link, which may be a relative one.
    let from = fs::canonicalize(from)?;
    if fs::hard_link(&from, to).is_err() {
        fs::copy(&from, to)?;
    }
    File::open(to)?.sync_all()
}

/// That something failed with a file.
pub(crate) fn failed_with(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io(what, error).in_file(path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn other_files_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("folder")).unwrap();
        fs::create_dir(&to).unwrap();
        for name in ["config.json", "tokenizer.model", "a.SAFETENSORS", "model.safetensors.index.json", ".hidden"] {
            fs::write(from.join(name), name).unwrap();
        }
        fs::write(folder.path().join("elsewhere"), "behind a link").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("../elsewhere", from.join("linked")).unwrap();
        #[cfg(not(unix))]
        fs::write(from.join("linked"), "behind a link").unwrap();
        fs::write(to.join("model.safetensors"), "weights").unwrap();
        take_other_files(&from, &to).unwrap();
        let found = fs::read_dir(&to).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
        });
        let expected = [
            ("config.json", "config.json"),
            ("linked", "behind a link"),
            ("model.safetensors", "weights"),
            ("tokenizer.model", "tokenizer.model"),
        ];
        let expected: BTreeMap<String, String> =
            expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        assert_eq!(found.collect::<BTreeMap<_, _>>(), expected);
        assert!(take_other_files(&from.join("missing"), &to).unwrap_err().file().unwrap().ends_with("missing"));
    }
}
