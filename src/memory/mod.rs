//! States in memory that are changed in place: new values are prepared and proven beside them, then
//! written into them.

mod collect;
mod lanes;
mod lent;
mod patch_set;
mod placed;
mod places;
mod staged;

pub(crate) use collect::{PatchCollector, PieceChanges};
pub use lanes::HostLanes;
pub use lent::LentState;
pub use patch_set::{PatchSet, Run, RunKind};
pub use placed::{Alone, Changes, Peers, PlacedMemory, check_sums, fill};
pub use places::{Elements, PartPiece, Places, Region, Span, TensorPart};
pub use staged::StagedPatches;

#[cfg(test)]
pub(crate) use places::tests as places_tests;

use std::fmt;

use crate::error::{Error, Result};

/// Level of proof of a state in memory (SPEC section 24.1). Levels are never conflated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The lanes that links code hold the target's values. That says nothing about lanes that no
    /// link has coded.
    ChangedLanes,
    /// The sums of all of the memory were compared: nothing has changed by accident since the state
    /// was hashed.
    Memory,
    /// The digests of all of the memory were compared: it holds the state, even if an attacker
    /// could write to it before.
    Hashed,
}

impl Proof {
    /// The name in statuses and metrics: `changed_lanes`, `memory` or `hashed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChangedLanes => "changed_lanes",
            Self::Memory => "memory",
            Self::Hashed => "hashed",
        }
    }
}

/// The name in messages.
impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChangedLanes => "changed lanes proven",
            Self::Memory => "memory proven",
            Self::Hashed => "hashed",
        })
    }
}

/// Appends the lanes in which two stretches of a tensor differ: their numbers, which count from
/// `first` on, and their new values, little-endian. For programs that compare two proven states,
/// such as two versions in a directory.
///
/// # Errors
/// USAGE if the stretches differ in length, are not whole lanes of 1, 2, 4 or 8 bytes, or a lane's
/// number would not be below 2^32.
pub fn changes_between(
    lane_bytes: usize,
    first: u32,
    (old, new): (&[u8], &[u8]),
    numbers: &mut Vec<u32>,
    values: &mut Vec<u8>,
) -> Result<()> {
    let is_lane = matches!(lane_bytes, 1 | 2 | 4 | 8) && new.len().is_multiple_of(lane_bytes);
    let last = u32::try_from(new.len() / lane_bytes.max(1))
        .ok()
        .and_then(|lanes| first.checked_add(lanes));
    if !is_lane || old.len() != new.len() || last.is_none() {
        return Err(Error::usage("the stretches cannot be compared"));
    }
    crate::codec::changes::append_changes(lane_bytes, first, (old, new), numbers, values);
    Ok(())
}

#[cfg(test)]
mod tests;
