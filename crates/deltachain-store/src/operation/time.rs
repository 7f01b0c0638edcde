//! The time of day: for records and remarks only. No link or chain depends on it.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time of day, written as RFC 3339 in UTC, such as `2026-01-31T12:00:00.250Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time(#[serde(with = "as_text")] pub(crate) SystemTime);

impl Time {
    /// The time by the clock of this machine.
    #[expect(
        clippy::disallowed_methods,
        reason = "people and monitors want to know when"
    )]
    pub fn now() -> Self {
        Self(SystemTime::now())
    }

    /// The time `seconds` ago; `None` if there is no such time.
    pub(crate) fn ago(seconds: f64) -> Option<Self> {
        let passed = Duration::try_from_secs_f64(seconds).ok()?;
        Self::now().0.checked_sub(passed).map(Self)
    }

    /// The time since then. Clocks jump: a negative time becomes 0.
    pub fn age(self) -> Duration {
        Self::now().0.duration_since(self.0).unwrap_or_default()
    }

    /// Whether the time is so far in the future that a clock was wrong: by more than clocks are
    /// usually set back.
    pub(crate) fn is_in_future(self) -> bool {
        self.0
            .duration_since(Self::now().0)
            .is_ok_and(|ahead| ahead > Duration::from_mins(1))
    }

    /// Seconds since 1970, as Prometheus counts.
    pub fn unix_seconds(self) -> f64 {
        self.0
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64()
    }
}

impl Display for Time {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        // Times before 1970 and after 9999 have no such text, and a clock may return any time.
        let shown = self
            .0
            .duration_since(UNIX_EPOCH)
            .is_ok_and(|since| since.as_secs() < 253_402_300_800);
        if shown {
            humantime::format_rfc3339_millis(self.0).fmt(out)
        } else {
            out.write_str("unknown")
        }
    }
}

/// The format in JSON.
mod as_text {
    use super::{Deserialize, Deserializer, Serializer, SystemTime, Time, de};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&Time(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_one_form_and_come_back() {
        let time = Time(UNIX_EPOCH + Duration::from_millis(1_769_860_800_250));
        assert_eq!(time.to_string(), "2026-01-31T12:00:00.250Z");
        let text = serde_json::to_string(&time).unwrap();
        assert_eq!(serde_json::from_str::<Time>(&text).unwrap(), time);
        assert!(serde_json::from_str::<Time>("\"yesterday\"").is_err());
        assert_eq!(
            Time(UNIX_EPOCH + Duration::from_hours(1 << 31)).to_string(),
            "unknown"
        );
        assert_eq!(Time::ago(f64::NAN), None);
    }
}
