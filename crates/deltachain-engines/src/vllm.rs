//! vLLM with the backend `deltachain` of the Python package: docs/engines.md, "What is asked of a server of vLLM".
//! Its workers read DIR, which this process keeps.

use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use serde_json::{Value, json};

use crate::engine::{Client, Engine, Found, Held, Seen, Target, Trouble, name_of, text};
use crate::server::{Ask, Server};

/// What a server says while its model is being changed, and if nobody knows what its model is.
const CHANGING: &str = "changing";
const UNKNOWN: &str = "unknown";

const WORKERS: &str = "/collective_rpc";

/// How long a process that is not seen any more keeps others from its servers.
const LEASE: Duration = Duration::from_secs(90);

/// Servers of vLLM in developer mode.
#[derive(Debug)]
pub(crate) struct Vllm {
    /// What the backend is told.
    init: Value,
    /// What this process calls itself.
    follower: String,
    /// For how long it brings a server after each question.
    lease: Duration,
}

/// Why this process may not bring a server to a version.
#[derive(Debug)]
pub(crate) struct Denied {
    pub(crate) error: Error,
    /// Another process does, and may for this time.
    pub(crate) left: Option<Duration>,
}

impl From<Error> for Denied {
    fn from(error: Error) -> Self {
        Self { error, left: None }
    }
}

impl Engine {
    /// vLLM with the backend `deltachain` of the Python package, which is told this JSON object: the directory that this
    /// process keeps, and the mode. `follower` is what this process calls itself, such as
    /// `HOST:DIR`. Servers are looked at every `poll`.
    ///
    /// # Errors
    /// USAGE if the backend cannot be told this.
    pub fn vllm(backend: &str, follower: String, poll: Duration) -> Result<Self> {
        Ok(Self(Box::new(Vllm::new(backend, follower, poll)?)))
    }
}

impl Vllm {
    /// # Errors
    /// USAGE if the backend is not described by a JSON object.
    pub(crate) fn new(backend: &str, follower: String, poll: Duration) -> Result<Self> {
        let init: Value = serde_json::from_str(backend).unwrap_or_default();
        if !init.is_object() {
            return Err(Error::usage("settings for the backend are a JSON object"));
        }
        // Between two looks there is a pause, and it takes a moment.
        Ok(Self { init, follower, lease: LEASE.max(poll.saturating_mul(2)) })
    }

    /// What all workers hold. They are told that this process brings the server, for this time.
    fn ask(&self, server: &Server, lease: Duration, ask: Ask) -> Result<Held, Denied> {
        let told = json!({ "follower": self.follower, "lease": lease.as_secs().to_string() });
        let answer = server.post(WORKERS, &json!({ "method": "deltachain_state", "kwargs": told }), ask)?;
        let workers = answer["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        if let Some(owner) = workers.first().and_then(|first| first["owner"].as_str()) {
            let left = workers[0]["owner_seconds"].as_f64().unwrap_or_default();
            let text = format!("another process, {owner}, updates it for {} s more", left.ceil());
            let left = Duration::try_from_secs_f64(left).unwrap_or_default();
            return Err(Denied { error: server.failed(WORKERS, text), left: Some(left) });
        }
        let held: Option<Vec<Held>> = workers.iter().map(held_by).collect();
        match held.as_deref() {
            Some([first, others @ ..]) if others.iter().all(|other| other == first) => Ok(first.clone()),
            Some([_, ..]) => Ok(Held::Torn),
            _ => Err(server.failed(WORKERS, "its workers do not report their version").into()),
        }
    }

    /// This process wants to bring the server to a version.
    pub(crate) fn claim(&self, server: &Server) -> Result<(), Denied> {
        self.ask(server, self.lease, Ask::Change).map(drop)
    }

    /// Tells the backend where versions are.
    pub(crate) fn init(&self, server: &Server) -> Result<()> {
        server.post("/init_weight_transfer_engine", &json!({ "init_info": self.init }), Ask::Change).map(drop)
    }

    /// Brings a server that this process has claimed to this version, and leaves it paused. Gives when it was told to
    /// pause.
    ///
    /// # Errors
    /// IO. It goes on with what it holds, if that is whole.
    pub(crate) fn update(&self, server: &Server, version: u64, state: &str) -> Result<Instant, Trouble> {
        let said = what_it_says(server, Ask::Change)?;
        let began = self.try_update(server, version, state);
        began.map_err(|error| Trouble { error, left: Some(self.go_on(server, &said)) })
    }

    fn try_update(&self, server: &Server, version: u64, state: &str) -> Result<Instant> {
        self.init(server)?;
        let began = Instant::now();
        server.post("/pause?mode=keep", &json!({}), Ask::Change)?;
        end_update(server, Ask::Change)?;
        says(server, CHANGING)?;
        server.post("/start_weight_update", &json!({}), Ask::Once)?;
        let update = json!({ "version": version, "digest": state, "follower": self.follower });
        server.post("/update_weights", &json!({ "update_info": update }), Ask::Once)?;
        let name = name_of(version, state);
        server.post("/finish_weight_update", &json!({ "weight_version": name }), Ask::Once)?;
        Ok(began)
    }

    /// After a failure: lets the server go on with what it holds, if that is whole. `said` is what it said before.
    fn go_on(&self, server: &Server, said: &str) -> Seen {
        // If this fails too, the workers are asked all the same.
        drop(end_update(server, Ask::Question));
        let held = self.ask(server, self.lease, Ask::Question).unwrap_or(Held::Torn);
        let name = match &held {
            Held::Torn => return Seen::TORN,
            Held::Version(version, state) => name_of(*version, state),
            Held::Other if said == CHANGING || said.contains('@') => UNKNOWN.to_owned(),
            Held::Other => said.to_owned(),
        };
        let resumed = says(server, &name).and_then(|()| resume(server));
        Seen { held, is_paused: resumed.is_err() }
    }

    /// Another process may bring the server.
    pub(crate) fn give_up(&self, server: &Server) {
        // One that does not answer gives it up by itself.
        drop(self.ask(server, Duration::ZERO, Ask::Question));
    }
}

impl Client for Vllm {
    fn look(&self, server: &Server, target: &Target, _: bool) -> Result<Found> {
        let held = self.ask(server, self.lease, Ask::Question).map_err(|denied| denied.error)?;
        let said = what_it_says(server, Ask::Question)?;
        let paused = server.get("/is_paused", Ask::Question)?["is_paused"].as_bool();
        let is_paused = paused.ok_or_else(|| server.failed("/is_paused", "it does not say that"))?;
        let seen = Seen { held, is_paused };
        Ok(Found { is_wanted: seen == target.seen() && said == target.name(), seen: Some(seen) })
    }

    fn bring(&self, server: &Server, target: &Target) -> Result<Option<Duration>, Trouble> {
        let began = self.update(server, target.version, &target.state)?;
        let left = Seen { is_paused: true, ..target.seen() };
        resume(server).map_err(|error| Trouble { error, left: Some(left) })?;
        Ok(Some(began.elapsed()))
    }

    fn leave(&self, server: &Server) {
        self.give_up(server);
    }
}

/// What a worker says that it holds.
fn held_by(worker: &Value) -> Option<Held> {
    match text(worker, "state") {
        "held" => Some(Held::Version(worker["version"].as_u64()?, worker["digest"].as_str()?.to_owned())),
        "other" => Some(Held::Other),
        "torn" => Some(Held::Torn),
        _ => None,
    }
}

fn what_it_says(server: &Server, ask: Ask) -> Result<String> {
    Ok(text(&server.get("/weight_info", ask)?, "weight_version").to_owned())
}

/// Makes the server say what it holds.
fn says(server: &Server, name: &str) -> Result<()> {
    server.post("/update_weight_version", &json!({ "new_version": name }), Ask::Change).map(drop)
}

/// Ends an update that somebody has left open.
fn end_update(server: &Server, ask: Ask) -> Result<()> {
    server.post(WORKERS, &json!({ "method": "deltachain_end_update" }), ask).map(drop)
}

/// Lets the server go on.
///
/// # Errors
/// IO. It stays paused.
pub(crate) fn resume(server: &Server) -> Result<()> {
    server.post("/resume", &json!({}), Ask::Change).map(drop)
}
