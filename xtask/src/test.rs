//! `cargo xtask test`: every test, also of the Python reader, the JavaScript reader and the conformance kit.

use crate::python::Python;
use crate::steps::{Lane, Steps, execute};
use crate::workspace::{Profile, cargo};
use crate::{Result, conformance, endurance, js, memory, no_arguments, wheel};

pub(crate) fn run(arguments: &[String]) -> Result {
    no_arguments(arguments)?;
    let mut steps = Steps::default();
    Profile::Tests.choose();
    let built = steps.run("build", || execute(&mut cargo(&["test", "--workspace", "--no-run"])?));
    steps.run("Rust tests", || execute(&mut cargo(&["test", "--workspace"])?));
    steps.run("another server", endurance::another_server);

    let python = steps.get("Python environment", Python::install);
    let python = python.as_ref();
    // Most of these keep one processor busy. The longest begin.
    let mut lanes: Vec<Lane<'_>> = vec![Box::new(move |steps| wheel::add_steps(steps, built))];
    lanes.extend(conformance::lanes(built, python));
    lanes.push(Box::new(move |steps| js::add_steps(steps, built, python)));
    lanes.push(Box::new(move |steps| tool_steps(steps, built, python)));
    steps.side_by_side(lanes);
    steps.finish()
}

/// The Python reader, and how much memory the tool takes.
fn tool_steps(steps: &mut Steps, built: bool, python: Option<&Python>) {
    match python {
        Some(python) => {
            steps.run("Python reader", || python.run("conformance/python", &["-m", "unittest"]));
        }
        None => steps.skip("Python reader", "no Python environment"),
    }
    if built && cfg!(target_os = "linux") {
        steps.run("memory", memory::short);
    } else {
        steps.skip("memory", if built { "only on Linux" } else { "no tool" });
    }
}
