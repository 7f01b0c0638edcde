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

use deltachain::Result;
use deltachain_cli::program::{Output, SUCCESS};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    deltachain_cli::program::main(std::env::args_os(), |cli: &Cli| &cli.global, run).into()
}

fn run(cli: &Cli, output: Output) -> Result<u8> {
    match &cli.command {
        Command::Import(args) => import::run(args, output),
        Command::Export(args) => export::run(args, output),
    }?;
    Ok(SUCCESS)
}
