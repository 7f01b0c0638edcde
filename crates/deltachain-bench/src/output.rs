//! Where results go: memory that is there before, as a subscriber's staging buffers are.

use std::sync::{Mutex, PoisonError};

use deltachain::tensor::{State, StateWriter, TensorInfo};
use deltachain::{Error, Patch};
use rayon::prelude::*;

/// Bytes that a thread copies at a time.
const SHARE: usize = 1 << 24;

/// The bytes of a state's tensors, written over again by each run.
#[derive(Debug)]
pub struct Output(Vec<Mutex<Vec<u8>>>);

impl Output {
    /// Space for these tensors, with all of its pages touched.
    ///
    /// # Errors
    /// If a tensor is larger than the address space.
    pub fn new(tensors: &[TensorInfo]) -> crate::Result<Self> {
        let space = tensors.iter().map(|info| Ok(Mutex::new(vec![0xA5; usize::try_from(info.bytes())?])));
        Ok(Self(space.collect::<crate::Result<_>>()?))
    }

    /// Makes it hold this state, whose tensors have the lengths it was made for. By all threads of the current pool.
    pub fn fill(&self, state: &impl State) {
        self.0.par_iter().enumerate().for_each(|(number, own)| {
            let data = whole(state, number);
            let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
            own.par_chunks_mut(SHARE).zip(data.par_chunks(SHARE)).for_each(|(own, data)| own.copy_from_slice(data));
        });
    }

    /// Whether it holds this state's bytes.
    pub fn holds(&self, state: &impl State) -> bool {
        self.0.len() == state.tensors().len()
            && self
                .0
                .iter()
                .enumerate()
                .all(|(number, own)| *own.lock().unwrap_or_else(PoisonError::into_inner) == whole(state, number))
    }

    /// Puts new values where a patch names them, as an engine does in its own memory.
    ///
    /// # Errors
    /// If the patch is for none of the tensors of `infos`, or reaches outside.
    pub fn patch(&self, infos: &[TensorInfo], patch: &Patch<'_>) -> crate::Result {
        let place = infos.binary_search_by(|info| info.name().cmp(patch.tensor.name()));
        let mut own = self.0[place.map_err(|_| "no such tensor")?].lock().unwrap_or_else(PoisonError::into_inner);
        let Some(indices) = &patch.indices else {
            let width = patch.dtype().lane_bytes();
            let begin = usize::try_from(patch.lanes.start)? * width;
            own[begin..begin + patch.values.len()].copy_from_slice(&patch.values);
            return Ok(());
        };
        match patch.dtype().lane_bytes() {
            1 => scatter::<1>(&mut own, indices, &patch.values),
            2 => scatter::<2>(&mut own, indices, &patch.values),
            4 => scatter::<4>(&mut own, indices, &patch.values),
            _ => scatter::<8>(&mut own, indices, &patch.values),
        }
    }
}

/// A tensor of a state that is in memory.
fn whole(state: &impl State, tensor: usize) -> &[u8] {
    state.bytes(tensor, 0..state.tensors()[tensor].bytes()).unwrap_or_default()
}

fn scatter<const WIDTH: usize>(own: &mut [u8], indices: &[u64], values: &[u8]) -> crate::Result {
    let lanes = own.as_chunks_mut::<WIDTH>().0;
    for (&index, &value) in indices.iter().zip(values.as_chunks::<WIDTH>().0) {
        *lanes.get_mut(usize::try_from(index)?).ok_or("a lane outside the tensor")? = value;
    }
    Ok(())
}

impl StateWriter for Output {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> deltachain::Result<()> {
        let mut own = self.0[tensor].lock().unwrap_or_else(PoisonError::into_inner);
        let begin = usize::try_from(offset).ok();
        let place = begin.and_then(|begin| own.get_mut(begin..begin.checked_add(bytes.len())?));
        let place = place.ok_or_else(|| Error::usage("no such range in the output"))?;
        place.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use deltachain::tensor::{Dtype, MemoryState};

    use super::*;

    #[test]
    fn what_is_written_is_held() {
        let mut state = MemoryState::new();
        state.insert("a", Dtype::U8, &[3], vec![1, 2, 3]).unwrap();
        let output = Output::new(state.tensors()).unwrap();
        assert!(!output.holds(&state));
        output.write(0, 0, &[1, 2]).unwrap();
        output.write(0, 2, &[3]).unwrap();
        assert!(output.holds(&state));
        assert!(output.write(0, 2, &[3, 4]).is_err());
    }
}
