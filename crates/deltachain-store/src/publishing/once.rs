//! Publishing each step once: [`PublishOptions::once`](crate::PublishOptions::once).

use std::collections::BTreeMap;

use deltachain::{Error, Result};

/// Whether a version with this metadata would repeat a step: its entry `once` is not greater than
/// that of the newest version. Without such an entry there, it would not.
///
/// # Errors
/// USAGE if the entry is missing or no integer.
pub(crate) fn is_repeated(
    once: Option<&str>,
    metadata: &BTreeMap<String, String>,
    newest: Option<&BTreeMap<String, String>>,
) -> Result<bool> {
    let Some(name) = once else { return Ok(false) };
    let text = metadata.get(name).ok_or_else(|| {
        Error::usage(format!(
            "the metadata entry {name:?} is missing; it says which steps are published already"
        ))
    })?;
    let integer = |text: &String| text.parse::<i128>().ok();
    let own = integer(text).ok_or_else(|| {
        Error::usage(format!(
            "the metadata entry {name:?} must be an integer to be compared with the head's, not {text:?}"
        ))
    })?;
    Ok(newest
        .and_then(|newest| newest.get(name))
        .and_then(integer)
        .is_some_and(|newest| own <= newest))
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
            let found = is_repeated(Some("step"), &entry(own), Some(&entry(newest))).unwrap();
            assert_eq!(found, expected, "{own} after {newest}");
        }
        for newest in [None, Some(&BTreeMap::new())] {
            assert!(!is_repeated(Some("step"), &entry("1"), newest).unwrap());
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
            let error = is_repeated(Some("step"), &metadata, None).unwrap_err();
            assert_eq!(error.class(), deltachain::ErrorClass::Usage);
            assert!(error.message().contains("\"step\""), "{error}");
        }
    }
}
