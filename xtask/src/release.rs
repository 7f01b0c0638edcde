//! `cargo xtask release --dry-run`: all that can be known before a release: versions agree, packages are whole and build from
//! what is in them, the public interface is the recorded one, the library and the wheel pass as users get them. Publishing
//! itself is for people (CONTRIBUTING.md).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::tools::installed;
use crate::workspace::{build_runner, cargo, root};
use crate::{Result, conformance, wheel};

/// The crates that are published, each after those that it needs.
const CRATES: [&str; 5] =
    ["deltachain", "deltachain-exchange", "deltachain-store", "deltachain-engines", "deltachain-cli"];
/// Those whose public interface is recorded. The other ones are a program, and what it and the Python package use.
const LIBRARIES: [&str; 3] = ["deltachain", "deltachain-exchange", "deltachain-store"];
/// The version of cargo-public-api that lists interfaces.
const PUBLIC_API: &str = "0.52.0";

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Arguments {
    /// Versions agree, packages build from what is in them, the public interface is as recorded, tests pass
    #[arg(long)]
    dry_run: bool,
    /// Record the public interface
    #[arg(long)]
    record: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result {
    if arguments.record {
        return LIBRARIES.iter().try_for_each(|name| Ok(fs::write(recorded(name)?, interface(name)?)?));
    }
    dry_run()
}

fn dry_run() -> Result {
    let mut steps = Steps::default();
    steps.run("versions agree", versions_agree);
    steps.run("nothing is uncommitted", is_clean);
    steps.run("Rust packages build from what is in them", || package(&["--locked"]));
    for name in LIBRARIES {
        steps.run(&format!("public interface of {name}"), || {
            if interface(name)? == fs::read_to_string(recorded(name)?)? {
                return Ok(());
            }
            Err("it is not the recorded one: see what `cargo xtask release --record` changes".into())
        });
    }
    // `cargo xtask test` tries what `cargo test` builds.
    let runner = steps.run("conformance runner", build_runner);
    conformance::add_library(&mut steps, runner);
    wheel::add_steps(&mut steps, runner);
    steps.run("description of the Python wheel", || {
        let wheel = wheel::build_for_this_machine()?;
        let python = Python::with("venv-release", &["python/requirements-release.txt"])?;
        execute(Command::new(python.path()).args(["-m", "twine", "check", "--strict"]).arg(wheel))
    });
    steps.run("npm package", || {
        let folder = root()?.join("js");
        execute(Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder))?;
        execute(Command::new("npm").args(["pack", "--dry-run"]).current_dir(folder))
    });
    steps.finish()
}

/// Makes the packages of all crates, as they would be published.
pub(crate) fn package(options: &[&str]) -> Result {
    let packages = CRATES.iter().flat_map(|name| ["--package", name]);
    let words = ["package"].into_iter().chain(options.iter().copied()).chain(packages);
    execute(&mut cargo(&words.collect::<Vec<_>>())?)
}

/// The version of the library, which is that of everything.
pub(crate) fn version() -> Result<String> {
    value("Cargo.toml", "version = ")
}

/// What stands between the first quotes of the first line that begins so.
fn value(file: &str, start: &str) -> Result<String> {
    let text = fs::read_to_string(root()?.join(file))?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(start));
    let quoted = line.and_then(|line| line.split('"').nth(1));
    Ok(quoted.ok_or_else(|| format!("{file} has no line `{start}`"))?.to_owned())
}

fn versions_agree() -> Result {
    let wanted = version()?;
    let crates = CRATES[1..].iter().map(|name| (format!("crates/{name}/Cargo.toml"), "version = "));
    let others =
        [("python/Cargo.toml", "version = "), ("js/package.json", "\"version\": "), ("CITATION.cff", "version: ")];
    for (file, start) in crates.chain(others.map(|(file, start)| (file.to_owned(), start))) {
        let found = value(&file, start)?;
        if found != wanted {
            return Err(format!("{file} has version {found}, Cargo.toml {wanted}").into());
        }
    }
    let heading = format!("\n## {wanted}");
    if !fs::read_to_string(root()?.join("CHANGELOG.md"))?.contains(&heading) {
        return Err(format!("CHANGELOG.md has no heading `{}`", heading.trim()).into());
    }
    Ok(())
}

fn is_clean() -> Result {
    let status = Command::new("git").args(["status", "--porcelain"]).current_dir(root()?).output()?;
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    if status.status.success() && text.is_empty() { Ok(()) } else { Err(text.into()) }
}

/// Where the interface of a library is recorded.
fn recorded(name: &str) -> Result<PathBuf> {
    Ok(root()?.join(format!("xtask/public-api/{name}.txt")))
}

/// The public items of a library, a line each. Needs a nightly toolchain.
fn interface(name: &str) -> Result<String> {
    let program = installed("cargo-public-api", PUBLIC_API)?;
    let mut list = Command::new(program);
    list.args(["public-api", "--package", name, "--simplified", "--simplified", "--simplified"]);
    let output = list.current_dir(root()?).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
