//! The parts of the tool for programs with commands of their own, such as `deltachain-exchange`:
//! options, inputs, output, and the handling of errors and of Ctrl-C. Only for programs of this
//! repository: the interface is not stable.

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
/// code. The first argument is the program's name. Installs a handler of Ctrl-C and the global
/// thread pool, so it must be called only once, by a program that does nothing else.
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
    // A Rust program flushes at its end, but the caller of this function may be another program. A
    // closed output is not a failure.
    let _ = io::stdout().flush();
    code
}

/// Prepares the process: its handler of Ctrl-C, its limit of open files, and its threads.
fn prepare(options: &Global) -> Result<()> {
    interrupt::install()?;
    process::raise_open_files();
    // Threads are started now, so that a failure is an error here, not a panic later.
    let pool = ThreadPoolBuilder::new()
        .num_threads(options.threads.unwrap_or(0))
        .build_global();
    pool.map_err(cannot_start)
}

/// Converts a panic, for example of a dependency that cannot start a thread, to an error. The error
/// has only the place of the panic, which is enough for a report: its text is for programmers, and
/// may contain secrets.
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

/// Removes the folders of the machine that built the program from the path of a source file.
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
