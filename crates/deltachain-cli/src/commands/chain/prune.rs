//! `prune`: removes what only old versions need.

use std::num::NonZeroU64;

use deltachain::Result;
use deltachain_store::{Keep, StoredObject, plan_prune, prune};
use serde_json::json;

use crate::chain_args::PruneArgs;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable};
use crate::watcher::watched;

pub(crate) fn run(args: &PruneArgs, output: Output) -> Result<()> {
    let store = args.chain.open()?;
    let keep =
        Keep { last: args.keep_last.get(), every: args.keep_every.map(NonZeroU64::get), versions: args.keep.clone() };
    let plan = plan_prune(&store, &keep)?;
    let done = if args.dry_run { None } else { Some(watched(output, |watcher| prune(&store, &plan, watcher))?) };
    // The plan, or what was done.
    let (removed, young) = done.as_ref().map_or((&plan.removed, &plan.young), |done| (&done.removed, &done.young));
    let partials = done.as_ref().map_or(&plan.partials, |done| &done.partials);
    let bytes_of = |objects: &[StoredObject]| objects.iter().map(|object| object.size).fold(0, u64::saturating_add);
    output.summary(
        || {
            let would = if args.dry_run { "would " } else { "" };
            let mut text = format!(
                "{}: {would}keep {}, withdraw {}, remove {} ({} bytes)",
                printable(&args.chain.url),
                counted(plan.kept.len(), "version", "versions"),
                counted(plan.withdrawn.len(), "version", "versions"),
                counted(removed.len(), "file", "files"),
                grouped(bytes_of(removed)),
            );
            if !partials.is_empty() {
                let files = counted(partials.len(), "unfinished file", "unfinished files");
                text.extend(["\n  ", &files, " of writers that were killed"]);
            }
            if !young.is_empty() {
                let files = counted(young.len(), "unreferenced file was", "unreferenced files were");
                let when = "stored or withdrawn within the last 24 hours: prune again a day from now to remove them";
                text.extend(["\n  ", &files, " (", &grouped(bytes_of(young)), " bytes) ", when]);
            }
            text
        },
        || {
            json!({
                "url": args.chain.url,
                "done": !args.dry_run,
                "kept": plan.kept,
                "withdrawn": plan.withdrawn,
                "removed": removed.iter().map(|object| object.name.to_string()).collect::<Vec<_>>(),
                "removed_bytes": bytes_of(removed),
                "unfinished": partials.len(),
                "young": young.len(),
                "young_bytes": bytes_of(young),
            })
        },
    )
}
