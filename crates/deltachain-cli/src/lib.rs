//! The `deltachain` tool as a function: makes, applies, joins, checks and shows links, and publishes and follows chains
//! of them (SPEC.md of the library).
//!
//! Exit codes: 0 good, 1 refused or failed, 2 wrong usage, 130 interrupted.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

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
mod listener;
mod numbers;
mod operation;
mod other_files;
mod output;
pub mod program;
mod progress;
mod shared_args;
mod signature_args;
mod table;
mod watcher;

use std::ffi::OsString;

use deltachain::Result;
use deltachain_store::{Observer, Stop, StoreOptions};
use rayon::ThreadPoolBuilder;
use serde_json::Value;

use crate::args::{Cli, Command};
use crate::commands::chain;
use crate::commands::chain::report::Access;
use crate::listener::Listener;
use crate::output::Output;
use crate::program::cannot_start;
use crate::watcher::watched;

/// Runs the tool with these arguments and returns the exit code. The first argument is the program's name. It prints to
/// standard output and standard error, and from then on Ctrl-C is its own: to be called once, by a program that does
/// nothing else.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    program::main(arguments, |cli: &Cli| &cli.global, run)
}

/// `follow` for a program that does other things as well: with the arguments of `deltachain follow`, in threads that
/// end with it. It prints nothing on standard output, installs no handler for Ctrl-C, and tells systemd nothing.
/// `observer` ends it by an error, and `stop` what it waits for in the store; servers that are being changed are waited
/// for. Events are given to `on_event` as JSON, such as `deltachain follow --json` prints.
///
/// # Errors
/// What `deltachain follow` would end with, and the observer's with `--once`.
pub fn follow(
    arguments: impl IntoIterator<Item = OsString>,
    observer: &dyn Observer,
    stop: Stop,
    on_event: &(dyn Fn(&str) + Sync),
) -> Result<()> {
    let (global, args) = args::parse_follow(arguments)?;
    // Threads of its own: it occupies one of them all the time, and others may use the pool of the process.
    let pool = ThreadPoolBuilder::new().num_threads(global.threads.unwrap_or(0)).build();
    let pool = pool.map_err(cannot_start)?;
    pool.install(|| {
        let store = args.chain.open()?.with_stop(stop);
        chain::follow::follow(&args, store, &Listener::Program(observer, on_event))
    })
}

/// The report of a command, in a program that does other things as well: `log`, `show`, `status`, `compact`, `prune`,
/// `fsck` or `doctor`, with its arguments, as `--json` prints it. It prints nothing and installs no handler for Ctrl-C. How
/// the store is used, `options` say, whatever the arguments say. `observer` gets progress and remarks and ends the work
/// by an error, `stop` what it waits for in the store. That something is not as it should be is a report, not an error.
///
/// # Errors
/// What the command would end with; USAGE if the arguments are not those of such a command.
pub fn report(
    arguments: impl IntoIterator<Item = OsString>,
    options: StoreOptions,
    observer: &dyn Observer,
    stop: Stop,
) -> Result<Value> {
    let access = Access { options: Some(options), stop };
    Ok(chain::reports::report(&args::parse_words(arguments)?.command, &access, observer)?.json())
}

fn run(cli: &Cli, output: Output) -> Result<u8> {
    match &cli.command {
        Command::Diff(args) => commands::diff::run(args, output),
        Command::Snapshot(args) => commands::diff::snapshot(args, output),
        Command::Apply(args) => commands::apply::run(args, output),
        Command::Inspect(args) => commands::inspect::run(args, output),
        Command::Verify(args) => commands::verify::run(args, output),
        Command::Digest(args) => commands::digest::run(args, output),
        Command::Squash(args) => commands::squash::run(args, output),
        Command::Demo(args) => commands::demo::run(args, output),
        Command::Explain(args) => commands::explain::run(args, output),
        Command::Key(command) => commands::key::run(command, output),
        Command::Sign(args) => chain::sign::run(args, output),
        Command::Init(args) => chain::init::run(args, output),
        Command::Publish(args) => chain::publish::run(args, output),
        Command::Commit(args) => chain::commit::run(args, output),
        Command::Pull(args) => chain::pull::run(args, output),
        Command::Follow(args) => chain::follow::run(args, output),
        command => {
            let access = Access { options: None, stop: interrupt::stop() };
            let report = watched(output, |watcher| chain::reports::report(command, &access, watcher))?;
            return chain::report::print(&*report, output);
        }
    }?;
    Ok(failure::SUCCESS)
}
