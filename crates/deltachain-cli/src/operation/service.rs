//! Word to systemd: when the program is ready, that it is alive, that it ends. Without systemd nothing happens.

#[cfg(unix)]
mod with_systemd {
    use std::sync::{Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use sd_notify::{NotifyState, notify, watchdog_enabled};

    /// The program as a unit of systemd.
    #[derive(Debug)]
    pub(crate) struct Service {
        /// How often systemd wants to hear that the program is alive, with some time to spare.
        every: Option<Duration>,
        last: Mutex<Option<Instant>>,
    }

    impl Service {
        pub(crate) fn new() -> Self {
            Self { every: watchdog_enabled().map(|limit| limit / 3), last: Mutex::default() }
        }

        /// Work goes on. May be called as often as one likes.
        pub(crate) fn is_alive(&self) {
            let Some(every) = self.every else { return };
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.is_none_or(|last| last.elapsed() >= every) {
                *last = Some(Instant::now());
                tell(&[NotifyState::Watchdog]);
            }
        }

        /// The directory holds a version: what needs it can start.
        pub(crate) fn is_ready(&self, version: u64) {
            tell(&[NotifyState::Ready, NotifyState::Status(&format!("at version {version}"))]);
        }

        /// A line for `systemctl status`.
        pub(crate) fn says(&self, text: &str) {
            tell(&[NotifyState::Status(text)]);
        }

        pub(crate) fn ends(&self) {
            tell(&[NotifyState::Stopping]);
        }
    }

    fn tell(states: &[NotifyState<'_>]) {
        // Nothing that is followed depends on it. Without systemd nothing is sent.
        let _ = notify(states);
    }
}

#[cfg(not(unix))]
mod without {
    /// The program where there is no systemd.
    #[derive(Debug)]
    pub(crate) struct Service;

    impl Service {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn is_alive(&self) {}

        pub(crate) fn is_ready(&self, _version: u64) {}

        pub(crate) fn says(&self, _text: &str) {}

        pub(crate) fn ends(&self) {}
    }
}

#[cfg(unix)]
pub(crate) use with_systemd::Service;
#[cfg(not(unix))]
pub(crate) use without::Service;
