//! `compact`: adds routes to a version, for late joiners.

use deltachain::Result;
use deltachain_store::{CompactOptions, Scratch, compact};
use serde_json::json;

use crate::chain_args::CompactArgs;
use crate::commands::chain::publish::{route_as_text, routes_as_json};
use crate::output::{Output, printable};
use crate::watcher::watched;

pub(crate) fn run(args: &CompactArgs, output: Output) -> Result<()> {
    let store = args.chain.open()?;
    let place = Scratch::new(args.scratch.as_deref())?;
    let options = CompactOptions::new(place.path())
        .version(args.version)
        .from(args.from.clone())
        .snapshot(args.snapshot)
        .profile(args.profile.into())
        .limits(args.limits.limits());
    let compacted = watched(output, |watcher| compact(&store, &options, watcher))?;
    output.summary(
        || {
            let mut lines =
                vec![format!("version {} of {} has new routes", compacted.version, printable(&args.chain.url))];
            lines.extend(compacted.routes.iter().map(route_as_text));
            lines.join("\n")
        },
        || {
            let routes = routes_as_json(&compacted.routes);
            json!({ "url": args.chain.url, "version": compacted.version, "routes": routes })
        },
    )
}
