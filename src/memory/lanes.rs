//! Reads, compares and writes lanes of memory that the processor can reach.

use std::ops::Range;

use rayon::prelude::*;

use crate::codec::lane::{Lane, with_lane};
use crate::error::Result;
use crate::limits::address;
use crate::memory::placed::no_lanes;
use crate::memory::places::{Span, TensorPart};
use crate::sums::Sums;
use crate::tensor::TensorInfo;

/// Proven lanes of memory of this process: where they are, and their old and new values.
#[derive(Debug)]
pub struct HostLanes {
    width: usize,
    spans: Vec<Span>,
    old: Vec<u8>,
    new: Vec<u8>,
}

/// Number of lanes compared and written together: they fit in the nearest caches.
const TOGETHER: usize = 1 << 11;

/// Lanes of one span that are compared and written together.
struct Batch<'s> {
    staged: &'s HostLanes,
    /// The number of `staged` among all.
    number: usize,
    /// The number of the span in `staged`.
    span: usize,
    /// The lanes, as a range of those of the span.
    lanes: Range<usize>,
    /// Byte range of their values in the values of `staged`.
    values: Range<usize>,
}

impl Batch<'_> {
    fn row(&self) -> usize {
        self.staged.spans[self.span].row
    }

    fn lanes(&self) -> Result<RowLanes<'_>> {
        self.staged.spans[self.span].lanes(self.lanes.clone())
    }

    fn old_bytes(&self) -> &[u8] {
        &self.staged.old[self.values.clone()]
    }

    fn new_bytes(&self) -> &[u8] {
        &self.staged.new[self.values.clone()]
    }
}

fn batches<'s>(staged: impl Iterator<Item = &'s HostLanes>) -> impl Iterator<Item = Batch<'s>> {
    staged.enumerate().flat_map(|(number, staged)| {
        let mut end_of_span = 0;
        staged.spans.iter().enumerate().flat_map(move |(at, span)| {
            let begin = end_of_span;
            end_of_span += span.count * staged.width;
            (0..span.count).step_by(TOGETHER).map(move |first| {
                let end = span.count.min(first + TOGETHER);
                Batch {
                    staged,
                    number,
                    span: at,
                    lanes: first..end,
                    values: begin + first * staged.width..begin + end * staged.width,
                }
            })
        })
    })
}

impl HostLanes {
    /// Lanes of `width` bytes, with their old and new values.
    pub(super) fn new(width: usize, spans: Vec<Span>, old: Vec<u8>, new: Vec<u8>) -> Self {
        Self {
            width,
            spans,
            old,
            new,
        }
    }

    /// Compares lanes with their old values and writes the new ones, in rows that `row` finds. If a
    /// lane has another value, the lanes that have been written are put back, and the numbers of
    /// its staged lanes and of its span are returned.
    pub(super) fn write<'s, R>(
        staged: impl Iterator<Item = &'s Self> + Clone,
        rows: &mut [R],
        row: impl Fn(&mut [R], usize) -> Result<&mut [u8]>,
    ) -> Result<Option<(usize, usize)>> {
        let mut room = vec![0; TOGETHER * size_of::<u64>()];
        for (done, batch) in batches(staged.clone()).enumerate() {
            let width = batch.staged.width;
            let row_bytes = row(rows, batch.row())?;
            let held = &mut room[..batch.values.len()];
            read(row_bytes, width, batch.lanes()?, held)?;
            if held != batch.old_bytes() {
                // The unexpected value stays where it is.
                put_first_back(staged, done, rows, row)?;
                return Ok(Some((batch.number, batch.span)));
            }
            write(row_bytes, width, batch.lanes()?, batch.new_bytes())?;
        }
        Ok(None)
    }

    /// Writes the old values of all lanes.
    pub(super) fn put_back<'s, R>(
        staged: impl Iterator<Item = &'s Self>,
        rows: &mut [R],
        row: impl Fn(&mut [R], usize) -> Result<&mut [u8]>,
    ) -> Result<()> {
        put_first_back(staged, usize::MAX, rows, row)
    }
}

/// Writes the old values of the first `count` batches.
fn put_first_back<'s, R>(
    staged: impl Iterator<Item = &'s HostLanes>,
    count: usize,
    rows: &mut [R],
    row: impl Fn(&mut [R], usize) -> Result<&mut [u8]>,
) -> Result<()> {
    for batch in batches(staged).take(count) {
        let row_bytes = row(rows, batch.row())?;
        write(
            row_bytes,
            batch.staged.width,
            batch.lanes()?,
            batch.old_bytes(),
        )?;
    }
    Ok(())
}

impl Span {
    /// Reads the lanes of spans, one after another, from the rows of memory that `rows` finds.
    pub(super) fn read<'r>(
        width: usize,
        spans: &[Self],
        rows: impl Fn(usize) -> Result<&'r [u8]> + Sync,
        out: &mut [u8],
    ) -> Result<()> {
        let mut work = Vec::with_capacity(spans.len());
        let mut rest = out;
        for span in spans {
            let (own, others) = rest
                .split_at_mut_checked(span.count * width)
                .ok_or_else(no_lanes)?;
            work.push((span, own));
            rest = others;
        }
        work.into_par_iter().try_for_each(|(span, out)| {
            read(rows(span.row)?, width, span.lanes(0..span.count)?, out)
        })
    }

    /// Writes values to its lanes, which lie in `row`.
    pub(super) fn write(&self, width: usize, row: &mut [u8], values: &[u8]) -> Result<()> {
        if values.len() != self.count * width {
            return Err(no_lanes());
        }
        write(row, width, self.lanes(0..self.count)?, values)
    }

    /// A range of its lanes, in their order.
    fn lanes(&self, some: Range<usize>) -> Result<RowLanes<'_>> {
        let lanes = match &self.places {
            None => self
                .first
                .checked_add(some.start as u64)
                .map(|first| (first, None)),
            Some(places) => places.get(some).map(|places| (self.first, Some(places))),
        };
        lanes.ok_or_else(no_lanes)
    }
}

/// Lanes of a row: a first lane, and the numbers of the lanes, which count from it. Without
/// numbers, all lanes from the first one on.
pub(super) type RowLanes<'a> = (u64, Option<&'a [u32]>);

/// Reads lanes of a row.
fn read(row: &[u8], width: usize, (first, numbers): RowLanes<'_>, out: &mut [u8]) -> Result<()> {
    let first = address(first)?;
    let read = with_lane!(width, L => {
        let row = L::chunks(row).get(first..).ok_or_else(no_lanes)?;
        let out = L::chunks_mut(out);
        match numbers {
            None => row.get(..out.len()).map(|row| out.copy_from_slice(row)),
            Some(numbers) => out.iter_mut().zip(numbers).try_for_each(|(out, &number)| {
                *out = *row.get(number as usize)?;
                Some(())
            }),
        }
    });
    read.ok_or_else(no_lanes)
}

/// Writes lanes of a row.
pub(super) fn write(
    row: &mut [u8],
    width: usize,
    (first, numbers): RowLanes<'_>,
    values: &[u8],
) -> Result<()> {
    let first = address(first)?;
    let written = with_lane!(width, L => {
        let row = L::chunks_mut(row).get_mut(first..).ok_or_else(no_lanes)?;
        let values = L::chunks(values);
        match numbers {
            None => row.get_mut(..values.len()).map(|row| row.copy_from_slice(values)),
            Some(numbers) => values.iter().zip(numbers).try_for_each(|(value, &number)| {
                *row.get_mut(number as usize)? = *value;
                Some(())
            }),
        }
    });
    written.ok_or_else(no_lanes)
}

impl TensorPart {
    /// The sums of the lanes that the part has of a piece of the tensor `info`; `row` is the row
    /// that the part lies in.
    pub(super) fn sums(&self, info: &TensorInfo, piece: u64, row: &[u8]) -> Result<Sums> {
        let width = info.dtype().lane_bytes();
        let range = info.piece(piece);
        let lanes = range.start / width as u64..range.end / width as u64;
        let stretches: Vec<_> = self.stretches(lanes.clone()).take(2).collect();
        let bytes = |begin: u64, count: u64| {
            row.get(address(begin)? * width..address(begin + count)? * width)
                .ok_or_else(no_lanes)
        };
        let offset = |lane: u64| (lane - lanes.start) * width as u64;
        match stretches[..] {
            [] => return Ok(Sums::ZERO),
            // Sums of bytes begin with a whole unit.
            [one] if one.step == 1 && offset(one.lane).is_multiple_of(2) => {
                return Ok(Sums::of_bytes(
                    offset(one.lane),
                    bytes(one.place, one.count)?,
                ));
            }
            _ => {}
        }
        // The bytes of lanes in other parts count as zeros.
        let mut all = vec![0; address(range.end - range.start)?];
        for one in self.stretches(lanes.clone()) {
            let begin = address(offset(one.lane))?;
            let own = &mut all[begin..][..address(one.count)? * width];
            if one.step == 1 {
                own.copy_from_slice(bytes(one.place, one.count)?);
                continue;
            }
            let places = (one.place..).step_by(address(one.step)?);
            for (lane, place) in own.chunks_exact_mut(width).zip(places) {
                lane.copy_from_slice(bytes(place, 1)?);
            }
        }
        Ok(Sums::of_bytes(0, &all))
    }
}
