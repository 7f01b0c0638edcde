//! The program `deltachain-exchange`: makes links from the deltas of other systems, and writes
//! links as such deltas. Its global options, its output and its exit codes are the same as those of
//! the tool.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod args;
mod export;
mod import;
mod summary;

use std::process::ExitCode;

use deltachain_cli::program::SUCCESS;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let run = |cli: &Cli, output| {
        match &cli.command {
            Command::Import(args) => import::run(args, output),
            Command::Export(args) => export::run(args, output),
        }?;
        Ok(SUCCESS)
    };
    deltachain_cli::program::main(std::env::args_os(), |cli: &Cli| &cli.global, run).into()
}
