//! Memory that can be changed in place: the library's own, and memory of others.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

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

    /// Whether its mark says that a change has begun and not come to its end, so that it holds no version.
    fn is_being_changed(&self) -> bool {
        self.mark().is_some_and(|mark| mark.load(Ordering::Acquire) % 2 == 1)
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
    use std::sync::atomic::AtomicU32;

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

        /// Where others see whether the memory is being changed.
        fn mark(&self) -> Option<&AtomicU32>;
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

    fn mark(&self) -> Option<&AtomicU32> {
        None
    }
}

/// A state in buffers that somebody else owns: mapped, pinned, a framework's. Its tensors cannot come, go or change their size.
///
/// # The mark
/// Where other processes read the buffers while they are changed, a counter in the same shared memory tells them. It is odd
/// from before the first byte is written until after the last one, then even and another one than before: its owner starts
/// it at 0. A reader
///
/// 1. loads the mark (acquire); if it is odd, it waits or takes the bytes that it has already;
/// 2. copies the bytes;
/// 3. loads the mark again, after a fence (acquire), and drops the copy if the mark is not what it was.
///
/// A copy that is kept is one version, never parts of two. A mark that stays odd means that the program that changed
/// the memory ended half way. Such memory is not a version and is refused. Its owner fills it again, then makes the mark
/// even. Only one writer at a time may use the buffers.
#[derive(Debug)]
pub struct LentState<'a> {
    infos: Vec<TensorInfo>,
    data: Vec<&'a mut [u8]>,
    mark: Option<&'a AtomicU32>,
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
        Ok(Self { infos, data, mark: None })
    }

    /// Tells the readers of this mark when the buffers are being changed.
    #[must_use]
    pub fn with_mark(mut self, mark: &'a AtomicU32) -> Self {
        self.mark = Some(mark);
        self
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

    fn mark(&self) -> Option<&AtomicU32> {
        self.mark
    }
}
