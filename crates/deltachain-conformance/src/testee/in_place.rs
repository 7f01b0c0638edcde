//! The operations of spec/in-place.md: `sums` and `in-place`.

use deltachain::files::{Layout, SafetensorsState};
use deltachain::sums::Sums;
use deltachain::tensor::MemoryState;
use deltachain::{LinkReader, Replay, Result, Source, check_sequence, rules};
use deltachain::{StateSums, StateTable};
use serde_json::{Value, json};

use crate::testee::link::{limits, open};
use crate::testee::request::Request;
use crate::testee::shard::write;

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
    let links = links.iter().map(|path| open(path, &limits)).collect::<Result<Vec<_>>>()?;
    check_sequence(&links.iter().collect::<Vec<_>>())?;
    let files = request.optional_path("base")?.map(SafetensorsState::open).transpose()?;
    let mut memory = files.as_ref().map_or_else(|| Ok(MemoryState::new()), |files| MemoryState::copy_of(files))?;
    take(&links, &mut memory, files.map(|files| files.layout().clone()))?;
    write(&memory, request.path("output")?)?;
    // Of the memory: what a link says of its target is not compared in place.
    Ok(json!({ "digest": StateTable::of(&memory, &())?.digests.state.to_string() }))
}

/// Takes links that follow one another into memory, which is hashed first: the table and the layout of what they promise.
pub(super) fn take(
    links: &[LinkReader<impl Source>],
    memory: &mut MemoryState,
    layout: Option<Layout>,
) -> Result<(StateTable, Option<Layout>)> {
    let (table, sums) = StateSums::hashed(&*memory, &())?;
    let mut replay = Replay::new(table).with_layout(layout).with_sums(sums);
    links.iter().try_for_each(|link| replay.push(link))?;
    // The library would build whole pieces instead, where lanes are not enough. Of sums it tells the first failure.
    let refused = replay.plans()?.find_map(|plan| plan.err().filter(|error| error.rule() != Some(rules::SUM_04.id)));
    refused.map_or(Ok(()), Err)?;
    replay.in_place(&*memory, u64::MAX, &())?.fit(memory)?.apply()?;
    Ok((replay.table().clone(), replay.layout().cloned()))
}
