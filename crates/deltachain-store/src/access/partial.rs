//! Finds the files that killed writers leave in a chain's directory: parts of objects under the
//! names `NAME#N`. `object_store` uses these names while it writes; lists do not show them.

use std::fs::{self, Metadata};
use std::path::PathBuf;
use std::time::SystemTime;

use deltachain::chain::ObjectName;
use deltachain::{Error, Result};

use crate::access::clock::{PROBES, is_probe_name};
use crate::access::store::Store;
use crate::there::if_there;

/// A part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partial {
    /// The file.
    pub path: PathBuf,
    /// When it was written to last.
    pub stored: SystemTime,
}

impl Store {
    /// The unfinished parts of objects in a chain's directory: regular files with just such names,
    /// ascending by path. Other files are ignored, and other kinds of stores do not list parts.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn partials(&self) -> Result<Vec<Partial>> {
        let mut found = Vec::new();
        let Some(directory) = self.directory() else {
            return Ok(found);
        };
        // The folders with parts of objects, of probes, and of the chain document.
        for folder in ObjectName::FOLDERS.into_iter().chain([PROBES, ""]) {
            let path = if folder.is_empty() {
                directory.clone()
            } else {
                directory.join(folder)
            };
            let failed = |error| Error::io("listing", error).in_file(&path);
            // Only the chain's own directory may be a symbolic link: others lead to foreign files.
            let there = if_there(fs::symlink_metadata(&path)).map_err(failed)?;
            if !there.is_some_and(|there| there.is_dir() || folder.is_empty()) {
                continue;
            }
            for entry in fs::read_dir(&path).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                if !entry
                    .file_name()
                    .to_str()
                    .is_some_and(|name| is_partial(folder, name))
                {
                    continue;
                }
                // It may have got its name meanwhile.
                if let Some(there) = if_there(entry.metadata())
                    .map_err(failed)?
                    .filter(Metadata::is_file)
                {
                    found.push(Partial {
                        path: entry.path(),
                        stored: there.modified().map_err(failed)?,
                    });
                }
            }
        }
        found.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(found)
    }
}

fn is_partial(folder: &str, name: &str) -> bool {
    let Some((object, number)) = name.split_once('#') else {
        return false;
    };
    let name = if folder.is_empty() {
        object.to_owned()
    } else {
        format!("{folder}/{object}")
    };
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    is_number && (ObjectName::parse(&name).is_some() || folder == PROBES && is_probe_name(object))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use deltachain::tensor::Digest;

    use super::*;
    use crate::access::options::StoreOptions;

    fn partials(directory: &Path) -> Vec<Partial> {
        Store::open(directory.to_str().unwrap(), StoreOptions::default())
            .unwrap()
            .partials()
            .unwrap()
    }

    #[test]
    fn only_parts_of_objects_are_found() {
        let place = tempfile::tempdir().unwrap();
        let file = ObjectName::File(Digest::of_bytes(b"file")).to_string();
        let digest = Digest::of_bytes(b"");
        let objects = [
            ObjectName::Chain,
            ObjectName::Commit(7),
            ObjectName::Routes {
                version: 7,
                generation: 1,
            },
            ObjectName::File(digest),
            ObjectName::Asset(digest),
            ObjectName::Signature {
                version: 7,
                commit: digest,
                note: digest,
            },
        ];
        let probe = "probes/0123456789abcdef0123456789abcdef".to_owned();
        let own: Vec<String> = objects
            .iter()
            .map(ToString::to_string)
            .chain([probe])
            .map(|name| name + "#23")
            .collect();
        let foreign = [
            file.clone(),
            format!("{file}#"),
            format!("{file}#1a"),
            "files/notes#1".to_owned(),
            "probes/notes#1".to_owned(),
            format!("{file}#1#2"),
        ];
        for name in own.iter().chain(&foreign) {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"abc").unwrap();
        }
        fs::create_dir(place.path().join(format!("{file}#5"))).unwrap();
        let found = partials(place.path());
        let mut expected: Vec<PathBuf> = own.iter().map(|name| place.path().join(name)).collect();
        expected.sort_unstable();
        assert_eq!(
            found
                .iter()
                .map(|partial| partial.path.clone())
                .collect::<Vec<_>>(),
            expected
        );
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = format!("{}#1", Digest::of_bytes(b"file").to_string() + ".dcf");
        fs::write(other.path().join(&name), b"abc").unwrap();
        std::os::unix::fs::symlink(other.path(), place.path().join("files")).unwrap();
        std::os::unix::fs::symlink(other.path().join(&name), place.path().join("chain.json#1"))
            .unwrap();
        assert_eq!(partials(place.path()), []);
    }
}
