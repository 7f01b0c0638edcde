//! The division of a model among shards, and the shards as states of their own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::{Deref, Range};

use deltachain::Result;
use deltachain::tensor::{State, TensorInfo};

/// Returns the number of the shard of each tensor. Tensors are given by name and length in bytes.
///
/// A tensor that is in `held` stays in its shard. Each other tensor, the longest first, goes to the
/// shard with the fewest bytes. So if `held` is empty, the division depends only on names and
/// lengths.
pub fn divide(tensors: &[(&str, u64)], shards: usize, held: &BTreeMap<&str, usize>) -> Vec<usize> {
    let mut bytes = vec![0_u64; shards];
    let mut places = vec![0; tensors.len()];
    let mut new = Vec::new();
    for (number, (name, length)) in tensors.iter().enumerate() {
        match held.get(name) {
            Some(&shard) if shard < shards => {
                places[number] = shard;
                bytes[shard] = bytes[shard].saturating_add(*length);
            }
            _ => new.push((Reverse(*length), *name, number)),
        }
    }
    new.sort_unstable();
    let mut least: BinaryHeap<_> = bytes.into_iter().zip(0..).map(Reverse).collect();
    for (Reverse(length), _, number) in new {
        if let Some(mut shard) = least.peek_mut() {
            let Reverse((bytes, place)) = &mut *shard;
            places[number] = *place;
            *bytes = bytes.saturating_add(length);
        }
    }
    places
}

/// A division of tensors among the shards of a version.
#[derive(Debug)]
pub(crate) struct Division<'a> {
    shards: usize,
    held: BTreeMap<&'a str, usize>,
}

impl<'a> Division<'a> {
    /// Creates the division of a `head`, given the tensors of each of its shards. Without any, all
    /// tensors are divided anew.
    pub(crate) fn new(shards: usize, head: &'a [Vec<TensorInfo>]) -> Self {
        let mut held = BTreeMap::new();
        for (shard, tensors) in head.iter().enumerate() {
            held.extend(tensors.iter().map(|info| (info.name(), shard)));
        }
        Self { shards, held }
    }

    /// Divides the tensors of a state, and returns each shard as a state.
    pub(crate) fn split<'s>(&self, state: &'s dyn State) -> Vec<ShardState<&'s dyn State>> {
        let tensors: Vec<_> = state
            .tensors()
            .iter()
            .map(|info| (info.name(), info.bytes()))
            .collect();
        let mut numbers = vec![Vec::new(); self.shards];
        for (number, shard) in divide(&tensors, self.shards, &self.held)
            .into_iter()
            .enumerate()
        {
            numbers[shard].push(number);
        }
        numbers
            .into_iter()
            .map(|numbers| ShardState::new(state, numbers))
            .collect()
    }
}

/// The tensors of one shard, in a state that also has others.
#[derive(Debug)]
pub(crate) struct ShardState<S> {
    whole: S,
    tensors: Vec<TensorInfo>,
    /// The number of each tensor in the whole state.
    numbers: Vec<usize>,
}

impl<S: Deref<Target: State>> ShardState<S> {
    /// Creates the state of the tensors with these numbers, which must be ascending.
    pub(crate) fn new(whole: S, numbers: Vec<usize>) -> Self {
        let all = whole.tensors();
        let tensors = numbers.iter().map(|&number| all[number].clone()).collect();
        Self {
            whole,
            tensors,
            numbers,
        }
    }

    fn number(&self, tensor: usize) -> usize {
        // The whole state refuses a number that it does not have.
        self.numbers.get(tensor).copied().unwrap_or(usize::MAX)
    }
}

impl<S: Deref<Target: State> + Sync> State for ShardState<S> {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.whole.read(self.number(tensor), offset, out)
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        self.whole.bytes(self.number(tensor), range)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.whole.check_unchanged()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tensor_goes_to_the_shard_with_the_fewest_bytes() {
        let tensors = [("d", 3), ("a", 8), ("c", 5), ("b", 5), ("e", 0)];
        assert_eq!(
            divide(&tensors, 2, &BTreeMap::new()),
            [0, 0, 1, 1, 1],
            "8 | 5, 5 | 3 | 0"
        );
        assert_eq!(divide(&tensors, 1, &BTreeMap::new()), [0; 5]);
        // More shards than tensors: some are empty.
        assert_eq!(divide(&tensors[..2], 4, &BTreeMap::new()), [1, 0]);
        assert_eq!(divide(&[], 3, &BTreeMap::new()), [0; 0]);
    }

    #[test]
    fn tensors_stay_in_their_shards() {
        let held = BTreeMap::from([("a", 1), ("b", 1), ("gone", 0), ("c", 7)]);
        let tensors = [("a", 1), ("b", 2), ("c", 9), ("d", 4), ("e", 4)];
        // c is in a shard that does not exist. It fills shard 0, d goes to 1, and e, too.
        assert_eq!(divide(&tensors, 2, &held), [1, 1, 0, 1, 1]);
    }
}
