//! Bringing something to a version of a chain: planning, fetching, building, switching.

pub(crate) mod assets;
pub(crate) mod cache;
pub(crate) mod check;
pub(crate) mod directory;
pub(crate) mod directory_status;
pub(crate) mod download;
pub(crate) mod follower;
pub(crate) mod held;
pub(crate) mod joined;
pub(crate) mod links;
pub(crate) mod memory;
pub(crate) mod model_directory;
pub(crate) mod other_files;
pub(crate) mod polling;
pub(crate) mod ranges;
pub(crate) mod reach;
pub(crate) mod replay;
pub(crate) mod selection;
pub(crate) mod shard;
pub(crate) mod switched;
pub(crate) mod versions;
