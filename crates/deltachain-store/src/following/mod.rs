//! Keeps a directory or memory at versions of a chain: planning, building, switching, polling.

#![expect(
    private_interfaces,
    reason = "followers show their trait `Destination`, which nobody else can name"
)]

pub(crate) mod directory;
pub(crate) mod follower;
pub(crate) mod found;
pub(crate) mod in_place;
pub(crate) mod memory;
pub(crate) mod opened;
pub(crate) mod polling;
pub(crate) mod reach;
pub(crate) mod replay;
pub(crate) mod selection;
pub(crate) mod shard;
pub(crate) mod switched;
pub(crate) mod trusting;
pub(crate) mod view;
