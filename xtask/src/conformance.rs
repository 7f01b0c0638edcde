//! `cargo xtask conformance` and `cargo xtask vectors`: tests both readers with the conformance kit, and the kit
//! itself: does its generator make these vectors, and do they notice a reader that leaves out a rule or is wrong?

use std::ffi::OsString;
use std::process::Command;

use crate::python::Python;
use crate::steps::{Lane, Steps, execute};
use crate::workspace::{build_runner, cargo, root, runner, target};
use crate::{Result, bundle, node};

/// `cargo xtask conformance`
pub(crate) fn run(long: bool) -> Result {
    let mut steps = Steps::default();
    let python = steps.get("Python environment", Python::install);
    let built = steps.run("runner", build_runner);
    steps.side_by_side(lanes(built, python.as_ref()));
    if let (true, true, Some(python)) = (long, built, &python) {
        if node::install(&mut steps) {
            steps.run("wrong JavaScript readers", || wrong_testees(python, &["--reader", "javascript"]));
        }
        steps.run("wrong libraries", || wrong_testees(python, &["--reader", "rust"]));
    }
    steps.finish()
}

/// `cargo xtask vectors`
pub(crate) fn write_vectors() -> Result {
    build_runner()?;
    rules(&[])?;
    Python::install()?.run("conformance", &["-m", "generator"])?;
    rule_switch("run", &["adequacy"])
}

/// All steps of the kit, for this task and for `cargo xtask ci`. They need the runner.
pub(crate) fn lanes(built: bool, python: Option<&Python>) -> Vec<Lane<'_>> {
    vec![
        Box::new(move |steps| add_steps(steps, built, python)),
        Box::new(|steps| {
            steps.run("adequacy of the vectors", || rule_switch("test", &["adequacy::"]));
        }),
    ]
}

fn add_steps(steps: &mut Steps, built: bool, python: Option<&Python>) {
    add_library(steps, built);
    if built {
        steps.run("rules.json has the rules of SPEC.md", || rules(&["--check"]));
    } else {
        steps.skip("rules.json has the rules of SPEC.md", "no runner");
    }
    match python {
        Some(python) => {
            steps.run("vectors are what the generator makes", || {
                python.run("conformance", &["-m", "generator", "--check"])
            });
        }
        None => steps.skip("vectors are what the generator makes", "no Python environment"),
    }
    match python {
        Some(python) if built => {
            steps.run("conformance of the Python reader", || {
                let testee = root()?.join("conformance/python/testee.py");
                measure(&[&quoted(python.path()), &quoted(&testee)])
            });
            steps.run("bundle", || bundle::check(python));
            steps.run("wrong testees", || wrong_testees(python, &[]));
        }
        _ => {
            steps.skip("conformance of the Python reader", "no runner or no Python environment");
            steps.skip("bundle", "no runner or no Python environment");
            steps.skip("wrong testees", "no runner or no Python environment");
        }
    }
}

/// Readers that are wrong on purpose, and must fail; Python readers, if the options name no other.
pub(crate) fn wrong_testees(python: &Python, options: &[&str]) -> Result {
    let mut arguments: Vec<OsString> = vec!["wrong_testees.py".into(), "--runner".into(), runner()?.into()];
    arguments.extend(options.iter().map(OsString::from));
    python.run("conformance", &arguments)
}

/// The suite against the library, by its own testee, which is a part of the runner.
pub(crate) fn add_library(steps: &mut Steps, built: bool) {
    if built {
        steps.run("conformance of the Rust library", || measure(&[&quoted(&runner()?), "testee"]));
    } else {
        steps.skip("conformance of the Rust library", "no runner");
    }
}

/// Writes the rules of SPEC.md for programs.
fn rules(options: &[&str]) -> Result {
    execute(Command::new(runner()?).arg("rules").args(options).current_dir(root()?))
}

/// Runs the whole suite against a testee, which has to answer all of it.
fn measure(testee: &[&str]) -> Result {
    measure_part(testee, &["--require-complete"])
}

/// Asks a testee all that it claims to support, with further options of the runner.
pub(crate) fn measure_part(testee: &[&str], options: &[&str]) -> Result {
    let mut command = Command::new(runner()?);
    command.args(["run", "--rules", "--testee", &testee.join(" ")]).args(options);
    execute(command.current_dir(root()?).env("PYTHONDONTWRITEBYTECODE", "1"))
}

/// Runs the runner or its tests in a build that can switch off one rule at a time. It has a folder of its own: with other
/// flags, everything in the usual one would be built again each time.
fn rule_switch(task: &str, arguments: &[&str]) -> Result {
    let mut command = cargo(&[task, "--package", "deltachain-conformance", "--"])?;
    command.env("RUSTFLAGS", "--cfg=deltachain_rule_switch").env("CARGO_TARGET_DIR", target()?.join("rule-switch"));
    execute(command.args(arguments))
}

/// A path as one word of a testee's command line.
pub(crate) fn quoted(path: &std::path::Path) -> String {
    format!("'{}'", path.display())
}
