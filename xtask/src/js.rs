//! `cargo xtask js`: the JavaScript reader: its types and tests, the conformance vectors, `inspect` against the tool, and
//! damaged files against the Rust reader. It needs Node; without it, the steps are skipped.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::conformance::{build_runner, measure_part, quoted, runner};
use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{build_tool, root, tool};
use crate::{Result, no_arguments};

/// Oldest version of Node that the package supports.
const NODE: u32 = 20;

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
    if !has_node() {
        steps.skip("JavaScript reader", "no Node of version 20 or later");
        return;
    }
    if !steps.run("JavaScript packages", || in_js("npm", &["ci", "--ignore-scripts", "--no-audit", "--no-fund"])) {
        steps.skip("JavaScript reader", "its packages could not be installed");
        return;
    }
    steps.run("JavaScript types", || in_js("npm", &["run", "types"]));
    steps.run("JavaScript tests", || in_js("npm", &["test"]));
    if !built {
        steps.skip("conformance of the JavaScript reader", "no runner");
        return;
    }
    steps.run("conformance of the JavaScript reader", || {
        // It writes no links, so it does not claim `encode`.
        measure_part(&["node", &quoted(&folder()?.join("testee.mjs"))], &[])
    });
    steps.run("inspect of the JavaScript reader", || {
        in_js("node", &[OsStr::new("tests/inspect.mjs"), tool()?.as_os_str()])
    });
    match python {
        Some(python) => {
            steps.run("interop of the JavaScript reader", || {
                let runner = runner()?;
                python.run("js", &[OsStr::new("tests/interop.py"), OsStr::new("--runner"), runner.as_os_str()])
            });
        }
        None => steps.skip("interop of the JavaScript reader", "no Python environment"),
    }
}

/// Whether there is a Node that is new enough, with npm.
fn has_node() -> bool {
    let output = |program| Command::new(program).arg("--version").stderr(Stdio::null()).output();
    let Ok(node) = output("node") else { return false };
    let version = String::from_utf8_lossy(&node.stdout).trim().trim_start_matches('v').to_owned();
    let major = version.split('.').next().and_then(|major| major.parse().ok());
    major.is_some_and(|major: u32| major >= NODE) && output("npm").is_ok_and(|npm| npm.status.success())
}

fn folder() -> Result<PathBuf> {
    Ok(root()?.join("js"))
}

fn in_js<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result {
    execute(Command::new(program).args(arguments).current_dir(folder()?))
}
