//! Destinations of built pieces: a writer, patches, or none.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::limits::address;
use crate::memory::{PatchCollector, PieceChanges};
use crate::tensor::{MemoryWriter, PIECE_BYTES, State, StateWriter, TensorInfo};

/// Puts the bytes of a stretch of a tensor into the room that it is given.
pub(super) type Make<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<()>;

/// A stretch of a piece that is to be built.
pub(super) struct Stretch<'a> {
    pub(super) tensor: usize,
    pub(super) range: Range<u64>,
    /// Room that may be used for it.
    pub(super) buffer: &'a mut Vec<u8>,
    pub(super) make: Make<'a>,
}

/// Takes what is built, piece by piece and from several threads.
pub(super) trait Output: Sync {
    /// The data that the output gathers for a piece.
    type Piece: Send;

    /// Whether tensors that no link writes are built too.
    const TAKES_UNCHANGED: bool;

    /// Whether all is as it should be where zeros of this tensor are not put.
    fn starts_as_zeros(&self, _tensor: usize) -> bool {
        true
    }

    /// Begins a piece of the tensor with this number.
    fn begin(&self, tensor: usize) -> Self::Piece;

    /// Lets the next stretch of a piece be built.
    fn put(&self, piece: &mut Self::Piece, stretch: Stretch<'_>) -> Result<()>;

    /// Is given the pieces that have been proven. Those of a tensor come in order, but for those
    /// that no link writes.
    fn take(&self, _tensor: usize, _piece: u64, _made: Self::Piece) -> Result<()> {
        Ok(())
    }
}

/// Writes what is built.
pub(super) struct WriteOutput<'a, W: ?Sized>(pub(super) &'a W);

impl<W: StateWriter + ?Sized> Output for WriteOutput<'_, W> {
    type Piece = ();

    const TAKES_UNCHANGED: bool = true;

    fn begin(&self, _tensor: usize) {}

    fn put(
        &self,
        (): &mut (),
        Stretch {
            tensor,
            range,
            buffer,
            make,
        }: Stretch<'_>,
    ) -> Result<()> {
        if let Some(filled) = self.0.fill(tensor, range.clone(), make) {
            return filled;
        }
        make_in(buffer, &range, make)?;
        self.0.write(tensor, range.start, buffer)
    }
}

/// Hands on pieces.
pub(super) struct PassOutput<'a>(pub(super) Mutex<Take<'a>>);

/// Takes a piece: the tensor's number, its own, and its bytes.
pub(super) type Take<'a> = &'a mut (dyn FnMut(usize, u64, Vec<u8>) -> Result<()> + Send);

impl Output for PassOutput<'_> {
    type Piece = Vec<u8>;

    const TAKES_UNCHANGED: bool = true;

    fn starts_as_zeros(&self, _tensor: usize) -> bool {
        false
    }

    fn begin(&self, _tensor: usize) -> Vec<u8> {
        Vec::new()
    }

    fn put(&self, piece: &mut Vec<u8>, Stretch { range, make, .. }: Stretch<'_>) -> Result<()> {
        let begin = piece.len();
        piece.resize(begin + address(range.end - range.start)?, 0);
        make(&mut piece[begin..])
    }

    fn take(&self, tensor: usize, piece: u64, made: Vec<u8>) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)(tensor, piece, made)
    }
}

/// Collects what differs from a state in memory.
pub(super) struct PatchOutput<'a> {
    over: &'a dyn State,
    /// The tensors of the target, and what each is laid over: a tensor of `over`, or, if it is new,
    /// room.
    tensors: Vec<(TensorInfo, Over)>,
    /// Room for the new tensors.
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

    /// All that has been collected.
    pub(super) fn finish(self) -> PatchCollector {
        self.collector
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Output for PatchOutput<'_> {
    type Piece = PieceDifferences;

    const TAKES_UNCHANGED: bool = false;

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
            make,
        } = stretch;
        let number = match self.tensors[tensor].1 {
            Over::Held(number) => number,
            Over::New(place) => {
                let filled = self.new.fill(place, range, make);
                return filled.unwrap_or_else(|| Err(Error::usage("no such range in the state")));
            }
        };
        make_in(buffer, &range, make)?;
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

    fn take(&self, tensor: usize, piece: u64, made: PieceDifferences) -> Result<()> {
        if self.starts_as_zeros(tensor) {
            return Ok(());
        }
        let mut collector = self
            .collector
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        collector.add(tensor, piece, made.changes)
    }
}

/// Drops what is built: only whether it is right matters.
pub(super) struct Nowhere;

impl Output for Nowhere {
    type Piece = ();

    const TAKES_UNCHANGED: bool = false;

    fn begin(&self, _tensor: usize) {}

    fn put(
        &self,
        (): &mut (),
        Stretch {
            range,
            buffer,
            make,
            ..
        }: Stretch<'_>,
    ) -> Result<()> {
        make_in(buffer, &range, make)
    }
}

/// Builds a stretch in a buffer.
pub(super) fn make_in(buffer: &mut Vec<u8>, range: &Range<u64>, make: Make<'_>) -> Result<()> {
    buffer.resize(address(range.end - range.start)?, 0);
    make(buffer)
}
