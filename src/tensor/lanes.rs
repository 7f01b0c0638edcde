//! Some lanes of a tensor: gathered from memory, and scattered to where they lie.

use std::ops::Range;

use crate::codec::lane::{Lane, with_lane};
use crate::error::{Error, Result};
use crate::limits::address;
use crate::tensor::State;

/// Bytes that are read together by [`gather`], and how far apart lanes may lie that share a read.
const READ_BYTES: u64 = 1 << 17;

/// Lanes of one tensor, strictly ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lanes<'a> {
    /// The lane that numbers count from.
    pub first: u64,
    /// Their numbers; `None` if they are the first ones, as many as `count`.
    pub numbers: Option<&'a [u32]>,
    /// How many they are.
    pub count: usize,
}

impl<'a> Lanes<'a> {
    /// Those with these numbers, which count from `first`.
    pub fn numbered(first: u64, numbers: &'a [u32]) -> Self {
        Self { first, numbers: Some(numbers), count: numbers.len() }
    }

    /// All from `first` on, as many as `count`.
    pub fn all(first: u64, count: usize) -> Self {
        Self { first, numbers: None, count }
    }

    /// The bytes of the tensor in which they lie, and the length of their values; `None` if no tensor is so long, or if there are
    /// not as many numbers as lanes.
    fn place(&self, lane_bytes: usize) -> Option<(Range<u64>, usize)> {
        let width = lane_bytes as u64;
        let lanes = match self.numbers {
            None => self.count as u64,
            Some(numbers) if numbers.len() != self.count => return None,
            Some(numbers) => numbers.last().map_or(0, |&last| u64::from(last) + 1),
        };
        let end = self.first.checked_add(lanes)?.checked_mul(width)?;
        Some((end - lanes * width..end, self.count.checked_mul(lane_bytes)?))
    }
}

/// [`State::gather`] for any state.
pub(super) fn gather(state: &(impl State + ?Sized), tensor: usize, lanes: &Lanes<'_>, out: &mut [u8]) -> Result<()> {
    let lane_bytes = state.tensors().get(tensor).ok_or_else(no_lanes)?.dtype().lane_bytes();
    let (range, length) = lanes.place(lane_bytes).ok_or_else(no_lanes)?;
    if length != out.len() {
        return Err(no_lanes());
    }
    let Some(numbers) = lanes.numbers else {
        return state.read(tensor, range.start, out);
    };
    if let Some(bytes) = state.bytes(tensor, range.clone()) {
        return pick(lane_bytes, bytes, 0, numbers, out);
    }
    let width = lane_bytes as u64;
    let (mut numbers, mut out, mut buffer) = (numbers, out, Vec::new());
    while let Some(&first) = numbers.first() {
        let count = numbers.partition_point(|&number| u64::from(number) < u64::from(first) + READ_BYTES / width).max(1);
        let (own, later) = numbers.split_at(count);
        // Not empty.
        let last = own.last().copied().unwrap_or(first);
        let stretch = u64::from(last.checked_sub(first).ok_or_else(no_lanes)?) + 1;
        buffer.resize(address(stretch * width)?, 0);
        state.read(tensor, range.start + u64::from(first) * width, &mut buffer)?;
        let (values, rest) = out.split_at_mut(count * lane_bytes);
        pick(lane_bytes, &buffer, first, own, values)?;
        (numbers, out) = (later, rest);
    }
    Ok(())
}

/// Copies the lanes of `bytes` that have these numbers; the first one has the number `first`.
fn pick(lane_bytes: usize, bytes: &[u8], first: u32, numbers: &[u32], out: &mut [u8]) -> Result<()> {
    with_lane!(lane_bytes, L => {
        let bytes = L::chunks(bytes);
        for (value, number) in L::chunks_mut(out).iter_mut().zip(numbers) {
            *value = *bytes.get(number.wrapping_sub(first) as usize).ok_or_else(no_lanes)?;
        }
    });
    Ok(())
}

/// Puts values of lanes into a tensor's bytes.
pub(crate) fn scatter(lane_bytes: usize, room: &mut [u8], lanes: &Lanes<'_>, values: &[u8]) -> Result<()> {
    let (range, length) = lanes.place(lane_bytes).ok_or_else(no_lanes)?;
    let room = room.get_mut(address(range.start)?..address(range.end)?).ok_or_else(no_lanes)?;
    if length != values.len() {
        return Err(no_lanes());
    }
    let Some(numbers) = lanes.numbers else {
        room.copy_from_slice(values);
        return Ok(());
    };
    with_lane!(lane_bytes, L => {
        let room = L::chunks_mut(room);
        for (value, &number) in L::chunks(values).iter().zip(numbers) {
            *room.get_mut(number as usize).ok_or_else(no_lanes)? = *value;
        }
    });
    Ok(())
}

fn no_lanes() -> Error {
    Error::usage("no such lanes in the tensor")
}
