//! `cargo xtask wheel`: the Python package as a wheel, and its tests against the wheel, installed in an environment of
//! its own. With `--manylinux` the wheel runs on every Linux with glibc 2.28 or later, whatever this machine has.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::conformance::quoted;
use crate::python::Python;
use crate::steps::{Steps, execute, say};
use crate::workspace::{Profile, build_runner, root, target};
use crate::{Result, bundle, conformance};

/// What builds wheels, and what tests them.
const BUILD: [&str; 1] = ["python/requirements-build.txt"];
const BUILD_MANYLINUX: [&str; 2] = ["python/requirements-build.txt", "python/requirements-manylinux.txt"];
const TEST: [&str; 1] = ["python/requirements-test.txt"];

/// The largest wheel that users are to fetch.
const MOST_BYTES: u64 = 12 << 20;

/// For which systems a wheel is built.
#[derive(Clone, Copy)]
enum For {
    /// Those that are no older than this machine's. Shares compiled code with the tool.
    This,
    /// Those with glibc 2.28 or later, by the linker of Zig.
    Manylinux,
}

/// `cargo xtask wheel [--manylinux]`
pub(crate) fn run(manylinux: bool) -> Result {
    let systems = if manylinux { For::Manylinux } else { For::This };
    let mut steps = Steps::default();
    let runner = steps.run("conformance runner", build_runner);
    steps_for(systems, &mut steps, runner);
    steps.finish()
}

/// Builds the wheel and tests it. The conformance suite needs the runner.
pub(crate) fn add_steps(steps: &mut Steps, runner: bool) {
    steps_for(For::This, steps, runner);
}

fn steps_for(systems: For, steps: &mut Steps, runner: bool) {
    let Some(wheel) = steps.get("wheel", || build(systems)) else {
        steps.skip("Python package", "no wheel");
        steps.skip("conformance of the Python package", "no wheel");
        return;
    };
    let python = steps.get("wheel in an empty environment", || install(&wheel));
    match &python {
        // From another folder than the sources, which would be imported instead.
        Some(python) => {
            steps.run("Python package", || {
                let mut pytest = vec!["-m".to_owned(), "pytest".to_owned(), "--quiet".to_owned(), ".".to_owned()];
                // For the tutorial about readers.
                let folder = tempfile::tempdir()?;
                if runner {
                    pytest.push(format!("--kit={}", bundle::write(folder.path())?.display()));
                }
                python.run("python/tests", &pytest)
            });
            steps.run("examples in the Python package's documentation", || {
                let modules = "import doctest, sys; from deltachain import _chain, _files, _keys, _publisher, _tensors; \
                               sys.exit(sum(doctest.testmod(m).failed for m in (_chain, _files, _keys, _publisher, _tensors)))";
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

/// Builds the wheel for systems that are no older than this machine's.
pub(crate) fn build_for_this_machine() -> Result<PathBuf> {
    build(For::This)
}

/// Builds the wheel, into the target folder.
fn build(systems: For) -> Result<PathBuf> {
    let python = match systems {
        For::This => Python::with("venv-maturin", &BUILD)?,
        For::Manylinux => Python::with("venv-manylinux", &BUILD_MANYLINUX)?,
    };
    let folder = target()?.join("wheels");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut maturin = Command::new(python.path());
    let profile = Profile::chosen();
    maturin.args(["-m", "maturin", "build", "--locked", "--profile", profile.name(), "--out"]).arg(&folder);
    if matches!(systems, For::Manylinux) {
        // Other compilers, so that nothing can be shared. They are found where the interpreter is.
        let target = target()?.join("manylinux");
        let own = python.path().parent().map(PathBuf::from);
        let others = std::env::var_os("PATH").unwrap_or_default();
        maturin.env("PATH", std::env::join_paths(own.into_iter().chain(std::env::split_paths(&others)))?);
        maturin.args(["--zig", "--compatibility", "manylinux_2_28", "--target-dir"]).arg(target);
    }
    execute(maturin.current_dir(root()?.join("python")))?;
    let built = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let [wheel] = built.as_slice() else { return Err("maturin has not made one wheel".into()) };
    let bytes = fs::metadata(wheel)?.len();
    say(format_args!("{}: {bytes} bytes", wheel.display()));
    if bytes > MOST_BYTES && matches!(profile, Profile::Release) {
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
