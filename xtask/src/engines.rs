//! `cargo xtask engines [--short]`: the Python package with real engines, in an environment of their own (`e2e/vllm/run.py`).

use std::process::Command;

use crate::steps::execute;
use crate::workspace::{root, target};
use crate::{Result, trainers, wheel};

pub(crate) fn run(short: bool) -> Result {
    let wheel = wheel::build_for_this_machine()?;
    let mut python = Command::new("python3");
    python.arg("e2e/vllm/run.py").arg("--wheel").arg(&wheel).arg("--work").arg(target()?.join("engines"));
    if short {
        python.arg("--short");
    } else {
        python.arg("--trainers").arg(trainers::environment(&wheel)?.path());
    }
    execute(python.current_dir(root()?))
}
