//! The operations of SPEC-in-place.md: `sums` and `in-place`.

use deltachain::Result;
use deltachain::sums::Sums;
use serde_json::{Value, json};

use crate::testee::link::{limits, open};
use crate::testee::request::Request;

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
