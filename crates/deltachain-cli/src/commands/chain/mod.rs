//! Commands on chains in a store, one file each.

pub(crate) mod compact;
pub(crate) mod doctor;
pub(crate) mod fleet;
pub(crate) mod follow;
pub(crate) mod fsck;
pub(crate) mod init;
pub(crate) mod log;
pub(crate) mod mirror;
pub(crate) mod prune;
pub(crate) mod publish;
pub(crate) mod pull;
pub(crate) mod show;
pub(crate) mod sign;
pub(crate) mod signers;
pub(crate) mod status;
