//! Free space of a disk; detection of file systems in memory.

use std::io;
use std::path::Path;

use deltachain::{Error, Result};

/// Checks that this many bytes fit on the disk of a directory, before long work that would fail.
///
/// # Errors
/// IO if there is less room. A file system that does not report its free space counts as large
/// enough.
pub(crate) fn check_room(directory: &Path, needed: u64) -> Result<()> {
    check(needed, free(directory)).map_err(|error| error.in_file(directory))
}

fn check(needed: u64, free: Option<u64>) -> Result<()> {
    match free.filter(|free| *free < needed) {
        Some(free) => {
            let message = format!("the version needs {needed} bytes, but only {free} are free");
            Err(Error::io(message, io::ErrorKind::StorageFull.into()))
        }
        None => Ok(()),
    }
}

/// Whether a directory is in the machine's memory, so that its files take memory from programs.
pub(crate) fn is_in_memory(directory: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        /// Magic numbers of tmpfs and ramfs.
        const KINDS: [i128; 2] = [0x0102_1994, 0x8584_58f6];
        rustix::fs::statfs(directory).is_ok_and(|found| KINDS.contains(&i128::from(found.f_type)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = directory;
        false
    }
}

#[cfg(unix)]
fn free(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    // Some file systems have no limit, and report 0 blocks.
    (found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn free(_directory: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(check(7, Some(7)).is_ok() && check(7, None).is_ok());
        let error = check(8, Some(7)).unwrap_err();
        assert_eq!(error.class(), deltachain::ErrorClass::Io);
        assert!(
            error
                .message()
                .contains("needs 8 bytes, but only 7 are free"),
            "{error}"
        );
        let here = tempfile::tempdir().unwrap();
        assert!(check_room(here.path(), 1).is_ok());
        #[cfg(unix)]
        assert!(
            check_room(here.path(), u64::MAX)
                .unwrap_err()
                .file()
                .is_some()
        );
        assert!(check_room(Path::new("there is no such place"), u64::MAX).is_ok());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_told_from_disks() {
        assert!(is_in_memory(Path::new("/dev/shm")));
        assert!(
            !is_in_memory(Path::new(env!("CARGO_MANIFEST_DIR")))
                && !is_in_memory(Path::new("nothing"))
        );
    }
}
