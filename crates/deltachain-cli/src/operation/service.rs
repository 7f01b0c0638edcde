//! Word to systemd: when the program is ready, that it is alive, that it ends. Without systemd
//! nothing happens.

use std::io;
use std::thread;
use std::time::Duration;

/// From now on systemd hears that the process is alive, as often as it wants to: from a thread,
/// because a store may be silent for longer than systemd waits.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn stays_alive() -> io::Result<()> {
    // With time to spare.
    let Some(pause) = limit().map(|limit| limit / 3) else {
        return Ok(());
    };
    thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || send_heartbeats(pause))
        .map(drop)
}

/// Tells systemd again and again that the process is alive.
fn send_heartbeats(pause: Duration) -> ! {
    loop {
        send("WATCHDOG=1");
        thread::sleep(pause);
    }
}

/// The directory holds a version: what needs it can start.
pub(crate) fn is_ready(version: u64) {
    send(&format!("READY=1\nSTATUS=at version {version}"));
}

/// The first round of copying has succeeded.
pub(crate) fn has_copied() {
    send("READY=1");
}

/// A line for `systemctl status`.
pub(crate) fn says(text: &str) {
    // Each line of a message means something to systemd.
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
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
