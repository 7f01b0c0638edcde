//! The one legal form of JSON in documents and layouts (SPEC sections 18 and 12), read and written token by token.
//!
//! A text has exactly one form, and the reader accepts only that form. So a text that was read needs no second check,
//! and a refusal knows its offset.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::rules::Rule;
use crate::tensor::Digest;

/// The largest integer of a document: every JSON library can hold it.
pub(crate) const MAX_INTEGER: u64 = (1 << 53) - 1;

/// Reads a text to its end.
#[derive(Debug)]
pub(crate) struct JsonReader<'a> {
    rest: &'a str,
    /// Length of the text.
    length: usize,
    /// The rule that a text breaks that has another form.
    rule: &'static Rule,
}

impl<'a> JsonReader<'a> {
    /// Reads a text from here on; `length` is the length of the whole text, including the part that has been read
    /// before.
    pub(crate) fn new(rest: &'a str, length: usize, rule: &'static Rule) -> Self {
        Self { rest, length, rule }
    }

    /// A refusal of what comes next.
    pub(crate) fn refuse(&self, expected: &str) -> Error {
        let offset = (self.length - self.rest.len()) as u64;
        Error::broken(self.rule, format!("the text is not in its one form: expected {expected}")).at(offset)
    }

    /// Reads exactly these bytes.
    pub(crate) fn token(&mut self, token: &str) -> Result<()> {
        if self.skip(token) { Ok(()) } else { Err(self.refuse(token)) }
    }

    /// Reads these bytes if they come next.
    fn skip(&mut self, token: &str) -> bool {
        let after = self.rest.strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    /// Reads an integer of this range.
    pub(crate) fn integer(&mut self, range: RangeInclusive<u64>) -> Result<u64> {
        let end = self.rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(self.rest.len());
        let value = integer(&self.rest[..end]).filter(|value| range.contains(value));
        let value =
            value.ok_or_else(|| self.refuse(&format!("an integer from {} to {}", range.start(), range.end())))?;
        self.rest = &self.rest[end..];
        Ok(value)
    }

    /// Reads `null` or a value.
    pub(crate) fn optional<T>(&mut self, value: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.skip("null") { Ok(None) } else { value(self).map(Some) }
    }

    /// Reads a string of this many lowercase hexadecimal digits.
    pub(crate) fn hexadecimal(&mut self, count: usize) -> Result<&'a str> {
        let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        let digits = self.rest.strip_prefix('"').and_then(|rest| rest.get(..count));
        let digits = digits.filter(|digits| digits.bytes().all(is_digit) && self.rest[1 + count..].starts_with('"'));
        let digits = digits.ok_or_else(|| self.refuse(&format!("{count} lowercase hexadecimal digits in quotes")))?;
        self.rest = &self.rest[count + 2..];
        Ok(digits)
    }

    /// Reads a digest.
    pub(crate) fn digest(&mut self) -> Result<Digest> {
        let digits = self.hexadecimal(64)?;
        Digest::from_hex(digits).ok_or_else(|| self.refuse("a digest"))
    }

    /// Reads a string.
    pub(crate) fn string(&mut self) -> Result<String> {
        self.token("\"")?;
        let mut text = String::new();
        loop {
            let plain = self.rest.find(|c| c < ' ' || c == '"' || c == '\\').unwrap_or(self.rest.len());
            text.push_str(&self.rest[..plain]);
            self.rest = &self.rest[plain..];
            if self.skip("\"") {
                return Ok(text);
            }
            text.push(self.escaped().ok_or_else(|| self.refuse("the rest of a string"))?);
        }
    }

    /// Reads an escape in its one form.
    fn escaped(&mut self) -> Option<char> {
        let after = self.rest.strip_prefix('\\')?;
        let character = match after.strip_prefix('u') {
            Some(digits) => char::from_u32(u32::from_str_radix(digits.get(..4)?, 16).ok()?)?,
            None => SHORT_ESCAPES.iter().find(|(_, written)| after.starts_with(*written))?.0,
        };
        self.rest = after.strip_prefix(&*escape(character)?)?;
        Some(character)
    }

    /// Reads an array with a given number of items.
    pub(crate) fn array<T>(
        &mut self,
        count: RangeInclusive<usize>,
        item: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.token("[")?;
        let mut items = Vec::new();
        if *count.start() == 0 && self.skip("]") {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if items.len() == *count.end() || !self.skip(",") {
                self.token("]")?;
                return Ok(items);
            }
        }
    }

    /// Reads an object whose values are strings.
    pub(crate) fn strings(&mut self) -> Result<BTreeMap<String, String>> {
        self.token("{")?;
        let mut members: BTreeMap<String, String> = BTreeMap::new();
        if self.skip("}") {
            return Ok(members);
        }
        loop {
            let before = self.rest;
            let name = self.string()?;
            if members.last_key_value().is_some_and(|(last, _)| *last >= name) {
                self.rest = before;
                return Err(self.refuse("members in strictly ascending order"));
            }
            self.token(":")?;
            members.insert(name, self.string()?);
            if !self.skip(",") {
                self.token("}")?;
                return Ok(members);
            }
        }
    }

    /// Reads the end of the text.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.refuse("the end")) }
    }
}

/// The number that these digits write in the one legal way.
pub(crate) fn integer(digits: &str) -> Option<u64> {
    let value = digits.parse().ok().filter(|&value| value <= MAX_INTEGER)?;
    (u64::to_string(&value) == digits).then_some(value)
}

/// Characters that are written as a backslash and another character.
const SHORT_ESCAPES: [(char, char); 7] =
    [('"', '"'), ('\\', '\\'), ('\u{8}', 'b'), ('\t', 't'), ('\n', 'n'), ('\u{c}', 'f'), ('\r', 'r')];

/// The characters that follow the backslash; `None` if the character is written as itself.
fn escape(character: char) -> Option<String> {
    let short = SHORT_ESCAPES.iter().find(|(escaped, _)| *escaped == character);
    match short {
        Some((_, written)) => Some(written.to_string()),
        None if character < ' ' => Some(format!("u{:04x}", u32::from(character))),
        None => None,
    }
}

/// Writes a text.
#[derive(Debug, Default)]
pub(crate) struct JsonWriter(String);

impl JsonWriter {
    /// Writes exactly these bytes.
    pub(crate) fn token(&mut self, token: &str) -> &mut Self {
        self.0.push_str(token);
        self
    }

    pub(crate) fn integer(&mut self, value: u64) -> &mut Self {
        self.token(&value.to_string())
    }

    pub(crate) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T) -> &mut Self) -> &mut Self {
        match value {
            Some(value) => write(self, value),
            None => self.token("null"),
        }
    }

    /// Writes what needs no escapes.
    pub(crate) fn quoted(&mut self, text: &str) -> &mut Self {
        self.token("\"").token(text).token("\"")
    }

    pub(crate) fn string(&mut self, text: &str) -> &mut Self {
        self.token("\"");
        for character in text.chars() {
            match escape(character) {
                Some(written) => self.0.extend(["\\", &written]),
                None => self.0.push(character),
            }
        }
        self.token("\"")
    }

    pub(crate) fn array<T>(&mut self, items: &[T], item: impl Fn(&mut Self, &T)) -> &mut Self {
        self.token("[");
        for (number, value) in items.iter().enumerate() {
            self.token(if number == 0 { "" } else { "," });
            item(self, value);
        }
        self.token("]")
    }

    pub(crate) fn strings(&mut self, members: &BTreeMap<String, String>) -> &mut Self {
        self.token("{");
        for (number, (name, value)) in members.iter().enumerate() {
            self.token(if number == 0 { "" } else { "," }).string(name).token(":").string(value);
        }
        self.token("}")
    }

    /// The text.
    pub(crate) fn end(self) -> String {
        self.0
    }
}
