//! Memory that can be changed in place: the library's own, and memory of others.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::tensor::{MemoryState, State, TensorInfo, read_bytes, stretch_of};

/// A state whose bytes a [`PatchSet`](super::PatchSet) can change where they are: [`MemoryState`] and [`LentState`].
pub trait StateMemory: State + sealed::Room {
    /// Memory without tensors that tensors can come to; `None` if this kind has no room of its own.
    fn nothing() -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

impl StateMemory for MemoryState {
    fn nothing() -> Option<Self> {
        Some(Self::new())
    }
}

impl StateMemory for LentState<'_> {}

/// What an exchange needs. Nobody else can implement it, so that an exchange cannot fail.
pub(super) mod sealed {
    use crate::tensor::MemoryState;

    /// Room for a state.
    pub trait Room {
        /// The bytes of the tensor with this number.
        fn room(&mut self, tensor: usize) -> &mut [u8];

        /// Whether tensors can come, go and change their size.
        fn is_owned(&self) -> bool;

        /// Exchanges all tensors for the tensors of `other`. For tensors that both have, `shared` gives the numbers
        /// here and there: their data stay here.
        fn switch(&mut self, other: &mut MemoryState, shared: &mut dyn Iterator<Item = (usize, usize)>);
    }
}

impl sealed::Room for MemoryState {
    fn room(&mut self, tensor: usize) -> &mut [u8] {
        self.room(tensor)
    }

    fn is_owned(&self) -> bool {
        true
    }

    fn switch(&mut self, other: &mut MemoryState, shared: &mut dyn Iterator<Item = (usize, usize)>) {
        self.switch(other, shared);
    }
}

/// A state in buffers that somebody else owns: mapped, pinned, a framework's. Its tensors cannot come, go or change their size.
/// Only one writer at a time may use the buffers.
#[derive(Debug)]
pub struct LentState<'a> {
    infos: Vec<TensorInfo>,
    data: Vec<&'a mut [u8]>,
}

impl<'a> LentState<'a> {
    /// A state of these tensors, in any order, with the buffers that hold them.
    ///
    /// # Errors
    /// USAGE if a buffer does not have its tensor's length, or a name comes twice.
    pub fn new(tensors: impl IntoIterator<Item = (TensorInfo, &'a mut [u8])>) -> Result<Self> {
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        tensors.sort_by(|(left, _), (right, _)| left.name().cmp(right.name()));
        for (info, data) in &tensors {
            if info.bytes() != data.len() as u64 {
                let message =
                    format!("{} bytes of caller-provided memory for a tensor of {}", data.len(), info.bytes());
                return Err(Error::usage(message).of_tensor(info.name()));
            }
        }
        if let Some([(info, _), _]) =
            tensors.array_windows().find(|[(left, _), (right, _)]| left.name() == right.name())
        {
            return Err(Error::usage("duplicate tensor in caller-provided memory").of_tensor(info.name()));
        }
        let (infos, data) = tensors.into_iter().unzip();
        Ok(Self { infos, data })
    }
}

impl State for LentState<'_> {
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

impl sealed::Room for LentState<'_> {
    fn room(&mut self, tensor: usize) -> &mut [u8] {
        self.data[tensor]
    }

    fn is_owned(&self) -> bool {
        false
    }

    fn switch(&mut self, other: &mut MemoryState, _shared: &mut dyn Iterator<Item = (usize, usize)>) {
        std::mem::swap(&mut self.infos, other.infos_mut());
    }
}
