//! Destinations of built pieces: a writer, patches, or none.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::limits::address;
use crate::memory::{PatchCollector, PieceChanges};
use crate::tensor::{MemoryWriter, PIECE_BYTES, State, StateWriter, TensorInfo};

/// Fills memory with the bytes of a stretch of a tensor.
pub(super) type FillStretch<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<()>;

/// A stretch of a piece that is to be built.
pub(super) struct Stretch<'a> {
    pub(super) tensor: usize,
    pub(super) range: Range<u64>,
    /// A buffer that the output may use for it.
    pub(super) buffer: &'a mut Vec<u8>,
    pub(super) fill: FillStretch<'a>,
}

/// A destination of built pieces, which come from several threads.
pub(super) trait Output: Sync {
    /// The data that the output gathers for a piece.
    type Piece: Send;

    /// True if pieces of which no link has a part are built too.
    const NEEDS_EVERY_PIECE: bool;

    /// True if the destination holds zeros for this tensor, so that zeros need not be put.
    fn starts_as_zeros(&self, _tensor: usize) -> bool {
        true
    }

    /// Begins a piece of the tensor with this number.
    fn begin(&self, tensor: usize) -> Self::Piece;

    /// Chooses the memory for the next stretch of a piece, and calls `stretch.fill` with it: the
    /// destination itself, so that nothing is copied, or `stretch.buffer`.
    fn put(&self, piece: &mut Self::Piece, stretch: Stretch<'_>) -> Result<()>;

    /// Receives a proven piece. The pieces of a tensor ascend, except those of which no link has a
    /// part: these may come at any time.
    fn accept(&self, _tensor: usize, _piece: u64, _gathered: Self::Piece) -> Result<()> {
        Ok(())
    }
}

/// Writes what is built.
pub(super) struct WriteOutput<'a, W: ?Sized>(pub(super) &'a W);

impl<W: StateWriter + ?Sized> Output for WriteOutput<'_, W> {
    type Piece = ();

    const NEEDS_EVERY_PIECE: bool = true;

    fn begin(&self, _tensor: usize) {}

    fn put(
        &self,
        (): &mut (),
        Stretch {
            tensor,
            range,
            buffer,
            fill,
        }: Stretch<'_>,
    ) -> Result<()> {
        if let Some(filled) = self.0.fill(tensor, range.clone(), fill) {
            return filled;
        }
        fill_buffer(buffer, &range, fill)?;
        self.0.write(tensor, range.start, buffer)
    }
}

/// Calls a function with each piece.
pub(super) struct CallbackOutput<'a>(pub(super) Mutex<PieceCallback<'a>>);

/// A function that receives a piece: the tensor's number, the piece's number, and its bytes.
pub(super) type PieceCallback<'a> = &'a mut (dyn FnMut(usize, u64, Vec<u8>) -> Result<()> + Send);

impl Output for CallbackOutput<'_> {
    type Piece = Vec<u8>;

    const NEEDS_EVERY_PIECE: bool = true;

    fn starts_as_zeros(&self, _tensor: usize) -> bool {
        false
    }

    fn begin(&self, _tensor: usize) -> Vec<u8> {
        Vec::new()
    }

    fn put(&self, piece: &mut Vec<u8>, Stretch { range, fill, .. }: Stretch<'_>) -> Result<()> {
        let begin = piece.len();
        piece.resize(begin + address(range.end - range.start)?, 0);
        fill(&mut piece[begin..])
    }

    fn accept(&self, tensor: usize, piece: u64, bytes: Vec<u8>) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)(tensor, piece, bytes)
    }
}

/// Collects the differences from a state in memory.
pub(super) struct PatchOutput<'a> {
    over: &'a dyn State,
    /// The tensors of the target, and for each the tensor of `over` that it replaces, or its number
    /// among the new ones.
    tensors: Vec<(TensorInfo, Over)>,
    /// Memory of the new tensors.
    new: MemoryWriter<'a>,
    collector: Mutex<PatchCollector>,
}

/// A tensor by its number: in the state in memory, or among the new tensors.
#[derive(Clone, Copy)]
enum Over {
    Held(usize),
    New(usize),
}

/// The differences in a piece, and memory for the bytes of the state in memory, if these must be
/// read.
pub(super) struct PieceDifferences {
    changes: PieceChanges,
    old: Vec<u8>,
}

impl<'a> PatchOutput<'a> {
    /// `new` is memory for the new tensors of the target.
    pub(super) fn new(
        over: &'a dyn State,
        target: Vec<TensorInfo>,
        new: MemoryWriter<'a>,
        collector: PatchCollector,
    ) -> Self {
        let mut count = 0;
        let place = |(number, info)| {
            let new = Over::New(count);
            let place = collector.over(number).map_or(new, Over::Held);
            count += usize::from(matches!(place, Over::New(_)));
            (info, place)
        };
        let tensors = target.into_iter().enumerate().map(place).collect();
        Self {
            over,
            tensors,
            new,
            collector: Mutex::new(collector),
        }
    }

    /// Returns all that has been collected.
    pub(super) fn into_collector(self) -> PatchCollector {
        self.collector
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Output for PatchOutput<'_> {
    type Piece = PieceDifferences;

    const NEEDS_EVERY_PIECE: bool = false;

    fn starts_as_zeros(&self, tensor: usize) -> bool {
        matches!(self.tensors[tensor].1, Over::New(_))
    }

    fn begin(&self, tensor: usize) -> PieceDifferences {
        PieceDifferences {
            changes: PieceChanges::new(self.tensors[tensor].0.dtype().lane_bytes()),
            old: Vec::new(),
        }
    }

    fn put(&self, piece: &mut PieceDifferences, stretch: Stretch<'_>) -> Result<()> {
        let Stretch {
            tensor,
            range,
            buffer,
            fill,
        } = stretch;
        let number = match self.tensors[tensor].1 {
            Over::Held(number) => number,
            Over::New(place) => {
                let filled = self.new.fill(place, range, fill);
                return filled.unwrap_or_else(|| Err(Error::usage("no such range in the state")));
            }
        };
        fill_buffer(buffer, &range, fill)?;
        let old = match self.over.bytes(number, range.clone()) {
            Some(old) => old,
            None => {
                piece.old.resize(buffer.len(), 0);
                self.over.read(number, range.start, &mut piece.old)?;
                &piece.old
            }
        };
        piece.changes.add(range.start % PIECE_BYTES, old, buffer);
        Ok(())
    }

    fn accept(&self, tensor: usize, piece: u64, gathered: PieceDifferences) -> Result<()> {
        // New tensors have been built where they stay.
        if self.starts_as_zeros(tensor) {
            return Ok(());
        }
        let mut collector = self
            .collector
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        collector.add(tensor, piece, gathered.changes)
    }
}

/// Drops what is built, which has been proven.
pub(super) struct DiscardOutput;

impl Output for DiscardOutput {
    type Piece = ();

    const NEEDS_EVERY_PIECE: bool = false;

    fn begin(&self, _tensor: usize) {}

    fn put(
        &self,
        (): &mut (),
        Stretch {
            range,
            buffer,
            fill,
            ..
        }: Stretch<'_>,
    ) -> Result<()> {
        fill_buffer(buffer, &range, fill)
    }
}

/// Builds a stretch in a buffer.
pub(super) fn fill_buffer(
    buffer: &mut Vec<u8>,
    range: &Range<u64>,
    fill: FillStretch<'_>,
) -> Result<()> {
    buffer.resize(address(range.end - range.start)?, 0);
    fill(buffer)
}
