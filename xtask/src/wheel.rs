//! `cargo xtask wheel`: the Python package as a wheel, and its tests against the wheel, installed in an environment of
//! its own. With `--manylinux` the wheel runs on every Linux with glibc 2.28 or later, whatever this machine has. That for
//! aarch64 is tested in qemu, where that is installed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::conformance::quoted;
use crate::python::Python;
use crate::steps::{Steps, execute, say};
use crate::tools::builds_for;
use crate::workspace::{Profile, build_runner, root, target};
use crate::{Result, bundle, conformance, emulated};

/// What builds wheels, and what tests them.
const BUILD: [&str; 1] = ["python/requirements-build.txt"];
const BUILD_MANYLINUX: [&str; 2] = ["python/requirements-build.txt", "python/requirements-manylinux.txt"];
const TEST: [&str; 1] = ["python/requirements-test.txt"];

const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// The largest wheel that users are to fetch.
const MOST_BYTES: u64 = 12 << 20;

/// For which systems a wheel is built.
#[derive(Clone, Copy)]
enum For {
    /// Those that are no older than this machine's. Shares compiled code with the tool.
    This,
    /// Those with glibc 2.28 or later, by the linker of Zig.
    Manylinux,
    /// The same on aarch64.
    Aarch64,
}

/// `cargo xtask wheel [--manylinux | --aarch64]`
pub(crate) fn run(manylinux: bool, aarch64: bool) -> Result {
    let mut steps = Steps::default();
    let runner = steps.run("conformance runner", build_runner);
    if aarch64 {
        add_aarch64_steps(&mut steps, runner);
    } else {
        steps_for(if manylinux { For::Manylinux } else { For::This }, &mut steps, runner);
    }
    steps.finish()
}

/// Builds the wheel and tests it. The conformance suite needs the runner.
pub(crate) fn add_steps(steps: &mut Steps, runner: bool) {
    steps_for(For::This, steps, runner);
}

/// The same as users get it, on Linux on this machine's processor. Returns it, and whether all tests passed.
pub(crate) fn add_manylinux_steps(steps: &mut Steps, runner: bool) -> Option<(PathBuf, bool)> {
    steps_for(For::Manylinux, steps, runner)
}

/// The same for aarch64. Without qemu the tests are skipped.
pub(crate) fn add_aarch64_steps(steps: &mut Steps, runner: bool) -> Option<(PathBuf, bool)> {
    const TESTS: &str = "Python package in qemu-aarch64";
    if !builds_for(AARCH64) {
        steps.skip("wheel for aarch64", "no standard library of Rust for it");
        return None;
    }
    let Some(wheel) = steps.get("wheel for aarch64", || build(For::Aarch64)) else {
        steps.skip(TESTS, "no wheel");
        return None;
    };
    if let Some(reason) = emulated::missing() {
        steps.skip(TESTS, reason);
        return Some((wheel, false));
    }
    let python = steps.get("wheel in qemu-aarch64", || {
        emulated::python(&wheel, TEST[0], &Python::with("venv-manylinux", &BUILD_MANYLINUX)?)
    });
    let Some(python) = python else {
        steps.skip(TESTS, "no environment");
        return Some((wheel, false));
    };
    let passed = add_tests(steps, TESTS, &python, runner, &emulated::FORKING);
    let conformance = add_conformance(steps, "conformance in qemu-aarch64", &python, runner);
    Some((wheel, passed && conformance))
}

fn steps_for(systems: For, steps: &mut Steps, runner: bool) -> Option<(PathBuf, bool)> {
    let Some(wheel) = steps.get("wheel", || build(systems)) else {
        steps.skip("Python package", "no wheel");
        steps.skip("conformance of the Python package", "no wheel");
        return None;
    };
    let python = steps.get("wheel in an empty environment", || install(&wheel));
    let Some(python) = python else {
        steps.skip("Python package", "no environment");
        steps.skip("conformance of the Python package", "no environment");
        return Some((wheel, false));
    };
    let passed = [
        add_tests(steps, "Python package", &python, runner, &[]),
        steps.run("examples in the Python package's documentation", || {
            let modules = "import doctest, sys; from deltachain import _chain, _files, _keys, _publisher, _tensors; \
                           sys.exit(sum(doctest.testmod(m).failed for m in (_chain, _files, _keys, _publisher, _tensors)))";
            python.run("python/tests", &["-c", modules])
        }),
        add_conformance(steps, "conformance of the Python package", &python, runner),
    ];
    Some((wheel, !passed.contains(&false)))
}

/// The tests of a package, but for a few. The tutorial about readers needs the runner.
fn add_tests(steps: &mut Steps, name: &str, python: &Python, runner: bool, without: &[&str]) -> bool {
    steps.run(name, || {
        let mut pytest = ["-m", "pytest", "--quiet", "-rs", "."].map(str::to_owned).to_vec();
        pytest.extend(without.iter().map(|test| format!("--deselect={test}")));
        let folder = tempfile::tempdir()?;
        if runner {
            pytest.push(format!("--kit={}", bundle::write(folder.path())?.display()));
        }
        // From another folder than the sources, which would be imported instead.
        python.run("python/tests", &pytest)
    })
}

/// The vectors against a package.
fn add_conformance(steps: &mut Steps, name: &str, python: &Python, runner: bool) -> bool {
    if !runner {
        steps.skip(name, "no runner");
        return false;
    }
    steps.run(name, || {
        let testee = root()?.join("python/tests/testee.py");
        conformance::measure_part(&[&quoted(python.path()), &quoted(&testee)], &[])
    })
}

/// Builds the wheel for systems that are no older than this machine's.
pub(crate) fn build_for_this_machine() -> Result<PathBuf> {
    build(For::This)
}

/// Builds the wheel, into the target folder.
fn build(systems: For) -> Result<PathBuf> {
    let python = match systems {
        For::This => Python::with("venv-maturin", &BUILD)?,
        For::Manylinux | For::Aarch64 => Python::with("venv-manylinux", &BUILD_MANYLINUX)?,
    };
    let folder = target()?.join("wheels");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut maturin = Command::new(python.path());
    let profile = Profile::chosen();
    maturin.args(["-m", "maturin", "build", "--locked", "--profile", profile.name(), "--out"]).arg(&folder);
    if matches!(systems, For::Aarch64) {
        maturin.args(["--target", AARCH64]);
    }
    if !matches!(systems, For::This) {
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
