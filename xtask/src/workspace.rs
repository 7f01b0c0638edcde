//! Where things are in the workspace, and the programs that tasks start.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::Result;
use crate::steps::execute;

/// The root of the repository.
pub(crate) fn root() -> Result<PathBuf> {
    // Cargo tells where the package is that it runs.
    let package = env::var_os("CARGO_MANIFEST_DIR").ok_or("start tasks with `cargo xtask`")?;
    let root = PathBuf::from(package).parent().map(PathBuf::from);
    Ok(root.ok_or("the package has no parent folder")?)
}

/// Where Cargo puts its results.
pub(crate) fn target() -> Result<PathBuf> {
    let named = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    Ok(root()?.join(named))
}

/// A Cargo command that runs in the root.
pub(crate) fn cargo(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(arguments).current_dir(root()?);
    Ok(command)
}

/// The kind of machine that a compiler builds for by itself.
pub(crate) fn host(rustc: &mut Command) -> Result<String> {
    let output = rustc.arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("the compiler does not say what it builds for")?.to_owned())
}

/// Builds the tool for release.
pub(crate) fn build_tool() -> Result {
    execute(&mut cargo(&["build", "--release", "--package", "deltachain-cli"])?)
}

/// The tool that [`build_tool`] makes.
pub(crate) fn tool() -> Result<PathBuf> {
    Ok(target()?.join("release").join(format!("deltachain{}", env::consts::EXE_SUFFIX)))
}
