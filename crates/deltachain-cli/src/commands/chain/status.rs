//! `status`: shows the status of a follower's directory. The program fails if it is not healthy.

use std::fmt::Write as _;
use std::time::Duration;

use deltachain::Result;
use deltachain::chain::{VerifierKey, version_name};
use deltachain_store::{CommandHealth, Failure, Health, ServerRecord, StoreRecord};
use serde_json::json;

use crate::chain_args::StatusArgs;
use crate::commands::chain::log::notes;
use crate::failure::{self, more};
use crate::numbers::grouped;
use crate::output::{Output, printable, printable_path};

pub(crate) fn run(args: &StatusArgs, output: Output) -> Result<u8> {
    let health = Health::of(&args.directory, args.max_lag)?;
    output.result(|| as_text(&health), || json!(health))?;
    Ok(failure::code(health.healthy))
}

fn as_text(health: &Health) -> String {
    let mut lines = Vec::new();
    add_version(health, &mut lines);
    add_signatures(health, &mut lines);
    add_lag(health, &mut lines);
    add_last_poll(health, &mut lines);
    add_operation(health, &mut lines);
    add_verdict(health, &mut lines);
    lines.join("\n")
}

/// Adds the version that the directory holds, with its digests, notes and files.
fn add_version(health: &Health, lines: &mut Vec<String>) {
    if let Some(version) = health.version {
        let since = health
            .switched
            .map(|time| format!(", since {time}"))
            .unwrap_or_default();
        lines.push(format!("version   {version}{since}"));
        lines.extend(
            health
                .state
                .iter()
                .map(|state| format!("state     {state}")),
        );
        lines.extend(
            health
                .commit
                .iter()
                .map(|commit| format!("commit    {commit}")),
        );
        lines.extend(
            health
                .chain
                .iter()
                .map(|chain| format!("chain     {chain}")),
        );
        let notes = health
            .metadata
            .iter()
            .map(notes)
            .filter(|notes| !notes.is_empty());
        lines.extend(notes.map(|notes| format!("notes     {notes}")));
        lines.extend(
            health
                .directory
                .iter()
                .map(|directory| format!("files     {}", printable_path(directory))),
        );
        lines.extend(
            health
                .proof
                .map(|proof| format!("proof     {proof}, at the switch")),
        );
    }
}

/// Adds the keys that have signed the version, if the follower has a trust list.
fn add_signatures(health: &Health, lines: &mut Vec<String>) {
    if let Some(status) = &health.trust {
        let names = status
            .signed_by
            .iter()
            .map(VerifierKey::name)
            .collect::<Vec<_>>()
            .join(", ");
        let by = if names.is_empty() {
            "no known key".to_owned()
        } else {
            printable(&names)
        };
        let (quorum, keys) = (status.trust.quorum(), status.trust.keys().len());
        lines.push(format!(
            "signed    by {by}; trust asks for {quorum} of {keys} keys"
        ));
        lines.extend(
            status
                .unsigned
                .iter()
                .map(|text| format!("unsigned  {text}")),
        );
    }
}

/// Adds the age of the version, and how far it is behind the newest.
fn add_lag(health: &Health, lines: &mut Vec<String>) {
    if let (Some(stored), Some(age)) = (health.stored, health.age_seconds) {
        lines.push(format!("age       {}, published {stored}", short(age)));
    }
    if let Some(lag) = health.lag_versions {
        let seen = health
            .lag_seconds
            .map(|behind| format!("; was the newest {} ago", short(behind)));
        lines.push(format!(
            "lag       {lag} versions{}",
            seen.unwrap_or_default()
        ));
    }
}

/// Adds the time of the last successful poll, and the last error.
fn add_last_poll(health: &Health, lines: &mut Vec<String>) {
    if let Some(time) = health.last_success {
        lines.push(format!(
            "polled    {time}, {} ago",
            short(time.age().as_secs_f64())
        ));
    }
    if let Some(Failure {
        time,
        rule,
        message,
        ..
    }) = &health.last_error
    {
        let since = if health.failing { "" } else { ", none since" };
        lines.push(format!("failed    {time}{since}: {}", printable(message)));
        lines.extend(
            more(rule.as_deref())
                .map(|command| format!("          for more: {}", printable(&command))),
        );
    }
}

/// Adds the stores, the command, the servers, and the process of the follower.
fn add_operation(health: &Health, lines: &mut Vec<String>) {
    if health.stores.iter().any(|store| store.copy) {
        lines.extend(health.stores.iter().map(store_as_text));
    }
    lines.extend(health.command.iter().map(command_as_text));
    lines.extend(health.servers.iter().map(server_as_text));
    lines.extend(
        health
            .whole
            .iter()
            .map(|text| format!("in place  no: {text}")),
    );
    lines.push(health.process.map_or_else(
        || "follower  none".to_owned(),
        |pid| format!("follower  process {pid}"),
    ));
}

/// Adds a line if the directory is healthy, and its problems otherwise.
fn add_verdict(health: &Health, lines: &mut Vec<String>) {
    if health.healthy {
        lines.push("healthy".to_owned());
    }
    lines.extend(
        health
            .problems
            .iter()
            .map(|problem| format!("unhealthy: {}", printable(problem))),
    );
}

fn store_as_text(store: &StoreRecord) -> String {
    let kind = if store.copy {
        "copy      "
    } else {
        "store     "
    };
    let mut text = format!(
        "{kind}{}: {} bytes, {} failures",
        printable(&store.url),
        grouped(store.bytes),
        store.failures
    );
    if store.missing > 0 {
        let _ = write!(text, ", {} files missing", store.missing);
    }
    if let Some(Failure { time, message, .. }) = &store.last_failure {
        let _ = write!(text, "\n          failed {time}: {}", printable(message));
    }
    if let Some(Failure { time, message, .. }) = &store.damage {
        let _ = write!(text, "\n          damaged {time}: {}", printable(message));
    }
    text
}

fn command_as_text(command: &CommandHealth) -> String {
    match (command.succeeded, command.running) {
        (Some(time), _) => format!("command   succeeded {time}"),
        (None, true) => "command   running".to_owned(),
        (None, false) => "command   has not succeeded".to_owned(),
    }
}

fn server_as_text(server: &ServerRecord) -> String {
    let ServerRecord {
        url,
        version,
        state,
        changing,
        paused,
        since,
        ..
    } = server;
    let name = version.map(|version| version_name(version, state.as_deref().unwrap_or_default()));
    let has = name.map_or_else(
        || "version unknown".to_owned(),
        |name| format!("version {name}"),
    );
    let since = match (version, since) {
        (Some(_), Some(time)) => format!(", since {time}"),
        _ => String::new(),
    };
    let more = match (changing, paused) {
        (true, true) => "; paused, and may hold parts of two versions",
        (false, true) => "; paused",
        (true, false) => "; is being changed",
        (false, false) => "",
    };
    format!("server    {}: {has}{since}{more}", printable(url))
}

/// Formats a duration such as `2h 3m`.
fn short(seconds: f64) -> String {
    let time = Duration::try_from_secs_f64(seconds.trunc()).unwrap_or_default();
    humantime::format_duration(time).to_string()
}
