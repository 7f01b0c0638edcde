//! The display of work on a chain: a progress bar for each kind of running work, and remarks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use deltachain::{Progress, Result};
use deltachain_store::{Observer, Phase, Time};
use indicatif::{MultiProgress, ProgressBar};
use serde_json::{Value, json};

use crate::interrupt;
use crate::output::{Output, print_json, printable};
use crate::progress::Meter;

/// Shows work on a chain. Its reports of progress also end work after Ctrl-C.
#[derive(Debug)]
pub struct Watcher {
    output: Output,
    /// Progress bars below each other.
    bars: MultiProgress,
    under_way: Mutex<HashMap<Phase, Meter>>,
    /// True for work without an end, whose remarks show the time.
    is_service: bool,
}

impl Watcher {
    /// Makes a watcher for work that ends.
    pub fn new(output: Output) -> Self {
        let bars = MultiProgress::with_draw_target(output.target());
        Self {
            output,
            bars,
            under_way: Mutex::default(),
            is_service: false,
        }
    }

    /// Makes a watcher for work without an end.
    pub(crate) fn of_service(output: Output) -> Self {
        Self {
            is_service: true,
            ..Self::new(output)
        }
    }

    /// Prints an event, with progress bars suspended.
    pub(crate) fn event(
        &self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) -> Result<()> {
        self.bars.suspend(|| self.output.summary(text, json))
    }

    /// True if events are JSON.
    pub(crate) fn takes_json(&self) -> bool {
        self.output.is_json()
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Phase, Meter>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows work on a chain while it runs. The bars disappear when this returns.
pub(crate) fn watched<T>(output: Output, work: impl FnOnce(&Watcher) -> T) -> T {
    work(&Watcher::new(output))
}

fn name(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::Hash => Some("hashing"),
        Phase::Compare => Some("comparing"),
        Phase::Upload => Some("uploading"),
        Phase::Download => Some("downloading"),
        Phase::Build => Some("building"),
        Phase::Check => Some("checking"),
        _ => None,
    }
}

impl Observer for Watcher {
    fn begin(&self, phase: Phase, bytes: u64) {
        let Some(name) = name(phase) else { return };
        let new = || Meter::new(self.bars.add(ProgressBar::new(bytes)), name);
        self.under_way()
            .entry(phase)
            .and_modify(|meter| meter.expect(bytes))
            .or_insert_with(new);
    }

    fn advance(&self, phase: Phase, bytes: u64) -> Result<()> {
        self.under_way()
            .get(&phase)
            .map_or_else(interrupt::check, |meter| meter.advance(bytes))
    }

    fn end(&self, phase: Phase) {
        self.under_way().remove(&phase);
    }

    fn remark(&self, text: &str) {
        if self.output.is_json() {
            // Nothing depends on a remark.
            let _ = print_json(&if self.is_service {
                json!({ "event": "remark", "text": text, "time": Time::now() })
            } else {
                json!({ "event": "remark", "text": text })
            });
        } else {
            let time = if self.is_service {
                format!("{} ", Time::now())
            } else {
                String::new()
            };
            self.bars.suspend(|| {
                self.output
                    .remark(&format!("{time}note: {}", printable(text)));
            });
        }
    }
}
