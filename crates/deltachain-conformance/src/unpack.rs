//! Unpacks chains from plain tar archives into folders.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path};

use crate::problem::{Problem, Result};

/// Unpacks `archive` into the new folder `out`. Refuses entries other than files, folders and
/// symbolic links with plain relative names, so nothing is written outside of `out`.
pub(crate) fn unpack(archive: &Path, out: &Path) -> Result {
    fs::create_dir(out).map_err(Problem::with_file(out))?;
    let file = File::open(archive).map_err(Problem::with_file(archive))?;
    let mut entries = tar::Archive::new(file);
    // Links are made last, so that no entry is written through one.
    let mut links = Vec::new();
    for entry in entries.entries().map_err(Problem::with_file(archive))? {
        let mut entry = entry.map_err(Problem::with_file(archive))?;
        let name = entry
            .path()
            .map_err(Problem::with_file(archive))?
            .into_owned();
        let kind = entry.header().entry_type();
        let target = entry
            .link_name()
            .map_err(Problem::with_file(archive))?
            .unwrap_or_default()
            .into_owned();
        let plain = name
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        let known =
            kind.is_file() || kind.is_dir() || (kind.is_symlink() && stays_inside(&name, &target));
        if !plain || !known {
            let message = format!(
                "{}: refused the entry {:?}",
                archive.display(),
                name.display()
            );
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
        if kind.is_symlink() {
            links.push((path, target));
            continue;
        }
        let mut file = File::create_new(&path).map_err(Problem::with_file(&path))?;
        io::copy(&mut entry, &mut file).map_err(Problem::with_file(&path))?;
    }
    for (path, target) in links {
        link(&target, &path).map_err(Problem::with_file(&path))?;
    }
    Ok(())
}

/// True if the target of the symbolic link `name` is relative, and inside the folder of the
/// archive.
fn stays_inside(name: &Path, target: &Path) -> bool {
    // A `..` after a name could lead out, because the name may be a link.
    let is_up = |part: &Component<'_>| matches!(part, Component::ParentDir);
    let ups = target.components().take_while(is_up).count();
    let mut rest = target.components().skip(ups).peekable();
    ups < name.components().count()
        && rest.peek().is_some()
        && rest.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(unix)]
fn link(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(windows)]
fn link(target: &Path, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(
        folder: &Path,
        name: &str,
        kind: tar::EntryType,
        target: &str,
    ) -> std::path::PathBuf {
        let path = folder.join("a.tar");
        let mut builder = tar::Builder::new(File::create(&path).unwrap());
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        if !target.is_empty() {
            header.set_link_name_literal(target).unwrap();
        }
        header.set_size(if target.is_empty() { 3 } else { 0 });
        header.set_cksum();
        builder
            .append(
                &header,
                b"abc".get(..usize::from(target.is_empty()) * 3).unwrap(),
            )
            .unwrap();
        builder.finish().unwrap();
        path
    }

    #[test]
    fn files_come_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = archive(folder.path(), "commits/0.json", tar::EntryType::Regular, "");
        unpack(&path, &folder.path().join("out")).unwrap();
        assert_eq!(
            fs::read(folder.path().join("out/commits/0.json")).unwrap(),
            b"abc"
        );
    }

    #[test]
    fn symbolic_links_come_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = archive(
            folder.path(),
            "commits/0.json",
            tar::EntryType::Symlink,
            "../elsewhere/a.json",
        );
        let out = folder.path().join("out");
        unpack(&path, &out).unwrap();
        fs::create_dir(out.join("elsewhere")).unwrap();
        fs::write(out.join("elsewhere/a.json"), b"abc").unwrap();
        assert_eq!(fs::read(out.join("commits/0.json")).unwrap(), b"abc");
    }

    #[test]
    fn nothing_gets_out_of_the_folder() {
        for (name, kind, target) in [
            ("../a", tar::EntryType::Regular, ""),
            ("/tmp/a", tar::EntryType::Regular, ""),
            ("a/../../b", tar::EntryType::Regular, ""),
            ("a", tar::EntryType::Link, "b"),
            ("a", tar::EntryType::Symlink, ""),
            ("a", tar::EntryType::Symlink, "../b"),
            ("a/b", tar::EntryType::Symlink, "../.."),
            ("a/b", tar::EntryType::Symlink, "c/../d"),
            ("a", tar::EntryType::Symlink, "/tmp/b"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = archive(folder.path(), name, kind, target);
            assert!(
                unpack(&path, &folder.path().join("out")).is_err(),
                "{name} {target}"
            );
        }
    }
}
