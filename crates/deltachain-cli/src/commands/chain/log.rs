//! `log`: lists the versions of a chain.

use std::collections::BTreeMap;

use deltachain::Result;
use deltachain::chain::{Asset, Route};
use deltachain_store::LogEntry;
use serde_json::{Value, json};

use crate::chain_args::LogArgs;
use crate::commands::chain::report::{Access, Report};
use crate::commands::chain::signers::Signers;
use crate::numbers::grouped;
use crate::output::printable;
use crate::table::{Align, layout};

/// Digits of a digest that tell versions apart for people.
const SHOWN_DIGITS: usize = 12;

/// Characters of notes that are shown.
const SHOWN_CHARACTERS: usize = 80;

/// The newest versions of a chain.
pub(crate) struct Log {
    url: String,
    entries: Vec<(LogEntry, Signers)>,
}

impl Log {
    pub(crate) fn of(args: &LogArgs, access: &Access) -> Result<Self> {
        let last = (args.last > 0).then_some(args.last);
        let trust = args.trust.trust()?;
        let entries = deltachain_store::log(&access.open(&args.chain)?, last)?;
        let with_signers = |entry: LogEntry| {
            let signers = Signers::of(&entry.notes, trust.as_ref());
            (entry, signers)
        };
        let entries = entries.into_iter().map(with_signers).collect();
        Ok(Self { url: args.chain.name(), entries })
    }
}

impl Report for Log {
    fn text(&self) -> String {
        as_text(&self.entries)
    }

    fn json(&self) -> Value {
        json!({ "url": self.url, "versions": self.entries.iter().map(|(entry, signers)| entry_as_json(entry, signers)).collect::<Vec<_>>() })
    }
}

fn as_text(entries: &[(LogEntry, Signers)]) -> String {
    if entries.is_empty() {
        return "no versions yet".to_owned();
    }
    // Of a chain that nobody signs, nothing is said.
    let says = entries.iter().any(|(entry, signers)| !entry.notes.is_empty() || signers.is_signed().is_some());
    let mut columns = vec![
        ("version", Align::Right),
        ("state", Align::Left),
        ("stored", Align::Left),
        ("routes (bytes)", Align::Left),
        ("notes", Align::Left),
    ];
    if says {
        columns.insert(4, ("signed", Align::Left));
    }
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|(entry, signers)| {
            let mut row = vec![
                entry.version.to_string(),
                entry.state.to_string()[..SHOWN_DIGITS].to_owned(),
                entry.stored.map_or_else(|| "-".to_owned(), crate::numbers::date),
                routes(entry),
                notes(&entry.metadata),
            ];
            if says {
                row.insert(4, signers.text());
            }
            row
        })
        .collect();
    layout(&columns, &rows)
}

/// Metadata on a line, not more than fits there. `show` has all of it.
pub(crate) fn notes(metadata: &BTreeMap<String, String>) -> String {
    let notes: Vec<String> = metadata.iter().map(|(key, value)| printable(&format!("{key}={value}"))).collect();
    let text = notes.join(" ");
    let mut chars = text.chars();
    let begin: String = chars.by_ref().take(SHOWN_CHARACTERS).collect();
    if chars.next().is_some() { begin + "..." } else { begin }
}

fn routes(entry: &LogEntry) -> String {
    let routes = routes_with_kinds(entry).map(|(route, kind)| {
        let bytes = grouped(u64::try_from(route.bytes()).unwrap_or(u64::MAX));
        format!("{} ({bytes}{kind})", origin(route.from))
    });
    let routes: Vec<String> = routes.collect();
    if routes.is_empty() { "pruned".to_owned() } else { routes.join(", ") }
}

/// What a route starts from.
pub(crate) fn origin(from: Option<u64>) -> String {
    from.map_or_else(|| "snapshot".to_owned(), |from| format!("from {from}"))
}

/// What can be said of a route after its length. Snapshots are direct anyway.
pub(crate) fn kind(from: Option<u64>, is_direct: bool, is_in_place: bool) -> &'static str {
    match (is_direct && from.is_some(), is_in_place) {
        (true, true) => ", direct, in place",
        (true, false) => ", direct",
        (false, true) => ", in place",
        (false, false) => "",
    }
}

/// The routes in force of a version, and what can be said of each.
pub(crate) fn routes_with_kinds(entry: &LogEntry) -> impl Iterator<Item = (&Route, &'static str)> {
    let kinds = entry.direct.iter().zip(&entry.in_place);
    entry.routes.iter().zip(kinds).map(|(route, (&direct, &in_place))| (route, kind(route.from, direct, in_place)))
}

pub(crate) fn entry_as_json(entry: &LogEntry, signers: &Signers) -> Value {
    let kinds = entry.direct.iter().zip(&entry.in_place);
    let routes = entry.routes.iter().zip(kinds).map(|(route, (direct, in_place))| {
        let files = route.files.iter().map(|file| json!({ "digest": file.digest.to_string(), "size": file.size }));
        let files: Vec<Value> = files.collect();
        json!({ "from": route.from, "files": files, "direct": direct, "in_place": in_place })
    });
    let mut json = json!({
        "version": entry.version,
        "state": entry.state.to_string(),
        "commit": entry.commit.to_string(),
        "parent": entry.parent.to_string(),
        "shards": entry.shards.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "stored": entry.stored.map(crate::numbers::date),
        "routes": routes.collect::<Vec<_>>(),
        "assets": assets_as_json(&entry.assets),
        "metadata": entry.metadata,
    });
    signers.add_to(&mut json);
    json
}

pub(crate) fn assets_as_json(assets: &[Asset]) -> Value {
    let object =
        |asset: &Asset| json!({ "name": asset.name, "digest": asset.file.digest.to_string(), "size": asset.file.size });
    assets.iter().map(object).collect()
}
