//! Who hears what `follow` does, and ends it: the user of the tool, or a program that has called
//! [`follow`](crate::follow).

use deltachain::Result;
use deltachain_store::{Observer, Phase};
use serde_json::Value;

use crate::output::Output;
use crate::watcher::{Watcher, remark_as_json};

/// Hears events and remarks.
pub(crate) enum Listener<'a> {
    /// The tool prints them, and tells systemd.
    Tool(Output, &'a Watcher),
    /// A program is given events as JSON; remarks are events.
    Program(&'a dyn Observer, &'a (dyn Fn(&str) + Sync)),
}

impl Listener<'_> {
    /// Something has happened.
    pub(crate) fn event(&self, text: impl FnOnce() -> String, json: impl FnOnce() -> Value) -> Result<()> {
        match self {
            Self::Tool(output, watcher) => watcher.suspend(|| output.summary(text, json)),
            Self::Program(_, on_event) => {
                on_event(&json().to_string());
                Ok(())
            }
        }
    }

    /// Whether events are JSON.
    pub(crate) fn takes_json(&self) -> bool {
        match self {
            Self::Tool(output, _) => output.is_json(),
            Self::Program(..) => true,
        }
    }

    /// Says something to systemd: of the tool, which is the whole process.
    pub(crate) fn service(&self, tell: impl FnOnce()) {
        if matches!(self, Self::Tool(..)) {
            tell();
        }
    }

    /// Whether the work is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.advance(Phase::Wait, 0).is_err()
    }

    fn observer(&self) -> &dyn Observer {
        match self {
            Self::Tool(_, watcher) => *watcher,
            Self::Program(observer, _) => *observer,
        }
    }
}

impl Observer for Listener<'_> {
    fn begin(&self, phase: Phase, bytes: u64) {
        self.observer().begin(phase, bytes);
    }

    fn advance(&self, phase: Phase, bytes: u64) -> Result<()> {
        self.observer().advance(phase, bytes)
    }

    fn end(&self, phase: Phase) {
        self.observer().end(phase);
    }

    fn remark(&self, text: &str) {
        match self {
            Self::Tool(_, watcher) => watcher.remark(text),
            Self::Program(_, on_event) => on_event(&remark_as_json(text).to_string()),
        }
    }
}
