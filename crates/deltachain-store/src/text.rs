//! Lists and times in JSON: functions for serde's `serialize_with`.

use std::fmt::Write as _;
use std::time::SystemTime;

use serde::ser::{Serialize, Serializer};

/// Serializes the length of a list instead of the list.
pub(crate) fn count<T, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    list.len().serialize(serializer)
}

/// Serializes a time in UTC, such as `2026-01-31T12:00:00Z`; null if it is unknown.
#[expect(clippy::ref_option, reason = "serde calls it so")]
pub(crate) fn time<S: Serializer>(
    time: &Option<SystemTime>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    time.map(date).serialize(serializer)
}

/// Formats a time in UTC, such as `2026-01-31T12:00:00Z`. A time before 1970 or after 9999 becomes
/// a dash.
pub fn date(time: SystemTime) -> String {
    let mut text = String::new();
    if write!(text, "{}", humantime::format_rfc3339_seconds(time)).is_err() {
        "-".to_owned()
    } else {
        text
    }
}
