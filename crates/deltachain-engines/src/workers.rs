//! Servers whose workers have the Python package: which version they hold, whether they can load another one, and how
//! they are brought to it: docs/engines.md, "What is asked of a server of vLLM". What is sent for that, each engine's
//! [`Requests`] say.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use serde_json::{Value, json};

use crate::engine::{Client, Found, Held, Readiness, Seen, Target, Trouble, Version, text};
use crate::fit::not_sent;
use crate::server::{Ask, Server};

/// What a server says while its model is being changed, and if nobody knows what its model is.
pub(crate) const CHANGING: &str = "changing";
const UNKNOWN: &str = "unknown";

/// How long a process that is not seen any more keeps others from its servers.
const LEASE: Duration = Duration::from_secs(90);

/// What servers of an engine are asked.
pub(crate) trait Requests: Debug + Send + Sync {
    /// A question that costs nothing, whose answer has `weight_version`: what the server says that it has.
    const INFO: &'static str;

    /// For a version.
    const UPDATE: &'static str;

    /// The text that the server names its weights with.
    ///
    /// # Errors
    /// IO.
    fn what_it_says(server: &Server, ask: Ask) -> Result<String> {
        Ok(text(&server.get(Self::INFO, ask)?, "weight_version").to_owned())
    }

    /// What each worker answers to a method of the package.
    ///
    /// # Errors
    /// IO.
    fn call(&self, server: &Server, method: &str, told: Value, ask: Ask) -> Result<Vec<Value>>;

    /// Whether the server is paused; `states` is what its workers have just said.
    ///
    /// # Errors
    /// IO.
    fn is_paused(&self, server: &Server, states: &[Value]) -> Result<bool>;

    /// Whether a server that says that it is being changed may not be.
    fn goes_on(&self, _server: &Server) -> bool {
        false
    }

    /// Whether the server refuses requests while it is brought to a version, instead of letting them wait.
    fn refuses(&self) -> bool {
        false
    }

    /// Whether the workers read the directory that this process keeps.
    fn keeps_copy(&self) -> bool {
        false
    }

    /// Before the server is paused for a version.
    ///
    /// # Errors
    /// IO: it does not fit.
    fn check(&self, _server: &Server, _target: &Target) -> Result<()> {
        Ok(())
    }

    /// Pauses the server, and begins an update. Gives when it was told to pause.
    ///
    /// # Errors
    /// IO.
    fn start(&self, server: &Server) -> Result<Instant>;

    /// Makes its workers load a version, and the server say that it has it.
    ///
    /// # Errors
    /// IO.
    fn update(&self, server: &Server, version: &Version, follower: &str) -> Result<()>;

    /// Ends an update that somebody has left open.
    fn end_update(&self, _server: &Server) {}

    /// Makes the server say what it has.
    ///
    /// # Errors
    /// IO.
    fn set_name(&self, server: &Server, name: &str) -> Result<()>;

    /// Lets the server go on.
    ///
    /// # Errors
    /// IO. It stays paused.
    fn resume(&self, server: &Server) -> Result<()>;
}

/// The workers of servers of an engine.
#[derive(Debug)]
pub(crate) struct Workers<R> {
    pub(crate) requests: R,
    /// What this process calls itself.
    pub(crate) follower: String,
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

impl<R: Requests> Workers<R> {
    /// Servers that are looked at every `poll`.
    pub(crate) fn new(requests: R, follower: String, poll: Duration) -> Self {
        // Between two looks there is a pause, and it takes a moment.
        Self { requests, follower, lease: LEASE.max(poll.saturating_mul(2)) }
    }

    /// What the workers say, which are told that this process brings the server, for this time.
    fn states(&self, server: &Server, lease: Duration, ask: Ask) -> Result<Vec<Value>, Denied> {
        let told = json!({ "follower": self.follower, "lease": lease.as_secs().to_string() });
        let states = self.requests.call(server, "deltachain_state", told, ask)?;
        if let Some(owner) = states.first().and_then(|first| first["owner"].as_str()) {
            let left = states[0]["owner_seconds"].as_f64().unwrap_or_default();
            let text = format!("another process, {owner}, updates it for {} s more", left.ceil());
            let left = Duration::try_from_secs_f64(left).unwrap_or_default();
            return Err(Denied { error: server.failed("its version", text), left: Some(left) });
        }
        Ok(states)
    }

    /// The same; and what all workers hold.
    fn ask(&self, server: &Server, lease: Duration, ask: Ask) -> Result<(Held, Vec<Value>), Denied> {
        let states = self.states(server, lease, ask)?;
        let held: Option<Vec<Held>> = states.iter().map(held_by).collect();
        match held.as_deref() {
            Some([first, others @ ..]) if others.iter().all(|other| other == first) => Ok((first.clone(), states)),
            Some([_, ..]) => Ok((Held::Torn, states)),
            _ => Err(server.failed("its version", "its workers do not report their version").into()),
        }
    }

    /// This process wants to bring the server to a version.
    pub(crate) fn claim(&self, server: &Server) -> Result<(), Denied> {
        self.ask(server, self.lease, Ask::Change).map(drop)
    }

    /// Whether all workers can load a version without waiting for it, or waiting would not help.
    ///
    /// # Errors
    /// IO, also if it does not fit their model.
    pub(crate) fn is_ready(&self, server: &Server, version: u64) -> Result<Readiness> {
        if self.requests.keeps_copy() {
            // This process has put it there.
            return Ok(Readiness::Ready);
        }
        let told = json!({ "follower": self.follower, "version": version.to_string() });
        let workers = self.requests.call(server, "deltachain_is_ready", told, Ask::Change)?;
        let are_ready = workers.iter().all(|worker| worker["ready"] == true);
        match workers.iter().find_map(|worker| worker["why"].as_str()) {
            Some(why) if are_ready => Err(not_sent(server, R::UPDATE, why)),
            None if are_ready => Ok(Readiness::Ready),
            why => Ok(Readiness::Waits(why.map(str::to_owned))),
        }
    }

    /// After a failure: lets the server go on with what it holds, if that is whole. `said` is what it said before;
    /// `may_be_other` whether it may go on with a model that is no version of the chain.
    pub(crate) fn go_on(&self, server: &Server, said: &str, may_be_other: bool) -> Seen {
        self.requests.end_update(server);
        let held = self.ask(server, self.lease, Ask::Question).map_or(Held::Torn, |(held, _)| held);
        let name = match &held {
            Held::Torn => return Seen::TORN,
            Held::Version(version) => version.name(),
            // It has been started again meanwhile. Requests that wait were sent to a server that had a version.
            Held::Other if !may_be_other => return Seen { held, is_paused: true },
            Held::Other if said == CHANGING || said.contains('@') => UNKNOWN.to_owned(),
            Held::Other => said.to_owned(),
        };
        let resumed = self.requests.set_name(server, &name).and_then(|()| self.requests.resume(server));
        Seen { held, is_paused: resumed.is_err() }
    }

    /// Another process may bring the server.
    pub(crate) fn give_up(&self, server: &Server) {
        // One that does not answer gives it up by itself.
        drop(self.states(server, Duration::ZERO, Ask::Question));
    }
}

impl<R: Requests> Client for Workers<R> {
    fn look(&self, server: &Server, target: &Target, _: Option<&Version>) -> Result<Found> {
        let (held, states) = self.ask(server, self.lease, Ask::Question).map_err(|denied| denied.error)?;
        let said = R::what_it_says(server, Ask::Question)?;
        let is_paused = self.requests.is_paused(server, &states)?;
        let held = match held {
            Held::Version(version) if version.name() != said => Held::Other,
            held => held,
        };
        let seen = Seen { held, is_paused };
        Ok(Found { is_wanted: seen == target.version.seen(), seen: Some(seen) })
    }

    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool {
        let said = match server.glance(R::INFO, is_changing) {
            Ok(Some(info)) => text(&info, "weight_version").to_owned(),
            // The engine answers nothing while it loads.
            Ok(None) => return is_changing,
            Err(_) => return false,
        };
        if is_changing && said == CHANGING {
            // One that was started again, and was told to say this, is not paused.
            return !self.requests.goes_on(server);
        }
        versions.iter().any(|version| said == version.name())
    }

    fn refuses(&self) -> bool {
        self.requests.refuses()
    }

    fn readiness(&self, server: &Server, version: &Version) -> Result<Readiness> {
        self.is_ready(server, version.number)
    }

    fn bring(&self, server: &Server, target: &Target, before: Option<&Seen>) -> Result<Option<Duration>, Trouble> {
        self.requests.check(server, target)?;
        let may_be_other = before == Some(&Seen { held: Held::Other, is_paused: false });
        let said = R::what_it_says(server, Ask::Change)?;
        let began = self.requests.start(server).and_then(|began| {
            self.requests.update(server, &target.version, &self.follower)?;
            Ok(began)
        });
        let began = began.map_err(|error| Trouble { error, left: Some(self.go_on(server, &said, may_be_other)) })?;
        let left = Seen { is_paused: true, ..target.version.seen() };
        self.requests.resume(server).map_err(|error| Trouble { error, left: Some(left) })?;
        Ok(Some(began.elapsed()))
    }

    fn downloads(&self, server: &Server) -> Option<bool> {
        // Of nobody's, for no time.
        let told = json!({ "follower": "", "lease": "0" });
        let states = self.requests.call(server, "deltachain_state", told, Ask::Question).ok()?;
        Some(states.iter().any(|state| state["downloads"] == true))
    }

    fn leave(&self, server: &Server) {
        self.give_up(server);
    }
}

/// What workers are told of a version that they are to load.
pub(crate) fn told(version: &Version, follower: &str) -> Value {
    json!({ "version": version.number, "digest": version.state, "follower": follower })
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
