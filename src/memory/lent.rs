//! Memory that can be changed in place: the library's own, and memory of others.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::tensor::{
    Lanes, MemoryState, MemoryWriter, State, StateWriter, TensorInfo, read_bytes, redescribe, scatter, stretch_of,
};

/// A state whose lanes a [`PatchSet`](super::PatchSet) can change where they are: [`MemoryState`], [`LentState`], or memory
/// that lies anywhere, such as on a device.
pub trait StateMemory: State {
    /// Writes the values of some lanes of tensor number `tensor`.
    ///
    /// # Errors
    /// IO if they cannot be written; USAGE if there are no such lanes, or if `values` do not have their length. Some of the
    /// lanes may have been written then.
    fn scatter(&mut self, tensor: usize, lanes: &Lanes<'_>, values: &[u8]) -> Result<()>;

    /// Takes other shapes: the same tensors by name, dtype and length.
    ///
    /// # Errors
    /// USAGE if this kind of memory keeps its shapes, and one differs.
    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        if self.tensors() == tensors {
            return Ok(());
        }
        Err(Error::usage("this memory cannot take tensors of other shapes"))
    }

    /// The library's own memory, if it is that: tensors can come to it, go and change their size, and nobody else can write to
    /// it.
    fn own(&mut self) -> Option<&mut MemoryState> {
        None
    }

    /// Lets several threads write the tensors' bytes, if these are where the processor can reach them.
    fn writer(&mut self) -> Option<MemoryWriter<'_>> {
        None
    }

    /// Memory without tensors that tensors can come to; `None` if this kind has no room of its own.
    fn nothing() -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

impl StateMemory for MemoryState {
    fn scatter(&mut self, tensor: usize, lanes: &Lanes<'_>, values: &[u8]) -> Result<()> {
        let lane_bytes = lane_bytes_of(self, tensor)?;
        scatter(lane_bytes, self.room(tensor), lanes, values)
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.describe(tensors)
    }

    fn own(&mut self) -> Option<&mut MemoryState> {
        Some(self)
    }

    fn writer(&mut self) -> Option<MemoryWriter<'_>> {
        Some(self.writer())
    }

    fn nothing() -> Option<Self> {
        Some(Self::new())
    }
}

impl StateMemory for LentState<'_> {
    fn scatter(&mut self, tensor: usize, lanes: &Lanes<'_>, values: &[u8]) -> Result<()> {
        let lane_bytes = lane_bytes_of(self, tensor)?;
        scatter(lane_bytes, self.data[tensor], lanes, values)
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        redescribe(&mut self.infos, tensors)
    }

    fn writer(&mut self) -> Option<MemoryWriter<'_>> {
        Some(MemoryWriter::new(self.data.iter_mut().map(|data| &mut **data)))
    }
}

/// A writer of whole stretches for memory that is written by its lanes.
pub(crate) struct ScatterWriter<'a, M: ?Sized> {
    memory: Mutex<&'a mut M>,
    lane_bytes: Vec<usize>,
}

impl<'a, M: StateMemory + ?Sized> ScatterWriter<'a, M> {
    /// `tensors` are the memory's.
    pub(crate) fn new(memory: &'a mut M, tensors: &[TensorInfo]) -> Self {
        Self { memory: Mutex::new(memory), lane_bytes: tensors.iter().map(|info| info.dtype().lane_bytes()).collect() }
    }
}

impl<M: StateMemory + Send + ?Sized> StateWriter for ScatterWriter<'_, M> {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let lane_bytes = *self.lane_bytes.get(tensor).ok_or_else(|| Error::usage("no such tensor in the memory"))?;
        let lanes = Lanes::all(offset / lane_bytes as u64, bytes.len() / lane_bytes);
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).scatter(tensor, &lanes, bytes)
    }
}

/// Bytes of a lane of the tensor with this number.
fn lane_bytes_of(state: &impl State, tensor: usize) -> Result<usize> {
    let info = state.tensors().get(tensor).ok_or_else(|| Error::usage("no such tensor in the memory"))?;
    Ok(info.dtype().lane_bytes())
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
