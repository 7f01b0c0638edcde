//! `cargo xtask release --dry-run`: all that can be known before a release: versions and addresses agree, packages are whole
//! and build from what is in them, the public interface is the recorded one, the library and the wheel pass as users get
//! them. The files of the release are then in `target/artefacts`. Publishing itself is for people (CONTRIBUTING.md).

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::artefacts::Artefacts;
use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::tools::installed;
use crate::workspace::{build_runner, cargo, root, target, value, version};
use crate::{Result, address, bundle, conformance, dist, node, wheel};

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
    /// Versions agree, packages build, the public interface is as recorded, tests pass; and all files of a release
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
    let mut artefacts = Artefacts::begin()?;
    steps.run("versions agree", versions_agree);
    steps.run("nothing is uncommitted", is_clean);
    address::add_steps(&mut steps);
    if steps.run("Rust packages build from what is in them", || package(&["--locked"])) {
        steps.run("crates", || {
            let packed = |name| Result::Ok(target()?.join(format!("package/{name}-{}.crate", version()?)));
            CRATES.iter().try_for_each(|name| artefacts.add(&packed(name)?, "built from what is in it"))
        });
    } else {
        artefacts.miss("crates", "they could not be packed");
    }
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
    add_artefacts(&mut steps, &mut artefacts, runner);
    steps.finish()
}

/// What is built for users, beside the crates, and what is said of all of it.
fn add_artefacts(steps: &mut Steps, artefacts: &mut Artefacts, runner: bool) {
    let wheels = [
        ("wheel for this processor", wheel::add_manylinux_steps as fn(&mut Steps, bool) -> _, "tested on this machine"),
        ("wheel for aarch64", wheel::add_aarch64_steps, "tested in qemu-aarch64, but for tests that fork"),
    ];
    for (what, build, tested) in wheels {
        match build(steps, runner) {
            Some((wheel, passed)) => {
                let tried = if passed { tested } else { "UNVERIFIED: its tests did not run, or did not pass" };
                steps.run(&format!("{what}: description"), || {
                    artefacts.add(&wheel, tried)?;
                    let python = Python::with("venv-release", &["python/requirements-release.txt"])?;
                    execute(Command::new(python.path()).args(["-m", "twine", "check", "--strict"]).arg(&wheel))
                });
            }
            None => artefacts.miss(what, "see the steps"),
        }
    }
    if let Some(reason) = dist::missing() {
        steps.skip("static tool", reason);
        artefacts.miss("static tool", reason);
    } else {
        steps.run("static tool", || artefacts.add(&dist::build()?, "its demo was run on this machine"));
    }
    if node::install(steps) {
        steps.run("npm package", || {
            let folder = target()?.join("npm");
            fs::create_dir_all(&folder)?;
            let words = [OsStr::new("pack"), OsStr::new("--pack-destination"), folder.as_os_str()];
            node::run("npm", &words)?;
            artefacts
                .add(&folder.join(format!("deltachain-reader-{}.tgz", version()?)), "packed; `cargo xtask js` tests it")
        });
    } else {
        artefacts.miss("npm package", "no Node, or its packages could not be installed");
    }
    if runner {
        steps.run("conformance bundle", || {
            artefacts.add(&bundle::write(&target()?)?, "packed; `cargo xtask conformance` tests it")
        });
    } else {
        artefacts.miss("conformance bundle", "no runner");
    }
    steps.run("bill of materials", || artefacts.write_bill());
    steps.run("provenance and checksums", || artefacts.finish());
}

/// Makes the packages of all crates, as they would be published.
pub(crate) fn package(options: &[&str]) -> Result {
    let packages = CRATES.iter().flat_map(|name| ["--package", name]);
    let words = ["package"].into_iter().chain(options.iter().copied()).chain(packages);
    execute(&mut cargo(&words.collect::<Vec<_>>())?)
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
