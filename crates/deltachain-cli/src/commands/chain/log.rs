//! `log`: lists the versions of a chain.

use std::collections::BTreeMap;

use deltachain::Result;
use deltachain::chain::Trust;
use deltachain_store::{LogEntry, LogRoute, date};
use serde_json::json;

use crate::chain_args::LogArgs;
use crate::commands::chain::signers;
use crate::numbers::grouped;
use crate::output::{Output, printable};
use crate::table::layout;

/// Number of digits of a digest that are shown to people.
const SHOWN_DIGITS: usize = 12;

/// Maximum number of characters of notes that are shown.
const SHOWN_CHARACTERS: usize = 80;

pub(crate) fn run(args: &LogArgs, output: Output) -> Result<()> {
    let last = (args.last > 0).then_some(args.last);
    let trust = args.trust.trust()?;
    let entries = deltachain_store::log(&args.chain.open()?, last, trust.as_ref())?;
    output.result(
        || as_text(&entries, trust.as_ref()),
        || json!({ "url": args.chain.name(), "versions": entries }),
    )
}

fn as_text(entries: &[LogEntry], trust: Option<&Trust>) -> String {
    if entries.is_empty() {
        return "no versions yet".to_owned();
    }
    // An unsigned chain gets no column of signers.
    let says = entries.iter().any(|entry| signers::has_any(&entry.signers));
    let signed = if says { "signed|" } else { "" };
    let columns = format!(">version|state|stored|routes (bytes)|{signed}notes");
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|entry| {
            let mut row = vec![
                entry.version.to_string(),
                entry.state.to_string()[..SHOWN_DIGITS].to_owned(),
                entry.stored.map_or_else(|| "-".to_owned(), date),
                routes(entry),
                notes(&entry.metadata),
            ];
            if says {
                row.insert(4, signers::as_text(&entry.signers, trust));
            }
            row
        })
        .collect();
    layout(&columns, &rows)
}

/// Formats metadata as one line, and cuts it if it is too long. `show` prints all of it.
pub(crate) fn notes(metadata: &BTreeMap<String, String>) -> String {
    // Keys that begin with `deltachain.` are for programs.
    let notes = metadata
        .iter()
        .filter(|(key, _)| !key.starts_with("deltachain."));
    let notes: Vec<String> = notes
        .map(|(key, value)| printable(&format!("{key}={value}")))
        .collect();
    let text = notes.join(" ");
    let mut chars = text.chars();
    let begin: String = chars.by_ref().take(SHOWN_CHARACTERS).collect();
    if chars.next().is_some() {
        begin + "..."
    } else {
        begin
    }
}

fn routes(entry: &LogEntry) -> String {
    let route = |route: &LogRoute| {
        let kind = kind(route.from, route.is_direct, route.is_in_place);
        format!("{} ({}{kind})", origin(route.from), grouped(route.bytes()))
    };
    let routes: Vec<String> = entry.routes.iter().map(route).collect();
    if routes.is_empty() {
        "pruned".to_owned()
    } else {
        routes.join(", ")
    }
}

/// Describes the origin of a route: a snapshot, or an older version.
pub(crate) fn origin(from: Option<u64>) -> String {
    from.map_or_else(|| "snapshot".to_owned(), |from| format!("from {from}"))
}

/// Describes the properties of a route, for the text after its length. All snapshots are direct, so
/// that is not shown for them.
pub(crate) fn kind(from: Option<u64>, is_direct: bool, is_in_place: bool) -> &'static str {
    match (is_direct && from.is_some(), is_in_place) {
        (true, true) => ", direct, in place",
        (true, false) => ", direct",
        (false, true) => ", in place",
        (false, false) => "",
    }
}
