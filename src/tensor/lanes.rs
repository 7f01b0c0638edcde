//! Some lanes of a tensor: gathered from memory, and scattered to where they lie.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::limits::address;

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

/// Gathers lanes of a tensor, of `lane_bytes` bytes each. `memory` gives a range of it, if it is in memory; `read` reads from
/// an offset on.
pub(super) fn gather<'m>(
    lane_bytes: usize,
    lanes: &Lanes<'_>,
    memory: impl FnOnce(Range<u64>) -> Option<&'m [u8]>,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    out: &mut [u8],
) -> Result<()> {
    let (range, length) = lanes.place(lane_bytes).ok_or_else(no_lanes)?;
    if length != out.len() {
        return Err(no_lanes());
    }
    let Some(numbers) = lanes.numbers else {
        return read(range.start, out);
    };
    if let Some(bytes) = memory(range.clone()) {
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
        read(range.start + u64::from(first) * width, &mut buffer)?;
        let (values, rest) = out.split_at_mut(count * lane_bytes);
        pick(lane_bytes, &buffer, first, own, values)?;
        (numbers, out) = (later, rest);
    }
    Ok(())
}

/// Copies the lanes of `bytes` that have these numbers; the first one has the number `first`.
fn pick(lane_bytes: usize, bytes: &[u8], first: u32, numbers: &[u32], out: &mut [u8]) -> Result<()> {
    let picked = match lane_bytes {
        1 => copy::<1>(bytes, first, numbers, out),
        2 => copy::<2>(bytes, first, numbers, out),
        4 => copy::<4>(bytes, first, numbers, out),
        _ => copy::<8>(bytes, first, numbers, out),
    };
    picked.ok_or_else(no_lanes)
}

fn copy<const N: usize>(bytes: &[u8], first: u32, numbers: &[u32], out: &mut [u8]) -> Option<()> {
    let bytes = bytes.as_chunks::<N>().0;
    for (value, number) in out.as_chunks_mut::<N>().0.iter_mut().zip(numbers) {
        *value = *bytes.get(number.wrapping_sub(first) as usize)?;
    }
    Some(())
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
    let put = match lane_bytes {
        1 => put::<1>(room, numbers, values),
        2 => put::<2>(room, numbers, values),
        4 => put::<4>(room, numbers, values),
        _ => put::<8>(room, numbers, values),
    };
    put.ok_or_else(no_lanes)
}

fn put<const N: usize>(room: &mut [u8], numbers: &[u32], values: &[u8]) -> Option<()> {
    let room = room.as_chunks_mut::<N>().0;
    for (value, &number) in values.as_chunks::<N>().0.iter().zip(numbers) {
        *room.get_mut(number as usize)? = *value;
    }
    Some(())
}

fn no_lanes() -> Error {
    Error::usage("no such lanes in the tensor")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Dtype, MemoryState, ReadOnce, State};

    #[test]
    fn lanes_are_gathered_and_scattered_wherever_they_lie() {
        for dtype in [Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64] {
            let width = dtype.lane_bytes();
            let data: Vec<u8> = (0..width * 300_000).map(|byte| u8::try_from(byte * 7 % 251).unwrap()).collect();
            let mut state = MemoryState::new();
            state.insert("t", dtype, &[300_000], data.clone()).unwrap();
            // Neighbours, and some that are further apart than what is read together.
            let numbers: Vec<u32> = (0..50).chain([99, 100, 140_000, 140_001, 299_989]).collect();
            let lanes = Lanes::numbered(10, &numbers);
            let expected: Vec<u8> =
                numbers.iter().flat_map(|&number| &data[(10 + number as usize) * width..][..width]).copied().collect();
            let mut found = vec![0; expected.len()];
            // Without its memory it is read in stretches.
            let elsewhere = Elsewhere(&state);
            for state in [&state as &dyn State, &elsewhere, &ReadOnce(&state)] {
                found.fill(0);
                state.gather(0, &lanes, &mut found).unwrap();
                assert_eq!(found, expected);
                let mut some = vec![0; 5 * width];
                state.gather(0, &Lanes::all(7, 5), &mut some).unwrap();
                assert_eq!(some, data[7 * width..12 * width]);
                state.gather(0, &Lanes::numbered(7, &[]), &mut []).unwrap();
                // No such lanes, numbers that do not ascend, not as many values, no such tensor.
                let mut one = vec![0; width];
                assert!(state.gather(0, &Lanes::numbered(11, &[299_989]), &mut one).is_err());
                assert!(state.gather(0, &Lanes::all(u64::MAX, 1), &mut one).is_err());
                assert!(
                    state.gather(0, &Lanes { count: 2, ..Lanes::numbered(0, &[1]) }, &mut some[..2 * width]).is_err()
                );
                assert!(state.gather(0, &Lanes::numbered(0, &[9, 3]), &mut some[..2 * width]).is_err());
                assert!(state.gather(0, &lanes, &mut one).is_err());
                assert!(state.gather(1, &Lanes::all(0, 1), &mut one).is_err());
            }
            let mut room = vec![0; data.len()];
            scatter(width, &mut room, &lanes, &expected).unwrap();
            assert!(
                room.chunks_exact(width).filter(|lane| lane.iter().any(|&byte| byte != 0)).count() <= numbers.len()
            );
            state.insert("u", dtype, &[300_000], room.clone()).unwrap();
            state.gather(1, &lanes, &mut found).unwrap();
            assert_eq!(found, expected);
            scatter(width, &mut room, &Lanes::all(0, 300_000), &data).unwrap();
            assert!(room == data);
            assert!(scatter(width, &mut room, &Lanes::numbered(11, &[299_989]), &expected[..width]).is_err());
            assert!(scatter(width, &mut room, &lanes, &expected[width..]).is_err());
            assert!(room == data);
        }
    }

    /// A state whose memory nobody can look at.
    struct Elsewhere<'a>(&'a MemoryState);

    impl State for Elsewhere<'_> {
        fn tensors(&self) -> &[crate::tensor::TensorInfo] {
            self.0.tensors()
        }

        fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
            self.0.read(tensor, offset, out)
        }
    }
}
