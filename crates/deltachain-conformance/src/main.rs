//! The conformance runner. It measures an implementation of the delta chain format with the vectors
//! in `conformance/`, and is the reference library's own testee. The protocol is in
//! `conformance/protocol.md`.
//!
//! Exit codes: 0 success, 1 something unexpected happened, 2 wrong usage.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

#[cfg(deltachain_rule_switch)]
mod adequacy;
mod args;
mod by_rule;
mod cases;
mod expected;
mod index;
mod judge;
#[cfg(deltachain_mutants)]
mod mutants;
mod problem;
mod process;
mod report;
#[cfg(any(deltachain_rule_switch, test))]
mod rule_vectors;
mod rules_file;
mod run;
mod segments;
mod session;
mod spec;
mod suite;
mod table;
mod taken;
mod testee;
mod unpack;
mod workshop;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::problem::Problem;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Testee(args) => testee::serve(&args),
        Command::Segments(args) => segments::run(&args),
        Command::Rules(args) => rules_file::run(&args),
        #[cfg(deltachain_rule_switch)]
        Command::Adequacy(args) => adequacy::run(&args),
        #[cfg(deltachain_mutants)]
        Command::Mutants(args) => mutants::run(&args),
    };
    result.unwrap_or_else(|problem| {
        // If standard error is closed, there is no other place for the message.
        let _ = writeln!(anstream::stderr(), "error: {problem}");
        match problem {
            Problem::Usage(_) => ExitCode::from(2),
            Problem::Failed(_) => ExitCode::FAILURE,
        }
    })
}
