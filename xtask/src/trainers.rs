//! `cargo xtask trainers`: the Python package with torch and the real trainers (transformers, TRL, verl) on the CPU, in an
//! environment of its own.

use std::path::Path;
use std::process::Command;

use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::Profile;
use crate::{Result, wheel};

const REQUIREMENTS: [&str; 2] = ["python/requirements-test.txt", "python/tests/engines/requirements.txt"];
/// It requires an older transformers than TRL is tried with, so it is installed without its dependencies.
const VERL: &str = "verl==0.9.1";

/// What needs torch.
const TESTS: [&str; 9] = [
    "engines",
    "test_torch.py",
    "test_in_place.py",
    "test_in_place_follow.py",
    "test_in_place_ranks.py",
    "test_maps.py",
    "test_places.py",
    "test_ranks.py",
    "test_publisher.py",
];

pub(crate) fn run() -> Result {
    Profile::Tests.choose();
    let mut steps = Steps::default();
    let wheel = steps.get("wheel", wheel::build_for_this_machine);
    let python = wheel.and_then(|wheel| steps.get("environment with torch and trainers", || environment(&wheel)));
    match python {
        Some(python) => {
            let arguments = [&["-m", "pytest", "--quiet", "-rs"][..], &TESTS].concat();
            steps.run("Python package with torch and trainers", || python.run("python/tests", &arguments));
        }
        None => steps.skip("Python package with torch and trainers", "no environment"),
    }
    steps.finish()
}

/// An environment with torch, the trainers and the package.
pub(crate) fn environment(wheel: &Path) -> Result<Python> {
    let python = Python::with("venv-trainers", &REQUIREMENTS)?;
    let install = |arguments: &[&str]| {
        let mut pip = Command::new(python.path());
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
        execute(pip.args(arguments))
    };
    install(&[VERL])?;
    install(&["--force-reinstall", &wheel.to_string_lossy()])?;
    Ok(python)
}
