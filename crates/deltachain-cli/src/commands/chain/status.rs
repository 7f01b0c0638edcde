//! `status`: how a follower's directory is. The program fails if it is not healthy.

use std::time::Duration;

use deltachain::chain::VerifierKey;
use deltachain_engines::{ServerState, name_of};
use deltachain_store::{DirectoryStatus, TrustStatus};
use serde_json::{Value, json};

use crate::commands::chain::log::notes;
use crate::commands::chain::report::Report;
use crate::commands::chain::signers::texts;
use crate::failure::more;
use crate::operation::health::{CommandHealth, Health};
use crate::operation::records::{At, Failure, ServerRecord};
use crate::operation::time::Time;
use crate::output::{printable, printable_path};

impl Report for Health {
    fn text(&self) -> String {
        as_text(self)
    }

    fn json(&self) -> Value {
        as_json(self)
    }

    fn is_good(&self) -> bool {
        self.is_healthy()
    }
}

/// When the commit of the version held was stored.
fn stored(health: &Health) -> Option<Time> {
    let held = health.held.as_ref()?;
    health.status.stored.filter(|stored| stored.version == held.version).map(|At { time, .. }| time)
}

fn as_text(health: &Health) -> String {
    let mut lines = Vec::new();
    if let Some(DirectoryStatus { version, commit, chain, state, metadata, directory, switched, proof, .. }) =
        &health.held
    {
        let since = switched.map(|time| format!(", since {}", Time::from(time))).unwrap_or_default();
        lines.push(format!("version   {version}{since}"));
        lines.push(format!("state     {state}"));
        lines.push(format!("commit    {commit}"));
        lines.push(format!("chain     {chain}"));
        if !metadata.is_empty() {
            lines.push(format!("notes     {}", notes(metadata)));
        }
        lines.push(format!("files     {}", printable_path(directory)));
        lines.push(format!("proof     {proof}, when they were built"));
    }
    if let Some(TrustStatus { trust, signed_by, .. }) = health.held.as_ref().and_then(|held| held.trust.as_ref()) {
        let names = signed_by.iter().map(VerifierKey::name).collect::<Vec<_>>().join(", ");
        let by = if names.is_empty() { "not known: it is older than the trust".to_owned() } else { printable(&names) };
        lines.push(format!("signed    {by}; wanted are {} of {} keys", trust.quorum(), trust.keys().len()));
    }
    if let Some(stored) = stored(health) {
        lines.push(format!("age       {}, published {stored}", short(stored.age())));
    }
    if let Some(lag) = health.lag {
        let seen = health.behind.map(|behind| format!("; was the newest {} ago", short(behind)));
        lines.push(format!("lag       {lag} versions{}", seen.unwrap_or_default()));
    }
    let status = &health.status;
    if let Some(time) = status.last_success {
        lines.push(format!("looked    {time}, {} ago", short(time.age())));
    }
    if let Some(Failure { time, rule, message, .. }) = &status.last_error {
        let since = if status.failing { "" } else { ", none since" };
        lines.push(format!("failed    {time}{since}: {}", printable(message)));
        lines.extend(more(rule.as_deref()).map(|command| format!("          for more: {}", printable(&command))));
    }
    lines.extend(health.command.iter().map(command_as_text));
    lines.extend(health.servers.iter().map(server_as_text));
    lines.push(if health.is_followed {
        format!("follower  process {}", status.pid)
    } else {
        "follower  none".to_owned()
    });
    if health.is_healthy() {
        lines.push("healthy".to_owned());
    }
    lines.extend(health.problems.iter().map(|problem| format!("unhealthy: {}", printable(problem))));
    lines.join("\n")
}

fn command_as_text(command: &CommandHealth) -> String {
    match (command.succeeded, command.status.running) {
        (Some(time), _) => format!("command   succeeded {time}"),
        (None, true) => "command   running".to_owned(),
        (None, false) => "command   has not succeeded".to_owned(),
    }
}

fn server_as_text(server: &ServerRecord) -> String {
    let ServerRecord { server: ServerState { url, version, state, changing, paused, .. }, since } = server;
    let name = version.map(|version| name_of(version, state.as_deref().unwrap_or_default()));
    let has = name.map_or_else(|| "no version known".to_owned(), |name| format!("version {name}"));
    let since = since.filter(|_| version.is_some()).map(|time| format!(", since {time}")).unwrap_or_default();
    let more = match (changing, paused) {
        (true, true) => "; paused, and may hold parts of two versions",
        (false, true) => "; paused",
        (true, false) => "; is being changed",
        (false, false) => "",
    };
    format!("server    {}: {has}{since}{more}", printable(url))
}

fn trust_as_json(status: &TrustStatus) -> Value {
    let seen = status.seen.map(|(version, commit)| json!({ "version": version, "commit": commit.to_string() }));
    json!({
        "keys": texts(status.trust.keys()),
        "quorum": status.trust.quorum(),
        "seen": seen,
        "signed_by": texts(&status.signed_by),
    })
}

/// A time that has passed, as `2h 3m`.
fn short(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs())).to_string()
}

fn as_json(health: &Health) -> Value {
    let Health { held, status, command, servers, is_followed, lag, behind, ready, problems } = health;
    let held = held.as_ref();
    json!({
        "healthy": health.is_healthy(),
        "problems": problems,
        "version": held.map(|held| held.version),
        "state": held.map(|held| held.state.to_string()),
        "commit": held.map(|held| held.commit.to_string()),
        "chain": held.map(|held| held.chain.to_string()),
        "metadata": held.map(|held| &held.metadata),
        "directory": held.map(|held| held.directory.to_string_lossy()),
        "proof": held.map(|held| held.proof.name()),
        "trust": held.and_then(|held| held.trust.as_ref()).map(trust_as_json),
        "switched": held.and_then(|held| held.switched).map(Time::from),
        "stored": stored(health),
        "age_seconds": stored(health).map(|stored| stored.age().as_secs_f64()),
        "head": status.head,
        "lag_versions": lag,
        "lag_seconds": behind.map(|behind| behind.as_secs_f64()),
        "last_look": status.last_look,
        "last_success": status.last_success,
        "failing": status.failing,
        "last_error": status.last_error,
        "following": is_followed,
        "process": is_followed.then_some(status.pid),
        "command": command.as_ref().map(|command| json!({
            "succeeded": command.succeeded,
            "running": command.status.running && *is_followed,
            "failures": command.status.failures,
            "last_failure": command.status.last_failure,
        })),
        "servers": servers,
        "ready": ready,
    })
}
