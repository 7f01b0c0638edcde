//! `cargo xtask ci`: everything that has to pass before a change is merged: lint, tests, and what proves the conformance
//! kit and this repository itself.

use crate::python::Python;
use crate::steps::{Lane, Steps};
use crate::workspace::Profile;
use crate::{Result, conformance, endurance, js, lint, memory, node, rivals, site, test, wheel};

pub(crate) fn run() -> Result {
    Profile::Tests.choose();
    let mut steps = Steps::default();
    let installed = node::install(&mut steps);
    lint::add_steps(&mut steps, installed);
    let built = test::rust_tests(&mut steps, "--workspace", "");
    steps.run("another server", endurance::another_server);

    let python = steps.get("Python environment", Python::install);
    let python = python.as_ref();
    // Most of these keep one processor busy. The longest begin.
    let mut lanes: Vec<Lane<'_>> = vec![Box::new(move |steps| wheel::add_steps(steps, built))];
    lanes.extend(conformance::lanes(built, python));
    lanes.push(Box::new(move |steps| js::add_all_steps(steps, installed, built, python)));
    lanes.push(Box::new(move |steps| site::add_steps(steps, installed)));
    lanes.push(Box::new(move |steps| tool_steps(steps, built, python)));
    steps.side_by_side(lanes);
    if cfg!(target_os = "linux") {
        steps.run("comparison with other tools", rivals::test);
    } else {
        steps.skip("comparison with other tools", "only on Linux");
    }
    steps.finish()
}

/// The Python reader, what is registered, and how much memory the tool takes.
fn tool_steps(steps: &mut Steps, built: bool, python: Option<&Python>) {
    match python {
        Some(python) => {
            steps.run("Python reader", || python.run("conformance/python", &["-m", "unittest"]));
            steps.run("registration", || {
                python.run("conformance/python", &["-m", "unittest", "discover", "-v", "-s", "../../registration"])
            });
        }
        None => {
            steps.skip("Python reader", "no Python environment");
            steps.skip("registration", "no Python environment");
        }
    }
    if built && cfg!(target_os = "linux") {
        steps.run("memory", memory::short);
    } else {
        steps.skip("memory", if built { "only on Linux" } else { "no tool" });
    }
}
