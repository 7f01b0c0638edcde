//! Operations on memory for results, which is allocated beforehand, as a subscriber's staging
//! buffers are.

use std::ops::Range;

use deltachain::tensor::{MemoryState, MemoryWriter, State, StateWriter, TensorInfo, find};
use deltachain::{Error, Patch};
use rayon::prelude::*;

use crate::Result;

/// Copies a state, which has the tensors of `out`, on all threads of the current pool.
///
/// # Errors
/// If the state does not have the tensors of `out`, or is not in memory.
pub fn copy(state: &impl State, out: &MemoryWriter<'_>) -> Result {
    let pieces = state.tensors().iter().enumerate();
    let pieces = pieces.flat_map(|(tensor, info)| {
        (0..info.pieces()).map(move |piece| (tensor, info.piece(piece)))
    });
    let pieces: Vec<(usize, Range<u64>)> = pieces.collect();
    let copied = pieces.into_par_iter().map(|(tensor, range)| {
        let data = state.bytes(tensor, range.clone())?;
        let filled = out.fill(tensor, range, &mut |own| {
            own.copy_from_slice(data);
            Ok(())
        });
        filled?.ok()
    });
    copied
        .collect::<Option<()>>()
        .ok_or_else(|| "not the tensors of the output".into())
}

/// True if `room` holds exactly the bytes of this state, which is in memory.
pub fn holds(room: &MemoryState, state: &impl State) -> bool {
    room.tensors().len() == state.tensors().len()
        && room
            .iter()
            .zip(state.tensors())
            .enumerate()
            .all(|(number, ((_, own), info))| {
                state
                    .bytes(number, 0..info.bytes())
                    .is_some_and(|data| own == data)
            })
}

/// Writes the values of a patch to the lanes that it names, as an engine does in its own memory.
/// `infos` are the tensors of `out`.
///
/// # Errors
/// If the patch is for another tensor, or reaches outside its tensor.
pub fn patch(out: &MemoryWriter<'_>, infos: &[TensorInfo], patch: &Patch<'_>) -> Result {
    let tensor = find(infos, patch.tensor.name()).ok_or("no such tensor")?;
    let width = patch.dtype().lane_bytes();
    let first = patch.lanes.start;
    let bytes = first * width as u64..patch.lanes.end * width as u64;
    let done = out.fill(tensor, bytes, &mut |own| match (&patch.indices, width) {
        (None, _) => {
            own.copy_from_slice(&patch.values);
            Ok(())
        }
        (Some(indices), 1) => scatter::<1>(own, first, indices, &patch.values),
        (Some(indices), 2) => scatter::<2>(own, first, indices, &patch.values),
        (Some(indices), 4) => scatter::<4>(own, first, indices, &patch.values),
        (Some(indices), _) => scatter::<8>(own, first, indices, &patch.values),
    });
    Ok(done.ok_or("a piece outside the tensor")??)
}

/// Writes values to `own`, which begins with lane number `first`.
fn scatter<const WIDTH: usize>(
    own: &mut [u8],
    first: u64,
    indices: &[u64],
    values: &[u8],
) -> deltachain::Result<()> {
    let lanes = own.as_chunks_mut::<WIDTH>().0;
    for (&index, &value) in indices.iter().zip(values.as_chunks::<WIDTH>().0) {
        let lane = usize::try_from(index.wrapping_sub(first))
            .ok()
            .and_then(|lane| lanes.get_mut(lane));
        *lane.ok_or_else(|| Error::usage("a lane outside the tensor"))? = value;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use deltachain::tensor::Dtype;

    use super::*;

    #[test]
    fn what_is_copied_is_held() {
        let mut state = MemoryState::new();
        let mut other = MemoryState::new();
        state.insert("a", Dtype::U8, &[3], vec![1, 2, 3]).unwrap();
        other.insert("a", Dtype::U8, &[3], vec![1, 2, 4]).unwrap();
        let mut room = MemoryState::zeros(state.tensors()).unwrap();
        assert!(!holds(&room, &state));
        copy(&state, &room.writer()).unwrap();
        assert!(holds(&room, &state) && !holds(&room, &other));
        other.insert("b", Dtype::U8, &[1], vec![1]).unwrap();
        assert!(copy(&other, &room.writer()).is_err());
        // An additional byte or tensor makes a difference.
        for (name, data) in [("a", vec![1, 2, 3, 0]), ("b", vec![])] {
            let mut more = state.clone();
            more.insert(name, Dtype::U8, &[data.len() as u64], data)
                .unwrap();
            assert!(!holds(&more, &state) && !holds(&state, &more));
        }
    }
}
