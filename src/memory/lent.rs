//! Memory of others that the processor can reach.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::memory::placed::Rows;
use crate::memory::places::{Places, Region};
use crate::tensor::{State, TensorInfo, read_bytes, stretch_of};

/// A state in buffers that somebody else owns: mapped, pinned, a framework's. Its tensors cannot
/// come, go or change their size. Only one writer at a time may use the buffers.
#[derive(Debug)]
pub struct LentState<'a> {
    places: Places,
    rows: Vec<&'a mut [u8]>,
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
                let message = format!(
                    "{} bytes of caller-provided memory for a tensor of {}",
                    data.len(),
                    info.bytes()
                );
                return Err(Error::usage(message).of_tensor(info.name()));
            }
        }
        let (infos, rows): (Vec<TensorInfo>, _) = tensors.into_iter().unzip();
        let given: Vec<Region> = infos
            .iter()
            .enumerate()
            .map(|(row, info)| Region::whole(info, row))
            .collect();
        Ok(Self {
            places: Places::new(infos, &given)?,
            rows,
        })
    }
}

impl State for LentState<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        self.places.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        read_bytes(self, tensor, offset, out)
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        stretch_of(self.rows.get(tensor)?, range)
    }
}

impl Rows for LentState<'_> {
    fn places(&self) -> &Places {
        &self.places
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.places.describe(tensors)
    }

    fn state(&self) -> Option<&dyn State> {
        Some(self)
    }

    fn row(&self, row: usize) -> Result<&[u8]> {
        self.rows
            .get(row)
            .map(|row| &**row)
            .ok_or_else(|| Error::usage("no such tensor in the memory"))
    }

    fn row_mut(&mut self, row: usize) -> Result<&mut [u8]> {
        self.rows
            .get_mut(row)
            .map(|row| &mut **row)
            .ok_or_else(|| Error::usage("no such tensor in the memory"))
    }
}
