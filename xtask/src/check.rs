//! `cargo xtask check`: what finds most mistakes in a minute or two, for while you work. `cargo xtask ci` finds the rest.

use crate::steps::{Steps, execute};
use crate::workspace::cargo;
use crate::{Result, lint};

pub(crate) fn run() -> Result {
    let mut steps = Steps::default();
    lint::add_rust_steps(&mut steps);
    // All that the library promises, and the published vectors.
    steps.run("tests of the library", || {
        execute(&mut cargo(&["test", "--package", "deltachain", "--lib", "--test", "suite", "--quiet"])?)
    });
    steps.run("conformance of the library", || {
        let run = ["run", "--quiet", "--package", "deltachain-conformance", "--", "run", "--testee"];
        let testee = "target/debug/deltachain-conformance testee";
        execute(&mut cargo(&[&run[..], &[testee]].concat())?)
    });
    steps.finish()
}
