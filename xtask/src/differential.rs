//! `cargo xtask differential`: what two implementations make of the same damaged input. zstd frames go through libzstd and a
//! decoder that shares nothing with it, links through the library's tool and the Python reader.

use std::ffi::OsString;

use crate::Result;
use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{build_tool, cargo, tool};

pub(crate) const ARGUMENTS: &str = "[--long]";

/// Frames of a long run; the test says how many a short one has.
const LONG_FRAMES: &str = "1000000";

pub(crate) fn run(arguments: &[String]) -> Result {
    let long = match arguments {
        [] => false,
        [only] if only == "--long" => true,
        _ => return Err(format!("the arguments are {ARGUMENTS}").into()),
    };
    let mut steps = Steps::default();
    steps.run("frames", || {
        let mut test = cargo(&["test", "--package", "deltachain-fuzz", "--test", "frames", "--", "--nocapture"])?;
        if long {
            test.env("DELTACHAIN_FRAMES", LONG_FRAMES);
        }
        execute(&mut test)
    });
    let built = steps.run("release build", build_tool);
    match steps.get("Python environment", Python::install) {
        Some(python) if built => {
            steps.run("links", || interop(&python, long));
        }
        _ => steps.skip("links", "no tool or no Python environment"),
    }
    steps.finish()
}

/// Compares the tool with the Python reader; it needs the tool.
pub(crate) fn interop(python: &Python, long: bool) -> Result {
    let mode = if long { "--long" } else { "--short" };
    let arguments: [OsString; 4] = ["interop.py".into(), "--tool".into(), tool()?.into(), mode.into()];
    python.run("conformance", &arguments)
}
