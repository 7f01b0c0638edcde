//! `cargo xtask test`: what tells whether a build can be trusted: the tests of what users get, and the vectors against it.
//! What proves the conformance kit and this repository is part of `cargo xtask ci`.

use crate::steps::{Steps, execute};
use crate::workspace::{Profile, cargo};
use crate::{Result, conformance, js, node, wheel};

/// The crates that users get.
const CRATES: &str = "--package deltachain --package deltachain-exchange --package deltachain-store \
                      --package deltachain-engines --package deltachain-cli";

pub(crate) fn run() -> Result {
    Profile::Tests.choose();
    let mut steps = Steps::default();
    // Together with the runner, so that what both need is built once.
    let built = rust_tests(&mut steps, CRATES, "--package deltachain-conformance");
    steps.side_by_side(vec![
        Box::new(move |steps| wheel::add_steps(steps, built)),
        Box::new(move |steps| {
            let installed = node::install(steps);
            js::add_steps(steps, installed, built);
        }),
        Box::new(move |steps| conformance::add_library(steps, built)),
    ]);
    steps.finish()
}

/// Builds the tests of these crates, and others beside them, and runs the former. Returns whether all could be built.
pub(crate) fn rust_tests(steps: &mut Steps, crates: &str, others: &str) -> bool {
    let test = |options: &str| execute(cargo(&["test"])?.args(options.split_whitespace()));
    let built = steps.run("build", || test(&format!("{crates} {others} --no-run")));
    // One that fails does not hide those of the crates after it.
    steps.run("Rust tests", || test(&format!("{crates} --no-fail-fast")));
    built
}
