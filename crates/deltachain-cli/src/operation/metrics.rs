//! The metrics of `follow --listen` for Prometheus, and functions that the metrics of `mirror`
//! share.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deltachain::{Error, ErrorClass, RULES};
use deltachain_store::{FollowStatus, HeldVersion, StoreRecord, SwitchReport, Time};
use hyper::StatusCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::operation::http::{Answer, Page};
use crate::operation::readiness::ServerReadiness;

pub(crate) type Number = Gauge<i64>;
pub(crate) type Seconds = Gauge<f64, AtomicU64>;
type SecondsSum = Counter<f64, AtomicU64>;
/// A label: its name and value.
pub(crate) type Label = [(&'static str, String); 1];
/// Labels: a server, and the result of an attempt.
type ServerResult = [(&'static str, String); 2];

/// Labels of the version in the directory.
type Held = [(&'static str, String); 5];
/// Labels of the version of a server.
type ServerHeld = [(&'static str, String); 3];

/// Declares the metrics, each with its name, type and help.
macro_rules! numbers {
    ($($name:ident: $kind:ty = $help:literal;)*) => {
        #[derive(Debug, Default, Clone)]
        struct Numbers {
            $($name: $kind,)*
        }

        impl Numbers {
            /// Registers the metrics under their names. The encoder appends `_total` to the names
            /// of counters.
            fn registry(&self) -> Registry {
                let mut registry = Registry::with_prefix("deltachain");
                $(registry.register(stringify!($name), $help, self.$name.clone());)*
                registry
            }
        }
    };
}

numbers! {
    version: Number = "Version in the directory, -1 if none";
    held_info: Family<Held, Number> = "1 for the version in the directory, by digests";
    server_held_info: Family<ServerHeld, Number> =
        "1 for the version that a server reports, by its state digest";
    head_version: Number = "Newest version seen in the chain, -1 if none";
    lag_versions: Number = "Versions behind the newest one seen";
    newest_timestamp_seconds: Seconds = "When the directory was last seen to be at the newest \
                                         version, 0 if never";
    last_look_timestamp_seconds: Seconds = "When the chain was last polled";
    last_success_timestamp_seconds: Seconds = "When the chain was last polled successfully, 0 if \
                                               never";
    looks: Counter = "Polls of the chain";
    failures: Family<Label, Counter> = "Failed polls, by class of error";
    switches: Counter = "Switches to another version";
    proof: Family<Label, Number> =
        "1 for the proof of the version: hashed, since the files of a directory are hashed when \
         they are built";
    unsigned: Number = "1 if the version is not known to be signed by the trusted keys";
    rollbacks: Counter = "Rollbacks: switches to a lower version";
    store_bytes: Family<Label, Counter> =
        "Bytes received from a store: the chain's own, or a copy";
    store_failures: Family<Label, Counter> = "Requests to a store that failed";
    store_missing_files: Family<Label, Counter> = "Files that a copy did not have";
    store_damaged: Family<Label, Number> = "1 if a copy had a file with wrong bytes";
    downloaded_bytes: Counter = "Bytes of links and assets that were downloaded";
    cache_bytes: Counter = "Bytes of links that were in the cache";
    written_bytes: Counter = "Bytes of tensors that were written";
    phase_seconds: Family<Label, SecondsSum> = "Time of versions that were reached, by phase";
    command_runs: Family<Label, Counter> = "Runs of the command of --exec, by result";
    command_seconds: SecondsSum = "Time in which the command ran";
    command_failing: Number = "1 if the command has failed and not yet succeeded for this version";
    server_version: Family<Label, Number> = "Version that a server was last updated to";
    server_failing: Family<Label, Number> = "1 if the last attempt to update a server failed";
    server_updates: Family<ServerResult, Counter> = "Attempts to update a server, by result";
    server_paused_seconds: Family<Label, SecondsSum> = "Time in which a server was paused";
    ready: Number = "1 if all servers are ready for requests, as GET /ready says";
    server_ready: Family<Label, Number> = "1 if a server is ready for requests";
    server_newest_timestamp_seconds: Family<Label, Seconds> =
        "When the version of a server was last seen to be the newest, 0 if never or unknown";
}

/// The metrics of a follower.
#[derive(Debug, Default, Clone)]
pub(crate) struct Metrics(Numbers, Arc<Mutex<Shown>>);

/// Labels of the series that are shown for held versions.
#[derive(Debug, Default)]
struct Shown {
    held: Option<Held>,
    servers: BTreeSet<ServerHeld>,
}

impl Metrics {
    /// Returns the page `/metrics`.
    pub(crate) fn page(&self) -> Page {
        count_classes(&self.0.failures);
        page_of(self.0.registry())
    }

    /// Sets the version that the directory holds. There is one series at a time.
    pub(crate) fn holds(&self, held: &HeldVersion, is_signed: Option<bool>) {
        let signed = match is_signed {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not checked",
        };
        let labels = [
            ("version", held.version.to_string()),
            ("commit", held.commit.to_string()),
            ("state", held.state.to_string()),
            ("proof", held.proof.name().to_owned()),
            ("signed", signed.to_owned()),
        ];
        let mut shown = self.shown();
        if shown.held.as_ref() == Some(&labels) {
            return;
        }
        if let Some(before) = shown.held.take() {
            self.0.held_info.remove(&before);
        }
        self.0.held_info.get_or_create(&labels).set(1);
        shown.held = Some(labels);
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the versions that servers report, one series for each server.
    fn servers_hold(&self, servers: &[ServerReadiness]) {
        let held = servers.iter().filter_map(|readiness| {
            let server = &readiness.server;
            Some([
                ("server", server.url.clone()),
                ("version", server.version?.to_string()),
                ("state", server.state.clone()?),
            ])
        });
        let held: BTreeSet<ServerHeld> = held.collect();
        let mut shown = self.shown();
        for gone in shown.servers.difference(&held) {
            self.0.server_held_info.remove(gone);
        }
        for labels in &held {
            self.0.server_held_info.get_or_create(labels).set(1);
        }
        shown.servers = held;
    }

    /// Sets whether each server is ready, by its last poll, and its version.
    pub(crate) fn servers_are(&self, servers: &[ServerReadiness], status: &FollowStatus) {
        self.servers_hold(servers);
        for readiness in servers {
            let server = &readiness.server;
            let label = [("server", server.url.clone())];
            self.0
                .server_ready
                .get_or_create(&label)
                .set(i64::from(readiness.is_ready()));
            let newest = server.version.and_then(|version| status.newest(version));
            self.0
                .server_newest_timestamp_seconds
                .get_or_create(&label)
                .set(newest.map_or(0.0, Time::unix_seconds));
        }
        self.0
            .ready
            .set(i64::from(servers.iter().all(ServerReadiness::is_ready)));
    }

    /// Sets the metrics after a poll of the chain.
    pub(crate) fn looked(&self, held: Option<u64>, status: &FollowStatus) {
        self.0.looks.inc();
        self.0.version.set(number(held));
        self.0.head_version.set(number(status.head));
        let lag = held
            .zip(status.head)
            .map_or(0, |(held, head)| head.saturating_sub(held));
        self.0
            .lag_versions
            .set(i64::try_from(lag).unwrap_or(i64::MAX));
        self.0.unsigned.set(i64::from(status.unsigned.is_some()));
        let times = [
            (&self.0.newest_timestamp_seconds, status.newest(u64::MAX)),
            (&self.0.last_look_timestamp_seconds, status.last_look),
            (&self.0.last_success_timestamp_seconds, status.last_success),
        ];
        for (gauge, time) in times {
            gauge.set(time.map_or(0.0, Time::unix_seconds));
        }
        for store in &status.stores {
            self.uses(store);
        }
    }

    /// Sets the metrics of a store from its record.
    fn uses(&self, store: &StoreRecord) {
        let label = [("store", store.url.clone())];
        let counters = [
            (&self.0.store_bytes, store.bytes),
            (&self.0.store_failures, store.failures),
            (&self.0.store_missing_files, store.missing),
        ];
        for (family, now) in counters {
            let counter = family.get_or_create(&label);
            counter.inc_by(now.saturating_sub(counter.get()));
        }
        self.0
            .store_damaged
            .get_or_create(&label)
            .set(i64::from(store.damage.is_some()));
    }

    /// Counts a failed poll.
    pub(crate) fn failed(&self, error: &Error) {
        self.0
            .failures
            .get_or_create(&[("class", error.class().name().to_owned())])
            .inc();
    }

    pub(crate) fn switched(&self, switched: &SwitchReport) {
        self.0.switches.inc();
        self.0.proof.clear();
        self.0
            .proof
            .get_or_create(&[("proof", switched.proof.name().to_owned())])
            .set(1);
        if switched.from > Some(switched.version) {
            self.0.rollbacks.inc();
        }
        self.0.downloaded_bytes.inc_by(switched.downloaded);
        self.0.cache_bytes.inc_by(switched.from_cache);
        self.0.written_bytes.inc_by(switched.written);
        let times = &switched.times;
        let phases = [
            ("plan", times.plan),
            ("download", times.download),
            ("build", times.build),
            ("switch", times.switch),
        ];
        for (name, time) in phases {
            self.0
                .phase_seconds
                .get_or_create(&[("phase", name.to_owned())])
                .inc_by(time.as_secs_f64());
        }
    }

    /// Counts a run of the command.
    pub(crate) fn ran(&self, result: &str, time: Duration) {
        self.0
            .command_runs
            .get_or_create(&[("result", result.to_owned())])
            .inc();
        self.0.command_seconds.inc_by(time.as_secs_f64());
        self.0.command_failing.set(i64::from(result != "succeeded"));
    }

    /// Counts a successful update of a server to a version, and the time in which the server was
    /// paused.
    pub(crate) fn server_has(&self, server: &str, version: u64, paused: Option<Duration>) {
        let label = [("server", server.to_owned())];
        self.0
            .server_version
            .get_or_create(&label)
            .set(number(Some(version)));
        self.0
            .server_paused_seconds
            .get_or_create(&label)
            .inc_by(paused.unwrap_or_default().as_secs_f64());
        self.server_tried(server, "updated", 0);
    }

    /// Counts a failed update of a server.
    pub(crate) fn server_failed(&self, server: &str) {
        self.server_tried(server, "failed", 1);
    }

    fn server_tried(&self, server: &str, result: &str, failing: i64) {
        let label = ("server", server.to_owned());
        self.0
            .server_failing
            .get_or_create(std::array::from_ref(&label))
            .set(failing);
        self.0
            .server_updates
            .get_or_create(&[label, ("result", result.to_owned())])
            .inc();
    }

    /// Clears the failure of the command, which has not run for the new version yet.
    pub(crate) fn command_is_new(&self) {
        self.0.command_failing.set(0);
    }
}

/// Creates the failure counter of each class with the value 0. If a counter appeared only at the
/// first failure, Prometheus would see no increase.
pub(crate) fn count_classes(failures: &Family<Label, Counter>) {
    for class in [ErrorClass::Io, ErrorClass::Usage]
        .into_iter()
        .chain(RULES.iter().map(|rule| rule.class))
    {
        drop(failures.get_or_create(&[("class", class.name().to_owned())]));
    }
}

/// Makes the page `/metrics` of a registry.
pub(crate) fn page_of(registry: Registry) -> Page {
    Page {
        path: "/metrics",
        show: Box::new(move || as_answer(&registry)),
    }
}

fn as_answer(registry: &Registry) -> Answer {
    let mut body = String::new();
    // Writing to a string cannot fail.
    let status = if encode(&mut body, registry).is_ok() {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    Answer {
        status,
        kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
        body,
    }
}

pub(crate) fn number(version: Option<u64>) -> i64 {
    version.map_or(-1, |version| i64::try_from(version).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use deltachain_store::ServerRecord;

    use super::*;

    #[test]
    fn numbers_are_shown() {
        let metrics = Metrics::default();
        let mut status = FollowStatus::default();
        status.found(5, "s", 5);
        status.found(6, "t", 7);
        status.unsigned = Some("x".to_owned());
        let mut store = StoreRecord {
            url: "s3://a\"b\n".to_owned(),
            bytes: 7,
            ..StoreRecord::default()
        };
        status.stores = vec![store.clone()];
        metrics.looked(Some(6), &status);
        (store.bytes, store.failures) = (9, 1);
        status.stores = vec![store];
        metrics.looked(Some(6), &status);
        metrics.failed(&Error::usage("x"));
        metrics.ran("failed", Duration::from_millis(1500));
        let server = |url: &str, version| ServerRecord {
            url: url.to_owned(),
            version,
            ..ServerRecord::default()
        };
        let servers = [
            ServerReadiness {
                server: server("a", Some(5)),
                unready: None,
            },
            ServerReadiness {
                server: server("b", None),
                unready: Some("x".to_owned()),
            },
        ];
        metrics.servers_are(&servers, &status);
        let Answer { status, body, .. } = (metrics.page().show)();
        assert_eq!(status, StatusCode::OK);
        for line in [
            "deltachain_version 6",
            "deltachain_head_version 7",
            "deltachain_lag_versions 1",
            "deltachain_unsigned 1",
            "deltachain_failures_total{class=\"USAGE\"} 1",
            "deltachain_failures_total{class=\"IO\"} 0",
            "deltachain_failures_total{class=\"CORRUPT\"} 0",
            "deltachain_store_bytes_total{store=\"s3://a\\\"b\\n\"} 9",
            "deltachain_store_failures_total{store=\"s3://a\\\"b\\n\"} 1",
            "deltachain_store_damaged{store=\"s3://a\\\"b\\n\"} 0",
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
