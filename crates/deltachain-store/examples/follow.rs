//! Keeps a directory at the newest version of a chain, and ends with version UNTIL.
//!
//! `cargo run -p deltachain-store --example follow -- CHAIN DIRECTORY UNTIL`
//!
//! The model is in `DIRECTORY/current`, which is always one whole version.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use deltachain_store::{
    FollowEvent, FollowOptions, Follower, FollowerOptions, Store, StoreOptions,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [chain, directory, until] = arguments.as_slice() else {
        return Err("usage: follow CHAIN DIRECTORY UNTIL".into());
    };
    follow_until(chain, Path::new(directory), until.parse()?)
}

/// Takes versions until this one, or a later one, is there.
///
/// # Errors
/// If the directory is not one that may be used.
pub(crate) fn follow_until(
    chain: &str,
    directory: &Path,
    until: u64,
) -> Result<(), Box<dyn Error>> {
    let store = Store::open(chain, StoreOptions::default())?;
    let mut follower = Follower::in_directory(store, directory, FollowerOptions::default())?;
    let options = FollowOptions::default().until(Some(until));
    // `&()` shows no progress. What fails is retried.
    follower.follow(&options, &(), &mut |_, event| {
        if let FollowEvent::Switched(switched) = event {
            // Here an engine would be told to load `switched.directory`.
            println!("version {}, digest {}", switched.version, switched.state);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(())
}
