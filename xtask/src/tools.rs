//! Cargo subcommands that tasks use, of fixed versions: installed into the target folder when they are missing there; and
//! standard libraries for other machines.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::Result;
use crate::steps::execute;
use crate::workspace::{cargo, target};

/// Whether Rust can build for this kind of machine: installs its standard library if rustup has it.
pub(crate) fn builds_for(target: &str) -> bool {
    execute(Command::new("rustup").args(["target", "add", target])).is_ok()
}

/// The program of this name and version.
pub(crate) fn installed(name: &str, version: &str) -> Result<PathBuf> {
    let folder = target()?.join(name);
    let program = folder.join("bin").join(format!("{name}{}", env::consts::EXE_SUFFIX));
    let own = Command::new(&program).arg("--version").output();
    if !own.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(version)) {
        let mut install = cargo(&["install", name, "--locked", "--version", version, "--root"])?;
        execute(install.arg(&folder).arg("--target-dir").arg(folder.join("build")))?;
    }
    Ok(program)
}
