//! `pull`: brings a directory to a version of a chain. Also functions that `follow` shares.

use std::path::Path;

use deltachain::{Error, Result};
use deltachain_store::{
    Directory, Follower, FollowerOptions, Health, HeldVersion, OtherFiles, SwitchReport,
};
use serde_json::{Value, json};

use crate::chain_args::{ChainArgs, DirectoryArgs, PullArgs};
use crate::commands::chain::signers::texts;
use crate::numbers::{grouped, time};
use crate::output::{Output, printable_path};
use crate::watcher::watched;

pub(crate) fn run(args: &PullArgs, output: Output) -> Result<()> {
    let mut subscriber = open(&args.chain, &args.directory, !args.directory.no_tensors)?;
    if let Some(prepared) = watched(output, |watcher| subscriber.prepare(args.version, watcher))? {
        let switched = subscriber.apply(prepared)?;
        let signed_by = signed_by(&args.directory)?;
        return output.summary(
            || describe(&args.directory.directory, &switched),
            || with_signers(as_json(&switched), signed_by),
        );
    }
    let held = subscriber
        .held()
        .ok_or_else(|| Error::usage("the directory holds no version"))?;
    let signed_by = signed_by(&args.directory)?;
    output.summary(
        || describe_held(&args.directory.directory, held),
        || {
            let mut json = held_as_json(held);
            json["from"] = held.version.into();
            (json["downloaded"], json["written"]) = (0.into(), 0.into());
            with_signers(json, signed_by)
        },
    )
}

pub(crate) fn describe_held(directory: &Path, held: &HeldVersion) -> String {
    format!(
        "version {} is in {} already",
        held.version,
        printable_path(directory.join("current"))
    )
}

pub(crate) fn held_as_json(held: &HeldVersion) -> Value {
    json!({
        "version": held.version,
        "state": held.state.to_string(),
        "commit": held.commit.to_string(),
        "metadata": held.metadata,
        "directory": held.directory.to_string_lossy(),
        "proof": held.proof.name(),
    })
}

/// Opens the follower of a directory, with the selected tensors, or without tensors.
pub(crate) fn open(
    chain: &ChainArgs,
    args: &DirectoryArgs,
    has_tensors: bool,
) -> Result<Follower<Directory>> {
    let other_files = match &args.with_files {
        Some(directory) => OtherFiles::Directory(directory.clone()),
        None if args.no_assets => OtherFiles::None,
        None => OtherFiles::Assets,
    };
    let options = FollowerOptions::default()
        .limits(args.limits.limits())
        .tensors(if has_tensors {
            args.tensors.clone()
        } else {
            Some(Vec::new())
        })
        .cache_bytes(args.cache)
        .trust_directory(args.trust_directory)
        .other_files(other_files)
        .allow_rollback(args.allow_rollback)
        .adopt(args.adopt)
        .trust(args.trust.trust()?)
        .forget_trust(args.trust.forgets());
    Follower::in_directory(chain.open_with(&args.copy)?, &args.directory, options)
}

/// Returns the trusted keys that signed the version in the directory; `None` without --trust.
pub(crate) fn signed_by(args: &DirectoryArgs) -> Result<Option<Vec<String>>> {
    if args.trust.trust.is_empty() {
        return Ok(None);
    }
    let trust = Health::of(&args.directory, None)?.trust;
    Ok(trust.map(|trust| texts(&trust.signed_by)))
}

pub(crate) fn with_signers(mut json: Value, signed_by: Option<Vec<String>>) -> Value {
    json["signed_by"] = signed_by.into();
    json
}

pub(crate) fn describe(directory: &Path, switched: &SwitchReport) -> String {
    let before = switched
        .from
        .map_or_else(String::new, |from| format!(", where version {from} was"));
    format!(
        "version {} is in {}{before}: {} bytes downloaded, {} from the cache\n\
         \x20 took   plan {}, download {}, build {}, switch {}\n  path   {}\n  state  {}\n  files  {}",
        switched.version,
        printable_path(directory.join("current")),
        grouped(switched.downloaded),
        grouped(switched.from_cache),
        time(switched.times.plan),
        time(switched.times.download),
        time(switched.times.build),
        time(switched.times.switch),
        path(&switched.routes),
        switched.state,
        printable_path(&switched.directory),
    )
}

/// Describes the path to a version in a few words.
fn path(routes: &[(Option<u64>, u64)]) -> String {
    let mut texts = Vec::new();
    let mut links = Vec::new();
    for (from, to) in routes {
        match from {
            None => texts.push(format!("snapshot of {to}")),
            Some(_) => links.push(*to),
        }
    }
    match links[..] {
        [_, _, .., last] => texts.push(format!("{} links to {last}", links.len())),
        _ => texts.extend(links.iter().map(|to| format!("link to {to}"))),
    }
    texts.join(", ")
}

pub(crate) fn as_json(switched: &SwitchReport) -> Value {
    let routes = switched
        .routes
        .iter()
        .map(|(from, to)| json!({ "from": from, "to": to }))
        .collect::<Vec<_>>();
    json!({
        "version": switched.version,
        "from": switched.from,
        "state": switched.state.to_string(),
        "commit": switched.commit.to_string(),
        "metadata": switched.metadata,
        "directory": switched.directory.to_string_lossy(),
        "proof": switched.proof.name(),
        "routes": routes,
        "downloaded": switched.downloaded,
        "from_cache": switched.from_cache,
        "written": switched.written,
        "plan_seconds": switched.times.plan.as_secs_f64(),
        "download_seconds": switched.times.download.as_secs_f64(),
        "build_seconds": switched.times.build.as_secs_f64(),
        "switch_seconds": switched.times.switch.as_secs_f64(),
        "lag_versions": switched.lag.map(|lag| lag.versions),
        "lag_seconds": switched.lag.and_then(|lag| lag.seconds),
    })
}
