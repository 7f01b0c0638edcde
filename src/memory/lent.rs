//! Caller-owned memory that the processor can access.

use std::ops::Range;

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::memory::lanes::HostLanes;
use crate::memory::placed::{PlacedMemory, no_lanes};
use crate::memory::places::{PartPiece, Places, Region, Span};
use crate::sums::Sums;
use crate::tensor::{State, TensorInfo};

/// A state in caller-owned memory: mapped, pinned, or a framework's. It consists of rows of bytes;
/// `R` holds a row, for example as a mutable slice. Its tensors cannot be added, removed or
/// resized. Only one writer at a time may use the memory.
#[derive(Debug)]
pub struct LentState<R> {
    places: Places,
    pub(crate) rows: Vec<R>,
}

impl<R: AsRef<[u8]>> LentState<R> {
    /// A state of these tensors, in any order, each in a buffer of its own.
    ///
    /// # Errors
    /// USAGE if a buffer does not have its tensor's length, or a name is given twice.
    pub fn new(tensors: impl IntoIterator<Item = (TensorInfo, R)>) -> Result<Self> {
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        tensors.sort_by(|(left, _), (right, _)| left.name().cmp(right.name()));
        for (info, data) in &tensors {
            let length = data.as_ref().len();
            if info.bytes() != length as u64 {
                let message = format!(
                    "{length} bytes of caller-provided memory for a tensor of {}",
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

    /// A state of tensors, or parts of tensors, that lie in these rows in any way. Places outside
    /// the rows are reported as USAGE when they are used.
    pub fn placed(places: Places, rows: Vec<R>) -> Self {
        Self { places, rows }
    }

    /// The places of the tensors, so that they can be [divided](Places::divide) among processes.
    pub fn places_mut(&mut self) -> &mut Places {
        &mut self.places
    }

    fn row(&self, row: usize) -> Result<&[u8]> {
        self.rows.get(row).map(R::as_ref).ok_or_else(no_lanes)
    }
}

/// The row with this number, for writing.
fn row_mut<R: AsMut<[u8]>>(rows: &mut [R], row: usize) -> Result<&mut [u8]> {
    rows.get_mut(row).map(R::as_mut).ok_or_else(no_lanes)
}

impl<R: AsRef<[u8]> + AsMut<[u8]>> LentState<R> {
    /// Same as [`PlacedMemory::write`], for lanes from any collection.
    ///
    /// # Errors
    /// Same errors as [`PlacedMemory::write`].
    pub fn write_lanes<'s>(
        &mut self,
        staged: impl Iterator<Item = &'s HostLanes> + Clone,
    ) -> Result<Option<(usize, usize)>> {
        HostLanes::write(staged, &mut self.rows, row_mut)
    }

    /// Same as [`PlacedMemory::put_back`], for lanes from any collection.
    ///
    /// # Errors
    /// Same errors as [`PlacedMemory::put_back`].
    pub fn put_lanes_back<'s>(
        &mut self,
        staged: impl Iterator<Item = &'s HostLanes>,
    ) -> Result<()> {
        HostLanes::put_back(staged, &mut self.rows, row_mut)
    }
}

/// A tensor can be read if one part has all of it. If its lanes are not in order there, it can only
/// be read in whole lanes.
impl<R: AsRef<[u8]> + Send + Sync> State for LentState<R> {
    fn tensors(&self) -> &[TensorInfo] {
        self.places.tensors()
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64).ok_or_else(no_lanes)?;
        if let Some(bytes) = self.bytes(tensor, offset..end) {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        let info = self.tensors().get(tensor).ok_or_else(no_lanes)?;
        let width = info.dtype().lane_bytes();
        let spans = self.places.spans_of_bytes(tensor, offset, out.len())?;
        Span::read(width, &spans, |row| self.row(row), out)
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        let info = self.tensors().get(tensor)?;
        if range.start > range.end || range.end > info.bytes() {
            return None;
        }
        if range.is_empty() {
            return Some(&[]);
        }
        let part = self.places.whole(tensor)?;
        let begin = part
            .whole()?
            .checked_mul(info.dtype().lane_bytes() as u64)?;
        let first = usize::try_from(begin.checked_add(range.start)?).ok()?;
        let end = usize::try_from(begin.checked_add(range.end)?).ok()?;
        self.row(part.row()).ok()?.get(first..end)
    }
}

impl<R: AsRef<[u8]> + AsMut<[u8]> + Send + Sync> PlacedMemory for LentState<R> {
    type Staged = HostLanes;

    fn places(&self) -> &Places {
        &self.places
    }

    fn describe(&mut self, tensors: &[TensorInfo]) -> Result<()> {
        self.places.describe(tensors)
    }

    fn state(&self) -> Option<&dyn State> {
        self.places.are_whole().then_some(self as &dyn State)
    }

    fn gather(&mut self, width: usize, spans: &[Span], out: &mut [u8]) -> Result<()> {
        Span::read(width, spans, |row| self.row(row), out)
    }

    fn stage(
        &mut self,
        width: usize,
        spans: Vec<Span>,
        old: Vec<u8>,
        new: Vec<u8>,
    ) -> Result<HostLanes> {
        Ok(HostLanes::new(width, spans, old, new))
    }

    fn write(&mut self, staged: &[HostLanes]) -> Result<Option<(usize, usize)>> {
        self.write_lanes(staged.iter())
    }

    fn put_back(&mut self, staged: &[HostLanes]) -> Result<()> {
        self.put_lanes_back(staged.iter())
    }

    fn fill(&mut self, width: usize, span: &Span, values: &[u8]) -> Result<()> {
        span.write(width, row_mut(&mut self.rows, span.row)?, values)
    }

    fn sums(&mut self, wanted: &[PartPiece]) -> Result<Vec<Sums>> {
        let memory = &*self;
        let sums = |wanted: &PartPiece| {
            let info = memory.tensors().get(wanted.tensor).ok_or_else(no_lanes)?;
            let part = memory.places.part(wanted).ok_or_else(no_lanes)?;
            part.sums(info, wanted.piece, memory.row(part.row())?)
        };
        wanted.par_iter().map(sums).collect()
    }
}
