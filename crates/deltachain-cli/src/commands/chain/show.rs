//! `show`: prints everything about one version.

use deltachain::Result;
use deltachain::chain::Trust;
use deltachain_store::{LogEntry, date};
use serde_json::json;

use crate::chain_args::ShowArgs;
use crate::commands::chain::log::{kind, origin};
use crate::commands::chain::signers;
use crate::numbers::grouped;
use crate::output::{Output, printable};

pub(crate) fn run(args: &ShowArgs, output: Output) -> Result<()> {
    let trust = args.trust.trust()?;
    let entry = deltachain_store::show(&args.chain.open()?, args.version, trust.as_ref())?;
    output.result(|| as_text(&entry, trust.as_ref()), || json!(entry))
}

fn as_text(entry: &LogEntry, trust: Option<&Trust>) -> String {
    let mut lines = vec![
        format!("version  {}", entry.version),
        format!("chain    {}", entry.chain),
        format!("state    {}", entry.state),
        format!("commit   {}", entry.commit),
        format!("parent   {}", entry.parent),
    ];
    lines.extend(
        entry
            .stored
            .map(|stored| format!("stored   {}", date(stored))),
    );
    if signers::has_any(&entry.signers) {
        lines.push(format!(
            "signed   {}",
            signers::as_text(&entry.signers, trust)
        ));
    }
    if entry.shards.len() > 1 {
        lines.extend(
            entry
                .shards
                .iter()
                .enumerate()
                .map(|(number, shard)| format!("shard {number}  {shard}")),
        );
    }
    if entry.routes.is_empty() {
        lines.push("routes   none: it has been pruned".to_owned());
    }
    for route in &entry.routes {
        let kind = kind(route.from, route.is_direct, route.is_in_place);
        lines.push(format!("{}{kind}", origin(route.from)));
        let files = route
            .files
            .iter()
            .map(|file| format!("  {}  {} bytes", file.name(), grouped(file.size)));
        lines.extend(files);
    }
    for asset in &entry.assets {
        lines.push(format!("asset    {}", printable(&asset.name)));
        lines.push(format!(
            "  {}  {} bytes",
            asset.object_name(),
            grouped(asset.file.size)
        ));
    }
    lines.extend(
        entry
            .metadata
            .iter()
            .map(|(key, value)| printable(&format!("{key}={value}"))),
    );
    lines.join("\n")
}
