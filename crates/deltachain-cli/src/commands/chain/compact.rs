//! `compact`: adds routes to a version, for late joiners.

use deltachain::Result;
use deltachain_store::{CompactOptions, Compacted, Observer, Scratch, compact};
use serde_json::{Value, json};

use crate::chain_args::CompactArgs;
use crate::commands::chain::publish::{route_as_text, routes_as_json};
use crate::commands::chain::report::{Access, Report};
use crate::output::printable;

/// The routes that were added.
pub(crate) struct CompactReport {
    url: String,
    compacted: Compacted,
}

impl CompactReport {
    pub(crate) fn of(args: &CompactArgs, access: &Access, observer: &dyn Observer) -> Result<Self> {
        let store = access.open(&args.chain)?;
        let place = Scratch::new(args.scratch.as_deref(), observer)?;
        let options = CompactOptions::new(place.path())
            .version(args.version)
            .from(args.from.clone())
            .snapshot(args.snapshot)
            .profiles(args.profiles.profiles())
            .limits(args.limits.limits());
        Ok(Self { url: args.chain.name(), compacted: compact(&store, &options, observer)? })
    }
}

impl Report for CompactReport {
    fn text(&self) -> String {
        let Compacted { version, routes, .. } = &self.compacted;
        let mut lines = vec![format!("version {version} of {} has new routes", printable(&self.url))];
        lines.extend(routes.iter().map(route_as_text));
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let Compacted { version, routes, .. } = &self.compacted;
        json!({ "url": self.url, "version": version, "routes": routes_as_json(routes) })
    }

    fn is_summary(&self) -> bool {
        true
    }
}
