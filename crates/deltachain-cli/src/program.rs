//! The parts of the tool that a program with commands of its own takes, such as
//! `deltachain-exchange`: options, inputs, output, and the treatment of errors and of Ctrl-C. For
//! the programs of this repository: it is not a stable interface.

use std::ffi::OsString;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};

use clap::Parser;
use deltachain::{Error, Result};
use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

pub use crate::chain_args::StoreArgs;
pub use crate::commands::chain::publish::describe as describe_published;
pub use crate::commands::diff::{describe as describe_link, notes, report_as_json as link_as_json};
pub use crate::failure::SUCCESS;
pub use crate::inputs::{OpenedLink, refuse_existing, require};
pub use crate::numbers::grouped;
pub use crate::output::{Output, printable, printable_path, report_on};
pub use crate::progress::Meter;
pub use crate::shared_args::{Choices, Global, LimitArgs, PROFILES, one_of, parse_note};
pub use crate::watcher::Watcher;
use crate::{args, failure, interrupt, process};

/// Runs a program whose commands print to standard output and standard error, and returns the exit
/// code. The first argument is the program's name. From then on Ctrl-C and the pool of threads are
/// its own: to be called once, by a program that does nothing else.
pub fn main<P: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    options: impl Fn(&P) -> &Global,
    work: impl FnOnce(&P, Output) -> Result<u8>,
) -> u8 {
    let parsed = match args::parse(&arguments.into_iter().collect::<Vec<_>>()) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let options = options(&parsed);
    let output = Output::new(options);
    let result = guarded(|| {
        prepare(options)?;
        work(&parsed, output)
    });
    let code = result.unwrap_or_else(|error| failure::report(&error, output));
    // A Rust program would flush at its end, but the caller of this function may end in another
    // way. A closed output is not a failure.
    let _ = io::stdout().flush();
    code
}

/// Prepares the process: its answer to Ctrl-C, its limit of open files, and its threads.
fn prepare(options: &Global) -> Result<()> {
    interrupt::install()?;
    process::raise_open_files();
    // At once: where threads cannot be started, that is an error and no panic later.
    let pool = ThreadPoolBuilder::new()
        .num_threads(options.threads.unwrap_or(0))
        .build_global();
    pool.map_err(cannot_start)
}

/// A panic, such as of a dependency that cannot start a thread, is shown as other errors are. Its
/// text is for programmers, and may have secrets in it; its place is enough for a report.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    static PLACE: Mutex<String> = Mutex::new(String::new());
    let last = || PLACE.lock().unwrap_or_else(PoisonError::into_inner);
    panic::set_hook(Box::new(move |panic| {
        *last() = panic.location().map_or_else(String::new, |place| {
            format!("{}:{}", within_crate(place.file()), place.line())
        });
    }));
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let what = "failed unexpectedly; unless the machine is out of memory or threads, report \
                    this with the place in the program";
        Err(Error::io(what, io::Error::other(last().as_str())))
    })
}

/// The path of a source file without the folders of the machine that built the program.
fn within_crate(path: &str) -> &str {
    match path.rsplit_once("/registry/src/") {
        Some((_, path)) => path.split_once('/').map_or(path, |(_, path)| path),
        None => path,
    }
}

pub(crate) fn cannot_start(error: ThreadPoolBuildError) -> Error {
    Error::io("starting threads", io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_without_its_text() {
        let work = || -> Result<()> {
            let words: Vec<&str> = Vec::new();
            Err(Error::usage(words[0]))
        };
        let error = guarded(work).unwrap_err();
        drop(panic::take_hook());
        let text = format!("{error:#}");
        assert!(
            text.contains("report this") && text.contains("program.rs:"),
            "{text}"
        );
        assert!(!text.contains("index out of bounds"), "{text}");
        let path = "/home/u/.cargo/registry/src/index.crates.io-1/object_store-1.2.3/src/a.rs";
        assert_eq!(within_crate(path), "object_store-1.2.3/src/a.rs");
        assert_eq!(within_crate("src/main.rs"), "src/main.rs");
    }
}
