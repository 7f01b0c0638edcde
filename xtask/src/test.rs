//! `cargo xtask test`: every test, also of the Python reader, the JavaScript reader and the conformance kit.

use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{build_tool, cargo};
use crate::{Result, conformance, differential, endurance, js, memory, no_arguments, wheel};

pub(crate) fn run(arguments: &[String]) -> Result {
    no_arguments(arguments)?;
    let mut steps = Steps::default();
    steps.run("Rust tests", || execute(&mut cargo(&["test", "--workspace"])?));
    steps.run("another server", endurance::another_server);
    let built = steps.run("release build", || {
        build_tool()?;
        conformance::build_runner()
    });

    let python = steps.get("Python environment", Python::install);
    match &python {
        Some(python) => {
            steps.run("Python reader", || python.run("conformance/python", &["-m", "unittest"]));
        }
        None => steps.skip("Python reader", "no Python environment"),
    }
    conformance::add_steps(&mut steps, built, python.as_ref());
    wheel::add_steps(&mut steps, built);
    match &python {
        Some(python) if built => {
            steps.run("interop", || differential::interop(python, false));
        }
        _ => steps.skip("interop", "no tool or no Python environment"),
    }
    js::add_steps(&mut steps, built, python.as_ref());

    if built && cfg!(target_os = "linux") {
        steps.run("memory", memory::short);
    } else {
        steps.skip("memory", if built { "only on Linux" } else { "no tool" });
    }
    steps.finish()
}
