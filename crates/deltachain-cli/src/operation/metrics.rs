//! What `follow --metrics` shows to Prometheus.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use deltachain::Error;
use deltachain_store::{FollowStatus, Switched, Time};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::operation::http::{Answer, Page};
use crate::operation::readiness::Verdict;

type Number = Gauge<i64>;
type Seconds = Gauge<f64, AtomicU64>;
type SecondsSum = Counter<f64, AtomicU64>;
/// A label: its name and value.
type Label = [(&'static str, String); 1];
/// A server and how a try ended.
type ServerResult = [(&'static str, String); 2];

/// Numbers about following.
#[derive(Debug, Default, Clone)]
pub(crate) struct Metrics {
    version: Number,
    head: Number,
    lag: Number,
    newest: Seconds,
    last_look: Seconds,
    last_success: Seconds,
    looks: Counter,
    failures: Family<Label, Counter>,
    switches: Counter,
    proof: Family<Label, Number>,
    rollbacks: Counter,
    downloaded: Counter,
    from_cache: Counter,
    written: Counter,
    phases: Family<Label, SecondsSum>,
    command_runs: Family<Label, Counter>,
    command_seconds: SecondsSum,
    command_failing: Number,
    server_version: Family<Label, Number>,
    server_failing: Family<Label, Number>,
    server_updates: Family<ServerResult, Counter>,
    server_paused_seconds: Family<Label, SecondsSum>,
    ready: Number,
    server_ready: Family<Label, Number>,
    server_newest: Family<Label, Seconds>,
}

impl Metrics {
    /// Under their names.
    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("deltachain");
        let all = &mut registry;
        all.register("version", "Version in the directory, -1 if none", self.version.clone());
        all.register("head_version", "Newest version seen in the chain, -1 if none", self.head.clone());
        all.register("lag_versions", "Versions behind the newest one seen", self.lag.clone());
        all.register(
            "newest_timestamp_seconds",
            "When the directory was last seen to be at the newest version, 0 if never",
            self.newest.clone(),
        );
        all.register("last_look_timestamp_seconds", "When the chain was last polled", self.last_look.clone());
        all.register(
            "last_success_timestamp_seconds",
            "When the chain was last polled successfully, 0 if never",
            self.last_success.clone(),
        );
        all.register("looks", "Polls of the chain", self.looks.clone());
        all.register("failures", "Failed polls, by class of error", self.failures.clone());
        all.register("switches", "Switches to another version", self.switches.clone());
        all.register(
            "proof",
            "1 for how far the version is proven: hashed, as the files of a directory are when they are built",
            self.proof.clone(),
        );
        all.register("rollbacks", "Rollbacks: switches to a lower version", self.rollbacks.clone());
        all.register("downloaded_bytes", "Bytes of links and assets that were fetched", self.downloaded.clone());
        all.register("cache_bytes", "Bytes of links that were in the cache", self.from_cache.clone());
        all.register("written_bytes", "Bytes of tensors that were written", self.written.clone());
        all.register("phase_seconds", "Time of versions that were reached, by phase", self.phases.clone());
        all.register("command_runs", "Runs of the command of --exec, by result", self.command_runs.clone());
        all.register("command_seconds", "Time in which the command ran", self.command_seconds.clone());
        all.register(
            "command_failing",
            "1 if the command has failed and not yet succeeded for this version",
            self.command_failing.clone(),
        );
        all.register("server_version", "Version that a server was last updated to", self.server_version.clone());
        all.register("server_failing", "1 if the last attempt to update a server failed", self.server_failing.clone());
        all.register("server_updates", "Attempts to update a server, by result", self.server_updates.clone());
        all.register("server_paused_seconds", "Time in which a server was paused", self.server_paused_seconds.clone());
        all.register("ready", "1 if all servers are ready for requests, as GET /ready says", self.ready.clone());
        all.register("server_ready", "1 if a server is ready for requests", self.server_ready.clone());
        all.register(
            "server_newest_timestamp_seconds",
            "When the version of a server was last seen to be the newest, 0 if never or not known",
            self.server_newest.clone(),
        );
        registry
    }

    /// What `GET /metrics` shows.
    pub(crate) fn page(&self) -> Page {
        let registry = self.registry();
        let show = move || {
            let mut text = String::new();
            match encode(&mut text, &registry) {
                Ok(()) => Answer {
                    status: "200 OK",
                    kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    body: text,
                },
                Err(error) => {
                    Answer { status: "500 Internal Server Error", kind: "text/plain", body: format!("{error}\n") }
                }
            }
        };
        Page { path: "/metrics", show: Box::new(show) }
    }

    /// Whether each server is ready, by the last look at it.
    pub(crate) fn servers_are(&self, verdicts: &[Verdict], status: &FollowStatus) {
        for verdict in verdicts {
            let server = &verdict.server;
            let label = [("server", server.url.clone())];
            self.server_ready.get_or_create(&label).set(i64::from(verdict.is_ready()));
            let newest = server.version.and_then(|version| status.newest(version));
            self.server_newest.get_or_create(&label).set(newest.map_or(0.0, Time::unix_seconds));
        }
        self.ready.set(i64::from(verdicts.iter().all(Verdict::is_ready)));
    }

    /// What a look has found out.
    pub(crate) fn looked(&self, held: Option<u64>, status: &FollowStatus) {
        self.looks.inc();
        self.version.set(number(held));
        self.head.set(number(status.head));
        let lag = held.zip(status.head).map_or(0, |(held, head)| head.saturating_sub(held));
        self.lag.set(i64::try_from(lag).unwrap_or(i64::MAX));
        let times = [
            (&self.newest, status.newest(u64::MAX)),
            (&self.last_look, status.last_look),
            (&self.last_success, status.last_success),
        ];
        for (gauge, time) in times {
            gauge.set(time.map_or(0.0, Time::unix_seconds));
        }
    }

    /// A look that failed.
    pub(crate) fn failed(&self, error: &Error) {
        self.failures.get_or_create(&[("class", error.class().name().to_owned())]).inc();
    }

    pub(crate) fn switched(&self, switched: &Switched) {
        self.switches.inc();
        self.proof.clear();
        self.proof.get_or_create(&[("proof", switched.proof.name().to_owned())]).set(1);
        if switched.from > Some(switched.version) {
            self.rollbacks.inc();
        }
        self.downloaded.inc_by(switched.downloaded);
        self.from_cache.inc_by(switched.from_cache);
        self.written.inc_by(switched.written);
        let times = &switched.times;
        let phases =
            [("plan", times.plan), ("download", times.download), ("build", times.build), ("switch", times.switch)];
        for (name, time) in phases {
            self.phases.get_or_create(&[("phase", name.to_owned())]).inc_by(time.as_secs_f64());
        }
    }

    /// A run of the command has ended.
    pub(crate) fn ran(&self, result: &str, time: Duration) {
        self.command_runs.get_or_create(&[("result", result.to_owned())]).inc();
        self.command_seconds.inc_by(time.as_secs_f64());
        self.command_failing.set(i64::from(result != "succeeded"));
    }

    /// A server has been brought to a version, and stood still for this time, if it did.
    pub(crate) fn server_has(&self, server: &str, version: u64, paused: Option<Duration>) {
        let label = [("server", server.to_owned())];
        self.server_version.get_or_create(&label).set(number(Some(version)));
        self.server_paused_seconds.get_or_create(&label).inc_by(paused.unwrap_or_default().as_secs_f64());
        self.server_tried(server, "updated", 0);
    }

    /// A server has not been brought to a version.
    pub(crate) fn server_failed(&self, server: &str) {
        self.server_tried(server, "failed", 1);
    }

    fn server_tried(&self, server: &str, result: &str, failing: i64) {
        let label = ("server", server.to_owned());
        self.server_failing.get_or_create(std::array::from_ref(&label)).set(failing);
        self.server_updates.get_or_create(&[label, ("result", result.to_owned())]).inc();
    }

    /// A version has come for which the command has not been run.
    pub(crate) fn command_is_new(&self) {
        self.command_failing.set(0);
    }
}

fn number(version: Option<u64>) -> i64 {
    version.map_or(-1, |version| i64::try_from(version).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use deltachain_engines::ServerState;

    use super::*;

    #[test]
    fn numbers_are_shown() {
        let metrics = Metrics::default();
        let mut status = FollowStatus::default();
        status.found(5, "s", 5);
        status.found(6, "t", 7);
        metrics.looked(Some(6), &status);
        metrics.failed(&Error::usage("x"));
        metrics.ran("failed", Duration::from_millis(1500));
        let server = |url: &str, version| ServerState { url: url.to_owned(), version, ..ServerState::default() };
        let servers = [
            Verdict { server: server("a", Some(5)), unready: None },
            Verdict { server: server("b", None), unready: Some("x".to_owned()) },
        ];
        metrics.servers_are(&servers, &status);
        let Answer { status, body, .. } = (metrics.page().show)();
        assert_eq!(status, "200 OK");
        for line in [
            "deltachain_version 6",
            "deltachain_head_version 7",
            "deltachain_lag_versions 1",
            "deltachain_failures_total{class=\"USAGE\"} 1",
            "deltachain_command_runs_total{result=\"failed\"} 1",
            "deltachain_command_seconds_total 1.5",
            "deltachain_command_failing 1",
            "deltachain_ready 0",
            "deltachain_server_ready{server=\"a\"} 1",
            "deltachain_server_ready{server=\"b\"} 0",
            "deltachain_server_newest_timestamp_seconds{server=\"b\"} 0.0",
            "# EOF",
        ] {
            assert!(body.lines().any(|found| found == line), "{line}: {body}");
        }
    }
}
