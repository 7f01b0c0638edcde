//! Changes weights where they lie in memory: everything that can fail comes first, then a patch
//! that cannot.
//!
//! `cargo run --example patch_memory -- BASE.safetensors LINK.dcf [LINK.dcf ...]`

use std::error::Error;
use std::fs;

use deltachain::files::SafetensorsState;
use deltachain::tensor::MemoryState;
use deltachain::{Limits, LinkReader, Replay, StateTable};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [base, links @ ..] = arguments.as_slice() else {
        return Err("usage: patch_memory BASE LINK [LINK ...]".into());
    };
    println!("{}", patch(base, links)?);
    Ok(())
}

/// Loads a checkpoint, changes it by links, and says what it is then.
///
/// # Errors
/// If something cannot be read, or a link is for other weights.
pub(crate) fn patch(base: &str, links: &[String]) -> Result<String, Box<dyn Error>> {
    // What an engine serves from. `memory::LentState` takes memory that belongs to somebody else.
    let mut weights = MemoryState::copy_of(&SafetensorsState::open(base)?)?;

    let read = |path: &String| -> Result<_, Box<dyn Error>> {
        Ok(LinkReader::open(fs::read(path)?, &Limits::default())?)
    };
    let links = links.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut replay = Replay::new(StateTable::of(&weights, &())?);
    for link in &links {
        replay.push(link)?; // refused if it is for other weights
    }
    // Decoded and proven beside the weights, which stay as they are. 1 GiB of patches at most.
    let mut patches = replay.patches(&weights, &weights, 1 << 30, &())?;
    let lanes = patches.lanes();

    // Here an engine would stop. The patch cannot fail, and `undo` is the way back.
    patches.stage(&mut weights)?.write()?;

    patches.table().check(&weights, &())?;
    Ok(format!(
        "{lanes} elements changed; the weights have the digest {}",
        patches.table().digests.state
    ))
}
