//! Word to systemd: when the program is ready, that it is alive, that it ends. Without systemd nothing happens.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tells systemd that work goes on, as often as systemd wants.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// The pause between two messages, with time to spare; nothing if nobody waits for them.
    pause: Option<Duration>,
    last: Mutex<Option<Instant>>,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self { pause: limit().map(|limit| limit / 3), last: Mutex::default() }
    }

    /// Work goes on. May be called at any rate.
    pub(crate) fn is_alive(&self) {
        let Some(pause) = self.pause else { return };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= pause) {
            *last = Some(Instant::now());
            send("WATCHDOG=1");
        }
    }
}

/// The directory holds a version: what needs it can start.
pub(crate) fn is_ready(version: u64) {
    send(&format!("READY=1\nSTATUS=at version {version}"));
}

/// A line for `systemctl status`.
pub(crate) fn says(text: &str) {
    // Each line of a message means something to systemd.
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    send(&format!("STATUS={line}"));
}

/// The program ends.
pub(crate) fn ends() {
    send("STOPPING=1");
}

#[cfg(unix)]
fn send(message: &str) {
    // Nothing depends on it. Without systemd nothing is sent.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Custom(message)]);
}

#[cfg(unix)]
fn limit() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

#[cfg(not(unix))]
fn send(_message: &str) {}

#[cfg(not(unix))]
fn limit() -> Option<Duration> {
    None
}
