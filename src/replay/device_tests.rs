//! Memory for tests that is as slow and strange as a device: the writes of a call become visible
//! only when the call ends, and any call may fail halfway.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::limits::address;
use crate::memory::{PartPiece, PlacedMemory, Places, Region, Span};
use crate::sums::Sums;
use crate::tensor::{MemoryState, State, TensorInfo};

/// A device with rows of lanes.
pub(super) struct Device {
    pub(super) places: Places,
    pub(super) rows: Vec<Vec<u8>>,
    /// Writes of the current call: row, byte, value.
    written: Vec<(usize, usize, Vec<u8>)>,
    calls: usize,
    /// Numbers of the calls that fail.
    fails: Range<usize>,
    /// Number of quarters of its lanes that a failing call writes.
    quarters: usize,
}

/// Verified lanes: their width, their places, and their old and new values.
#[derive(Debug)]
pub(super) struct Staged(usize, Vec<Span>, Vec<u8>, Vec<u8>);

impl Device {
    pub(super) fn new(places: Places, rows: Vec<Vec<u8>>) -> Self {
        Self {
            places,
            rows,
            written: Vec::new(),
            calls: 0,
            fails: 0..0,
            quarters: 2,
        }
    }

    /// Makes a device with each tensor in a row of its own.
    pub(super) fn of(state: &MemoryState) -> Self {
        let given: Vec<Region> = state
            .tensors()
            .iter()
            .enumerate()
            .map(|(row, info)| Region::whole(info, row))
            .collect();
        let rows = state.iter().map(|(_, data)| data.to_vec()).collect();
        Self::new(Places::new(state.tensors().to_vec(), &given).unwrap(), rows)
    }

    /// Returns the state, if each tensor has a row of its own.
    pub(super) fn state(&self) -> MemoryState {
        let mut state = MemoryState::new();
        for (info, data) in self.places.tensors().iter().zip(&self.rows) {
            state
                .insert(info.name(), info.dtype(), info.shape(), data.clone())
                .unwrap();
        }
        state
    }

    /// Makes these of the next calls fail.
    pub(super) fn failing(&mut self, fails: Range<usize>) -> &mut Self {
        (self.calls, self.fails) = (0, fails);
        self
    }

    /// Sets the number of quarters of its lanes that a failing call writes.
    pub(super) fn writes(&mut self, quarters: usize) {
        self.quarters = quarters;
    }

    /// Ends a call.
    fn synchronize(&mut self) -> Result<()> {
        let is_failure = self.fails.contains(&self.calls);
        self.calls += 1;
        let all = self.written.len();
        let count = if is_failure {
            all * self.quarters / 4
        } else {
            all
        };
        for (row, at, value) in self.written.drain(..).take(count) {
            self.rows[row][at..at + value.len()].copy_from_slice(&value);
        }
        if is_failure {
            Err(Error::refused(crate::ErrorClass::Io, "the device is gone"))
        } else {
            Ok(())
        }
    }

    fn lanes(width: usize, span: &Span) -> impl Iterator<Item = Range<usize>> {
        (0..span.count).map(move |number| {
            let place = span
                .places
                .as_ref()
                .map_or(number as u64, |places| places[number].into());
            let begin = address(span.first + place).unwrap() * width;
            begin..begin + width
        })
    }

    fn put(&mut self, width: usize, span: &Span, values: &[u8]) {
        assert_eq!(values.len(), span.count * width);
        for (lane, value) in Self::lanes(width, span).zip(values.chunks_exact(width)) {
            assert!(lane.end <= self.rows[span.row].len());
            self.written.push((span.row, lane.start, value.to_vec()));
        }
    }

    fn put_all(&mut self, staged: &[Staged], is_new: bool) {
        for Staged(width, spans, old, new) in staged {
            let mut rest = if is_new {
                new.as_slice()
            } else {
                old.as_slice()
            };
            for span in spans {
                let (own, others) = rest.split_at(span.count * width);
                self.put(*width, span, own);
                rest = others;
            }
            assert!(rest.is_empty());
        }
    }
}

impl PlacedMemory for Device {
    type Staged = Staged;

    fn places(&self) -> &Places {
        &self.places
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.places.describe(tensors)
    }

    fn gather(&mut self, width: usize, spans: &[Span], out: &mut [u8]) -> Result<()> {
        let lanes = spans
            .iter()
            .flat_map(|span| Self::lanes(width, span).map(|lane| &self.rows[span.row][lane]));
        let found: Vec<u8> = lanes.flatten().copied().collect();
        out.copy_from_slice(&found);
        self.synchronize()
    }

    fn stage(
        &mut self,
        width: usize,
        spans: Vec<Span>,
        old: Vec<u8>,
        new: Vec<u8>,
    ) -> Result<Staged> {
        self.synchronize()?;
        Ok(Staged(width, spans, old, new))
    }

    fn write(&mut self, staged: &[Staged]) -> Result<Option<(usize, usize)>> {
        for (number, Staged(width, spans, old, _)) in staged.iter().enumerate() {
            let mut values = old.chunks_exact(*width);
            for (at, span) in spans.iter().enumerate() {
                let row = &self.rows[span.row];
                if !Self::lanes(*width, span).all(|lane| values.next() == Some(&row[lane])) {
                    return Ok(Some((number, at)));
                }
            }
        }
        self.put_all(staged, true);
        self.synchronize()?;
        Ok(None)
    }

    fn put_back(&mut self, staged: &[Staged]) -> Result<()> {
        self.put_all(staged, false);
        self.synchronize()
    }

    fn fill(&mut self, width: usize, span: &Span, values: &[u8]) -> Result<()> {
        self.put(width, span, values);
        self.synchronize()
    }

    fn sums(&mut self, wanted: &[PartPiece]) -> Result<Vec<Sums>> {
        self.synchronize()?;
        let sums = wanted.iter().map(|wanted| {
            let info = &self.places.tensors()[wanted.tensor];
            let part = self.places.part(wanted).unwrap();
            let width = info.dtype().lane_bytes();
            let range = info.piece(wanted.piece);
            let count = address(range.end - range.start).unwrap() / width;
            let (numbers, places) = part.find(range.start / width as u64, (0..).take(count));
            let lane =
                |&place: &u64| &self.rows[part.row()][address(place).unwrap() * width..][..width];
            let values: Vec<u8> = places.iter().flat_map(lane).copied().collect();
            Sums::of_lanes(width, &numbers, &values)
        });
        Ok(sums.collect())
    }
}
