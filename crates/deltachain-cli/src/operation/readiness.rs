//! The readiness of the servers of `follow --engine` for requests, which `GET /ready` answers.
//!
//! The last poll of a server may be older than its last restart, so each answer polls the servers
//! again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deltachain_engines::Fleet;
use deltachain_store::{FollowStatus, MaxLag, ServerRecord, unready};
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::operation::http::{Answer, Page};

/// The servers, and the facts that decide whether they are ready.
#[derive(Debug)]
pub(crate) struct Readiness {
    fleet: Arc<Fleet>,
    most: MaxLag,
    /// The status of the follower.
    status: Mutex<FollowStatus>,
    /// True until the process is about to end.
    is_followed: AtomicBool,
}

/// A server, and the reason why it is not ready; `None` if it is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerReadiness {
    pub(crate) server: ServerRecord,
    pub(crate) unready: Option<String>,
}

impl ServerReadiness {
    pub(crate) fn is_ready(&self) -> bool {
        self.unready.is_none()
    }
}

impl Readiness {
    pub(crate) fn new(fleet: Arc<Fleet>, most: MaxLag, status: FollowStatus) -> Self {
        Self {
            fleet,
            most,
            status: Mutex::new(status),
            is_followed: AtomicBool::new(true),
        }
    }

    fn status(&self) -> MutexGuard<'_, FollowStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the status of the follower after a poll.
    pub(crate) fn polled(&self, status: &FollowStatus) {
        self.status().clone_from(status);
    }

    /// Makes all servers unready from now on, because this process is about to end.
    pub(crate) fn ends(&self) {
        self.is_followed.store(false, Ordering::Relaxed);
    }

    /// Returns the readiness of the servers at the last poll of each.
    pub(crate) fn last(&self) -> Vec<ServerReadiness> {
        self.judge(self.fleet.servers())
    }

    fn judge(&self, servers: Vec<ServerRecord>) -> Vec<ServerReadiness> {
        let (status, is_followed) = (self.status(), self.is_followed.load(Ordering::Relaxed));
        let judge = |server| ServerReadiness {
            unready: unready(&server, &status, self.most, is_followed),
            server,
        };
        servers.into_iter().map(judge).collect()
    }

    /// Returns the page `/ready`.
    pub(crate) fn page(self: &Arc<Self>) -> Page {
        let readiness = Arc::clone(self);
        Page {
            path: "/ready",
            show: Box::new(move || readiness.answer()),
        }
    }

    /// Asks all servers, and answers with the readiness of each.
    fn answer(&self) -> Answer {
        let servers = self.judge(self.fleet.ask());
        let status = if are_ready(&servers) {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        Answer {
            status,
            kind: "application/json",
            body: format!("{}\n", as_json(&servers)),
        }
    }
}

/// True if all servers are ready.
fn are_ready(servers: &[ServerReadiness]) -> bool {
    servers.iter().all(ServerReadiness::is_ready)
}

pub(crate) fn as_json(servers: &[ServerReadiness]) -> Value {
    let each = servers.iter().map(|ServerReadiness { server, unready }| {
        let mut json =
            json!({ "server": server.url, "version": server.version, "ready": unready.is_none() });
        if let Some(reason) = unready {
            json["reason"] = reason.as_str().into();
        }
        json
    });
    json!({ "ready": are_ready(servers), "servers": each.collect::<Vec<_>>() })
}
