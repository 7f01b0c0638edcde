//! This test program in a process of its own, which can be killed.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable with the directory of such a process. Without it, tests for child processes
/// do nothing.
const PLACE: &str = "DELTACHAIN_TEST_PLACE";

/// A command that runs one of the ignored tests of this program.
pub(crate) fn child(test: &str, place: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(PLACE, place);
    command
}

/// Like [`child`], but no file may grow beyond a number of blocks of 512 or 1024 bytes. Longer
/// writes fail, as on a full disk.
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

/// Like [`child`], but as a user without privileges. Ends with 126 or 127 if it cannot be started
/// like this.
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

/// The directory of such a process; `None` in the test program itself.
pub(crate) fn place() -> Option<PathBuf> {
    env::var_os(PLACE).map(PathBuf::from)
}
