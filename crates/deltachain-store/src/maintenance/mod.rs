//! The work on a chain beside publishing and following: looking, checking, compacting, pruning; and
//! checking a directory.

pub(crate) mod check_directory;
pub(crate) mod compact;
pub(crate) mod fsck;
pub(crate) mod log;
pub(crate) mod mirror;
pub(crate) mod prover;
pub(crate) mod signers;
