//! Publishing each step once: [`PublishOptions::once`](crate::PublishOptions::once).

use std::collections::BTreeMap;
use std::fmt;

use deltachain::{Error, Result};
use serde::Serialize;

/// A step that was not published, because the newest version already has this step or a later one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SkippedStep {
    /// The name of the metadata entry.
    pub entry: String,
    /// Its value that was to be published.
    pub value: String,
    /// Its value in the newest version.
    pub newest: String,
    /// True if the step is lower than the newest one; false if both are the same.
    #[serde(rename = "lower")]
    pub is_lower: bool,
}

impl fmt::Display for SkippedStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            entry,
            value,
            newest,
            ..
        } = self;
        write!(
            out,
            "{entry} {value}, the chain's newest is {newest}: skipped"
        )
    }
}

impl SkippedStep {
    /// Returns a warning, unless the newest version has the same step: otherwise a run that counts
    /// from the beginning again would silently publish nothing.
    pub fn warning(&self) -> Option<String> {
        self.is_lower.then(|| {
            format!(
                "{self}. Followers keep the weights of {} {}. If this is another run, give it a \
                 chain of its own, or publish without `once`",
                self.entry, self.newest
            )
        })
    }
}

/// Returns the step that a version with this metadata would repeat: its entry `once` is not greater
/// than that of the newest version. `None` if it is greater, or if the newest version has no such
/// entry.
///
/// # Errors
/// USAGE if the entry is missing or not an integer.
pub(crate) fn skipped_step(
    once: Option<&str>,
    metadata: &BTreeMap<String, String>,
    newest: Option<&BTreeMap<String, String>>,
) -> Result<Option<SkippedStep>> {
    let Some(name) = once else { return Ok(None) };
    let text = metadata.get(name).ok_or_else(|| {
        Error::usage(format!(
            "the metadata entry {name:?} is missing; it says which steps are published already"
        ))
    })?;
    let integer = |text: &str| text.parse::<i128>().ok();
    let own = integer(text).ok_or_else(|| {
        Error::usage(format!(
            "the metadata entry {name:?} must be an integer to be compared with the head's, not \
             {text:?}"
        ))
    })?;
    let Some(newest) = newest.and_then(|newest| newest.get(name)) else {
        return Ok(None);
    };
    let Some(highest) = integer(newest).filter(|&highest| own <= highest) else {
        return Ok(None);
    };
    Ok(Some(SkippedStep {
        entry: name.to_owned(),
        value: text.clone(),
        newest: newest.clone(),
        is_lower: own < highest,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_compared_as_integers() {
        let entry = |text: &str| BTreeMap::from([("step".to_owned(), text.to_owned())]);
        for (own, newest, expected) in [
            ("9", "10", true),
            ("10", "10", true),
            ("11", "10", false),
            ("-3", "-2", true),
            ("99999999999999999999", "18446744073709551616", false),
            // A writer without `once` may have left anything there.
            ("1", "ten", false),
        ] {
            let found = skipped_step(Some("step"), &entry(own), Some(&entry(newest))).unwrap();
            assert_eq!(found.is_some(), expected, "{own} after {newest}");
            let warns = found.is_some_and(|found| found.warning().is_some());
            assert_eq!(warns, expected && own != newest, "{own} after {newest}");
        }
        for newest in [None, Some(&BTreeMap::new())] {
            assert_eq!(
                skipped_step(Some("step"), &entry("1"), newest).unwrap(),
                None
            );
        }
    }

    #[test]
    fn what_is_no_integer_is_refused_by_name() {
        for metadata in [
            ("other", "1"),
            ("step", ""),
            ("step", "1.0"),
            ("step", " 1"),
            ("step", "tensor(1)"),
        ] {
            let metadata = BTreeMap::from([(metadata.0.to_owned(), metadata.1.to_owned())]);
            let error = skipped_step(Some("step"), &metadata, None).unwrap_err();
            assert_eq!(error.class(), deltachain::ErrorClass::Usage);
            assert!(error.message().contains("\"step\""), "{error}");
        }
    }
}
