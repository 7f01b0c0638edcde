//! The one legal form of JSON in documents and layouts (SPEC sections 18 and 12): the text that
//! serde writes for a value, without spaces, with the members of an object in the order of its
//! fields, or ascending by name.

use std::ops::RangeInclusive;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, Unexpected};
use serde::ser::Serialize;

use crate::error::{Error, Result};
use crate::rules::Rule;

/// The largest integer of a document: every JSON library can hold it.
pub(crate) const MAX_INTEGER: u64 = (1 << 53) - 1;

/// Reads a text, which must be identical to what [`write()`] makes of its value. `begin` is the
/// offset of the text in the document; the offsets of errors count from the beginning of the
/// document.
///
/// # Errors
/// `rule` if the text has another form.
pub(crate) fn read<T: Serialize + DeserializeOwned>(
    text: &str,
    begin: usize,
    rule: &'static Rule,
) -> Result<T> {
    let refuse = |at: usize, why: &str| {
        Error::broken(
            rule,
            format!("the text is not in its canonical form: {why}"),
        )
        .at((begin + at.min(text.len())) as u64)
    };
    let value: T = serde_json::from_str(text).map_err(|error| {
        let before: usize = text
            .split_inclusive('\n')
            .take(error.line().saturating_sub(1))
            .map(str::len)
            .sum();
        // For a syntax error, the wrong character is the last one read.
        let read = before + error.column().saturating_sub(error.is_syntax().into());
        let read = text.get(..read).unwrap_or(text);
        // Start of the wrong number or word.
        let at = read
            .trim_end_matches(|c: char| c.is_ascii_alphanumeric() || "+-.".contains(c))
            .len();
        let told = error.to_string();
        // The offset goes into the error's own field.
        refuse(
            at,
            &printable(&told.rsplit_once(" at line ").map_or(&*told, |(why, _)| why)),
        )
    })?;
    let form = write(&value);
    if form == text {
        return Ok(value);
    }
    let at = form
        .bytes()
        .zip(text.bytes())
        .position(|(form, byte)| form != byte);
    Err(refuse(
        at.unwrap_or(form.len()),
        "from here on, it is not written in that form",
    ))
}

/// Accepts an integer within these bounds.
pub(crate) fn bounded<E: serde::de::Error>(
    value: u64,
    bounds: &RangeInclusive<u64>,
) -> Result<u64, E> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    let expected = format!("an integer from {} to {}", bounds.start(), bounds.end());
    Err(E::invalid_value(
        Unexpected::Unsigned(value),
        &expected.as_str(),
    ))
}

/// Reads an integer within these bounds. This function and the next two are for serde's
/// `deserialize_with`.
pub(crate) fn integer<'de, D: Deserializer<'de>, const LEAST: u64, const MOST: u64>(
    from: D,
) -> Result<u64, D::Error> {
    bounded(u64::deserialize(from)?, &(LEAST..=MOST))
}

/// Reads `null` or an integer.
pub(crate) fn integer_or_null<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Option::deserialize(from)?
        .map(|value| bounded(value, &(0..=MAX_INTEGER)))
        .transpose()
}

/// Reads an array with at least one item.
pub(crate) fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let items = Vec::deserialize(from)?;
    if items.is_empty() {
        Err(D::Error::invalid_length(0, &"at least one item"))
    } else {
        Ok(items)
    }
}

/// Writes a value in its only form. This cannot fail, because the keys of all values in this
/// library are text.
pub(crate) fn write<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Maximum number of characters of a message of another library, which may quote a long input.
const SHOWN: usize = 300;

/// The beginning of a message of another library, without the control characters that it may quote
/// from the input.
pub(crate) fn printable(message: &impl std::fmt::Display) -> String {
    let plain = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    message.to_string().chars().take(SHOWN).map(plain).collect()
}

/// Makes a type a string in JSON: the text that it is displayed as, and parsed from.
macro_rules! text_in_json {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(
                &self,
                serializer: S,
            ) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(
                from: D,
            ) -> std::result::Result<Self, D::Error> {
                String::deserialize(from)?
                    .parse()
                    .map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use text_in_json;
