//! Tensors of one state or of several, as a state of their own.

use std::ops::Range;

use deltachain::tensor::{State, StateWriter, TensorInfo, find};
use deltachain::{Error, Result};

/// Tensors that are read from other states, or written to them.
pub(crate) struct View<'a, S: ?Sized> {
    infos: Vec<TensorInfo>,
    /// State and number of each tensor.
    places: Vec<(&'a S, usize)>,
}

/// A tensor of a view.
pub(crate) struct ViewTensor<'a, S: ?Sized> {
    pub(crate) info: TensorInfo,
    /// State that has the tensor.
    pub(crate) state: &'a S,
    /// Number of the tensor in that state.
    pub(crate) number: usize,
}

impl<'a, S: ?Sized> View<'a, S> {
    /// A view of these tensors, in any order.
    pub(crate) fn of(tensors: impl IntoIterator<Item = ViewTensor<'a, S>>) -> Self {
        let mut tensors: Vec<_> = tensors.into_iter().collect();
        tensors.sort_unstable_by(|left, right| left.info.name().cmp(right.info.name()));
        let (infos, places) = tensors
            .into_iter()
            .map(|tensor| (tensor.info, (tensor.state, tensor.number)))
            .unzip();
        Self { infos, places }
    }

    /// Returns a view of those `wanted` tensors that a state has. `all` are the tensors of the
    /// state.
    pub(crate) fn part(state: &'a S, all: &[TensorInfo], wanted: &[TensorInfo]) -> Self {
        Self::of(wanted.iter().filter_map(|info| {
            Some(ViewTensor {
                info: info.clone(),
                state,
                number: find(all, info.name())?,
            })
        }))
    }

    fn place(&self, tensor: usize) -> Result<(&'a S, usize)> {
        self.places
            .get(tensor)
            .copied()
            .ok_or_else(|| Error::usage("no such tensor in the state"))
    }
}

impl<'a, S: State> View<'a, S> {
    /// Returns a view of the tensors of several states that have no tensor in common.
    pub(crate) fn joined(states: &'a [S]) -> Self {
        Self::of(states.iter().flat_map(|state| {
            state
                .tensors()
                .iter()
                .enumerate()
                .map(move |(number, info)| ViewTensor {
                    info: info.clone(),
                    state,
                    number,
                })
        }))
    }
}

impl<S: State + ?Sized> State for View<'_, S> {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        let (state, number) = self.place(tensor)?;
        state.read(number, offset, out)
    }

    fn bytes(&self, tensor: usize, range: Range<u64>) -> Option<&[u8]> {
        let (state, number) = self.place(tensor).ok()?;
        state.bytes(number, range)
    }
}

impl<S: StateWriter + ?Sized> StateWriter for View<'_, S> {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let (writer, number) = self.place(tensor)?;
        writer.write(number, offset, bytes)
    }
}
