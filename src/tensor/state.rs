//! A state: one version of a model. The trait that diff and apply read, and a state held in memory.

use std::ops::Range;
use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::limits::address;
use crate::tensor::{Dtype, TensorInfo};

/// A set of tensors that can be read piecewise and from several threads: a file, a directory of shards, memory.
pub trait State: Sync {
    /// The tensors, strictly ascending by name (bytewise).
    fn tensors(&self) -> &[TensorInfo];

    /// Fills `out` with the bytes of tensor number `tensor` that begin at byte `offset`.
    ///
    /// # Errors
    /// IO if the bytes cannot be read; USAGE if there is no such range.
    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()>;

    /// The same bytes where they are, if that is in memory: then nothing has to be copied. `None` if they have to be
    /// [`read`](Self::read).
    fn bytes(&self, _tensor: usize, _range: Range<u64>) -> Option<&[u8]> {
        None
    }

    /// The number of the tensor with this name.
    fn find(&self, name: &str) -> Option<usize> {
        self.tensors().binary_search_by(|info| info.name().cmp(name)).ok()
    }
}

/// Receives the tensors of a state piecewise and from several threads: a file, a directory of shards.
pub trait StateWriter: Sync {
    /// Puts `bytes` at byte `offset` of tensor number `tensor` in the list of tensors that the writer was created for.
    /// Bytes that are never written are zero.
    ///
    /// # Errors
    /// IO if the bytes cannot be written; USAGE if there is no such range.
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// A state held in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryState {
    infos: Vec<TensorInfo>,
    data: Vec<Vec<u8>>,
}

impl MemoryState {
    /// The empty state.
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies any other state into memory.
    ///
    /// # Errors
    /// Those of reading it; USAGE if a tensor is larger than the address space.
    pub fn copy_of(state: &(impl State + ?Sized)) -> Result<Self> {
        let mut data = Vec::with_capacity(state.tensors().len());
        for (number, info) in state.tensors().iter().enumerate() {
            let mut bytes = vec![0; address(info.bytes())?];
            state.read(number, 0, &mut bytes)?;
            data.push(bytes);
        }
        Ok(Self { infos: state.tensors().to_vec(), data })
    }

    /// Adds a tensor, replacing one of the same name. `data` is row-major, little-endian.
    ///
    /// # Errors
    /// USAGE if `data` does not have the length that dtype and shape give.
    pub fn insert(&mut self, name: &str, dtype: Dtype, shape: &[u64], data: Vec<u8>) -> Result<()> {
        let info =
            TensorInfo::new(name, dtype, shape).filter(|info| info.bytes() == data.len() as u64).ok_or_else(|| {
                Error::usage(format!("{} bytes do not fit {dtype} {shape:?}", data.len())).of_tensor(name)
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

    /// Removes a tensor; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let place = self.find(name);
        if let Some(place) = place {
            self.infos.remove(place);
            self.data.remove(place);
        }
        place.is_some()
    }

    /// A tensor's description and data.
    pub fn get(&self, name: &str) -> Option<(&TensorInfo, &[u8])> {
        self.find(name).map(|place| (&self.infos[place], self.data[place].as_slice()))
    }

    /// All tensors with their data, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&TensorInfo, &[u8])> {
        self.infos.iter().zip(self.data.iter().map(Vec::as_slice))
    }
}

impl State for MemoryState {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let range = offset..offset.saturating_add(out.len() as u64);
        let bytes = self.bytes(tensor, range).ok_or_else(|| Error::usage("no such range in the state"))?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        self.data.get(tensor)?.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
    }
}

/// A state in memory that is being written.
pub(crate) struct MemoryWriter {
    infos: Vec<TensorInfo>,
    data: Vec<Mutex<Vec<u8>>>,
}

impl MemoryWriter {
    pub(crate) fn new(tensors: &[TensorInfo]) -> Result<Self> {
        let data = tensors.iter().map(|info| Ok(Mutex::new(vec![0; address(info.bytes())?]))).collect::<Result<_>>()?;
        Ok(Self { infos: tensors.to_vec(), data })
    }

    pub(crate) fn finish(self) -> Result<MemoryState> {
        let data =
            self.data.into_iter().map(|data| data.into_inner().map_err(|_| poisoned())).collect::<Result<_>>()?;
        Ok(MemoryState { infos: self.infos, data })
    }
}

/// Only if another thread has panicked.
fn poisoned() -> Error {
    Error::usage("a thread that wrote the state has failed")
}

impl StateWriter for MemoryWriter {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut data = self.data[tensor].lock().map_err(|_| poisoned())?;
        let start = address(offset)?;
        data[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
