//! A segment's directory and table (SPEC section 7).

use std::borrow::Cow;

use crate::error::Result;
use crate::format::coding::{Coding, Positions, Values};
use crate::format::cursor::Cursor;
use crate::format::stream;
use crate::limits::address;
use crate::rules::{self, ensure};
use crate::tensor::Dtype;
use crate::varint::put_varint;

/// Maximum number of contexts of a segment.
pub(crate) const MAX_CONTEXTS: usize = 16;
/// Maximum shift of a gap, which is less than the number of lanes of a piece.
pub(crate) const MAX_SHIFT: u8 = 23;
/// Position parameter of a bitmap.
const BITMAP: u8 = 32;
/// Maximum bytes of a table without its parts: the number of contexts, and two bytes for each.
const TABLE_BYTES: u64 = 33;
/// Maximum bytes of a part in a table: 15 increments of two bytes and 16 counts of four.
pub(crate) const TABLE_BYTES_PER_PART: u64 = 94;

/// A stream as the directory declares it, with its stored bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredStream<'a> {
    pub(crate) raw_length: u64,
    pub(crate) bytes: &'a [u8],
    /// Absolute offset of the bytes in the file.
    pub(crate) offset: u64,
}

impl<'a> StoredStream<'a> {
    pub(crate) fn decode(&self) -> Result<Cow<'a, [u8]>> {
        stream::decode(self.bytes, self.raw_length, self.offset)
    }
}

/// Splits a segment, which begins at `offset` in the file, into its streams. Checks R-STR-01 and
/// R-SEG-02.
pub(crate) fn split(segment: &[u8], offset: u64, coding: Coding) -> Result<Vec<StoredStream<'_>>> {
    let mut cursor = Cursor::in_file(segment, offset);
    let mut lengths = Vec::new();
    for _ in coding.stream_names() {
        let (raw, stored) = (cursor.varint()?, cursor.varint()?);
        cursor.ensure(stored <= raw, &rules::STR_01, || {
            format!("a stream of {raw} bytes is stored in {stored}")
        })?;
        lengths.push((raw, stored));
    }
    let total = lengths
        .iter()
        .try_fold(0_u64, |sum, (_, stored)| sum.checked_add(*stored));
    cursor.ensure(
        total == Some(cursor.remaining() as u64),
        &rules::SEG_02,
        || {
            format!(
                "the streams do not fill the {} bytes after the directory",
                cursor.remaining()
            )
        },
    )?;
    lengths
        .into_iter()
        .map(|(raw_length, stored)| {
            let offset = cursor.offset();
            // R-SEG-02 has made sure that the stored length fits.
            let bytes = cursor.take(address(stored)?)?;
            Ok(StoredStream {
                raw_length,
                bytes,
                offset,
            })
        })
        .collect()
}

/// Joins streams, given as raw length and stored bytes, into a segment.
pub(crate) fn join(streams: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (raw_length, stored) in streams {
        put_varint(&mut out, *raw_length as u64);
        put_varint(&mut out, stored.len() as u64);
    }
    out.reserve_exact(streams.iter().map(|(_, stored)| stored.len()).sum());
    for (_, stored) in streams {
        out.extend_from_slice(stored);
    }
    out
}

/// Coding of the positions of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PositionCoding {
    /// Gaps between ranks; this many of their low bits are packed separately.
    Gaps(u8),
    /// One bit per member.
    Bitmap,
}

/// The table of a segment (SPEC section 7.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Number of contexts, 1 to 16.
    pub contexts: usize,
    /// One per context if positions are sparse, otherwise empty.
    pub positions: Vec<PositionCoding>,
    /// Symbol width of each context for relative small values, otherwise empty.
    pub widths: Vec<u8>,
    /// `contexts - 1` per part: exponent fields at which the next context begins, ascending within
    /// a part.
    pub(crate) thresholds: Vec<u16>,
    /// `contexts` per part: members, or coded lanes for gaps.
    pub(crate) counts: Vec<u32>,
}

impl Table {
    /// Thresholds of part number `part`; empty if there is no such part.
    pub fn thresholds(&self, part: usize) -> &[u16] {
        of_part(&self.thresholds, self.contexts.saturating_sub(1), part)
    }

    /// Counts of part number `part`; empty if there is no such part.
    pub fn counts(&self, part: usize) -> &[u32] {
        of_part(&self.counts, self.contexts, part)
    }

    /// Parses a table; `parts` gives dtype and lanes of each part.
    pub(crate) fn parse(
        stream: &StoredStream<'_>,
        coding: Coding,
        parts: &[(Dtype, u32)],
    ) -> Result<Self> {
        let most = TABLE_BYTES + TABLE_BYTES_PER_PART * parts.len() as u64;
        ensure(stream.raw_length <= most, &rules::LIM_03, || {
            format!("a table of {} bytes, at most {most}", stream.raw_length)
        })
        .map_err(|error| error.at(stream.offset))?;
        let raw = stream.decode()?;
        let mut cursor = Cursor::in_stream(&raw, stream.offset);
        let contexts = usize::from(cursor.u8()?);
        cursor.ensure(
            (1..=MAX_CONTEXTS).contains(&contexts),
            &rules::SEG_03,
            || format!("{contexts} contexts"),
        )?;
        cursor.ensure(
            contexts == 1 || coding.is_relative(),
            &rules::SEG_04,
            || format!("{contexts} contexts with absolute values"),
        )?;
        let mut table = Self {
            contexts,
            positions: Vec::new(),
            widths: Vec::new(),
            thresholds: Vec::new(),
            counts: Vec::new(),
        };
        if coding.is_sparse() {
            for _ in 0..contexts {
                let parameter = cursor.u8()?;
                let is_gaps = parameter <= MAX_SHIFT;
                cursor.ensure(is_gaps || parameter == BITMAP, &rules::SEG_05, || {
                    format!("position parameter {parameter}")
                })?;
                table.positions.push(if is_gaps {
                    PositionCoding::Gaps(parameter)
                } else {
                    PositionCoding::Bitmap
                });
            }
        }
        if coding.values == Values::RelativeSmall {
            for _ in 0..contexts {
                let width = cursor.u8()?;
                cursor.ensure(matches!(width, 1 | 2 | 4 | 8), &rules::SEG_06, || {
                    format!("symbol width {width}")
                })?;
                table.widths.push(width);
            }
        }
        // A part takes at least one byte for each of its fields, so the bytes bound what is
        // allocated.
        let possible = parts.len().min(cursor.remaining() / (2 * contexts - 1));
        table.thresholds.reserve(possible * (contexts - 1));
        table.counts.reserve(possible * contexts);
        let all_members = table.counts_members(coding);
        for &(dtype, lanes) in parts {
            table.parse_part(&mut cursor, dtype, lanes, all_members)?;
        }
        cursor.ensure(cursor.remaining() == 0, &rules::SEG_09, || {
            format!(
                "{} bytes follow the last count of the table",
                cursor.remaining()
            )
        })?;
        Ok(table)
    }

    fn parse_part(
        &mut self,
        cursor: &mut Cursor<'_>,
        dtype: Dtype,
        lanes: u32,
        all_members: bool,
    ) -> Result<()> {
        let highest = 1_u64 << dtype.exponent_bits().unwrap_or(0);
        let mut threshold = 0_u64;
        for _ in 1..self.contexts {
            threshold = threshold.saturating_add(cursor.varint()?);
            let fits = u16::try_from(threshold)
                .ok()
                .filter(|_| threshold <= highest);
            cursor.ensure(fits.is_some(), &rules::SEG_07, || {
                format!("threshold {threshold}, at most {highest}")
            })?;
            self.thresholds.extend(fits);
        }
        let mut left = Some(lanes);
        for _ in 0..self.contexts {
            let count = cursor.varint()?;
            let count = u32::try_from(count).ok();
            left = left
                .zip(count)
                .and_then(|(left, count)| left.checked_sub(count));
            // A count that does not fit makes `left` `None`, which R-SEG-08 refuses below.
            self.counts.push(count.unwrap_or(0));
        }
        cursor.ensure(
            if all_members {
                left == Some(0)
            } else {
                left.is_some()
            },
            &rules::SEG_08,
            || format!("the counts of a part do not fit its {lanes} lanes"),
        )
    }

    /// Whether every count is a number of members, so that a part's counts add up to its lanes.
    fn counts_members(&self, coding: Coding) -> bool {
        coding.positions == Positions::Dense
            || self
                .positions
                .iter()
                .all(|coding| *coding == PositionCoding::Bitmap)
    }

    /// The table's raw bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // At most 16.
        out.push(u8::try_from(self.contexts).unwrap_or(u8::MAX));
        out.extend(self.positions.iter().map(|coding| match coding {
            PositionCoding::Gaps(shift) => *shift,
            PositionCoding::Bitmap => BITMAP,
        }));
        out.extend_from_slice(&self.widths);
        for (part, counts) in self.counts.chunks_exact(self.contexts.max(1)).enumerate() {
            let mut last = 0;
            for &threshold in self.thresholds(part) {
                put_varint(&mut out, u64::from(threshold - last));
                last = threshold;
            }
            for &count in counts {
                put_varint(&mut out, u64::from(count));
            }
        }
        out
    }
}

/// The items of one part in a list with `each` items for every part.
fn of_part<T>(all: &[T], each: usize, part: usize) -> &[T] {
    let begin = part.saturating_mul(each);
    all.get(begin..begin.saturating_add(each)).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_bounded() {
        let coding = Coding {
            lane_bytes: 1,
            positions: Positions::Dense,
            values: Values::Absolute,
        };
        let rule = |length: u64| {
            let bytes = vec![0; usize::try_from(length).unwrap()];
            let stream = StoredStream {
                raw_length: length,
                bytes: &bytes,
                offset: 0,
            };
            Table::parse(&stream, coding, &[(Dtype::U8, 4)])
                .unwrap_err()
                .rule()
        };
        // No contexts.
        assert_eq!(rule(TABLE_BYTES + TABLE_BYTES_PER_PART), Some("R-SEG-03"));
        assert_eq!(
            rule(TABLE_BYTES + TABLE_BYTES_PER_PART + 1),
            Some("R-LIM-03")
        );
    }

    #[test]
    fn shifts_are_bounded() {
        let coding = Coding {
            lane_bytes: 1,
            positions: Positions::Sparse,
            values: Values::Absolute,
        };
        let accepted = (0..=u8::MAX).filter(|&parameter| {
            let bytes = [1, parameter, 4];
            let stream = StoredStream {
                raw_length: 3,
                bytes: &bytes,
                offset: 0,
            };
            match Table::parse(&stream, coding, &[(Dtype::U8, 4)]) {
                Ok(table) => table.to_bytes() == bytes,
                Err(error) => {
                    assert_eq!(error.rule(), Some("R-SEG-05"));
                    false
                }
            }
        });
        assert!(accepted.eq((0..=23).chain([32])));
    }

    #[test]
    fn members_are_all_lanes() {
        let rule = |positions: Positions, parameter: &[u8], count: u8| {
            let bytes = [&[1][..], parameter, &[count]].concat();
            let stream = StoredStream {
                raw_length: bytes.len() as u64,
                bytes: &bytes,
                offset: 0,
            };
            let coding = Coding {
                lane_bytes: 1,
                positions,
                values: Values::Absolute,
            };
            Table::parse(&stream, coding, &[(Dtype::U8, 4)])
                .err()
                .and_then(|error| error.rule())
        };
        for count in 3..=5 {
            let expected = (count != 4).then_some("R-SEG-08");
            assert_eq!(rule(Positions::Dense, &[], count), expected);
            assert_eq!(rule(Positions::Sparse, &[BITMAP], count), expected);
        }
        // Gaps count coded lanes.
        assert_eq!(rule(Positions::Sparse, &[0], 3), None);
        assert_eq!(rule(Positions::Sparse, &[0], 5), Some("R-SEG-08"));
    }
}
