//! `cargo xtask check`: what finds most mistakes in a minute or two, for while you work. `cargo xtask ci` finds the rest.

use crate::steps::{Steps, execute};
use crate::workspace::cargo;
use crate::{Result, directions, no_arguments};

pub(crate) fn run(arguments: &[String]) -> Result {
    no_arguments(arguments)?;
    let mut steps = Steps::default();
    steps.run("format", || execute(&mut cargo(&["fmt", "--all", "--check"])?));
    steps.run("directions of dependencies", directions::check);
    steps.run("clippy", || {
        execute(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?)
    });
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
