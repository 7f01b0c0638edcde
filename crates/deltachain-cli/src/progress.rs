//! Progress bars with bytes, rate and time left; and, with or without a bar, the place where Ctrl-C takes effect.

use deltachain::{Progress, Result};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::interrupt;

const TEMPLATE: &str = "{msg:>9} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left";

/// Shows how far a piece of work is; gone when dropped.
pub(crate) struct Meter(ProgressBar);

impl Meter {
    /// `visible` only if somebody watches.
    pub(crate) fn new(what: &'static str, total: u64, visible: bool) -> Self {
        Self::styled(ProgressBar::with_draw_target(Some(total), target(visible)), what)
    }

    fn styled(bar: ProgressBar, what: &'static str) -> Self {
        let bar = bar.with_message(what);
        // The template is constant and known to be good; if it were not, a plainer bar would do.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }
}

/// Progress bars below each other, for work that is done side by side.
pub(crate) struct Meters(MultiProgress);

impl Meters {
    /// `visible` only if somebody watches.
    pub(crate) fn new(visible: bool) -> Self {
        Self(MultiProgress::with_draw_target(target(visible)))
    }

    /// Begins to show the progress of work on `total` bytes.
    pub(crate) fn add(&self, what: &'static str, total: u64) -> Meter {
        Meter::styled(self.0.add(ProgressBar::new(total)), what)
    }

    /// Does something to the terminal that the bars must not disturb.
    pub(crate) fn suspend<T>(&self, act: impl FnOnce() -> T) -> T {
        self.0.suspend(act)
    }
}

fn target(visible: bool) -> ProgressDrawTarget {
    if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

impl Progress for Meter {
    fn advance(&self, bytes: u64) -> Result<()> {
        interrupt::check()?;
        self.0.inc(bytes);
        Ok(())
    }

    fn expect(&self, bytes: u64) {
        self.0.inc_length(bytes);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
