//! Escaped symbols: a symbol of few bits, whose greatest value means that the rest is a varint in
//! another stream (SPEC sections 8.1 and 8.5).

use crate::error::Result;
use crate::format::cursor::Cursor;
use crate::rules;
use crate::varint::put_varint;

/// The symbol for `value`; appends to `escapes` if the value does not fit.
pub(crate) fn put(value: u64, greatest: u8, escapes: &mut Vec<u8>) -> u8 {
    if let Some(symbol) = u8::try_from(value).ok().filter(|symbol| *symbol < greatest) {
        return symbol;
    }
    put_varint(escapes, value - u64::from(greatest));
    greatest
}

/// Checks the varints of all escapes: there must be `count` of them, and nothing after (R-STR-06).
pub(crate) fn check(raw: &[u8], offset: u64, count: usize) -> Result<()> {
    let mut cursor = Cursor::in_stream(raw, offset);
    let mut found = 0;
    while cursor.remaining() > 0 {
        cursor.varint()?;
        found += 1;
    }
    cursor.ensure(found == count, &rules::STR_06, || {
        format!("{found} escapes for {count} escaped symbols")
    })
}

/// Yields the varints of escapes that have been checked. They are not collected, because a list
/// could be much longer than their bytes.
pub(crate) fn read(raw: &[u8], offset: u64) -> impl Iterator<Item = u64> {
    let mut cursor = Cursor::in_stream(raw, offset);
    std::iter::from_fn(move || cursor.varint().ok())
}

/// The value of a symbol; `escapes` yields the next varint of the escape stream, whose presence
/// [`check`] has ensured.
pub(crate) fn value(symbol: u8, greatest: u8, escapes: &mut impl Iterator<Item = u64>) -> u64 {
    let symbol_value = u64::from(symbol);
    if symbol == greatest {
        symbol_value.saturating_add(escapes.next().unwrap_or(0))
    } else {
        symbol_value
    }
}
