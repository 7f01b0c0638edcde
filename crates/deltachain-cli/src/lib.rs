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
#[cfg(feature = "exchange")]
mod exchange_args;
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
mod progress;
mod shared_args;
mod signature_args;
mod table;
mod watcher;

use std::ffi::OsString;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

use deltachain::{Error, Result};
use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

use crate::args::{Cli, Command};
use crate::commands::chain;
use crate::output::Output;

/// Runs the tool with these arguments and returns the exit code. The first argument is the program's name. It prints to
/// standard output and standard error, and from then on Ctrl-C is its own: to be called once, by a program that does
/// nothing else.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match args::parse(&arguments.into_iter().collect::<Vec<_>>()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let output = Output::new(&cli.global);
    let code = match guarded(|| run(&cli, output)) {
        Ok(code) => code,
        Err(error) => failure::report(&error, output),
    };
    // A Rust program would flush at its end, but the caller of this function may end in another way. If nobody reads
    // the output, that is not a failure.
    let _ = io::stdout().flush();
    code
}

/// A panic, such as of a dependency that cannot start a thread, is shown as other errors are.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    static PANIC: Mutex<String> = Mutex::new(String::new());
    let last = || PANIC.lock().unwrap_or_else(PoisonError::into_inner);
    panic::set_hook(Box::new(move |panic| *last() = panic.to_string().replace('\n', " ")));
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let what = "failed in a way that was not foreseen; if the machine does not lack memory or threads, report it";
        Err(Error::io(what, io::Error::other(last().as_str())))
    })
}

fn cannot_start(error: ThreadPoolBuildError) -> Error {
    Error::io("starting threads", io::Error::other(error))
}

fn run(cli: &Cli, output: Output) -> Result<u8> {
    interrupt::install()?;
    // At once: where threads cannot be started, that is an error and no panic later.
    let pool = ThreadPoolBuilder::new().num_threads(cli.global.threads.unwrap_or(0)).build_global();
    pool.map_err(cannot_start)?;
    match &cli.command {
        Command::Diff(args) => commands::diff::run(args, output),
        Command::Snapshot(args) => commands::snapshot::run(args, output),
        Command::Apply(args) => commands::apply::run(args, output),
        Command::Inspect(args) => commands::inspect::run(args, output),
        Command::Verify(args) => commands::verify::run(args, output),
        Command::Digest(args) => commands::digest::run(args, output),
        Command::Squash(args) => commands::squash::run(args, output),
        #[cfg(feature = "exchange")]
        Command::Import(args) => commands::import::run(args, output),
        #[cfg(feature = "exchange")]
        Command::Export(args) => commands::export::run(args, output),
        Command::Demo(args) => commands::demo::run(args, output),
        Command::Explain(args) => commands::explain::run(args, output),
        Command::Key(args) => commands::key::run(args, output),
        Command::Sign(args) => chain::sign::run(args, output),
        Command::Init(args) => chain::init::run(args, output),
        Command::Publish(args) => chain::publish::run(args, output),
        Command::Commit(args) => chain::commit::run(args, output),
        Command::Pull(args) => chain::pull::run(args, output),
        Command::Follow(args) => chain::follow::run(args, output),
        Command::Log(args) => chain::log::run(args, output),
        Command::Show(args) => chain::show::run(args, output),
        Command::Compact(args) => chain::compact::run(args, output),
        Command::Prune(args) => chain::prune::run(args, output),
        Command::Status(args) => return chain::status::run(args, output),
        Command::Fsck(args) => return chain::fsck::run(args, output),
        Command::Doctor(args) => return chain::doctor::run(args, output),
    }?;
    Ok(failure::SUCCESS)
}
