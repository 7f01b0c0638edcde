//! `cargo xtask js`: the JavaScript reader: its types and tests, the conformance vectors, `inspect` against the tool,
//! damaged files against the other readers, mistakes that the vectors must notice, and the inspector's page in a browser. It
//! needs Node, and Chromium for the page; without them, the steps are skipped.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Result;
use crate::conformance::{measure_part, quoted, wrong_testees};
use crate::differential::add_interop;
use crate::node::{self, folder, testee};
use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{build_runner, build_tool, root, target, tool};

/// What the npm package has beside sources and types.
const PACKED: [&str; 4] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json"];
/// How many mistakes are tried in a test: all of them take minutes.
const SOME_MISTAKES: u32 = 40;
/// Debian's browser. `DELTACHAIN_BROWSER` names another.
const BROWSER: &str = "/usr/bin/chromium";

/// `cargo xtask js`
pub(crate) fn run() -> Result {
    let mut steps = Steps::default();
    let built = steps.run("release build", || {
        build_tool()?;
        build_runner()
    });
    let python = steps.get("Python environment", Python::install);
    let installed = node::install(&mut steps);
    add_all_steps(&mut steps, installed, built, python.as_ref());
    steps.finish()
}

/// What tells whether the reader works. `installed`: whether its packages are there. The vectors need the runner.
pub(crate) fn add_steps(steps: &mut Steps, installed: bool, built: bool) {
    if !installed {
        return;
    }
    steps.run("JavaScript types", || node::run("npm", &["run", "types"]));
    steps.run("JavaScript tests", || node::run("npm", &["test"]));
    if built {
        // It writes no links, so it does not claim `encode`.
        steps.run("conformance of the JavaScript reader", || measure_part(&["node", &quoted(&testee()?)], &[]));
    } else {
        steps.skip("conformance of the JavaScript reader", "no runner");
    }
}

/// That, and what is compared with the reader or made of it. Some need the tool and the runner.
pub(crate) fn add_all_steps(steps: &mut Steps, installed: bool, built: bool, python: Option<&Python>) {
    add_steps(steps, installed, built);
    if installed {
        steps.run("files of the npm package", check_package);
        steps.run("inspector: the built page is up to date", || node::run("node", &["inspector/build.mjs", "--check"]));
    }
    if installed && built {
        let browser = std::env::var_os("DELTACHAIN_BROWSER").map_or_else(|| PathBuf::from(BROWSER), PathBuf::from);
        if browser.exists() {
            steps.run("inspector in a browser", test_page);
        } else {
            let reason = "no /usr/bin/chromium, and DELTACHAIN_BROWSER names no browser that is there";
            steps.skip("inspector in a browser", reason);
        }
        steps.run("inspect of the JavaScript reader", || {
            node::run("node", &[OsStr::new("tests/inspect.mjs"), tool()?.as_os_str()])
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
    add_interop(steps, built, python, installed, false);
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
