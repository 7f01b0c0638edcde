//! The files of a model's directory that hold no tensors, such as configuration and tokenizer, and
//! the source from which a subscriber takes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use deltachain::files::{ModelListing, SafetensorsState, is_same_file};
use deltachain::{Error, Result};

use crate::directory::names::make_place;
use crate::fetching::cache::hashed;
use crate::observer::Observer;

/// Source of the other files of every version, such as configuration and tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OtherFiles {
    /// From the chain: they are the assets of the version.
    #[default]
    Assets,
    /// This directory. The follower may create hard links to its files, so replace files instead of
    /// changing them. The next [`prepare`](crate::Follower::prepare) uses the replaced files, even
    /// if the version stays the same. Files in folders are included. Files that [`ModelListing`]
    /// leaves out and unreadable files are skipped and reported to the observer.
    Directory(PathBuf),
    /// No source: versions have no other files.
    None,
}

/// Maximum number of names in a message.
const SHOWN: usize = 50;

/// Creates a directory with the files of a model that hold or name its tensors.
///
/// # Errors
/// IO.
pub(crate) fn take_model(from: &SafetensorsState, to: &Path) -> Result<()> {
    fs::create_dir(to).map_err(failed_with("creating", to))?;
    for name in from.model_files() {
        let path = from.path().join(&name);
        second_name(&path, &make_place(to, &name)?).map_err(failed_with("taking", &path))?;
    }
    Ok(())
}

/// Puts the other files of the directory `from` and of its folders into the directory `to`, except
/// for hidden files, safetensors files and their indexes. The observer learns which files are left
/// out or cannot be used.
///
/// # Errors
/// USAGE if a folder with tensor files has the name of one of the files; IO.
pub(crate) fn take_other_files(from: &Path, to: &Path, observer: &dyn Observer) -> Result<()> {
    let FoundFiles { taken, left } = other_files(from)?;
    if !left.is_empty() {
        observer.remark(&format!(
            "not copied from {:?}: {}",
            from.to_string_lossy(),
            list(&left)
        ));
    }
    for (name, path) in taken {
        second_name(&path, &make_place(to, &name)?).map_err(failed_with("taking", &path))?;
    }
    Ok(())
}

/// Joins names for a sentence.
pub(crate) fn list(names: &[String]) -> String {
    list_of(names, SHOWN)
}

/// Joins at most `most` names for a sentence, and counts the rest.
pub(crate) fn list_of(names: &[String], most: usize) -> String {
    let shown = names[..names.len().min(most)].join(", ");
    if names.len() > most {
        format!("{shown} and {} more", names.len() - most)
    } else {
        shown
    }
}

/// Returns true if the other files of a model are exactly the other files of the directory `from`.
/// `files` are all files in the model's directory.
///
/// # Errors
/// IO.
pub(crate) fn has_other_files<'a>(
    from: &Path,
    model: &SafetensorsState,
    files: impl Iterator<Item = &'a String>,
) -> Result<bool> {
    let taken = other_files(from)?.taken;
    let own = model.model_files();
    let here: BTreeSet<&String> = files.filter(|name| !own.contains(name)).collect();
    if !here.into_iter().eq(taken.keys()) {
        return Ok(false);
    }
    let is_same = |(name, path): (&String, &PathBuf)| {
        has_same_content(path, &model.path().join(name)).unwrap_or(false)
    };
    Ok(taken.iter().all(is_same))
}

/// Whether two files have the same content.
fn has_same_content(left: &Path, right: &Path) -> io::Result<bool> {
    if fs::metadata(left)?.len() != fs::metadata(right)?.len() {
        return Ok(false);
    }
    // Usually both are hard links to one file.
    if is_same_file(left, right) {
        return Ok(true);
    }
    Ok(hashed(left)? == hashed(right)?)
}

/// The other files of a directory.
pub(crate) struct FoundFiles {
    /// The files to use, by name.
    pub(crate) taken: BTreeMap<String, PathBuf>,
    /// Remarks for the user about the files that are left out.
    pub(crate) left: Vec<String>,
}

impl FoundFiles {
    /// Lists the files of a directory. `is_skipped` excludes names, such as those of the model's
    /// files. `flaw` returns the reason why a file cannot be used.
    pub(crate) fn of(
        directory: &Path,
        mut is_skipped: impl FnMut(&str) -> bool,
        flaw: impl Fn(&Path, &str) -> Option<&'static str>,
    ) -> Result<Self> {
        let ModelListing {
            files, left_out, ..
        } = ModelListing::of(directory)?;
        let mut found = Self {
            taken: BTreeMap::new(),
            left: left_out,
        };
        for name in files {
            let (shown, path) = (name.to_string_lossy().into_owned(), directory.join(&name));
            if is_skipped(&shown) {
                continue;
            }
            match name
                .to_str()
                .map_or(Some("has a name that is not Unicode"), |name| {
                    flaw(&path, name)
                }) {
                Some(flaw) => found.left.push(format!("{shown} ({flaw})")),
                None => drop(found.taken.insert(shown, path)),
            }
        }
        Ok(found)
    }
}

fn other_files(directory: &Path) -> Result<FoundFiles> {
    let is_model = |name: &str| {
        let lower = name.to_ascii_lowercase();
        lower.ends_with(".safetensors") || lower.ends_with(".safetensors.index.json")
    };
    FoundFiles::of(directory, is_model, |_, _| None)
}

/// Creates a hard link to a file, or a copy where that is not possible. Syncs the content to disk,
/// but not the name.
pub(crate) fn second_name(from: &Path, to: &Path) -> io::Result<()> {
    // Symbolic links are resolved: a relative one would not work in another directory.
    let from = fs::canonicalize(from)?;
    if fs::hard_link(&from, to).is_err() {
        fs::copy(&from, to)?;
    }
    File::open(to)?.sync_all()
}

/// Returns a function that makes an error of a failed operation, `what`, on a file.
pub(crate) fn failed_with(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io(what, error).in_file(path)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::observer::Phase;

    /// Records the remarks.
    #[derive(Default)]
    struct Remarks(Mutex<Vec<String>>);

    impl Observer for Remarks {
        fn begin(&self, _phase: Phase, _bytes: u64) {}

        fn advance(&self, _phase: Phase, _bytes: u64) -> Result<()> {
            Ok(())
        }

        fn end(&self, _phase: Phase) {}

        fn remark(&self, text: &str) {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }

    #[test]
    fn other_files_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("tokenizer/checkpoint-1")).unwrap();
        fs::create_dir(from.join("empty")).unwrap();
        fs::create_dir(&to).unwrap();
        let left = [
            "a.SAFETENSORS",
            "model.safetensors.index.json",
            ".hidden",
            "tokenizer/checkpoint-1/config.json",
        ];
        for name in ["config.json", "tokenizer/vocab.txt", "tokenizer.model"]
            .iter()
            .chain(&left)
        {
            fs::write(from.join(name), name).unwrap();
        }
        fs::write(folder.path().join("elsewhere"), "behind a link").unwrap();
        #[cfg(unix)]
        for (target, name) in [("../elsewhere", "linked"), ("nowhere", "dangling")] {
            std::os::unix::fs::symlink(target, from.join(name)).unwrap();
        }
        #[cfg(not(unix))]
        fs::write(from.join("linked"), "behind a link").unwrap();
        fs::write(to.join("model.safetensors"), "weights").unwrap();
        let remarks = Remarks::default();
        take_other_files(&from, &to, &remarks).unwrap();
        let found = crate::directory::versions::files_of(&to)
            .unwrap()
            .into_keys()
            .map(|name| {
                let text = fs::read_to_string(to.join(&name)).unwrap();
                (name, text)
            });
        let expected = [
            ("config.json", "config.json"),
            ("linked", "behind a link"),
            ("model.safetensors", "weights"),
            ("tokenizer.model", "tokenizer.model"),
            ("tokenizer/vocab.txt", "tokenizer/vocab.txt"),
        ];
        let expected: BTreeMap<String, String> = expected
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        assert_eq!(found.collect::<BTreeMap<_, _>>(), expected);
        let remarks = remarks.0.into_inner().unwrap();
        assert!(
            remarks.len() == 1 && remarks[0].contains("tokenizer/checkpoint-1 (a trainer's"),
            "{remarks:?}"
        );
        #[cfg(unix)]
        assert!(
            remarks[0].contains("dangling (cannot be read)"),
            "{remarks:?}"
        );
        // A folder of the model has the name of a file.
        let into = folder.path().join("into");
        fs::create_dir_all(into.join("config.json")).unwrap();
        let error = take_other_files(&from, &into, &()).unwrap_err();
        assert_eq!(error.class(), deltachain::ErrorClass::Usage, "{error}");
        assert!(
            take_other_files(&from.join("missing"), &to, &())
                .unwrap_err()
                .file()
                .unwrap()
                .ends_with("missing")
        );
    }
}
