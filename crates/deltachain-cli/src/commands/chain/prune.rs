//! `prune`: removes old versions, and the files that only they need.

use std::fmt::Write as _;
use std::num::NonZeroU64;

use deltachain::Result;
use deltachain_store::{Keep, PruneReport, plan_prune, prune, undo_prune};
use serde_json::json;

use crate::chain_args::PruneArgs;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable, report_on};
use crate::watcher::watched;

pub(crate) fn run(args: &PruneArgs, output: Output) -> Result<()> {
    let (store, url) = (args.chain.open()?, args.chain.name());
    if args.undo {
        let versions = watched(output, |watcher| undo_prune(&store, watcher))?;
        let restored = counted(versions.len(), "version", "versions");
        return output.summary(
            || {
                format!(
                    "{}: routes to {restored} are in force again",
                    printable(&url)
                )
            },
            || json!({ "url": url, "restored": versions }),
        );
    }
    let keep = Keep {
        last: args.keep_last.map_or(u64::MAX, NonZeroU64::get),
        every: args.keep_every.map(NonZeroU64::get),
        versions: args.keep.clone(),
        abandoned: args.abandoned,
        accept_loss: args.accept_loss,
    };
    let plan = plan_prune(&store, &keep)?;
    let pruned = if args.dry_run {
        plan.expected
    } else {
        watched(output, |watcher| prune(&store, &plan, watcher))?
    };
    output.summary(
        || as_text(&url, &pruned),
        || report_on(("url", &url), &pruned),
    )
}

fn as_text(url: &str, pruned: &PruneReport) -> String {
    let mut text = format!(
        "{}: {}keep {}, withdraw {}, remove {} ({} bytes)",
        printable(url),
        if pruned.done { "" } else { "would " },
        counted(pruned.kept.len(), "version", "versions"),
        counted(pruned.withdrawn.len(), "version", "versions"),
        counted(pruned.removed.len(), "file", "files"),
        grouped(pruned.removed_bytes),
    );
    if let (Some(lowest), false) = (pruned.kept.first(), pruned.needed.is_empty()) {
        let versions = counted(pruned.needed.len(), "more version", "more versions");
        let _ = write!(
            text,
            "\n  {versions} ({}) stay, since kept versions are built from them: \
             `deltachain compact --version {lowest} --snapshot` makes a snapshot, after which \
             prune can withdraw them",
            ranges(&pruned.needed),
        );
    }
    if !pruned.partials.is_empty() {
        let files = counted(pruned.partials.len(), "unfinished file", "unfinished files");
        text.extend(["\n  ", &files, " of writers that were killed"]);
    }
    if !pruned.young.is_empty() {
        let files = counted(
            pruned.young.len(),
            "unreferenced file",
            "unreferenced files",
        );
        let when = "stored or withdrawn within the last 24 hours: prune again a day from now to \
            remove them";
        text.extend([
            "\n  ",
            &files,
            " (",
            &grouped(pruned.young_bytes),
            " bytes) ",
            when,
        ]);
    }
    if !pruned.unnamed.is_empty() {
        text.extend(["\n  ", &unnamed(pruned.unnamed.len(), pruned.unnamed_bytes)]);
    }
    text
}

/// Formats ascending numbers as ranges, such as `0-4, 7`.
fn ranges(numbers: &[u64]) -> String {
    let runs = numbers.chunk_by(|left, right| left.checked_add(1) == Some(*right));
    let texts = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(u64::to_string).collect(),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Describes files that no document names.
pub(crate) fn unnamed(count: usize, bytes: u64) -> String {
    let files = counted(
        count,
        "file that no version names",
        "files that no version names",
    );
    format!(
        "{files} ({} bytes) stay: a publisher was killed or is at work, or commits are lost; \
         `prune --abandoned` removes those older than 24 hours",
        grouped(bytes)
    )
}
