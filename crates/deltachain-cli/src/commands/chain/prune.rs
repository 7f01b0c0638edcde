//! `prune`: removes what only old versions need.

use std::num::NonZeroU64;

use deltachain::Result;
use deltachain_store::{Keep, plan_prune, prune};
use serde_json::json;

use crate::chain_args::PruneArgs;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable};
use crate::watcher::Watcher;

pub(crate) fn run(args: &PruneArgs, output: Output) -> Result<()> {
    let store = args.chain.open()?;
    let keep =
        Keep { last: args.keep_last.get(), every: args.keep_every.map(NonZeroU64::get), versions: args.keep.clone() };
    let watcher = Watcher::new(output);
    let plan = plan_prune(&store, &keep)?;
    if !args.dry_run {
        prune(&store, &plan, &watcher)?;
    }
    drop(watcher);
    output.summary(
        || {
            let would = if args.dry_run { "would " } else { "" };
            let mut text = format!(
                "{}: {would}keep {}, withdraw {}, remove {} ({} bytes)",
                printable(&args.chain.url),
                counted(plan.kept.len(), "version", "versions"),
                counted(plan.withdrawn.len(), "version", "versions"),
                counted(plan.removed.len(), "file", "files"),
                grouped(plan.removed_bytes()),
            );
            if plan.young > 0 {
                let files = counted(plan.young, "file that nothing needs was", "files that nothing needs were");
                text.extend(["\n  ", &files, " stored within the last 24 hours: they go later"]);
            }
            text
        },
        || {
            json!({
                "url": args.chain.url,
                "done": !args.dry_run,
                "kept": plan.kept,
                "withdrawn": plan.withdrawn,
                "removed": plan.removed.iter().map(|object| object.name.to_string()).collect::<Vec<_>>(),
                "removed_bytes": plan.removed_bytes(),
                "young": plan.young,
            })
        },
    )
}
