//! The operations of spec/in-place.md: `sums` and `in-place`.

use deltachain::StateTable;
use deltachain::files::SafetensorsState;
use deltachain::sums::Sums;
use deltachain::tensor::{MemoryState, State};
use deltachain::{Result, check_sequence};
use serde_json::{Value, json};

use crate::testee::link::{limits, open};
use crate::testee::request::Request;
use crate::testee::shard::{take, write};

pub(super) fn sums(request: &Request<'_>) -> Result<Value> {
    let link = open(request.path("link")?, &limits(request))?;
    link.verify(&())?;
    let numbers = |sums: Sums| json!(sums.numbers());
    let sums = link.sums()?.map(|sums| {
        let entries = link.index().tensors.iter().zip(&sums.entries);
        let tensors = entries.filter_map(|(entry, sums)| {
            let segments = &entry.written()?.pieces;
            let pieces = segments.iter().zip(sums).map(|(segment, sums)| {
                json!({ "piece": numbers(sums.piece), "coded": segment.map(|_| numbers(sums.coded)) })
            });
            Some(json!({ "name": entry.name(), "pieces": pieces.collect::<Vec<_>>() }))
        });
        tensors.collect::<Vec<_>>()
    });
    Ok(json!({ "sums": sums }))
}

pub(super) fn in_place(request: &Request<'_>) -> Result<Value> {
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
    let (memory, ..) = take(
        &links,
        base,
        files.as_ref().map(|files| files.layout().clone()),
    )?;
    write(&memory, request.path("output")?)?;
    // The digest of the memory: an in-place reader does not compare the digest in the link.
    Ok(json!({ "digest": StateTable::of(&memory, &())?.digests.state.to_string() }))
}
