//! `cargo xtask wheel`: the Python package as a wheel, and its tests against the wheel, installed in an environment of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::conformance::quoted;
use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{root, target};
use crate::{Result, conformance, no_arguments};

/// What builds wheels, and what tests them.
const BUILD: [&str; 1] = ["python/requirements-build.txt"];
const TEST: [&str; 1] = ["python/requirements-test.txt"];

/// The largest wheel that users are to fetch.
const MOST_BYTES: u64 = 12 << 20;

/// `cargo xtask wheel`
pub(crate) fn run(arguments: &[String]) -> Result {
    no_arguments(arguments)?;
    let mut steps = Steps::default();
    let runner = steps.run("conformance runner", conformance::build_runner);
    add_steps(&mut steps, runner);
    steps.finish()
}

/// Builds the wheel and tests it. The conformance suite needs the runner.
pub(crate) fn add_steps(steps: &mut Steps, runner: bool) {
    let Some(wheel) = steps.get("wheel", build) else {
        steps.skip("Python package", "no wheel");
        steps.skip("conformance of the Python package", "no wheel");
        return;
    };
    let python = steps.get("wheel in an empty environment", || install(&wheel));
    match &python {
        // From another folder than that of the sources, which would be imported.
        Some(python) => {
            steps.run("Python package", || python.run("python/tests", &["-m", "pytest", "--quiet", "."]));
            steps.run("examples in the Python package's documentation", || {
                let modules = "import doctest, sys; from deltachain import _files, _publisher, _tensors; \
                               sys.exit(sum(doctest.testmod(m).failed for m in (_files, _publisher, _tensors)))";
                python.run("python/tests", &["-c", modules])
            });
        }
        None => steps.skip("Python package", "no environment"),
    }
    match &python {
        Some(python) if runner => {
            steps.run("conformance of the Python package", || {
                let testee = root()?.join("python/tests/testee.py");
                conformance::measure_part(&[&quoted(python.path()), &quoted(&testee)], &[])
            });
        }
        _ => steps.skip("conformance of the Python package", "no runner or no environment"),
    }
}

/// Builds the wheel for release, into the target folder.
fn build() -> Result<PathBuf> {
    let python = Python::with("venv-maturin", &BUILD)?;
    let folder = target()?.join("wheels");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut maturin = Command::new(python.path());
    maturin.args(["-m", "maturin", "build", "--release", "--locked", "--out"]).arg(&folder);
    execute(maturin.current_dir(root()?.join("python")))?;
    let built = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let [wheel] = built.as_slice() else { return Err("maturin has not made one wheel".into()) };
    let bytes = fs::metadata(wheel)?.len();
    println!("{}: {bytes} bytes", wheel.display());
    if bytes > MOST_BYTES {
        return Err(format!("the wheel is longer than {MOST_BYTES} bytes").into());
    }
    Ok(wheel.clone())
}

/// An environment with the wheel and what its tests need.
fn install(wheel: &PathBuf) -> Result<Python> {
    let python = Python::with("venv-package", &TEST)?;
    let mut pip = Command::new(python.path());
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"]);
    execute(pip.arg(wheel))?;
    Ok(python)
}
