//! Notifies systemd when the program is ready, while it is alive, and when it ends. Does nothing
//! without systemd.

use std::io;
use std::thread;
use std::time::Duration;

/// Starts a thread that notifies systemd's watchdog, if it is enabled, that the process is alive.
/// It is a separate thread because a request to a store may take longer than the watchdog waits.
///
/// # Errors
/// An error if the thread cannot be started.
pub(crate) fn stays_alive() -> io::Result<()> {
    // A third of the limit leaves time to spare.
    let Some(pause) = limit().map(|limit| limit / 3) else {
        return Ok(());
    };
    thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || send_heartbeats(pause))
        .map(drop)
}

/// Repeatedly notifies systemd that the process is alive.
fn send_heartbeats(pause: Duration) -> ! {
    loop {
        send("WATCHDOG=1");
        thread::sleep(pause);
    }
}

/// Notifies systemd that the directory holds a version, so that services that need it can start.
pub(crate) fn is_ready(version: u64) {
    send(&format!("READY=1\nSTATUS=at version {version}"));
}

/// Notifies systemd that a round of copying has succeeded. Only the first notification has an
/// effect.
pub(crate) fn has_copied() {
    send("READY=1");
}

/// Sets the status line that `systemctl status` shows.
pub(crate) fn says(text: &str) {
    // systemd would read each line of the text as a message of its own.
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    send(&format!("STATUS={line}"));
}

/// Notifies systemd that the program ends.
pub(crate) fn ends() {
    send("STOPPING=1");
}

#[cfg(unix)]
fn send(message: &str) {
    // Nothing depends on the notification. Without systemd, nothing is sent.
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
