//! How long an attempt to add something to a chain has taken.

use std::time::{Instant, SystemTime};

use deltachain::Result;
use deltachain::chain::check_duration;

/// An attempt, from before its first file is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// Stands still while the machine sleeps.
    began: Instant,
    /// May be set, even back.
    at: SystemTime,
}

impl Attempt {
    /// Now.
    #[expect(clippy::disallowed_methods, reason = "R-PUB-08: a clock that goes on while the machine sleeps")]
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), at: SystemTime::now() }
    }

    /// To be asked directly before the document is stored that names the files.
    ///
    /// # Errors
    /// R-PUB-08 (`CHAIN`).
    pub(crate) fn check(&self) -> Result<()> {
        check_duration(self.began.elapsed().max(self.at.elapsed().unwrap_or_default()).as_secs())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_attempt_of_many_hours_ends() {
        let rule = |hours| {
            let attempt = Attempt::begin();
            let at = attempt.at - Duration::from_hours(hours);
            Attempt { at, ..attempt }.check().err().and_then(|error| error.rule())
        };
        assert_eq!((rule(0), rule(19), rule(20), rule(300)), (None, None, Some("R-PUB-08"), Some("R-PUB-08")));
    }
}
