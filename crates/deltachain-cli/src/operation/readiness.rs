//! Whether the servers of `follow --engine` are ready for requests: what `GET /ready` answers.
//!
//! The last look at a server may be older than its last start. So each answer asks the servers once more what they have.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deltachain_engines::{Fleet, ServerState};
use deltachain_store::{FollowStatus, MaxLag, unready};
use serde_json::{Value, json};

use crate::operation::http::{Answer, Page};
use crate::operation::servers::record;

/// What is known of the servers, and of the chain.
#[derive(Debug)]
pub(crate) struct Readiness {
    fleet: Arc<Fleet>,
    most: MaxLag,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// How following goes.
    status: FollowStatus,
    /// Whether this process follows, and does not end.
    is_followed: bool,
}

/// A server, and why it is not ready; `None` if it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) server: ServerState,
    pub(crate) unready: Option<String>,
}

impl Verdict {
    pub(crate) fn is_ready(&self) -> bool {
        self.unready.is_none()
    }
}

impl Readiness {
    pub(crate) fn new(fleet: Arc<Fleet>, most: MaxLag, status: FollowStatus) -> Self {
        Self { fleet, most, known: Mutex::new(Known { status, is_followed: true }) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How following goes now.
    pub(crate) fn polled(&self, status: &FollowStatus) {
        self.known().status.clone_from(status);
    }

    /// From now on no server is ready: they are left soon.
    pub(crate) fn ends(&self) {
        self.known().is_followed = false;
    }

    /// How the servers are, by the last look at each.
    pub(crate) fn last(&self) -> Vec<Verdict> {
        self.judge(self.fleet.servers())
    }

    fn judge(&self, servers: Vec<ServerState>) -> Vec<Verdict> {
        let known = self.known();
        let judge = |server| {
            let unready = unready(&record(&server), &known.status, self.most, known.is_followed);
            Verdict { server, unready }
        };
        servers.into_iter().map(judge).collect()
    }

    /// What `GET /ready` shows.
    pub(crate) fn page(self: &Arc<Self>) -> Page {
        let readiness = Arc::clone(self);
        let show = move || {
            let verdicts = readiness.judge(readiness.fleet.ask());
            let status = if are_ready(&verdicts) { "200 OK" } else { "503 Service Unavailable" };
            Answer { status, kind: "application/json", body: format!("{}\n", as_json(&verdicts)) }
        };
        Page { path: "/ready", show: Box::new(show) }
    }
}

/// Whether all servers are ready.
fn are_ready(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(Verdict::is_ready)
}

pub(crate) fn as_json(verdicts: &[Verdict]) -> Value {
    let servers = verdicts.iter().map(|Verdict { server, unready }| {
        let mut json = json!({ "server": server.url, "version": server.version, "ready": unready.is_none() });
        if let Some(reason) = unready {
            json["reason"] = reason.as_str().into();
        }
        json
    });
    json!({ "ready": are_ready(verdicts), "servers": servers.collect::<Vec<_>>() })
}
