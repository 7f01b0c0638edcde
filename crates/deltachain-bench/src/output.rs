//! What is done with memory that results go to: it is there before, as a subscriber's staging buffers are.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use deltachain::Patch;
use deltachain::tensor::{MemoryWriter, State, StateWriter, TensorInfo};
use rayon::prelude::*;

use crate::Result;

/// Copies this state, whose tensors are those of `out`. By all threads of the current pool.
///
/// # Errors
/// If the tensors are not those of `out`, or the state is not in memory.
pub fn copy(state: &impl State, out: &MemoryWriter<'_>) -> Result {
    each_piece(state, out, |own, data| own.copy_from_slice(data))
}

/// Whether `out` holds this state's bytes.
///
/// # Errors
/// As for [`copy`].
pub fn holds(out: &MemoryWriter<'_>, state: &impl State) -> Result<bool> {
    let is_same = AtomicBool::new(true);
    each_piece(state, out, |own, data| {
        is_same.fetch_and(own == data, Ordering::Relaxed);
    })?;
    Ok(is_same.into_inner())
}

fn each_piece(state: &impl State, out: &MemoryWriter<'_>, work: impl Fn(&mut [u8], &[u8]) + Sync) -> Result {
    let pieces = state.tensors().iter().enumerate();
    let pieces = pieces.flat_map(|(tensor, info)| (0..info.pieces()).map(move |piece| (tensor, info.piece(piece))));
    let pieces: Vec<(usize, Range<u64>)> = pieces.collect();
    let done = pieces.into_par_iter().map(|(tensor, range)| {
        let data = state.bytes(tensor, range.clone())?;
        let filled = out.fill(tensor, range, &mut |own| {
            work(own, data);
            Ok(())
        });
        filled?.ok()
    });
    done.collect::<Option<()>>().ok_or_else(|| "not the tensors of the output".into())
}

/// Puts new values where a patch names them, as an engine does in its own memory. `infos` are the tensors of `out`.
///
/// # Errors
/// If the patch is for none of them, or reaches outside.
pub fn patch(out: &MemoryWriter<'_>, infos: &[TensorInfo], patch: &Patch<'_>) -> Result {
    let tensor = infos.binary_search_by(|info| info.name().cmp(patch.tensor.name()));
    let tensor = tensor.map_err(|_| "no such tensor")?;
    let width = patch.dtype().lane_bytes();
    let bytes = patch.lanes.start * width as u64..patch.lanes.end * width as u64;
    let mut fits = true;
    let done = out.fill(tensor, bytes, &mut |own| {
        fits = match (&patch.indices, width) {
            (None, _) => {
                own.copy_from_slice(&patch.values);
                true
            }
            (Some(indices), 1) => scatter::<1>(own, patch.lanes.start, indices, &patch.values),
            (Some(indices), 2) => scatter::<2>(own, patch.lanes.start, indices, &patch.values),
            (Some(indices), 4) => scatter::<4>(own, patch.lanes.start, indices, &patch.values),
            (Some(indices), _) => scatter::<8>(own, patch.lanes.start, indices, &patch.values),
        };
        Ok(())
    });
    done.ok_or("a piece outside the tensor")??;
    if fits { Ok(()) } else { Err("a lane outside the tensor".into()) }
}

/// Whether all lanes are within `own`, which begins with lane number `first`.
fn scatter<const WIDTH: usize>(own: &mut [u8], first: u64, indices: &[u64], values: &[u8]) -> bool {
    let lanes = own.as_chunks_mut::<WIDTH>().0;
    indices.iter().zip(values.as_chunks::<WIDTH>().0).all(|(&index, &value)| {
        let lane = usize::try_from(index.wrapping_sub(first)).ok().and_then(|lane| lanes.get_mut(lane));
        lane.map(|lane| *lane = value).is_some()
    })
}

#[cfg(test)]
mod tests {
    use deltachain::tensor::{Dtype, MemoryState};

    use super::*;

    #[test]
    fn what_is_copied_is_held() {
        let (mut state, mut other) = (MemoryState::new(), MemoryState::new());
        state.insert("a", Dtype::U8, &[3], vec![1, 2, 3]).unwrap();
        other.insert("a", Dtype::U8, &[3], vec![1, 2, 4]).unwrap();
        let mut room = MemoryState::zeros(state.tensors()).unwrap();
        let out = room.writer();
        assert!(!holds(&out, &state).unwrap());
        copy(&state, &out).unwrap();
        assert!(holds(&out, &state).unwrap() && !holds(&out, &other).unwrap());
        other.insert("b", Dtype::U8, &[1], vec![1]).unwrap();
        assert!(copy(&other, &out).is_err());
    }
}
