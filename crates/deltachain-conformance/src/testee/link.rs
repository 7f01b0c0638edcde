//! The operations on links: `check`, `apply`, `patches`, `encode`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use deltachain::files::SafetensorsState;
use deltachain::tensor::{MemoryState, State};
use deltachain::{
    DiffOptions, Error, ErrorClass, FileSource, Limits, LinkReader, Profile, Replay, Result,
    StateTable, check_sequence, diff,
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::testee::request::Request;
use crate::testee::shard::stage;

/// The default limits, except that only the request limits new tensors and coded pieces.
pub(super) fn limits(request: &Request<'_>) -> Limits {
    Limits::default()
        .set_bytes(request.optional_number("set_bytes").unwrap_or(u64::MAX))
        .set_bytes_per_file_byte(0)
        .coded_bytes(request.optional_number("coded_bytes").unwrap_or(u64::MAX))
}

pub(super) fn open(path: &Path, limits: &Limits) -> Result<LinkReader<FileSource>> {
    LinkReader::open(FileSource::open(path)?, limits)
}

pub(super) fn check(request: &Request<'_>) -> Result<Value> {
    let link = open(request.path("link")?, &limits(request))?;
    link.verify(&())?;
    let header = link.header();
    Ok(json!({ "base": header.base.to_string(), "target": header.target.to_string() }))
}

pub(super) fn apply(request: &Request<'_>) -> Result<Value> {
    let limits = limits(request);
    let links = request.paths("links")?;
    let links = links
        .iter()
        .map(|path| open(path, &limits))
        .collect::<Result<Vec<_>>>()?;
    check_sequence(&links.iter().collect::<Vec<_>>())?;
    let files = request
        .optional_path("base")?
        .map(SafetensorsState::open)
        .transpose()?;
    let empty = MemoryState::new();
    let base: &dyn State = files.as_ref().map_or(&empty, |files| files);
    let layout = files.as_ref().map(|files| files.layout().clone());
    let mut replay = Replay::new(StateTable::of(base, &())?).with_layout(layout);
    links.iter().try_for_each(|link| replay.push(link))?;
    let staged = stage(&replay.tensors(), request.path("output")?)?;
    let digests = replay.run(base, &staged, &())?;
    staged.commit()?;
    Ok(json!({ "digest": digests.state.to_string() }))
}

pub(super) fn patches(request: &Request<'_>) -> Result<Value> {
    let link = open(request.path("link")?, &limits(request))?;
    if !link.is_direct() {
        // SPEC section 10. The library would ask for the base, with a class that does not apply to
        // files.
        return Ok(json!({ "result": "invalid", "class": ErrorClass::Unsupported.name() }));
    }
    // The number of coded lanes of each tensor, and their hash.
    let mut coded: HashMap<String, (u64, blake3::Hasher)> = HashMap::new();
    for patch in link.patches(|_| true, None) {
        let patch = patch?;
        let lane_bytes = patch.dtype().lane_bytes();
        let indices = patch.indices.unwrap_or_else(|| patch.lanes.collect());
        let (lanes, hasher) = coded.entry(patch.tensor.name().to_owned()).or_default();
        for (index, value) in indices.iter().zip(patch.values.chunks_exact(lane_bytes)) {
            *lanes += 1;
            hasher.update(&index.to_le_bytes()).update(value);
        }
    }
    let written = link
        .index()
        .tensors
        .iter()
        .filter(|entry| entry.written().is_some());
    let patches: Vec<Value> = written
        .map(|entry| {
            let (lanes, hasher) = coded.remove(entry.name()).unwrap_or_default();
            json!({ "name": entry.name(), "lanes": lanes, "digest": hasher.finalize().to_hex().as_str() })
        })
        .collect();
    Ok(json!({ "patches": patches }))
}

pub(super) fn encode(request: &Request<'_>) -> Result<Value> {
    let profile = match request.text("profile")? {
        "compact" => Profile::Compact,
        "local" => Profile::Local,
        "direct" => Profile::Direct,
        other => return Err(Error::usage(format!("there is no profile {other}"))),
    };
    let base = request
        .optional_path("base")?
        .map(SafetensorsState::open)
        .transpose()?;
    let empty = MemoryState::new();
    let base: &dyn State = base.as_ref().map_or(&empty, |files| files);
    let target = SafetensorsState::open(request.path("target")?)?;
    let output = request.path("output")?;
    let failed = |error: io::Error| Error::io("writing", error).in_file(output);
    let mut file = NamedTempFile::new_in(output.parent().unwrap_or(output)).map_err(failed)?;
    // The library writes files with these options: SPEC section 24.5.
    let options = DiffOptions::default()
        .profile(profile)
        .sums(profile == Profile::Local);
    diff(base, &target, &options, &mut file)?;
    file.flush().map_err(failed)?;
    file.persist_noclobber(output)
        .map_err(|refused| failed(refused.error))?;
    Ok(json!({}))
}
