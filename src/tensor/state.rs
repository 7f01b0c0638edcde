//! A state: one version of a model. The trait that diff and apply read, and a state held in memory.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::limits::address;
use crate::tensor::{Dtype, PIECE_BYTES, PIECE_LENGTH, TensorInfo, find};

/// A set of tensors that can be read piecewise and from several threads: a file, a directory of
/// shards, memory.
pub trait State: Sync {
    /// The tensors, strictly ascending by name (bytewise).
    fn tensors(&self) -> &[TensorInfo];

    /// Fills `out` with the bytes of tensor number `tensor` that begin at byte `offset`.
    ///
    /// # Errors
    /// IO if the bytes cannot be read; USAGE if there is no such range.
    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()>;

    /// The bytes of a range of a tensor without a copy, if they are in memory. `None` if they must
    /// be [`read`](Self::read).
    fn bytes(&self, _tensor: usize, _range: Range<u64>) -> Option<&[u8]> {
        None
    }

    /// Refuses a state that has changed since it was opened, as far as that is known; changes of
    /// memory are never known. Functions that read a state call this after they have read it, and
    /// before the result is visible.
    ///
    /// # Errors
    /// IO or USAGE.
    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}

impl fmt::Debug for dyn State + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("tensors", &self.tensors().len())
            .finish_non_exhaustive()
    }
}

/// The same state, but its bytes are always copied, never borrowed: for memory that another thread
/// may be writing to. So each byte is read exactly once.
pub fn read_once(state: &dyn State) -> impl State + Copy {
    ReadOnce(state)
}

#[derive(Clone, Copy)]
struct ReadOnce<'a>(&'a dyn State);

impl State for ReadOnce<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        self.0.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(tensor, offset, out)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.0.check_unchanged()
    }
}

/// Receives the tensors of a state piecewise and from several threads: a file, a directory of
/// shards, memory.
pub trait StateWriter: Sync {
    /// Puts `bytes` at byte `offset` of tensor number `tensor` in the list of tensors that the
    /// writer was created for. Bytes that are never written are zero.
    ///
    /// # Errors
    /// IO if the bytes cannot be written; USAGE if there is no such range.
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Lets `fill` write the bytes of a range directly to their place, if that is in memory; then
    /// no copy is needed. The bytes there are not zero if they have been written before. `None` if
    /// they must be [`written`](Self::write).
    fn fill(
        &self,
        _tensor: usize,
        _range: Range<u64>,
        _fill: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        None
    }
}

/// A state held in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryState {
    infos: Vec<TensorInfo>,
    data: Vec<Vec<u8>>,
}

impl MemoryState {
    /// The empty state.
    pub const fn new() -> Self {
        Self {
            infos: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Copies any other state into memory.
    ///
    /// # Errors
    /// The errors of reading the other state, and of [`zeros`](Self::zeros).
    pub fn copy_of(state: &dyn State) -> Result<Self> {
        let mut copy = Self::zeros(state.tensors())?;
        for (number, bytes) in copy.data.iter_mut().enumerate() {
            state.read(number, 0, bytes)?;
        }
        state.check_unchanged()?;
        Ok(copy)
    }

    /// Creates a state of zeros, to be written to.
    ///
    /// # Errors
    /// USAGE if the tensors are not strictly ascending by name, or one is larger than the address
    /// space.
    pub fn zeros(tensors: &[TensorInfo]) -> Result<Self> {
        if !tensors.is_sorted_by(|a, b| a.name() < b.name()) {
            return Err(Error::usage(
                "the tensors are not in the order of their names",
            ));
        }
        let data = tensors
            .iter()
            .map(|info| Ok(vec![0; address(info.bytes())?]))
            .collect::<Result<_>>()?;
        Ok(Self {
            infos: tensors.to_vec(),
            data,
        })
    }

    /// Lets several threads write the tensors' bytes. Bytes that are not written keep their values.
    pub fn writer(&mut self) -> MemoryWriter<'_> {
        MemoryWriter::new(self.data.iter_mut().map(Vec::as_mut_slice))
    }

    /// Adds a tensor, replacing one of the same name. `data` is row-major, little-endian.
    ///
    /// # Errors
    /// USAGE if `data` does not have the length that dtype and shape give.
    pub fn insert(&mut self, name: &str, dtype: Dtype, shape: &[u64], data: Vec<u8>) -> Result<()> {
        let info = TensorInfo::new(name, dtype, shape)
            .filter(|info| info.bytes() == data.len() as u64)
            .ok_or_else(|| {
                Error::usage(format!("{} bytes do not fit {dtype} {shape:?}", data.len()))
                    .of_tensor(name)
            })?;
        match self.infos.binary_search_by(|info| info.name().cmp(name)) {
            Ok(place) => (self.infos[place], self.data[place]) = (info, data),
            Err(place) => {
                self.infos.insert(place, info);
                self.data.insert(place, data);
            }
        }
        Ok(())
    }

    /// Removes a tensor. Returns whether it existed.
    pub fn remove(&mut self, name: &str) -> bool {
        let place = find(self.tensors(), name);
        if let Some(place) = place {
            self.infos.remove(place);
            self.data.remove(place);
        }
        place.is_some()
    }

    /// A state of all `tensors`, which are ascending and include the tensors of this state; the
    /// others have no data.
    pub(crate) fn among(self, tensors: &[TensorInfo]) -> Self {
        let mut own = self.into_tensors().peekable();
        let data = tensors.iter().map(|info| {
            own.next_if(|(own, _)| own == info)
                .map_or_else(Vec::new, |(_, data)| data)
        });
        Self {
            data: data.collect(),
            infos: tensors.to_vec(),
        }
    }

    /// The bytes of the tensor with this number.
    pub(crate) fn room(&mut self, tensor: usize) -> &mut [u8] {
        &mut self.data[tensor]
    }

    /// Exchanges this state with `other`, except the data of some tensors, which stay here:
    /// `shared` gives their numbers here and there.
    pub(crate) fn switch(
        &mut self,
        other: &mut Self,
        shared: &mut dyn Iterator<Item = (usize, usize)>,
    ) {
        for (own, others) in shared {
            std::mem::swap(&mut self.data[own], &mut other.data[others]);
        }
        std::mem::swap(self, other);
    }

    /// A tensor's description and data.
    pub fn get(&self, name: &str) -> Option<(&TensorInfo, &[u8])> {
        find(self.tensors(), name).map(|place| (&self.infos[place], self.data[place].as_slice()))
    }

    /// Returns the tensors with their data, ascending by name.
    pub fn into_tensors(self) -> impl Iterator<Item = (TensorInfo, Vec<u8>)> {
        self.infos.into_iter().zip(self.data)
    }

    /// All tensors with their data, ascending by name.
    pub fn iter(&self) -> impl Iterator<Item = (&TensorInfo, &[u8])> {
        self.infos.iter().zip(self.data.iter().map(Vec::as_slice))
    }
}

impl State for MemoryState {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        read_bytes(self, tensor, offset, out)
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        stretch_of(self.data.get(tensor)?, range)
    }
}

/// [`State::read`] for a state all of whose [bytes](State::bytes) are in memory.
fn read_bytes(state: &impl State, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
    let range = offset..offset.saturating_add(out.len() as u64);
    let bytes = state
        .bytes(tensor, range)
        .ok_or_else(|| Error::usage("no such range in the state"))?;
    out.copy_from_slice(bytes);
    Ok(())
}

/// A range of a tensor's data, if it exists.
pub(crate) fn stretch_of(data: &[u8], range: Range<u64>) -> Option<&[u8]> {
    data.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// Writes a [`MemoryState`], or caller-owned buffers, piece by piece.
#[derive(Debug)]
pub struct MemoryWriter<'a> {
    /// The pieces of all tensors, one after another.
    pieces: Vec<Mutex<&'a mut [u8]>>,
    /// Index of the first piece of each tensor, followed by the number of all pieces.
    begins: Vec<usize>,
}

impl<'a> MemoryWriter<'a> {
    /// Writes into buffers: one for each tensor to write, of the tensor's length, and zero where
    /// nothing will be written.
    pub fn new(buffers: impl IntoIterator<Item = &'a mut [u8]>) -> Self {
        let mut writer = Self {
            pieces: Vec::new(),
            begins: vec![0],
        };
        for buffer in buffers {
            writer
                .pieces
                .extend(buffer.chunks_mut(PIECE_LENGTH).map(Mutex::new));
            writer.begins.push(writer.pieces.len());
        }
        writer
    }
}

impl MemoryWriter<'_> {
    /// Calls `work` with the bytes of a range within one piece, and returns its result; `None` if
    /// there is no such range.
    fn with<T>(
        &self,
        tensor: usize,
        range: Range<u64>,
        work: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let &[begin, end] = self.begins.get(tensor..)?.first_chunk()?;
        let number = usize::try_from(range.start / PIECE_BYTES).ok()?;
        let piece = self.pieces[begin..end].get(number)?;
        let first = range.start / PIECE_BYTES * PIECE_BYTES;
        let within = |place: u64| usize::try_from(place.checked_sub(first)?).ok();
        // Bytes that another thread has left half written are written again or not used.
        let mut bytes = piece.lock().unwrap_or_else(PoisonError::into_inner);
        Some(work(
            bytes.get_mut(within(range.start)?..within(range.end)?)?,
        ))
    }
}

impl StateWriter for MemoryWriter<'_> {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut offset = offset;
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let left = address(PIECE_BYTES - offset % PIECE_BYTES)?;
            let (now, later) = bytes.split_at(left.min(bytes.len()));
            let end = offset.saturating_add(now.len() as u64);
            let written = self.with(tensor, offset..end, |own| own.copy_from_slice(now));
            written.ok_or_else(|| Error::usage("no such range in the state"))?;
            (offset, bytes) = (end, later);
        }
        Ok(())
    }

    fn fill(
        &self,
        tensor: usize,
        range: Range<u64>,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        self.with(tensor, range, fill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_to_memory_is_there() {
        let info = |name: &str, bytes| TensorInfo::new(name, Dtype::U8, [bytes]).unwrap();
        let infos = [info("a", 2), info("b", 0), info("c", PIECE_BYTES + 3)];
        let mut state = MemoryState::zeros(&infos).unwrap();
        let writer = state.writer();
        let ones = |bytes: &mut [u8]| {
            bytes.fill(1);
            Ok(())
        };
        writer.write(0, 1, &[9]).unwrap();
        writer.write(1, 0, &[]).unwrap();
        writer.write(2, PIECE_BYTES - 2, &[5, 6, 7, 8]).unwrap();
        assert!(
            writer
                .fill(2, PIECE_BYTES + 1..PIECE_BYTES + 3, &mut ones.clone())
                .unwrap()
                .is_ok()
        );
        // Not within one piece, or not within the tensor.
        assert!(
            writer
                .fill(2, PIECE_BYTES - 1..PIECE_BYTES + 1, &mut ones.clone())
                .is_none()
        );
        assert!(
            writer
                .fill(2, PIECE_BYTES + 2..PIECE_BYTES + 4, &mut ones.clone())
                .is_none()
        );
        for (tensor, offset) in [(0, 2), (1, 0), (2, PIECE_BYTES + 3), (3, 0), (0, u64::MAX)] {
            assert!(
                writer.write(tensor, offset, &[1]).is_err(),
                "{tensor} {offset}"
            );
            assert!(
                writer
                    .fill(tensor, offset..offset.saturating_add(1), &mut ones.clone())
                    .is_none()
            );
        }
        assert_eq!(state.get("a").unwrap().1, [0, 9]);
        let end = &state.get("c").unwrap().1[address(PIECE_BYTES).unwrap() - 3..];
        assert_eq!(end, [0, 5, 6, 7, 1, 1]);

        assert!(MemoryState::zeros(&[info("b", 1), info("a", 1)]).is_err());
        assert!(MemoryState::zeros(&[info("a", 1), info("a", 1)]).is_err());
    }
}
