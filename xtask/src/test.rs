//! `cargo xtask test`: every test, those of the Python reader included.
//!
//! The Python parts run in a virtual environment of their own in the target folder, which is made when it is missing
//! or when its requirements have changed.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{Steps, execute};
use crate::workspace::{build_tool, cargo, root, target, tool};
use crate::{Result, memory, no_arguments};

/// The second reader, relative to the root.
const READER: &str = "conformance/python";
/// Checks that both readers give the same answers, relative to the root.
const INTEROP: &str = "conformance/interop.py";

pub(crate) fn run(arguments: &[String]) -> Result {
    no_arguments(arguments)?;
    let root = root()?;
    let mut steps = Steps::default();
    steps.run("Rust tests", || execute(&mut cargo(&["test", "--workspace"])?));
    let built = steps.run("release build", build_tool);

    let mut python = None;
    steps.run("Python environment", || {
        python = Some(environment(&root)?);
        Ok(())
    });
    let run_python = |python: &Path, arguments: &[OsString], folder: &Path| {
        // No caches among the sources.
        execute(Command::new(python).args(arguments).current_dir(folder).env("PYTHONDONTWRITEBYTECODE", "1"))
    };
    match &python {
        Some(python) => {
            steps.run("Python reader", || run_python(python, &["-m".into(), "unittest".into()], &root.join(READER)));
        }
        None => steps.skip("Python reader", "no Python environment"),
    }
    match &python {
        _ if !root.join(INTEROP).exists() => steps.skip("interop", "there is no conformance/interop.py"),
        Some(python) if built => {
            steps.run("interop", || {
                let tool = tool()?;
                run_python(python, &[INTEROP.into(), "--tool".into(), tool.into(), "--short".into()], &root)
            });
        }
        Some(_) => steps.skip("interop", "no tool"),
        None => steps.skip("interop", "no Python environment"),
    }

    if built && cfg!(target_os = "linux") {
        steps.run("memory", memory::short);
    } else {
        steps.skip("memory", if built { "only on Linux" } else { "no tool" });
    }
    steps.finish()
}

/// The Python interpreter of the virtual environment, which has what the requirements name.
fn environment(root: &Path) -> Result<PathBuf> {
    let folder = target()?.join("venv");
    let python = if cfg!(windows) { folder.join("Scripts/python.exe") } else { folder.join("bin/python") };
    let requirements = root.join(READER).join("requirements.txt");
    let wanted = fs::read_to_string(&requirements)
        .map_err(|error| format!("cannot read {}: {error}", requirements.display()))?;
    // A copy of the requirements, written when they have been installed.
    let installed = folder.join("installed.txt");
    if python.exists() && fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        println!("{READER}/requirements.txt: installed before");
        return Ok(python);
    }
    let interpreter = if cfg!(windows) { "python" } else { "python3" };
    execute(Command::new(interpreter).args(["-m", "venv", "--clear"]).arg(&folder))
        .map_err(|error| format!("{error}; tests need Python 3 with its venv module"))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    execute(pip.arg(&requirements))?;
    fs::write(installed, wanted)?;
    Ok(python)
}
