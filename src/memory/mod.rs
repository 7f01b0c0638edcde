//! States in memory that are changed in place: values that were prepared and proven beside them are exchanged with the
//! values that they hold.

mod collect;
mod exchange;
mod lent;
mod patch_set;

pub(crate) use collect::{PatchCollector, PieceChanges};
pub use exchange::Ready;
pub use lent::{LentState, StateMemory};
pub use patch_set::{PatchSet, Run, RunKind};

use crate::error::{Error, Result};

/// Appends the lanes in which two stretches of a tensor differ: their numbers, which count from `first` on, and their
/// new values, little-endian. For programs that compare states that have been proven, such as two versions in a
/// directory.
///
/// # Errors
/// USAGE if the stretches differ in length, are not whole lanes of 1, 2, 4 or 8 bytes, or a lane's number would not be below 2^32.
pub fn changes_between(
    lane_bytes: usize,
    first: u32,
    (old, new): (&[u8], &[u8]),
    numbers: &mut Vec<u32>,
    values: &mut Vec<u8>,
) -> Result<()> {
    let is_lane = matches!(lane_bytes, 1 | 2 | 4 | 8) && new.len().is_multiple_of(lane_bytes);
    let last = u32::try_from(new.len() / lane_bytes.max(1)).ok().and_then(|lanes| first.checked_add(lanes));
    if !is_lane || old.len() != new.len() || last.is_none() {
        return Err(Error::usage("the stretches cannot be compared"));
    }
    crate::codec::changes::append_changes(lane_bytes, first, (old, new), numbers, values);
    Ok(())
}

#[cfg(test)]
mod tests;
