//! `cargo xtask ci`: everything that has to pass before a change is merged.

use crate::{Result, lint, no_arguments, test};

pub(crate) fn run(arguments: &[String]) -> Result {
    no_arguments(arguments)?;
    // Both run, so that one round shows everything.
    let (linted, tested) = (lint::run(&[]), test::run(&[]));
    match (linted, tested) {
        (Ok(()), result) | (result, Ok(())) => result,
        (Err(lint), Err(test)) => Err(format!("lint: {lint}; test: {test}").into()),
    }
}
