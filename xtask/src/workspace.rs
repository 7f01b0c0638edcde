//! Where things are in the workspace, and the programs that tasks start.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::Result;
use crate::steps::execute;

/// How the programs are built that tasks run: for release, unless a task has chosen otherwise.
static PROFILE: OnceLock<Profile> = OnceLock::new();

#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// As `cargo test --workspace` builds them, so that its tasks need no build of their own. Also stops at overflows.
    Tests,
    /// As users get them.
    Release,
}

impl Profile {
    /// Lets this task and what it calls use these programs.
    pub(crate) fn choose(self) {
        // A task chooses at its beginning.
        PROFILE.get_or_init(|| self);
    }

    pub(crate) fn chosen() -> Self {
        *PROFILE.get_or_init(|| Self::Release)
    }

    /// Cargo's name for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tests => "dev",
            Self::Release => "release",
        }
    }
}

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

/// Where real checkpoints are: this folder, or the excerpts in the repository.
pub(crate) fn checkpoints(folder: Option<&Path>) -> Result<PathBuf> {
    match folder {
        Some(folder) => Ok(fs::canonicalize(folder).map_err(|error| format!("{}: {error}", folder.display()))?),
        None => Ok(root()?.join("testdata")),
    }
}

/// What was typed to start this task, without the name of that folder.
pub(crate) fn typed(folder: Option<&Path>) -> String {
    let is_folder = |word: &String| folder == Some(Path::new(word));
    let words = env::args().skip(1).map(|word| if is_folder(&word) { "DIRECTORY".to_owned() } else { word });
    ["cargo xtask".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// A Cargo command that runs in the root.
pub(crate) fn cargo(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(arguments).current_dir(root()?);
    Ok(command)
}

/// The version of the library, which is that of everything.
pub(crate) fn version() -> Result<String> {
    value("Cargo.toml", "version = ")
}

/// What stands between the first quotes of the first line that begins so.
pub(crate) fn value(file: &str, start: &str) -> Result<String> {
    let text = fs::read_to_string(root()?.join(file))?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(start));
    let quoted = line.and_then(|line| line.split('"').nth(1));
    Ok(quoted.ok_or_else(|| format!("{file} has no line `{start}`"))?.to_owned())
}

/// The kind of machine that a compiler builds for by itself.
pub(crate) fn host(rustc: &mut Command) -> Result<String> {
    let output = rustc.arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("the compiler does not say what it builds for")?.to_owned())
}

/// Builds programs of a package, unless `cargo test --workspace` has.
fn build(package: &str) -> Result {
    match Profile::chosen() {
        Profile::Tests => Ok(()),
        Profile::Release => execute(&mut cargo(&["build", "--release", "--package", package])?),
    }
}

/// Builds the tool.
pub(crate) fn build_tool() -> Result {
    build("deltachain-cli")
}

/// The tool that [`build_tool`] makes.
pub(crate) fn tool() -> Result<PathBuf> {
    program("deltachain")
}

/// Builds the runner of the conformance kit.
pub(crate) fn build_runner() -> Result {
    build("deltachain-conformance")
}

/// The runner that [`build_runner`] makes.
pub(crate) fn runner() -> Result<PathBuf> {
    program("deltachain-conformance")
}

/// A program of the workspace that was built.
fn program(name: &str) -> Result<PathBuf> {
    let folder = match Profile::chosen() {
        Profile::Tests => "debug",
        Profile::Release => "release",
    };
    Ok(target()?.join(folder).join(format!("{name}{}", env::consts::EXE_SUFFIX)))
}
