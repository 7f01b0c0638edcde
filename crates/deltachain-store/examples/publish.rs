//! Publishes checkpoints, one after the other, as versions of a chain.
//!
//! `cargo run -p deltachain-store --example publish -- CHAIN CHECKPOINT [CHECKPOINT ...]`
//!
//! CHAIN is a directory or `s3://BUCKET/PREFIX`; each checkpoint a safetensors file or a directory
//! of them.

use std::error::Error;
use std::path::Path;

use deltachain::files::SafetensorsState;
use deltachain_store::{Base, PublishOptions, Publisher, Store, StoreOptions, init};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [chain, checkpoints @ ..] = arguments.as_slice() else {
        return Err("usage: publish CHAIN CHECKPOINT [CHECKPOINT ...]".into());
    };
    publish(chain, checkpoints)
}

/// Publishes checkpoints as the next versions of a chain, which is begun if it is not there.
///
/// # Errors
/// If a checkpoint cannot be read, or the store refuses.
pub(crate) fn publish(chain: &str, checkpoints: &[String]) -> Result<(), Box<dyn Error>> {
    let store = Store::create(chain, StoreOptions::default())?;
    init(&store)?; // `None` if there is a chain already, which is fine
    let mut publisher = Publisher::open(store, PublishOptions::default())?;
    for checkpoint in checkpoints {
        // What changes is found by comparing with the version before, built from the chain. A
        // trainer that still has the checkpoint before gives it as `Base::State`, which saves the
        // download.
        let state = SafetensorsState::open(Path::new(checkpoint))?;
        let published = publisher.publish(&state, Base::Chain, &())?;
        println!("version {}, digest {}", published.version, published.state);
    }
    Ok(())
}
