//! Changes weights in memory, where they are: first everything that can fail, then a patch that
//! cannot.
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

/// Loads a checkpoint, patches it with links, and describes the result.
///
/// # Errors
/// If a file cannot be read, or a link is for other weights.
pub(crate) fn patch(base: &str, links: &[String]) -> Result<String, Box<dyn Error>> {
    // The memory from which an engine serves. For caller-provided memory there is
    // `memory::LentState`.
    let mut weights = MemoryState::copy_of(&SafetensorsState::open(base)?)?;

    let read = |path: &String| -> Result<_, Box<dyn Error>> {
        Ok(LinkReader::open(fs::read(path)?, &Limits::default())?)
    };
    let links = links.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut replay = Replay::new(StateTable::of(&weights, &())?);
    for link in &links {
        replay.push(link)?; // refused if the link is for other weights
    }
    // Decodes and verifies the patches next to the weights, which do not change yet; at most 1 GiB
    // of patches.
    let mut patches = replay.patches(&weights, &weights, 1 << 30, &())?;
    let lanes = patches.lanes();

    // An engine would pause here. The patch cannot fail; `put_back` would restore the old weights.
    patches.stage(&mut weights)?.write()?;

    patches.table().check(&weights, &())?;
    Ok(format!(
        "{lanes} elements changed; the weights have the digest {}",
        patches.table().digests.state
    ))
}
