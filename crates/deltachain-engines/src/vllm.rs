//! vLLM with the backend `deltachain` of the Python package: docs/engines.md, "What is asked of a server of vLLM".
//! Its workers read DIR, which this process keeps, or download the chain of their own configuration.

use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use serde_json::{Value, json};

use crate::engine::{Client, Engine, Found, Held, Pause, Readiness, Seen, Target, Trouble, Version, text};
use crate::fit::{not_sent, refused};
use crate::server::{Ask, Server};

/// What a server says while its model is being changed, and if nobody knows what its model is.
const CHANGING: &str = "changing";
const UNKNOWN: &str = "unknown";

const WORKERS: &str = "/collective_rpc";
const UPDATE: &str = "/update_weights";

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
    /// What becomes of running requests.
    pause: Pause,
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
    /// process keeps, and the mode. `follower` is what this process calls itself, such as `HOST:DIR`. Servers are looked
    /// at every `poll`; `pause` is what becomes of running requests.
    ///
    /// # Errors
    /// USAGE if the backend cannot be told this.
    pub fn vllm(backend: &str, follower: String, poll: Duration, pause: Pause) -> Result<Self> {
        Ok(Self(Box::new(Vllm::new(backend, follower, poll, pause)?)))
    }
}

impl Vllm {
    /// # Errors
    /// USAGE if the backend is not described by a JSON object.
    pub(crate) fn new(backend: &str, follower: String, poll: Duration, pause: Pause) -> Result<Self> {
        let init: Value = serde_json::from_str(backend).unwrap_or_default();
        if !init.is_object() {
            return Err(Error::usage("settings for the backend are a JSON object"));
        }
        // Between two looks there is a pause, and it takes a moment.
        Ok(Self { init, follower, lease: LEASE.max(poll.saturating_mul(2)), pause })
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

    /// Whether all workers can load a version without waiting for it, or waiting would not help.
    ///
    /// # Errors
    /// IO, also if it does not fit their model.
    pub(crate) fn readiness(&self, server: &Server, version: u64) -> Result<Readiness> {
        if self.keeps_copy() {
            // This process has put it there.
            return Ok(Readiness::Ready);
        }
        let told = json!({ "follower": self.follower, "version": version.to_string() });
        let answer = server.post(WORKERS, &json!({ "method": "deltachain_is_ready", "kwargs": told }), Ask::Change)?;
        let workers = answer["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        let why = workers.iter().find_map(|worker| worker["why"].as_str());
        match why {
            Some(why) if is_all(workers, "ready") => Err(not_sent(server, UPDATE, why)),
            None if is_all(workers, "ready") => Ok(Readiness::Ready),
            why => Ok(Readiness::Waits(why.map(str::to_owned))),
        }
    }

    /// Whether the workers read the directory that this process keeps.
    fn keeps_copy(&self) -> bool {
        self.init["host_copy"].is_string()
    }

    /// Brings a server that this process has claimed to this version, and leaves it paused. Gives when it was told to
    /// pause. `may_be_other` is whether it may go on with a model that is no version of the chain, after a failure.
    ///
    /// # Errors
    /// IO. It goes on with what it holds, if that is whole.
    fn update(&self, server: &Server, version: &Version, may_be_other: bool) -> Result<Instant, Trouble> {
        let said = what_it_says(server, Ask::Change)?;
        let began = self.start(server).and_then(|began| {
            self.load(server, version)?;
            finish(server, &version.name())?;
            Ok(began)
        });
        began.map_err(|error| Trouble { error, left: Some(self.go_on(server, &said, may_be_other)) })
    }

    /// Pauses the server, and begins an update. Gives when it was told to pause.
    pub(crate) fn start(&self, server: &Server) -> Result<Instant> {
        self.init(server)?;
        let began = Instant::now();
        server.post(&format!("/pause?mode={}", self.pause.name()), &json!({}), Ask::Change)?;
        end_update(server, Ask::Change)?;
        says(server, CHANGING)?;
        server.post("/start_weight_update", &json!({}), Ask::Once)?;
        Ok(began)
    }

    /// Makes its workers load a version.
    pub(crate) fn load(&self, server: &Server, version: &Version) -> Result<()> {
        let update = json!({ "version": version.number, "digest": version.state, "follower": self.follower });
        server.post(UPDATE, &json!({ "update_info": update }), Ask::Once).map(drop)
    }

    /// After a failure: lets the server go on with what it holds, if that is whole. `said` is what it said before.
    pub(crate) fn go_on(&self, server: &Server, said: &str, may_be_other: bool) -> Seen {
        // If this fails too, the workers are asked all the same.
        drop(end_update(server, Ask::Question));
        let held = self.ask(server, self.lease, Ask::Question).unwrap_or(Held::Torn);
        let name = match &held {
            Held::Torn => return Seen::TORN,
            Held::Version(version) => version.name(),
            // It has been started again meanwhile. Requests that wait were sent to a server that had a version.
            Held::Other if !may_be_other => return Seen { held, is_paused: true },
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
    fn look(&self, server: &Server, target: &Target, _: Option<&Version>) -> Result<Found> {
        let held = self.ask(server, self.lease, Ask::Question).map_err(|denied| denied.error)?;
        let said = what_it_says(server, Ask::Question)?;
        let paused = server.get("/is_paused", Ask::Question)?["is_paused"].as_bool();
        let is_paused = paused.ok_or_else(|| server.failed("/is_paused", "it does not say that"))?;
        let held = match held {
            Held::Version(version) if version.name() != said => Held::Other,
            held => held,
        };
        let seen = Seen { held, is_paused };
        Ok(Found { is_wanted: seen == target.version.seen(), seen: Some(seen) })
    }

    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool {
        let said = match server.glance("/weight_info", is_changing) {
            Ok(Some(info)) => text(&info, "weight_version").to_owned(),
            // The engine answers nothing while it loads.
            Ok(None) => return is_changing,
            Err(_) => return false,
        };
        if is_changing && said == CHANGING {
            // One that was started again, and was told to say this, is not paused.
            let paused = server.glance("/is_paused", true);
            return paused.is_ok_and(|answer| answer.is_none_or(|answer| answer["is_paused"] == true));
        }
        versions.iter().any(|version| said == version.name())
    }

    fn refuses(&self) -> bool {
        // Since vLLM 0.33; before, requests wait.
        self.pause != Pause::Keep
    }

    fn readiness(&self, server: &Server, version: &Version) -> Result<Readiness> {
        self.readiness(server, version.number)
    }

    fn bring(&self, server: &Server, target: &Target, before: Option<&Seen>) -> Result<Option<Duration>, Trouble> {
        if self.keeps_copy() {
            let models = server.get("/v1/models", Ask::Question)?;
            // Adapters come after the model.
            if let Some(error) = refused(server, UPDATE, text(&models["data"][0], "root"), &target.directory) {
                return Err(error.into());
            }
        }
        let serves_other = before == Some(&Seen { held: Held::Other, is_paused: false });
        let began = self.update(server, &target.version, serves_other)?;
        let left = Seen { is_paused: true, ..target.version.seen() };
        resume(server).map_err(|error| Trouble { error, left: Some(left) })?;
        Ok(Some(began.elapsed()))
    }

    fn leave(&self, server: &Server) {
        self.give_up(server);
    }
}

fn is_all(workers: &[Value], key: &str) -> bool {
    workers.iter().all(|worker| worker[key] == true)
}

/// What a worker says that it holds.
fn held_by(worker: &Value) -> Option<Held> {
    match text(worker, "state") {
        "held" => {
            let state = worker["digest"].as_str()?.to_owned();
            Some(Held::Version(Version { number: worker["version"].as_u64()?, state }))
        }
        "other" => Some(Held::Other),
        "torn" => Some(Held::Torn),
        _ => None,
    }
}

/// The text that it names its weights with.
pub(crate) fn what_it_says(server: &Server, ask: Ask) -> Result<String> {
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

/// Ends an update. The server says that it has what is named so.
pub(crate) fn finish(server: &Server, name: &str) -> Result<()> {
    server.post("/finish_weight_update", &json!({ "weight_version": name }), Ask::Once).map(drop)
}

/// Lets the server go on.
///
/// # Errors
/// IO. It stays paused.
pub(crate) fn resume(server: &Server) -> Result<()> {
    server.post("/resume", &json!({}), Ask::Change).map(drop)
}
