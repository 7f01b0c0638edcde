//! The JavaScript reader's packages, and the programs that need them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Result;
use crate::steps::{Steps, execute};
use crate::workspace::root;

/// Oldest version of Node that the package supports.
const NODE: u32 = 20;

/// Installs the reader's packages. Returns whether it can be used.
pub(crate) fn install(steps: &mut Steps) -> bool {
    if !has_node() {
        steps.skip("JavaScript reader", "no Node of version 20 or later");
        return false;
    }
    steps.run("JavaScript packages", || run("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund"]))
}

/// Whether there is a Node that is new enough, with npm.
fn has_node() -> bool {
    let output = |program| Command::new(program).arg("--version").stderr(Stdio::null()).output();
    let Ok(node) = output("node") else { return false };
    let version = String::from_utf8_lossy(&node.stdout).trim().trim_start_matches('v').to_owned();
    let major = version.split('.').next().and_then(|major| major.parse().ok());
    major.is_some_and(|major: u32| major >= NODE) && output("npm").is_ok_and(|npm| npm.status.success())
}

/// The reader behind the protocol of the conformance kit.
pub(crate) fn testee() -> Result<PathBuf> {
    Ok(folder()?.join("testee.mjs"))
}

/// The reader's sources.
pub(crate) fn folder() -> Result<PathBuf> {
    Ok(root()?.join("js"))
}

/// Runs a program among them.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result {
    execute(Command::new(program).args(arguments).current_dir(folder()?))
}
