//! vLLM with the backend `deltachain` of the Python package: docs/integrations.md, "What is asked of a server of vLLM".
//! Its workers read DIR, which this process keeps.

use std::time::{Duration, Instant};

use deltachain::Result;
use serde_json::{Value, json};

use crate::engines::server::Server;
use crate::engines::{Engine, Found, Held, Seen, Target, Trouble, name_of, text};

/// What a server says while its model is being changed, and if nobody knows what its model is.
const CHANGING: &str = "changing";
const UNKNOWN: &str = "unknown";

const WORKERS: &str = "/collective_rpc";

/// A server of vLLM in developer mode.
#[derive(Debug)]
pub(super) struct Vllm {
    /// What the backend is told: the chain, DIR and the mode.
    pub(super) init: Value,
    /// What this process calls itself: `HOST:DIR`.
    pub(super) follower: String,
    /// For how long it brings the server after each look.
    pub(super) lease: Duration,
}

impl Vllm {
    /// What all workers hold. They are told that this process brings the server, for this time.
    ///
    /// # Errors
    /// IO, also if another one brings it.
    fn held(&self, server: &Server, lease: Duration) -> Result<Held> {
        let told = json!({ "follower": self.follower, "lease": lease.as_secs().to_string() });
        let answer = server.question(WORKERS, &json!({ "method": "deltachain_state", "kwargs": told }))?;
        let workers = answer["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        if let Some(owner) = workers.first().and_then(|first| first["owner"].as_str()) {
            let left = workers[0]["owner_seconds"].as_f64().unwrap_or_default().ceil();
            return Err(server.failed(WORKERS, format!("another follower, {owner}, updates it for {left} s more")));
        }
        let held: Option<Vec<Held>> = workers.iter().map(held_by).collect();
        match held.as_deref() {
            Some([first, others @ ..]) if others.iter().all(|other| other == first) => Ok(first.clone()),
            Some([_, ..]) => Ok(Held::Torn),
            _ => Err(server.failed(WORKERS, "its workers do not report their version")),
        }
    }

    /// Brings the server to this version, and leaves it paused. Gives when it was told to pause.
    fn update(&self, server: &Server, target: &Target) -> Result<Instant> {
        server.post("/init_weight_transfer_engine", &json!({ "init_info": self.init }))?;
        let began = Instant::now();
        server.post("/pause?mode=keep", &json!({}))?;
        end_update(server)?;
        says(server, CHANGING)?;
        server.post_once("/start_weight_update", &json!({}))?;
        let update = json!({ "version": target.version, "digest": target.state, "follower": self.follower });
        server.post_once("/update_weights", &json!({ "update_info": update }))?;
        server.post_once("/finish_weight_update", &json!({ "weight_version": target.name() }))?;
        Ok(began)
    }

    /// After a failure: lets the server go on with what it holds, if that is whole. `said` is what it said before.
    fn go_on(&self, server: &Server, said: &str) -> Seen {
        // If this fails too, the workers are asked all the same.
        drop(end_update(server));
        let held = self.held(server, self.lease).unwrap_or(Held::Torn);
        let name = match &held {
            Held::Torn => return Seen::TORN,
            Held::Version(version, state) => name_of(*version, state),
            Held::Other if said == CHANGING || said.contains('@') => UNKNOWN.to_owned(),
            Held::Other => said.to_owned(),
        };
        let resumed = says(server, &name).and_then(|()| resume(server));
        Seen { held, is_paused: resumed.is_err() }
    }
}

impl Engine for Vllm {
    fn look(&self, server: &Server, target: &Target, _: bool) -> Result<Found> {
        let held = self.held(server, self.lease)?;
        let said = what_it_says(server)?;
        let paused = server.get("/is_paused")?["is_paused"].as_bool();
        let is_paused = paused.ok_or_else(|| server.failed("/is_paused", "it does not say that"))?;
        let seen = Seen { held, is_paused };
        Ok(Found { is_wanted: seen == target.seen() && said == target.name(), seen: Some(seen) })
    }

    fn bring(&self, server: &Server, target: &Target) -> Result<Option<Duration>, Trouble> {
        let said = what_it_says(server)?;
        let began = self.update(server, target);
        let began = began.map_err(|error| Trouble { error, left: Some(self.go_on(server, &said)) })?;
        let left = Seen { is_paused: true, ..target.seen() };
        resume(server).map_err(|error| Trouble { error, left: Some(left) })?;
        Ok(Some(began.elapsed()))
    }

    fn leave(&self, server: &Server) {
        // One that does not answer gives it up by itself.
        drop(self.held(server, Duration::ZERO));
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

fn what_it_says(server: &Server) -> Result<String> {
    Ok(text(&server.get("/weight_info")?, "weight_version").to_owned())
}

/// Makes the server say what it holds.
fn says(server: &Server, name: &str) -> Result<()> {
    server.post("/update_weight_version", &json!({ "new_version": name })).map(drop)
}

/// Ends an update that somebody has left open.
fn end_update(server: &Server) -> Result<()> {
    server.question(WORKERS, &json!({ "method": "deltachain_end_update" })).map(drop)
}

fn resume(server: &Server) -> Result<()> {
    server.post("/resume", &json!({})).map(drop)
}
