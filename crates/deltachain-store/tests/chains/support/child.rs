//! This test program once more, as a process of its own that can be killed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the process finds what it needs. Without it, the tests for processes do nothing.
const PLACE: &str = "DELTACHAIN_TEST_PLACE";

/// A command that runs one of the ignored tests of this program.
pub(crate) fn child(test: &str, place: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(PLACE, place);
    command
}

/// As [`child`], but no file may grow beyond a number of blocks of 512 or 1024 bytes. What is
/// longer cannot be written, as on a disk that is full.
#[cfg(unix)]
pub(crate) fn child_with_short_files(test: &str, place: &Path, blocks: u64) -> Command {
    let child = child(test, place);
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!(
        "trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\""
    ));
    command
        .arg(child.get_program())
        .args(child.get_args())
        .env(PLACE, place);
    command
}

/// As [`child`], but as a user who may only do what all may. It ends with 126 or 127 if it cannot
/// be started so.
#[cfg(target_os = "linux")]
pub(crate) fn child_without_privileges(test: &str, place: &Path) -> Command {
    let child = child(test, place);
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command
        .arg(child.get_program())
        .args(child.get_args())
        .env(PLACE, place);
    command
}

/// In such a process, where it finds what it needs.
pub(crate) fn place() -> Option<PathBuf> {
    env::var_os(PLACE).map(PathBuf::from)
}
