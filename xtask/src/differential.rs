//! `cargo xtask differential`: what implementations make of the same damaged input. zstd frames go through libzstd and a
//! decoder that shares nothing with it; links, documents and chains through the library, the Python reader and, where Node
//! is there, the JavaScript reader.

use std::ffi::OsString;

use crate::Result;
use crate::node;
use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{build_runner, build_tool, cargo, runner, tool};

/// Frames of a long run; the test says how many a short one has.
const LONG_FRAMES: &str = "1000000";

pub(crate) fn run(long: bool) -> Result {
    let mut steps = Steps::default();
    steps.run("frames", || {
        let mut test = cargo(&["test", "--package", "deltachain-fuzz", "--test", "frames", "--", "--nocapture"])?;
        if long {
            test.env("DELTACHAIN_FRAMES", LONG_FRAMES);
        }
        execute(&mut test)
    });
    let built = steps.run("release build", || {
        build_tool()?;
        build_runner()
    });
    let python = steps.get("Python environment", Python::install);
    let javascript = node::install(&mut steps);
    add_interop(&mut steps, built, python.as_ref(), javascript, long);
    steps.finish()
}

/// Compares the readers. They need the tool and the runner; `javascript` says whether the packages of the JavaScript reader
/// are there.
pub(crate) fn add_interop(steps: &mut Steps, built: bool, python: Option<&Python>, javascript: bool, long: bool) {
    match python {
        Some(python) if built => {
            steps.run("interop", || interop(python, javascript, long));
        }
        _ => steps.skip("interop", "no tool or no Python environment"),
    }
}

fn interop(python: &Python, javascript: bool, long: bool) -> Result {
    let mut arguments: Vec<OsString> =
        vec!["interop.py".into(), "--runner".into(), runner()?.into(), "--tool".into(), tool()?.into()];
    if javascript {
        arguments.extend(["--javascript".into(), node::testee()?.into()]);
    }
    if long {
        arguments.push("--long".into());
    }
    python.run("conformance", &arguments)
}
