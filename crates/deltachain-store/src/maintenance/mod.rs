//! Work on a chain besides publishing and following: showing, checking, compacting and copying it;
//! and checking a directory.

pub(crate) mod check_directory;
pub(crate) mod compact;
pub(crate) mod fsck;
pub(crate) mod log;
pub(crate) mod mirror;
pub(crate) mod prover;
pub(crate) mod signers;
