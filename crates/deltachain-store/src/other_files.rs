//! Files of a model's directory that no link covers: configuration, tokenizer (R-LAY-02).

use std::fs::{self, File};
use std::io;
use std::path::Path;

use deltachain::{Error, Result};

use crate::model_directory::sync_directory;

/// Puts the other files of the directory `from` into the directory `to`, where they replace files of the same name. Not
/// taken: folders, hidden files, safetensors files and their index.
///
/// # Errors
/// IO.
pub(crate) fn take_other_files(from: &Path, to: &Path) -> Result<()> {
    let failed = |error| Error::io("taking other files", error).in_file(from);
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if is_other(&name.to_string_lossy()) && entry.path().is_file() {
            take(&entry.path(), &to.join(name)).map_err(|error| Error::io("taking", error).in_file(entry.path()))?;
        }
    }
    sync_directory(to).map_err(|error| Error::io("synchronising", error).in_file(to))
}

fn is_other(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !(name.starts_with('.') || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))
}

/// A second name for the file where that can be, a copy elsewhere.
fn take(from: &Path, to: &Path) -> io::Result<()> {
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Not a second name for a symbolic link, which may be a relative one.
    let from = fs::canonicalize(from)?;
    if fs::hard_link(&from, to).is_err() {
        fs::copy(&from, to)?;
    }
    File::open(to)?.sync_all()
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
        fs::write(to.join("config.json"), "old").unwrap();
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
