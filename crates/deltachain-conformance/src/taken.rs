//! Applies links in place, as readers do.

use deltachain::memory::{Alone, Changes, LentState};
use deltachain::tensor::{MemoryState, State, TensorInfo};
use deltachain::{Replay, Result, Source};

/// Returns the content of memory that held the base, after links were applied in place. No whole
/// piece is built.
pub(crate) fn taken(replay: &Replay<'_, impl Source>, base: &dyn State) -> Result<MemoryState> {
    let mut own: Vec<(TensorInfo, Vec<u8>)> = MemoryState::copy_of(base)?.into_tensors().collect();
    let mut lent = LentState::new(
        own.iter_mut()
            .map(|(info, data)| (info.clone(), data.as_mut_slice())),
    )?;
    let mut changes = Changes::new(u64::MAX);
    replay.in_place(&mut lent, &mut changes, &Alone, &())?;
    changes.write(&mut lent)?;
    let mut memory = MemoryState::new();
    for (info, (_, data)) in replay.tensors().iter().zip(own) {
        memory.insert(info.name(), info.dtype(), info.shape(), data)?;
    }
    Ok(memory)
}
