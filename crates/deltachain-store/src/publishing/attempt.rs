//! How long an attempt to add something to a chain has taken.

use std::time::{Duration, Instant, SystemTime};

use deltachain::Result;
use deltachain::chain::check_duration;

/// An attempt, from before its first file is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// Stands still while the machine sleeps.
    began: Instant,
    /// May be set, even back.
    at: SystemTime,
    /// What had passed before, by the store's clock.
    before: Duration,
}

impl Attempt {
    /// Now.
    #[expect(clippy::disallowed_methods, reason = "R-PUB-08: a clock that goes on while the machine sleeps")]
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), at: SystemTime::now(), before: Duration::ZERO }
    }

    /// An attempt that began this long ago, perhaps in another process.
    pub(crate) fn before(self, before: Duration) -> Self {
        Self { before, ..self }
    }

    /// To be asked directly before the document is stored that names the files.
    ///
    /// # Errors
    /// R-PUB-08 (`CHAIN`).
    pub(crate) fn check(&self) -> Result<()> {
        check_duration(self.seconds())
    }

    /// How long ago it began.
    pub(crate) fn seconds(&self) -> u64 {
        let here = self.began.elapsed().max(self.at.elapsed().unwrap_or_default());
        self.before.saturating_add(here).as_secs()
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn hours_before_count_with_those_since() {
        let rule = |before| {
            let attempt = Attempt::begin().before(Duration::from_hours(before));
            let at = attempt.at - Duration::from_hours(10);
            Attempt { at, ..attempt }.check().err().and_then(|error| error.rule())
        };
        assert_eq!((rule(0), rule(9), rule(10)), (None, None, Some("R-PUB-08")));
    }
}
