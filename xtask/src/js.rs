//! `cargo xtask js`: the JavaScript reader: its types and tests, the conformance vectors, `inspect` against the tool,
//! damaged files against the other readers, mistakes that the vectors must notice, and the inspector's page in a browser. It
//! needs Node, and Chromium for the page; without them, the steps are skipped.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::conformance::{build_runner, measure_part, quoted, wrong_testees};
use crate::differential::add_interop;
use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{build_tool, root, target, tool};
use crate::{Result, no_arguments};

/// Oldest version of Node that the package supports.
const NODE: u32 = 20;
/// What the npm package has beside sources and types.
const PACKED: [&str; 4] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json"];
/// How many mistakes are tried in a test: all of them take minutes.
const SOME_MISTAKES: u32 = 40;
/// Debian's browser. `DELTACHAIN_BROWSER` names another.
const BROWSER: &str = "/usr/bin/chromium";

/// `cargo xtask js`
pub(crate) fn run(arguments: &[String]) -> Result {
    no_arguments(arguments)?;
    let mut steps = Steps::default();
    let built = steps.run("release build", || {
        build_tool()?;
        build_runner()
    });
    let python = steps.get("Python environment", Python::install);
    add_steps(&mut steps, built, python.as_ref());
    steps.finish()
}

/// All steps of the JavaScript reader, for this task and for `cargo xtask test`. Some need the tool and the runner.
pub(crate) fn add_steps(steps: &mut Steps, built: bool, python: Option<&Python>) {
    let installed = install(steps);
    if installed {
        add_own_steps(steps, built, python);
    }
    add_interop(steps, built, python, installed, false);
}

/// Installs the reader's packages. Returns whether it can be used.
pub(crate) fn install(steps: &mut Steps) -> bool {
    if !has_node() {
        steps.skip("JavaScript reader", "no Node of version 20 or later");
        return false;
    }
    steps.run("JavaScript packages", || in_js("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund"]))
}

fn add_own_steps(steps: &mut Steps, built: bool, python: Option<&Python>) {
    steps.run("JavaScript types", || in_js("npm", &["run", "types"]));
    steps.run("JavaScript tests", || in_js("npm", &["test"]));
    steps.run("files of the npm package", check_package);
    steps.run("inspector: the built page is up to date", || in_js("node", &["inspector/build.mjs", "--check"]));
    if !built {
        steps.skip("conformance of the JavaScript reader", "no runner");
        steps.skip("inspector in a browser", "no tool");
        return;
    }
    let browser = std::env::var_os("DELTACHAIN_BROWSER").map_or_else(|| PathBuf::from(BROWSER), PathBuf::from);
    if browser.exists() {
        steps.run("inspector in a browser", test_page);
    } else {
        steps.skip(
            "inspector in a browser",
            "no /usr/bin/chromium, and DELTACHAIN_BROWSER names no browser that is there",
        );
    }
    steps.run("conformance of the JavaScript reader", || {
        // It writes no links, so it does not claim `encode`.
        measure_part(&["node", &quoted(&testee()?)], &[])
    });
    steps.run("inspect of the JavaScript reader", || {
        in_js("node", &[OsStr::new("tests/inspect.mjs"), tool()?.as_os_str()])
    });
    match python {
        Some(python) => {
            steps.run("some wrong JavaScript readers", || {
                wrong_testees(python, &["--reader", "javascript", "--some", &SOME_MISTAKES.to_string()])
            });
        }
        None => steps.skip("some wrong JavaScript readers", "no Python environment"),
    }
}

/// The page in a browser. Pictures of it are kept in `target/inspector`.
fn test_page() -> Result {
    let mut tests = Command::new("npm");
    tests.args(["run", "test:browser"]).current_dir(folder()?);
    execute(tests.env("DELTACHAIN", tool()?).env("SCREENSHOTS", target()?.join("inspector")))
}

/// What would be published: sources, types, README and licences, nothing else.
fn check_package() -> Result {
    let packed = Command::new("npm")
        .args(["pack", "--dry-run", "--json", "--ignore-scripts"])
        .current_dir(folder()?)
        .stderr(Stdio::inherit())
        .output()?;
    let listing: serde_json::Value = serde_json::from_slice(&packed.stdout)?;
    let files = listing[0]["files"].as_array().ok_or("npm pack lists no files")?;
    let mut names: Vec<&str> = files.iter().filter_map(|file| file["path"].as_str()).collect();
    names.retain(|name| !name.starts_with("src/") && !name.starts_with("types/"));
    names.sort_unstable();
    if names != PACKED {
        return Err(format!("the npm package has {names:?} beside sources and types, not {PACKED:?}").into());
    }
    for licence in PACKED.iter().filter(|name| name.starts_with("LICENSE")) {
        if fs::read(folder()?.join(licence))? != fs::read(root()?.join(licence))? {
            return Err(format!("js/{licence} is not the repository's").into());
        }
    }
    Ok(())
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

fn folder() -> Result<PathBuf> {
    Ok(root()?.join("js"))
}

fn in_js<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result {
    execute(Command::new(program).args(arguments).current_dir(folder()?))
}
