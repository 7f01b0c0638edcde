//! What is done to a chain beside publishing and following: looking, checking, compacting, pruning.

pub(crate) mod compact;
pub(crate) mod fsck;
pub(crate) mod log;
pub(crate) mod prover;
