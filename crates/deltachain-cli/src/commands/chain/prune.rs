//! `prune`: removes what only old versions need.

use std::num::NonZeroU64;

use deltachain::Result;
use deltachain_store::{Keep, Observer, PrunePlan, Pruned, StoredObject, plan_prune, prune, undo_prune};
use serde_json::{Value, json};

use crate::chain_args::PruneArgs;
use crate::commands::chain::report::{Access, Report};
use crate::numbers::{counted, grouped};
use crate::output::printable;

/// What was pruned, or would be.
struct PruneReport {
    url: String,
    plan: PrunePlan,
    /// `None` with `--dry-run`.
    done: Option<Pruned>,
}

/// The versions that have their routes again.
struct Undone {
    url: String,
    versions: Vec<u64>,
}

pub(crate) fn report(args: &PruneArgs, access: &Access, observer: &dyn Observer) -> Result<Box<dyn Report>> {
    let (store, url) = (access.open(&args.chain)?, args.chain.name());
    if args.undo {
        return Ok(Box::new(Undone { url, versions: undo_prune(&store, observer)? }));
    }
    let keep = Keep {
        last: args.keep_last.map_or(u64::MAX, NonZeroU64::get),
        every: args.keep_every.map(NonZeroU64::get),
        versions: args.keep.clone(),
        abandoned: args.abandoned,
        accept_loss: args.accept_loss,
    };
    let plan = plan_prune(&store, &keep)?;
    let done = if args.dry_run { None } else { Some(prune(&store, &plan, observer)?) };
    Ok(Box::new(PruneReport { url, plan, done }))
}

impl PruneReport {
    /// By the plan, or as it was done.
    fn removed(&self) -> &[StoredObject] {
        self.done.as_ref().map_or(&self.plan.removed, |done| &done.removed)
    }

    fn young(&self) -> &[StoredObject] {
        self.done.as_ref().map_or(&self.plan.young, |done| &done.young)
    }

    fn unnamed(&self) -> &[StoredObject] {
        self.done.as_ref().map_or(&self.plan.unnamed, |done| &done.unnamed)
    }

    fn unfinished(&self) -> usize {
        self.done.as_ref().map_or(&self.plan.partials, |done| &done.partials).len()
    }
}

impl Report for PruneReport {
    fn text(&self) -> String {
        let would = if self.done.is_none() { "would " } else { "" };
        let mut text = format!(
            "{}: {would}keep {}, withdraw {}, remove {} ({} bytes)",
            printable(&self.url),
            counted(self.plan.kept.len(), "version", "versions"),
            counted(self.plan.withdrawn.len(), "version", "versions"),
            counted(self.removed().len(), "file", "files"),
            grouped(bytes_of(self.removed())),
        );
        if self.unfinished() > 0 {
            let files = counted(self.unfinished(), "unfinished file", "unfinished files");
            text.extend(["\n  ", &files, " of writers that were killed"]);
        }
        let young = self.young();
        if !young.is_empty() {
            let files = counted(young.len(), "unreferenced file", "unreferenced files");
            let when = "stored or withdrawn within the last 24 hours: prune again a day from now to remove them";
            text.extend(["\n  ", &files, " (", &grouped(bytes_of(young)), " bytes) ", when]);
        }
        if !self.unnamed().is_empty() {
            text.extend(["\n  ", &unnamed(self.unnamed().len(), bytes_of(self.unnamed()))]);
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "url": self.url,
            "done": self.done.is_some(),
            "kept": self.plan.kept,
            "withdrawn": self.plan.withdrawn,
            "removed": self.removed().iter().map(|object| object.name.to_string()).collect::<Vec<_>>(),
            "removed_bytes": bytes_of(self.removed()),
            "unfinished": self.unfinished(),
            "young": self.young().len(),
            "young_bytes": bytes_of(self.young()),
            "unnamed": self.unnamed().len(),
            "unnamed_bytes": bytes_of(self.unnamed()),
        })
    }

    fn is_summary(&self) -> bool {
        true
    }
}

impl Report for Undone {
    fn text(&self) -> String {
        let versions = counted(self.versions.len(), "version", "versions");
        format!("{}: routes to {versions} are in force again", printable(&self.url))
    }

    fn json(&self) -> Value {
        json!({ "url": self.url, "restored": self.versions })
    }

    fn is_summary(&self) -> bool {
        true
    }
}

/// What is said of files that no document names.
pub(crate) fn unnamed(count: usize, bytes: u64) -> String {
    let files = counted(count, "file that no version names", "files that no version names");
    format!(
        "{files} ({} bytes) stay: a publisher was killed or is at work, or commits are lost; \
         `prune --abandoned` removes those older than 24 hours",
        grouped(bytes)
    )
}

fn bytes_of(objects: &[StoredObject]) -> u64 {
    objects.iter().map(|object| object.size).fold(0, u64::saturating_add)
}
