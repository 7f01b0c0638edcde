//! Ctrl-C. The first one stops work at a point where it can clean up. The second one ends the
//! program at once.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use deltachain_store::Stop;

/// Interval at which a waiting thread checks for interrupts.
const PATIENCE: Duration = Duration::from_millis(50);

/// The exit code that shells report for a program that was ended by Ctrl-C.
pub(crate) const EXIT_CODE: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends the waits of all stores.
static STOP: LazyLock<Stop> = LazyLock::new(Stop::default);

/// Installs the handler of Ctrl-C, and on Unix also of SIGTERM and SIGHUP.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(EXIT_CODE));
        }
        STOP.stop();
    })
    .map_err(|error| Error::io("preparing for Ctrl-C", std::io::Error::other(error)))
}

/// Returns the stop for each store that the tool opens. Ctrl-C ends the store's waits.
pub(crate) fn stop() -> Stop {
    STOP.clone()
}

/// True if the program has been interrupted.
pub(crate) fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Returns an error if the program has been interrupted. Called between steps and from every
/// progress report.
pub(crate) fn check() -> Result<()> {
    if happened() {
        Err(Error::usage("interrupted"))
    } else {
        Ok(())
    }
}

/// Waits for this time. Returns an error as soon as the program is interrupted.
pub(crate) fn wait(pause: Duration) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < pause {
        check()?;
        thread::sleep(PATIENCE.min(pause));
    }
    check()
}
