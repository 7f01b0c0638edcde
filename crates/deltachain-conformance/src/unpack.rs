//! Chains: a plain tar archive becomes a folder.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path};

use crate::problem::{Problem, Result};

/// Unpacks `archive`, which holds files and folders with plain relative names only, into the new folder `out`.
pub(crate) fn unpack(archive: &Path, out: &Path) -> Result {
    fs::create_dir(out).map_err(Problem::with_file(out))?;
    let file = File::open(archive).map_err(Problem::with_file(archive))?;
    let mut entries = tar::Archive::new(file);
    for entry in entries.entries().map_err(Problem::with_file(archive))? {
        let mut entry = entry.map_err(Problem::with_file(archive))?;
        let name = entry.path().map_err(Problem::with_file(archive))?.into_owned();
        let kind = entry.header().entry_type();
        let plain = name.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || !(kind.is_file() || kind.is_dir()) {
            let message = format!("{}: refused the entry {:?}", archive.display(), name.display());
            return Err(Problem::failed(message));
        }
        let path = out.join(&name);
        if kind.is_dir() {
            fs::create_dir_all(&path).map_err(Problem::with_file(&path))?;
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Problem::with_file(parent))?;
        }
        let mut file = File::create_new(&path).map_err(Problem::with_file(&path))?;
        io::copy(&mut entry, &mut file).map_err(Problem::with_file(&path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(folder: &Path, name: &str, kind: tar::EntryType) -> std::path::PathBuf {
        let path = folder.join("a.tar");
        let mut builder = tar::Builder::new(File::create(&path).unwrap());
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(3);
        header.set_cksum();
        builder.append(&header, b"abc".as_slice()).unwrap();
        builder.finish().unwrap();
        path
    }

    #[test]
    fn files_come_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = archive(folder.path(), "commits/0.json", tar::EntryType::Regular);
        unpack(&path, &folder.path().join("out")).unwrap();
        assert_eq!(fs::read(folder.path().join("out/commits/0.json")).unwrap(), b"abc");
    }

    #[test]
    fn nothing_gets_out_of_the_folder() {
        for (name, kind) in [
            ("../a", tar::EntryType::Regular),
            ("/tmp/a", tar::EntryType::Regular),
            ("a/../../b", tar::EntryType::Regular),
            ("a", tar::EntryType::Symlink),
            ("a", tar::EntryType::Link),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = archive(folder.path(), name, kind);
            assert!(unpack(&path, &folder.path().join("out")).is_err(), "{name}");
        }
    }
}
