//! Commands on chains in a store, one file each.

pub(crate) mod commit;
pub(crate) mod compact;
pub(crate) mod doctor;
pub(crate) mod follow;
pub(crate) mod fsck;
pub(crate) mod init;
pub(crate) mod log;
pub(crate) mod prune;
pub(crate) mod publish;
pub(crate) mod pull;
pub(crate) mod show;

use std::path::Path;

use deltachain::{Error, Result};
use tempfile::TempDir;

/// A directory for states that are built only to look at them: below the one given, or where the system has such things.
fn scratch(parent: Option<&Path>) -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("deltachain-");
    let made = match parent {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    };
    made.map_err(|error| {
        let error = Error::io("creating a temporary directory", error);
        parent.into_iter().fold(error, Error::in_file)
    })
}
