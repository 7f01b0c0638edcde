//! The `deltachain` tool as a function: makes, applies, checks and shows links, and publishes and
//! follows chains of them (SPEC.md of the library).
//!
//! Exit codes: 0 success, 1 refused or failed, 2 wrong arguments or inputs, 130 interrupted.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod args;
mod chain_args;
mod commands;
mod engine_args;
mod explain;
mod failure;
mod inputs;
mod interrupt;
mod key_args;
mod keys;
mod numbers;
mod operation;
mod other_files;
mod output;
mod process;
pub mod program;
mod progress;
mod shared_args;
mod signature_args;
mod table;
mod watcher;

use std::ffi::OsString;

use deltachain::Result;

use crate::args::{Cli, Command};
use crate::commands::chain;
use crate::output::Output;

/// Runs the tool with these arguments and returns the exit code. The first argument is the
/// program's name. Prints to standard output and standard error, and handles Ctrl-C from then on,
/// so it must be called only once, by a program that does nothing else.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    program::main(arguments, |cli: &Cli| &cli.global, run)
}

fn run(cli: &Cli, output: Output) -> Result<u8> {
    match &cli.command {
        Command::Diff(args) => commands::diff::run(args, output),
        Command::Snapshot(args) => commands::diff::snapshot(args, output),
        Command::Apply(args) => commands::apply::run(args, output),
        Command::Inspect(args) => commands::inspect::run(args, output),
        Command::Verify(args) => commands::verify::run(args, output),
        Command::Digest(args) => commands::digest::run(args, output),
        Command::Demo(args) => commands::demo::run(args, output),
        Command::Explain(args) => commands::explain::run(args, output),
        Command::Key(command) => commands::key::run(command, output),
        Command::Sign(args) => chain::sign::run(args, output),
        Command::Init(args) => chain::init::run(args, output),
        Command::Publish(args) => chain::publish::run(args, output),
        Command::Pull(args) => chain::pull::run(args, output),
        Command::Follow(args) => chain::follow::run(args, output),
        Command::Log(args) => chain::log::run(args, output),
        Command::Show(args) => chain::show::run(args, output),
        Command::Compact(args) => chain::compact::run(args, output),
        Command::Prune(args) => chain::prune::run(args, output),
        Command::Mirror(args) => return chain::mirror::run(args, output),
        Command::Status(args) => return chain::status::run(args, output),
        Command::Fleet(args) => return chain::fleet::run(args, output),
        Command::Fsck(args) => return chain::fsck::run(args, output),
        Command::Doctor(args) => return chain::doctor::run(args, output),
    }?;
    Ok(failure::SUCCESS)
}
