//! Ctrl-C: the first one makes work stop where it can clean up after itself, the second ends the
//! program at once.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use deltachain::{Error, Result};
use deltachain_store::Stop;

/// The exit code that a shell reports for a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends what stores wait for. One for all of them.
static STOP: LazyLock<Stop> = LazyLock::new(Stop::default);

/// From now on Ctrl-C, and on Unix also SIGTERM and SIGHUP, is noted.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(EXIT_CODE));
        }
        STOP.stop();
    })
    .map_err(|error| Error::io("preparing for Ctrl-C", std::io::Error::other(error)))
}

/// For each store that the tool opens: Ctrl-C ends what it waits for.
pub(crate) fn stop() -> Stop {
    STOP.clone()
}

/// Whether Ctrl-C was pressed.
pub(crate) fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// An error once Ctrl-C was pressed. Called between steps and from every progress report.
pub(crate) fn check() -> Result<()> {
    if happened() {
        Err(Error::usage("interrupted"))
    } else {
        Ok(())
    }
}
