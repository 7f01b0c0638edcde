//! Private directories for versions that are built only to check them or to make links from them:
//! one for each user, with a directory for each run. If a run is killed, the next run removes its
//! files.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use deltachain::{Error, Result};

use crate::directory::lock::{LOCK, open_lock, wait_for};
use crate::directory::names::{is_real_directory, is_real_file, is_unfinished};
use crate::directory::unfinished::{self, UnfinishedDirectory};
use crate::observer::Observer;

/// A directory for one run, which other users cannot read. Dropping this removes it with everything
/// in it.
///
/// It is in `deltachain-scratch-USER`, which is created on demand: `USER` is the user ID. Systems
/// other than Unix have just `deltachain-scratch`. Creating a directory removes the directories of
/// killed processes.
#[derive(Debug)]
pub struct Scratch {
    directory: UnfinishedDirectory,
    /// Locked for as long as the run lasts.
    _lock: File,
}

impl Scratch {
    /// Creates a directory below `place`, or below the system's directory for temporary files.
    ///
    /// # Errors
    /// USAGE if `deltachain-scratch-USER` belongs to another user, is open to other users, or is
    /// not a directory, or if another process keeps it locked; IO; the observer's error, if it ends
    /// the waiting for that process.
    pub fn new(place: Option<&Path>, observer: &dyn Observer) -> Result<Self> {
        let private = private(&place.map_or_else(env::temp_dir, Path::to_owned))?;
        let failed = |error| Error::io("creating a temporary directory", error).in_file(&private);
        // One process at a time, so that none removes a directory that another process is about to
        // lock.
        let guard = open_lock(&private.join(LOCK))?;
        wait_for(&guard, &private, observer)?;
        let dead = dead(&private).map_err(failed)?;
        let directory = UnfinishedDirectory::new(&private).map_err(failed)?;
        let lock = open_lock(&directory.path().join(LOCK))?;
        lock.lock().map_err(failed)?;
        drop(guard);
        for (path, _lock) in dead {
            // Another run may be removing the directory at this moment.
            let _ = unfinished::remove_directory(&path);
        }
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Finds the directories that ended runs left behind, and locks them.
fn dead(private: &Path) -> io::Result<Vec<(PathBuf, Option<File>)>> {
    let mut dead = Vec::new();
    for entry in fs::read_dir(private)? {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path()))?;
        if !is_unfinished(&name) || !is_real_directory(&path) {
            continue;
        }
        let lock = path.join(LOCK);
        // Without a lock file, the run was killed before it created the file, or while it removed
        // the directory.
        let lock = if is_real_file(&lock) {
            File::options().write(true).open(lock).ok()
        } else {
            None
        };
        if lock.as_ref().is_none_or(|lock| lock.try_lock().is_ok()) {
            dead.push((path, lock));
        }
    }
    Ok(dead)
}

/// Returns the directory of this user, and creates it if it is missing.
#[cfg(unix)]
fn private(place: &Path) -> Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    let user = rustix::process::geteuid().as_raw();
    let path = place.join(format!("deltachain-scratch-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::io("creating a directory", error).in_file(path));
        }
        _ => {}
    }
    let found =
        fs::symlink_metadata(&path).map_err(|error| Error::io("reading", error).in_file(&path))?;
    let flaw = match found.mode() {
        _ if !found.is_dir() => "is not a directory",
        _ if found.uid() != user => "belongs to another user",
        mode if mode & 0o077 != 0 => "is open to other users",
        _ => return Ok(path),
    };
    Err(Error::usage(format!(
        "new versions cannot be built here, because this {flaw}"
    ))
    .in_file(path))
}

/// Returns the directory of this user, and creates it if it is missing. The system's directory for
/// temporary files is private on these systems.
#[cfg(not(unix))]
fn private(place: &Path) -> Result<PathBuf> {
    let path = place.join("deltachain-scratch");
    match fs::create_dir(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("creating a directory", error).in_file(path))
        }
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(place: &Path) -> Vec<PathBuf> {
        let private = fs::read_dir(place)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .next()
            .unwrap();
        fs::read_dir(private)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect()
    }

    #[test]
    fn what_nobody_uses_any_more_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let first = Scratch::new(Some(place.path()), &()).unwrap();
        fs::write(first.path().join("f"), "in use").unwrap();
        let private = first.path().parent().unwrap().to_owned();
        // Directories of runs that were killed early, late, and while they removed the directory,
        // and a directory that is not ours.
        for (name, files) in [
            ("a", &[][..]),
            ("b", &["deltachain.directory"]),
            ("c", &["deltachain.directory", "lock", "f"]),
        ] {
            let path = private.join(format!(".tmp-deltachain-{}", name.repeat(12)));
            fs::create_dir(&path).unwrap();
            files
                .iter()
                .for_each(|file| fs::write(path.join(file), "").unwrap());
        }
        let other = private.join(format!(".tmp-deltachain-{}", "d".repeat(12)));
        fs::create_dir(&other).unwrap();
        fs::write(other.join("f"), "precious").unwrap();
        let second = Scratch::new(Some(place.path()), &()).unwrap();
        let mut expected = [first.path(), second.path(), &other].map(Path::to_owned);
        let mut found = entries(place.path());
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        drop((first, second));
        assert_eq!(entries(place.path()), [other]);
    }

    #[cfg(unix)]
    #[test]
    fn a_directory_that_is_open_to_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;

        let place = tempfile::tempdir().unwrap();
        let private = Scratch::new(Some(place.path()), &())
            .unwrap()
            .path()
            .parent()
            .unwrap()
            .to_owned();
        assert_eq!(
            fs::metadata(&private).unwrap().permissions().mode() & 0o777,
            0o700
        );
        for mode in [0o777, 0o720, 0o701] {
            fs::set_permissions(&private, fs::Permissions::from_mode(mode)).unwrap();
            let error = Scratch::new(Some(place.path()), &()).unwrap_err();
            assert_eq!(error.class(), deltachain::ErrorClass::Usage, "{error}");
        }
        let other = tempfile::tempdir().unwrap();
        fs::remove_dir_all(&private).unwrap();
        std::os::unix::fs::symlink(other.path(), &private).unwrap();
        assert!(Scratch::new(Some(place.path()), &()).is_err());
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
    }
}
