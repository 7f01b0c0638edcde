//! `compact`: adds routes to a version, for late joiners.

use deltachain::Result;
use deltachain_store::{CompactOptions, CompactReport, Scratch, compact};

use crate::chain_args::CompactArgs;
use crate::commands::chain::publish::route_as_text;
use crate::output::{Output, printable, report_on};
use crate::watcher::watched;

pub(crate) fn run(args: &CompactArgs, output: Output) -> Result<()> {
    let store = args.chain.open()?;
    let url = args.chain.name();
    let compacted = watched(output, |watcher| {
        let place = Scratch::new(args.scratch.as_deref(), watcher)?;
        let options = CompactOptions::new(place.path())
            .version(args.version)
            .from(args.from.clone())
            .snapshot(args.snapshot)
            .profiles(args.profiles.profile.clone())
            .limits(args.limits.limits());
        compact(&store, &options, watcher)
    })?;
    output.summary(
        || as_text(&url, &compacted),
        || report_on(("url", &url), &compacted),
    )
}

fn as_text(url: &str, compacted: &CompactReport) -> String {
    let mut lines = vec![format!(
        "version {} of {} has new routes",
        compacted.version,
        printable(url)
    )];
    lines.extend(compacted.routes.iter().map(route_as_text));
    lines.join("\n")
}
