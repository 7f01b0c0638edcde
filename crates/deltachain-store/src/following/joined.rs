//! Several states without a common tensor as one.

use std::ops::Range;

use deltachain::tensor::{State, TensorInfo};
use deltachain::{Error, Result};

/// The tensors of several states.
pub(crate) struct Joined<'a, S> {
    states: &'a [S],
    infos: Vec<TensorInfo>,
    /// The state that each is in, and its number there.
    places: Vec<(usize, usize)>,
}

impl<'a, S: State> Joined<'a, S> {
    pub(crate) fn new(states: &'a [S]) -> Self {
        let numbered = |(place, state): (usize, &'a S)| {
            state.tensors().iter().enumerate().map(move |(number, info)| (info.clone(), (place, number)))
        };
        let mut tensors: Vec<_> = states.iter().enumerate().flat_map(numbered).collect();
        tensors.sort_unstable_by(|(left, _), (right, _)| left.name().cmp(right.name()));
        let (infos, places) = tensors.into_iter().unzip();
        Self { states, infos, places }
    }
}

impl<S: State> State for Joined<'_, S> {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let &(place, number) = self.places.get(tensor).ok_or_else(|| Error::usage("no such tensor in the state"))?;
        self.states[place].read(number, offset, out)
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        let &(place, number) = self.places.get(tensor)?;
        self.states[place].bytes(number, range)
    }
}
