//! The pages of `mirror --listen`: metrics for Prometheus, and health.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use deltachain::Error;
use deltachain_store::{MirrorReport, Time};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::operation::http::{Answer, Page};
use crate::operation::metrics::{Label, Number, Seconds, count_classes, number, page_of};

/// The metrics and the known faults of `mirror --poll`.
#[derive(Debug, Default, Clone)]
pub(crate) struct MirrorStatus {
    head_version: Number,
    version: Number,
    lag_versions: Number,
    rounds: Counter,
    failures: Family<Label, Counter>,
    last_success_timestamp_seconds: Seconds,
    copied_bytes: Counter,
    problems: Number,
    faults: Arc<Mutex<Faults>>,
}

/// The current faults, for `/healthz`.
#[derive(Debug, Default)]
struct Faults {
    has_succeeded: bool,
    /// The error of the last round, if it failed.
    error: Option<String>,
    /// Faults that have been found since the last round that compared everything.
    problems: BTreeSet<String>,
}

impl MirrorStatus {
    /// Returns the pages `/metrics` and `/healthz`.
    pub(crate) fn pages(&self) -> Vec<Page> {
        self.version.set(-1);
        self.head_version.set(-1);
        count_classes(&self.failures);
        let faults = Arc::clone(&self.faults);
        let health = Page {
            path: "/healthz",
            show: Box::new(move || {
                faults
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .answer()
            }),
        };
        vec![page_of(self.registry()), health]
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("deltachain_mirror");
        let help = "Newest version of the source, -1 if none";
        registry.register("head_version", help, self.head_version.clone());
        let help = "Newest version of the copy, -1 if none";
        registry.register("version", help, self.version.clone());
        let help = "Versions that are missing in the copy";
        registry.register("lag_versions", help, self.lag_versions.clone());
        let help = "Rounds of copying";
        registry.register("rounds", help, self.rounds.clone());
        let help = "Failed rounds, by class of error";
        registry.register("failures", help, self.failures.clone());
        let help = "When a round last succeeded, 0 if never";
        let last_success = self.last_success_timestamp_seconds.clone();
        registry.register("last_success_timestamp_seconds", help, last_success);
        let help = "Bytes of files that were copied";
        registry.register("copied_bytes", help, self.copied_bytes.clone());
        let help = "Known faults of the source or the copy";
        registry.register("problems", help, self.problems.clone());
        registry
    }

    /// Records the report of a round that succeeded. Returns the problems that were not known
    /// before.
    pub(crate) fn copied(&self, report: &MirrorReport) -> Vec<String> {
        self.rounds.inc();
        self.version.set(number(report.version));
        self.head_version.set(number(report.head));
        let next = |version: Option<u64>| version.map_or(0, |version| version.saturating_add(1));
        let lag = next(report.head).saturating_sub(next(report.version));
        self.lag_versions
            .set(i64::try_from(lag).unwrap_or(i64::MAX));
        self.copied_bytes.inc_by(report.bytes);
        self.last_success_timestamp_seconds
            .set(Time::now().unix_seconds());
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.has_succeeded = true;
        faults.error = None;
        let found: BTreeSet<String> = report.problems.iter().map(Error::to_string).collect();
        let new = found.difference(&faults.problems).cloned().collect();
        if report.whole {
            faults.problems = found;
        } else {
            faults.problems.extend(found);
        }
        let count = faults.problems.len();
        self.problems.set(i64::try_from(count).unwrap_or(i64::MAX));
        new
    }

    /// Records the failure of a round. Returns true if the previous round did not fail with the
    /// same error.
    pub(crate) fn failed(&self, error: &Error) -> bool {
        self.rounds.inc();
        self.failures
            .get_or_create(&[("class", error.class().name().to_owned())])
            .inc();
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let text = Some(format!("{error:#}"));
        let is_new = faults.error != text;
        faults.error = text;
        is_new
    }

    /// True if the last round failed.
    pub(crate) fn is_failing(&self) -> bool {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.error.is_some()
    }
}

impl Faults {
    fn answer(&self) -> Answer {
        let mut reasons: Vec<&str> = self.error.iter().map(String::as_str).collect();
        reasons.extend(self.problems.iter().map(String::as_str));
        if !self.has_succeeded {
            reasons.push("no round has succeeded yet");
        }
        Answer::of_health(&reasons)
    }
}
