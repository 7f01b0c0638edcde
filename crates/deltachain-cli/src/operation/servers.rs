//! `servers.json` for the servers of one engine, and how they were.

use std::sync::{Mutex, PoisonError};

use deltachain::Result;
use deltachain_engines::ServerState;
use deltachain_store::{Records, ServerRecord, ServersRecord, Time};

/// Writes `servers.json` for one engine.
#[derive(Debug)]
pub(crate) struct ServersWriter {
    records: Records,
    engine: String,
    download: bool,
    /// What was written last.
    last: Mutex<Vec<ServerRecord>>,
}

impl ServersWriter {
    pub(crate) fn new(records: &Records, engine: &str, download: bool) -> Self {
        Self { records: records.clone(), engine: engine.to_owned(), download, last: Mutex::default() }
    }
}

impl deltachain_engines::Records for ServersWriter {
    fn write(&self, servers: &[ServerState]) -> Result<()> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let with_since = |server: &ServerState| {
            let has = |other: &&ServerRecord| {
                (&other.url, other.version, &other.state) == (&server.url, server.version, &server.state)
            };
            let before = last.iter().find(has).and_then(|before| before.since);
            ServerRecord { since: server.version.map(|_| before.unwrap_or_else(Time::now)), ..record(server) }
        };
        *last = servers.iter().map(with_since).collect();
        let record = ServersRecord { engine: self.engine.clone(), download: self.download, servers: last.clone() };
        self.records.write_servers(Some(&record))
    }
}

/// For reports and records.
pub(crate) fn record(server: &ServerState) -> ServerRecord {
    let ServerState { url, version, state, changing, paused, failures, last_failure } = server.clone();
    ServerRecord { url, version, state, changing, paused, failures, last_failure, since: None }
}

/// What was written down of the servers of this engine. What cannot be read is as nothing: then each server is brought
/// to its version once more.
pub(crate) fn before(records: &Records, engine: &str) -> Option<ServersRecord> {
    records.servers().ok().flatten().filter(|before| before.engine == engine)
}

/// A server as it was when it was written down.
pub(crate) fn state(server: ServerRecord) -> ServerState {
    let ServerRecord { url, version, state, changing, paused, failures, last_failure, .. } = server;
    ServerState { url, version, state, changing, paused, failures, last_failure }
}
