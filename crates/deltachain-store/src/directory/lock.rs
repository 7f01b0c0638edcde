//! Lock files, so that one process at a time works in a directory.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};

use crate::observer::{Observer, Phase};

/// Time to wait for a lock that processes hold only briefly. A process that holds it longer was
/// stopped, or hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time after which the observer learns of the wait.
const A_MOMENT: Duration = Duration::from_secs(1);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// Name of the lock file.
pub(crate) const LOCK: &str = "lock";

/// Opens a file to lock it, and creates it if it does not exist. Only a regular file is opened: a
/// pipe would block forever, and a symbolic link may lead to a foreign file.
///
/// # Errors
/// IO, also if the path is not a regular file.
pub(crate) fn open_lock(path: &Path) -> Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        let text = "not a regular file, so it cannot be locked";
        return Err(Error::unusable(text, "remove it").in_file(path));
    }
    let opened = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    opened.map_err(|error| Error::io("locking", error).in_file(path))
}

/// Locks a file of a directory that other processes lock briefly. The observer learns of a longer
/// wait.
///
/// # Errors
/// USAGE if another process keeps it locked; IO; the observer's error, if it ends the waiting.
pub(crate) fn wait_for(lock: &File, directory: &Path, observer: &dyn Observer) -> Result<()> {
    let (began, mut is_told) = (Instant::now(), false);
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => {
                return Err(Error::io("locking", error).in_file(directory));
            }
            Err(TryLockError::WouldBlock) => {}
        }
        let waited = began.elapsed();
        if waited > A_MOMENT && !is_told {
            observer.remark(&format!(
                "waiting for another process that has locked {:?}",
                directory.to_string_lossy()
            ));
            is_told = true;
        }
        if waited > PATIENCE {
            let seconds = PATIENCE.as_secs();
            let text = format!(
                "another process has locked this directory for more than {seconds} s, and may be \
                 suspended"
            );
            return Err(Error::in_use(text).in_file(directory));
        }
        observer.advance(Phase::Wait, 0)?;
        thread::sleep(PAUSE);
    }
}
