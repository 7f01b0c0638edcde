//! `show`: everything about one version.

use deltachain::Result;
use deltachain::chain::Reference;
use deltachain_store::LogEntry;
use serde_json::Value;

use crate::chain_args::ShowArgs;
use crate::commands::chain::log::{entry_as_json, origin, routes_with_kinds};
use crate::commands::chain::report::{Access, Report};
use crate::commands::chain::signers::Signers;
use crate::numbers::{date, grouped};
use crate::output::printable;

/// A version and who signed it.
pub(crate) struct Shown {
    entry: LogEntry,
    signers: Signers,
}

impl Shown {
    pub(crate) fn of(args: &ShowArgs, access: &Access) -> Result<Self> {
        let trust = args.trust.trust()?;
        let entry = deltachain_store::show(&access.open(&args.chain)?, args.version)?;
        let signers = Signers::of(&entry.notes, trust.as_ref());
        Ok(Self { entry, signers })
    }
}

impl Report for Shown {
    fn text(&self) -> String {
        as_text(&self.entry, &self.signers)
    }

    fn json(&self) -> Value {
        entry_as_json(&self.entry, &self.signers)
    }
}

fn as_text(entry: &LogEntry, signers: &Signers) -> String {
    let mut lines = vec![
        format!("version  {}", entry.version),
        format!("state    {}", entry.state),
        format!("commit   {}", entry.commit),
        format!("parent   {}", entry.parent),
    ];
    lines.extend(entry.stored.map(|stored| format!("stored   {}", date(stored))));
    if !entry.notes.is_empty() || signers.is_signed().is_some() {
        lines.push(format!("signed   {}", signers.text()));
    }
    if entry.shards.len() > 1 {
        lines.extend(entry.shards.iter().enumerate().map(|(number, shard)| format!("shard {number}  {shard}")));
    }
    if entry.routes.is_empty() {
        lines.push("routes   none: it has been pruned".to_owned());
    }
    for (route, kind) in routes_with_kinds(entry) {
        lines.push(format!("{}{kind}", origin(route.from)));
        let files = route.files.iter().map(|file| format!("  {}  {} bytes", file.name(), grouped(file.size)));
        lines.extend(files);
    }
    for asset in &entry.assets {
        lines.push(format!("asset    {}", printable(&asset.name)));
        lines.push(format!("  {}  {} bytes", asset.object_name(), grouped(asset.file.size)));
    }
    lines.extend(entry.metadata.iter().map(|(key, value)| printable(&format!("{key}={value}"))));
    lines.join("\n")
}
