//! States in memory that are changed in place: what has been prepared and proven beside them is exchanged with what they hold.

mod collect;
mod exchange;
mod lent;
mod patch_set;

pub(crate) use collect::{PatchCollector, PieceChanges};
pub use exchange::Ready;
pub use lent::{LentState, StateMemory};
pub use patch_set::{PatchSet, Run, RunKind};

#[cfg(test)]
mod tests;
