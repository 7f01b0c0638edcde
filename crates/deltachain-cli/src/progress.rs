//! Progress bars with bytes, rate and time left. Reports of progress also end work after Ctrl-C,
//! with or without a bar.

use deltachain::{Progress, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

const TEMPLATE: &str = "{msg:>11} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left";

/// Shows the progress of work. The bar disappears when this is dropped, as indicatif's bars do.
#[derive(Debug)]
pub struct Meter(ProgressBar);

impl Meter {
    pub(crate) fn new(bar: ProgressBar, what: &'static str) -> Self {
        let bar = bar.with_message(what);
        // The template is constant and valid; if it were not, a plainer bar would do.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }
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
