//! Where the pieces that are built go: to a writer, or nowhere.

use std::ops::Range;

use crate::error::Result;
use crate::limits::address;
use crate::tensor::StateWriter;

/// Puts the bytes of a stretch of a tensor into the room that it is given.
pub(super) type Make<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<()>;

/// Takes what is built, piece by piece and from several threads.
pub(super) trait Output: Sync {
    /// What is gathered of a piece.
    type Piece: Send;

    /// Whether tensors that no link writes are built too.
    const TAKES_UNCHANGED: bool;

    /// Whether all is as it should be where zeros of this tensor are not put.
    fn starts_as_zeros(&self, tensor: usize) -> bool;

    /// Begins a piece of the tensor with this number.
    fn begin(&self, tensor: usize, piece: u64) -> Self::Piece;

    /// Lets `make` build the next stretch of a piece; `buffer` is room that may be used for it.
    fn put(
        &self,
        piece: &mut Self::Piece,
        tensor: usize,
        range: Range<u64>,
        buffer: &mut Vec<u8>,
        make: Make<'_>,
    ) -> Result<()>;

    /// Is told of the pieces that have been proven. Those of a tensor come in order, if they are not unchanged.
    fn take(&self, tensor: usize, piece: u64, made: Self::Piece) -> Result<()>;
}

/// Writes what is built.
pub(super) struct Writing<'a, W: ?Sized>(pub(super) &'a W);

impl<W: StateWriter + ?Sized> Output for Writing<'_, W> {
    type Piece = ();

    const TAKES_UNCHANGED: bool = true;

    fn starts_as_zeros(&self, _tensor: usize) -> bool {
        true
    }

    fn begin(&self, _tensor: usize, _piece: u64) {}

    fn put(&self, (): &mut (), tensor: usize, range: Range<u64>, buffer: &mut Vec<u8>, make: Make<'_>) -> Result<()> {
        if let Some(filled) = self.0.fill(tensor, range.clone(), make) {
            return filled;
        }
        make_in(buffer, &range, make)?;
        self.0.write(tensor, range.start, buffer)
    }

    fn take(&self, _tensor: usize, _piece: u64, (): ()) -> Result<()> {
        Ok(())
    }
}

/// Lets what is built go: only whether it is right is of interest.
pub(super) struct Nowhere;

impl Output for Nowhere {
    type Piece = ();

    const TAKES_UNCHANGED: bool = false;

    fn starts_as_zeros(&self, _tensor: usize) -> bool {
        true
    }

    fn begin(&self, _tensor: usize, _piece: u64) {}

    fn put(&self, (): &mut (), _tensor: usize, range: Range<u64>, buffer: &mut Vec<u8>, make: Make<'_>) -> Result<()> {
        make_in(buffer, &range, make)
    }

    fn take(&self, _tensor: usize, _piece: u64, (): ()) -> Result<()> {
        Ok(())
    }
}

/// Builds a stretch in a buffer.
pub(super) fn make_in(buffer: &mut Vec<u8>, range: &Range<u64>, make: Make<'_>) -> Result<()> {
    buffer.resize(address(range.end - range.start)?, 0);
    make(buffer)
}
