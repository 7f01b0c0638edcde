//! `publish`: adds a version to a chain.

use std::num::NonZeroU64;
use std::path::Path;
use std::thread;
use std::time::Duration;

use deltachain::files::SafetensorsState;
use deltachain::{Error, Result};
use deltachain_store::{Base, PublishOptions, PublishReport, PublishedRoute, Publisher};

use crate::chain_args::PublishArgs;
use crate::commands::chain::log::{kind, origin};
use crate::commands::diff::notes;
use crate::interrupt;
use crate::numbers::{counted, grouped, percent};
use crate::other_files::list;
use crate::output::{Output, printable, printable_path, report_on};
use crate::watcher::watched;

/// Pause between two checks for a file.
const PERIOD: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &PublishArgs, output: Output) -> Result<()> {
    let store = args.chain.open()?;
    if let Some(name) = &args.wait_for {
        wait_for(&args.state.join(name), output)?;
    }
    let state = SafetensorsState::open(&args.state)?;
    let options = PublishOptions::default()
        .profiles(args.profiles.profile.clone())
        .metadata(notes(&args.notes)?)
        .snapshots(args.snapshots())
        .skips(args.skip_every.iter().map(|every| every.get()).collect())
        .assets(!args.no_assets)
        .exclude(args.exclude.clone())
        .if_changed(args.if_changed)
        .once(args.once.clone())
        .max_changed(args.max_changed.map(|percent| percent / 100.0))
        .refuse_nonfinite(args.refuse_nonfinite)
        .allow_empty(args.allow_empty)
        .keep_last(args.keep_last.map(NonZeroU64::get))
        .scratch(args.scratch.clone())
        .sign(args.signatures.sign.signers()?)
        .unsigned(args.signatures.unsigned)
        .trust(args.signatures.trust.trust()?)
        .vouch(args.signatures.vouch)
        .limits(args.limits.limits());

    let given = args
        .base
        .as_deref()
        .map(SafetensorsState::open)
        .transpose()?;
    let base = match (&given, &args.work) {
        (Some(state), _) => Base::State(state.into()),
        (None, Some(work)) => Base::Work(work),
        (None, None) => Base::Chain,
    };
    let mut publisher = Publisher::open(store, options)?;
    let published = watched(output, |watcher| publisher.publish(&state, base, watcher))?;
    report(&args.chain.name(), &published, output);
    Ok(())
}

/// Prints the report of a publish.
pub(crate) fn report(url: &str, published: &PublishReport, output: Output) {
    output.summary_of_done(
        || describe_done(url, published),
        || describe(url, published),
        || report_on(("url", url), published),
    );
}

/// Describes a version in one line, for when its report could not be written.
fn describe_done(url: &str, published: &PublishReport) -> String {
    let what = if published.is_new {
        "is published"
    } else {
        "stays the newest"
    };
    format!("version {} of {} {what}", published.version, printable(url))
}

/// Waits until this file exists.
fn wait_for(path: &Path, output: Output) -> Result<()> {
    let is_there = || {
        path.try_exists()
            .map_err(|error| Error::io("looking for", error).in_file(path))
    };
    if !is_there()? {
        output.remark(&format!("waiting for {}", printable_path(path)));
    }
    while !is_there()? {
        interrupt::check()?;
        thread::sleep(PERIOD);
    }
    Ok(())
}

/// Describes the result of a publish as text.
pub fn describe(url: &str, published: &PublishReport) -> String {
    let PublishReport {
        version,
        state,
        changed,
        elements,
        ..
    } = published;
    if !published.is_new {
        let why = match &published.skipped {
            Some(skipped) => printable(&skipped.to_string()),
            None => "it already has this state".to_owned(),
        };
        return format!(
            "version {version} of {} stays the newest, and nothing was published: {why}",
            printable(url)
        );
    }
    let mut lines = vec![format!(
        "version {version} of {}: {} of {} changed ({})",
        printable(url),
        grouped(*changed),
        counted(
            usize::try_from(*elements).unwrap_or(usize::MAX),
            "element",
            "elements"
        ),
        percent(*changed, *elements),
    )];
    lines.extend(published.routes.iter().map(route_as_text));
    lines.push(format!("  state        {state}"));
    if published.unchanged_state {
        let note = "no tensor changed; --if-changed publishes that only if other files changed";
        lines.push(format!("  note         {note}"));
    }
    if !published.assets.is_empty() {
        let names: Vec<String> = published
            .assets
            .iter()
            .map(|asset| asset.name.clone())
            .collect();
        let new = match published.new_asset_bytes {
            0 => "none of them new".to_owned(),
            new => format!("{} new", grouped(new)),
        };
        lines.push(format!(
            "  assets       {} bytes, {new}: {}",
            grouped(published.asset_bytes),
            list(&names)
        ));
    }
    lines.join("\n")
}

/// Describes a new route on a line of its own.
pub(crate) fn route_as_text(route: &PublishedRoute) -> String {
    let kind = kind(route.from, route.is_direct, route.is_in_place);
    format!(
        "  {:<12} {} bytes{kind}",
        origin(route.from),
        grouped(route.bytes)
    )
}
