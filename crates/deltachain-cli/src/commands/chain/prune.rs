//! `prune`: removes what only old versions need.

use std::num::NonZeroU64;

use deltachain::Result;
use deltachain_store::{Keep, Observer, PrunePlan, Pruned, StoredObject, plan_prune, prune};
use serde_json::{Value, json};

use crate::chain_args::PruneArgs;
use crate::commands::chain::report::{Access, Report};
use crate::numbers::{counted, grouped};
use crate::output::printable;

/// What was pruned, or would be.
pub(crate) struct PruneReport {
    url: String,
    plan: PrunePlan,
    /// `None` with `--dry-run`.
    done: Option<Pruned>,
}

impl PruneReport {
    pub(crate) fn of(args: &PruneArgs, access: &Access, observer: &dyn Observer) -> Result<Self> {
        let store = access.open(&args.chain)?;
        let keep = Keep {
            last: args.keep_last.get(),
            every: args.keep_every.map(NonZeroU64::get),
            versions: args.keep.clone(),
        };
        let plan = plan_prune(&store, &keep)?;
        let done = if args.dry_run { None } else { Some(prune(&store, &plan, observer)?) };
        Ok(Self { url: args.chain.name(), plan, done })
    }

    /// By the plan, or as it was done.
    fn removed(&self) -> &[StoredObject] {
        self.done.as_ref().map_or(&self.plan.removed, |done| &done.removed)
    }

    fn young(&self) -> &[StoredObject] {
        self.done.as_ref().map_or(&self.plan.young, |done| &done.young)
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
        })
    }

    fn is_summary(&self) -> bool {
        true
    }
}

fn bytes_of(objects: &[StoredObject]) -> u64 {
    objects.iter().map(|object| object.size).fold(0, u64::saturating_add)
}
