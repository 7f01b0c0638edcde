//! Memory in another place, where others can write to it, too: slow and obvious.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use deltachain::memory::{PartPiece, PlacedMemory, Places, Region, Span, TensorPart};
use deltachain::sums::Sums;
use deltachain::tensor::{MemoryState, State, TensorInfo};
use deltachain::{Error, Result};

/// Byte in the gaps between tensors.
pub(super) const GAP: u8 = 0x5A;

/// Rows of bytes, which clones share.
#[derive(Debug, Clone)]
pub(super) struct Elsewhere {
    pub(super) places: Places,
    pub(super) rows: Arc<Mutex<Vec<Vec<u8>>>>,
    /// True if the processor can read the rows.
    can_be_read: bool,
    pub(super) faults: Arc<Faults>,
    pub(super) seen: Arc<Mutex<Seen>>,
}

/// Faults of the memory.
#[derive(Debug)]
pub(super) struct Faults {
    /// Number of writes that still succeed.
    pub(super) writes: AtomicUsize,
    /// Number of writes of new values that still succeed. Old values can always be written.
    pub(super) new_values: AtomicUsize,
    /// Number of reads that still succeed.
    pub(super) reads: AtomicUsize,
}

/// Calls that the memory has received.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Number of times that each stretch was filled, by row and first lane.
    pub(super) fills: BTreeMap<(usize, u64), usize>,
    /// Numbers of gathered and of written lanes.
    pub(super) gathered: usize,
    pub(super) written: usize,
    /// Tensors whose sums were computed.
    pub(super) summed: Vec<usize>,
}

/// Lanes of a pending write.
#[derive(Debug)]
pub(super) struct Staged {
    width: usize,
    spans: Vec<Span>,
    old: Vec<u8>,
    new: Vec<u8>,
}

fn take(left: &AtomicUsize) -> Result<()> {
    let failed = || Error::io("reaching the device", std::io::ErrorKind::BrokenPipe.into());
    let less = |left: usize| {
        left.checked_sub(1)
            .map(|less| if left == usize::MAX { left } else { less })
    };
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
        .map(drop)
        .map_err(|_| failed())
}

/// Numbers of the lanes of a part, and their places in the row.
pub(super) fn lanes(part: &TensorPart) -> Vec<(usize, usize)> {
    let mut lanes = vec![(0, part.range().start)];
    for (length, here, stride) in part.dimensions() {
        let inner = |(lane, place): (u64, u64)| {
            let first = here.start;
            let here = here.clone();
            here.map(move |at| (lane * length + at, place + (at - first) * stride))
        };
        lanes = lanes.into_iter().flat_map(inner).collect();
    }
    let number = |number: u64| usize::try_from(number).unwrap();
    lanes
        .into_iter()
        .map(|(lane, place)| (number(lane), number(place)))
        .collect()
}

/// Byte ranges of a span's lanes in a row.
fn stretches(width: usize, span: &Span) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    assert!(
        span.places
            .as_ref()
            .is_none_or(|places| places.len() == span.count)
    );
    (0..span.count).map(move |at| {
        let above = span
            .places
            .as_ref()
            .map_or(at, |places| places[at] as usize);
        let begin = (usize::try_from(span.first).unwrap() + above) * width;
        (span.row, begin..begin + width)
    })
}

impl Elsewhere {
    /// Puts each tensor in a row of its own.
    pub(super) fn of(tensors: &[(TensorInfo, Vec<u8>)], can_be_read: bool) -> Self {
        let (infos, rows): (Vec<_>, Vec<_>) = tensors.iter().cloned().unzip();
        let given: Vec<Region> = infos
            .iter()
            .enumerate()
            .map(|(row, info)| Region::whole(info, row))
            .collect();
        let mut memory = Self::new(Places::new(infos, &given).unwrap(), rows);
        memory.can_be_read = can_be_read;
        memory
    }

    /// Rows that hold tensors in the given places.
    pub(super) fn new(places: Places, rows: Vec<Vec<u8>>) -> Self {
        let never = || AtomicUsize::new(usize::MAX);
        let faults = Arc::new(Faults {
            writes: never(),
            new_values: never(),
            reads: never(),
        });
        let rows = Arc::new(Mutex::new(rows));
        let seen = Arc::default();
        Self {
            places,
            rows,
            can_be_read: false,
            faults,
            seen,
        }
    }

    /// Copies all tensors. Each must be in one place, and complete.
    pub(super) fn copy(&self) -> MemoryState {
        let rows = self.rows.lock().unwrap();
        let mut state = MemoryState::new();
        for (number, info) in self.places.tensors().iter().enumerate() {
            let width = info.dtype().lane_bytes();
            let mut data = Vec::new();
            if info.bytes() > 0 {
                let [part] = self.places.parts(number) else {
                    panic!("{} is in several places", info.name())
                };
                let begin = usize::try_from(part.whole().unwrap()).unwrap() * width;
                data.extend_from_slice(
                    &rows[part.row()][begin..begin + usize::try_from(info.bytes()).unwrap()],
                );
            }
            state
                .insert(info.name(), info.dtype(), info.shape(), data)
                .unwrap();
        }
        state
    }

    /// True if the memory holds its part of a state, and nothing else has been written.
    pub(super) fn holds(&self, state: &MemoryState) -> bool {
        let rows = self.rows.lock().unwrap();
        let mut expected: Vec<Vec<u8>> = rows.iter().map(|row| vec![GAP; row.len()]).collect();
        for (number, info) in self.places.tensors().iter().enumerate() {
            let (width, (_, data)) = (info.dtype().lane_bytes(), state.get(info.name()).unwrap());
            for part in self.places.parts(number) {
                for (lane, place) in lanes(part) {
                    expected[part.row()][place * width..][..width]
                        .copy_from_slice(&data[lane * width..][..width]);
                }
            }
        }
        *rows == expected
    }

    /// Flips a bit of the lane at this place of a row, as an outside writer would.
    pub(super) fn flip_at(&self, row: usize, place: usize, width: usize) {
        self.rows.lock().unwrap()[row][place * width] ^= 1;
    }

    /// Like `flip_at`, for a lane of a tensor that is here as a whole.
    pub(super) fn flip(&self, tensor: usize, lane: usize) {
        let part = &self.places.parts(tensor)[0];
        let place = usize::try_from(part.whole().unwrap()).unwrap() + lane;
        self.flip_at(
            part.row(),
            place,
            self.places.tensors()[tensor].dtype().lane_bytes(),
        );
    }

    fn put(&self, staged: &[Staged], is_new: bool) -> Result<()> {
        let mut rows = self.rows.lock().unwrap();
        for Staged {
            width,
            spans,
            old,
            new,
        } in staged
        {
            let mut values = if is_new { new } else { old }.chunks(*width);
            for span in spans {
                take(&self.faults.writes)?;
                if is_new {
                    take(&self.faults.new_values)?;
                    self.seen.lock().unwrap().written += span.count;
                }
                for (row, bytes) in stretches(*width, span) {
                    rows[row][bytes].copy_from_slice(values.next().unwrap());
                }
            }
        }
        Ok(())
    }
}

impl State for Elsewhere {
    fn tensors(&self) -> &[TensorInfo] {
        self.places.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        assert!(self.can_be_read);
        let begin = usize::try_from(offset).unwrap();
        let Some(part) = self.places.parts(tensor).first() else {
            return Ok(());
        };
        out.copy_from_slice(&self.rows.lock().unwrap()[part.row()][begin..begin + out.len()]);
        Ok(())
    }
}

impl PlacedMemory for Elsewhere {
    type Staged = Staged;

    fn places(&self) -> &Places {
        &self.places
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.places.describe(tensors)
    }

    fn state(&self) -> Option<&dyn State> {
        if self.can_be_read { Some(self) } else { None }
    }

    fn gather(&mut self, width: usize, spans: &[Span], out: &mut [u8]) -> Result<()> {
        take(&self.faults.reads)?;
        let rows = self.rows.lock().unwrap();
        let mut out = out.chunks_mut(width);
        for (row, bytes) in spans.iter().flat_map(|span| stretches(width, span)) {
            out.next().unwrap().copy_from_slice(&rows[row][bytes]);
            self.seen.lock().unwrap().gathered += 1;
        }
        assert!(out.next().is_none());
        Ok(())
    }

    fn stage(
        &mut self,
        width: usize,
        spans: Vec<Span>,
        old: Vec<u8>,
        new: Vec<u8>,
    ) -> Result<Staged> {
        let count: usize = spans.iter().map(|span| span.count).sum();
        assert_eq!((old.len(), new.len()), (count * width, count * width));
        Ok(Staged {
            width,
            spans,
            old,
            new,
        })
    }

    fn write(&mut self, staged: &[Staged]) -> Result<Option<(usize, usize)>> {
        {
            let rows = self.rows.lock().unwrap();
            for (
                number,
                Staged {
                    width, spans, old, ..
                },
            ) in staged.iter().enumerate()
            {
                let mut old = old.chunks(*width);
                for (at, span) in spans.iter().enumerate() {
                    let is_same = |(row, bytes): (usize, std::ops::Range<usize>)| {
                        rows[row][bytes] == *old.next().unwrap()
                    };
                    if !stretches(*width, span)
                        .map(is_same)
                        .fold(true, |all, one| all & one)
                    {
                        return Ok(Some((number, at)));
                    }
                }
            }
        }
        self.put(staged, true).map(|()| None)
    }

    fn put_back(&mut self, staged: &[Staged]) -> Result<()> {
        self.put(staged, false)
    }

    fn fill(&mut self, width: usize, span: &Span, values: &[u8]) -> Result<()> {
        take(&self.faults.writes)?;
        assert_eq!(values.len(), span.count * width);
        *self
            .seen
            .lock()
            .unwrap()
            .fills
            .entry((span.row, span.first))
            .or_default() += 1;
        let mut rows = self.rows.lock().unwrap();
        for ((row, bytes), value) in stretches(width, span).zip(values.chunks(width)) {
            rows[row][bytes].copy_from_slice(value);
        }
        Ok(())
    }

    fn sums(&mut self, wanted: &[PartPiece]) -> Result<Vec<Sums>> {
        take(&self.faults.reads)?;
        let rows = self.rows.lock().unwrap();
        let sums = wanted.iter().map(|wanted| {
            self.seen.lock().unwrap().summed.push(wanted.tensor);
            let info = &self.places.tensors()[wanted.tensor];
            let part = self.places.part(wanted).unwrap();
            let width = info.dtype().lane_bytes();
            let range = info.piece(wanted.piece);
            let [begin, end] = [range.start, range.end].map(|byte| usize::try_from(byte).unwrap());
            let mut bytes = vec![0; end - begin];
            for (lane, place) in lanes(part)
                .into_iter()
                .filter(|(lane, _)| (begin..end).contains(&(lane * width)))
            {
                bytes[lane * width - begin..][..width]
                    .copy_from_slice(&rows[part.row()][place * width..][..width]);
            }
            Sums::of_bytes(0, &bytes)
        });
        Ok(sums.collect())
    }
}
