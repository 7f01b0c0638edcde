//! Servers whose workers have the Python package. Finds out which version they hold and whether
//! they can load another one, and loads it step by step, for followers and trainers alike:
//! integrations/docs/engines.md, "What is asked of a server of vLLM". Each engine implements the
//! [`Requests`] for that.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::mem;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use serde_json::{Value, json};

use crate::engine::{
    Client, Condition, Failure, Look, Model, Preparation, READY_POLL, Target, Version, locked, text,
};
use crate::fit::{Fit, not_sent};
use crate::server::{Ask, Server};

/// Names of the weights of a server during an update, and of a server whose model is unknown.
pub(crate) const CHANGING: &str = "changing";
const UNKNOWN: &str = "unknown";

/// Version of the requests to workers. Workers report theirs.
const PROTOCOL: u64 = 2;

/// Pause between two requests that ask whether all replicas have prepared a version. A server logs
/// each one that fails.
const REPLICA_POLL: Duration = Duration::from_secs(1);

/// Time after the last poll in which other processes cannot claim a server of this process.
const LEASE: Duration = Duration::from_secs(90);

/// The requests of an engine to its servers.
pub(crate) trait Requests: Debug + Send + Sync {
    /// Path of a question that costs nothing, whose answer has `weight_version`: the name of the
    /// server's weights.
    const INFO: &'static str;

    /// Path of the request that loads a version.
    const UPDATE: &'static str;

    /// Returns the name of the server's weights.
    ///
    /// # Errors
    /// IO.
    fn what_it_says(server: &Server, ask: Ask) -> Result<String> {
        Ok(text(&server.get(Self::INFO, ask)?, "weight_version").to_owned())
    }

    /// Calls a method of the package on the workers; returns each worker's answer.
    ///
    /// # Errors
    /// IO.
    fn call(&self, server: &Server, method: &str, told: Value, ask: Ask) -> Result<Vec<Value>>;

    /// Calls a method of the package on the workers of all replicas of a server. Returns the error
    /// of a worker that raises one. A server with replicas passes on the answers of its first
    /// replica only, but an error of any.
    ///
    /// # Errors
    /// IO.
    fn disagreement(
        &self,
        _server: &Server,
        _method: &str,
        _told: Value,
        _ask: Ask,
    ) -> Result<Option<String>> {
        Ok(None)
    }

    /// True if the server is paused; `states` is what its workers have just reported.
    ///
    /// # Errors
    /// IO.
    fn is_paused(&self, server: &Server, states: &[Value]) -> Result<bool>;

    /// True if a server that names its weights `changing` may not be in an update.
    fn goes_on(&self, _server: &Server) -> bool {
        false
    }

    /// True if the workers read the directory that this process keeps.
    fn keeps_copy(&self) -> bool {
        false
    }

    /// Compares the version in this process's directory with the server's model.
    ///
    /// # Errors
    /// IO.
    fn compare(&self, _server: &Server, _target: &Target) -> Result<Fit> {
        Ok(Fit::Fits)
    }

    /// Pauses the server, and begins an update. `reads_copy` is true if the workers read the
    /// directory that this process keeps. Returns the time of the request to pause.
    ///
    /// # Errors
    /// IO.
    fn start(&self, server: &Server, reads_copy: bool) -> Result<Instant>;

    /// Makes the workers load a version; `told` is sent to them.
    ///
    /// # Errors
    /// IO.
    fn load(&self, server: &Server, version: &Version, told: &Value) -> Result<()>;

    /// Ends an update, if the engine has a request for that. The server then reports this name for
    /// its weights.
    ///
    /// # Errors
    /// IO.
    fn finish(&self, _server: &Server, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Ends an update that another process left open.
    fn end_update(&self, _server: &Server) {}

    /// Sets the name that the server reports for its weights.
    ///
    /// # Errors
    /// IO.
    fn set_name(&self, server: &Server, name: &str) -> Result<()>;

    /// Resumes the server.
    ///
    /// # Errors
    /// IO, after which the server stays paused.
    fn resume(&self, server: &Server) -> Result<()>;
}

/// The workers of an engine's servers.
#[derive(Debug)]
pub(crate) struct Workers<R> {
    pub(crate) requests: R,
    /// Name of this process.
    pub(crate) follower: String,
    /// Time for which each request claims a server.
    lease: Duration,
    /// URLs of servers that download the chain of their own configuration, whatever this process
    /// keeps: a server may have answered for the first time after this process began.
    downloading: Mutex<BTreeSet<String>>,
}

impl<R: Requests> Workers<R> {
    /// Makes the client for servers that are polled every `poll`.
    pub(crate) fn new(requests: R, follower: String, poll: Duration) -> Self {
        // A poll takes time, in addition to the pause before it.
        Self {
            requests,
            follower,
            lease: LEASE.max(poll.saturating_mul(2)),
            downloading: Mutex::default(),
        }
    }

    /// True if the workers of a server read the directory that this process keeps.
    fn reads_copy(&self, server: &Server) -> bool {
        self.requests.keeps_copy() && !locked(&self.downloading).contains(&server.url)
    }

    /// Returns the states that the workers report. The request claims the server for this process
    /// for the time `lease`.
    fn states(&self, server: &Server, lease: Duration, ask: Ask) -> Result<Vec<Value>, Failure> {
        let told = json!({ "follower": self.follower, "lease": lease.as_secs().to_string() });
        let states = self.requests.call(server, "deltachain_state", told, ask)?;
        if let Some(other) = states.iter().find(|state| state["protocol"] != PROTOCOL) {
            let own = other["protocol"].as_u64().unwrap_or_default();
            let text = format!(
                "its package deltachain-integrations has protocol {own}, and this program \
                 {PROTOCOL}: install the same version of both"
            );
            return Err(server.failed("its version", text).into());
        }
        if states.iter().any(|state| state["downloads"] == true) {
            locked(&self.downloading).insert(server.url.clone());
        } else {
            locked(&self.downloading).remove(&server.url);
        }
        if let Some(owner) = states.first().and_then(|first| first["owner"].as_str()) {
            let left = states[0]["owner_seconds"].as_f64().unwrap_or_default();
            let text = format!(
                "another process, {owner}, updates it for {} s more",
                left.ceil()
            );
            let left = Duration::try_from_secs_f64(left).unwrap_or_default();
            return Err(Failure {
                lease: Some(left),
                ..server.failed("its version", text).into()
            });
        }
        Ok(states)
    }

    /// Returns the model that all workers hold, and the states that they report.
    fn ask(&self, server: &Server, ask: Ask) -> Result<(Model, Vec<Value>), Failure> {
        let states = self.states(server, self.lease, ask)?;
        let models: Option<Vec<Model>> = states.iter().map(model_of).collect();
        let model = match models.as_deref() {
            Some([first, others @ ..]) if others.iter().all(|other| other == first) => {
                first.clone()
            }
            Some([_, ..]) => Model::Torn,
            _ => {
                return Err(server
                    .failed("its version", "its workers do not report their version")
                    .into());
            }
        };
        if model == Model::Torn {
            return Ok((model, states));
        }
        // The same is asked of the other replicas.
        let told = json!({ "states": Value::from(states.clone()).to_string() });
        let disagreement = self
            .requests
            .disagreement(server, "deltachain_agrees", told, ask)?;
        let model = match disagreement {
            None => model,
            Some(_) => Model::Torn,
        };
        Ok((model, states))
    }

    /// Asks whether the workers can load a version without delay; and whether they download this
    /// chain, if it is given. `begins` is true for the first question of an attempt.
    ///
    /// # Errors
    /// IO if the server does not answer, or cannot take the version.
    pub(crate) fn readiness(
        &self,
        server: &Server,
        version: u64,
        chain: Option<&str>,
        begins: bool,
    ) -> Result<Preparation> {
        if self.reads_copy(server) {
            // This process has already put the version there.
            return Ok(Preparation::Done);
        }
        let told = json!({
            "follower": self.follower,
            "version": version.to_string(),
            "begins": if begins { "1" } else { "0" },
        });
        let workers =
            self.requests
                .call(server, "deltachain_is_ready", told.clone(), Ask::Change)?;
        if let Some(chain) = chain
            && let Some(other) = workers.iter().find_map(|worker| other_chain(worker, chain))
        {
            return Err(not_sent(server, &other));
        }
        let are_ready = workers.iter().all(|worker| worker["ready"] == true);
        let why = workers.iter().find_map(|worker| worker["why"].as_str());
        match why {
            Some(why) if are_ready => return Err(not_sent(server, why)),
            None if are_ready => {}
            why => {
                return Ok(Preparation::Waits {
                    why: why.map(str::to_owned),
                    pause: READY_POLL,
                });
            }
        }
        let told = json!({ "follower": self.follower, "version": version.to_string() });
        let disagreement =
            self.requests
                .disagreement(server, "deltachain_are_ready", told, Ask::Change)?;
        Ok(match disagreement {
            None => Preparation::Done,
            why => Preparation::Waits {
                why,
                pause: REPLICA_POLL,
            },
        })
    }

    /// Claims the server for an update by this process.
    pub(crate) fn claim(&self, server: &Server) -> Result<(), Failure> {
        self.ask(server, Ask::Change).map(drop)
    }

    /// After a failure, resumes the server with its model, if that is whole. `said` is the previous
    /// name of its weights; `may_be_other` is true if it may serve a model that is not a version of
    /// the chain.
    pub(crate) fn go_on(&self, server: &Server, said: &str, may_be_other: bool) -> Condition {
        self.requests.end_update(server);
        let model = self
            .ask(server, Ask::Question)
            .map_or(Model::Torn, |(model, _)| model);
        let name = match &model {
            Model::Torn => return Condition::TORN,
            Model::Version(version) => version.name(),
            // The server has been restarted in the meantime. The waiting requests were sent to a
            // server that had a version.
            Model::Other if !may_be_other => {
                return Condition {
                    model,
                    is_paused: true,
                };
            }
            Model::Other if said == CHANGING || said.contains('@') => UNKNOWN.to_owned(),
            Model::Other => said.to_owned(),
        };
        let resumed = self
            .requests
            .set_name(server, &name)
            .and_then(|()| self.requests.resume(server));
        Condition {
            model,
            is_paused: resumed.is_err(),
        }
    }
}

impl<R: Requests> Client for Workers<R> {
    fn look(&self, server: &Server, target: &Target, _: Option<&Version>) -> Result<Look> {
        let (model, states) = self
            .ask(server, Ask::Question)
            .map_err(|failure| failure.error)?;
        let said = R::what_it_says(server, Ask::Question)?;
        let is_paused = self.requests.is_paused(server, &states)?;
        let model = match model {
            Model::Version(version) if version.name() != said => Model::Other,
            model => model,
        };
        let condition = Condition { model, is_paused };
        Ok(if condition == target.version.served() {
            Look::Wanted
        } else {
            Look::Other(Some(condition))
        })
    }

    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool {
        let said = match server.glance(R::INFO, is_changing) {
            Ok(Some(info)) => text(&info, "weight_version").to_owned(),
            // The engine does not answer while it loads weights.
            Ok(None) => return is_changing,
            Err(_) => return false,
        };
        if is_changing && said == CHANGING {
            // A restarted server that was given this name is not paused.
            return !self.requests.goes_on(server);
        }
        versions.iter().any(|version| said == version.name())
    }

    fn compare(&self, server: &Server, target: &Target) -> Result<Fit> {
        if self.reads_copy(server) {
            self.requests.compare(server, target)
        } else {
            // Workers that download the chain compare versions themselves.
            Ok(Fit::Fits)
        }
    }

    fn preparation(&self, server: &Server, target: &Target, begins: bool) -> Result<Preparation> {
        let number = target.version.number;
        self.readiness(server, number, Some(&target.chain), begins)
    }

    fn bring(
        &self,
        server: &Server,
        target: &Target,
        before: Option<&Condition>,
    ) -> Result<Option<Duration>, Failure> {
        let may_be_other = before
            == Some(&Condition {
                model: Model::Other,
                is_paused: false,
            });
        let mut update = Update::default();
        let began = update
            .run(self, server, &target.version, may_be_other)
            .map_err(|error| update.fail(self, server, error))?;
        update.resume(self, server)?;
        Ok(Some(began.elapsed()))
    }

    fn downloads(&self, server: &Server) -> Option<bool> {
        // With an empty name and no lease, the request does not claim the server.
        let told = json!({ "follower": "", "lease": "0" });
        let states = self
            .requests
            .call(server, "deltachain_state", told, Ask::Question)
            .ok()?;
        Some(states.iter().any(|state| state["downloads"] == true))
    }

    fn leave(&self, server: &Server) {
        // The claim on a server that does not answer expires.
        drop(self.states(server, Duration::ZERO, Ask::Question));
    }
}

/// Progress of a server's update. If no update is open, its steps do nothing.
#[derive(Debug, Default)]
pub(crate) enum Update {
    /// No update is open: the server serves, as far as this process knows.
    #[default]
    Idle,
    /// The server may have been paused, and an update may be open.
    Begun {
        /// The previous name of the server's weights.
        said: String,
        /// True if the server may serve a model that is not a version of the chain.
        may_be_other: bool,
        /// The model that is being loaded.
        model: Model,
    },
    /// The server has this model, and has not been resumed.
    Finished(Model),
}

impl Update {
    /// Begins an update, loads a version, and finishes it. Returns the time of the request to
    /// pause.
    ///
    /// # Errors
    /// IO, after which [`fail`](Self::fail) is called.
    fn run<R: Requests>(
        &mut self,
        of: &Workers<R>,
        server: &Server,
        version: &Version,
        may_be_other: bool,
    ) -> Result<Instant> {
        let began = self.start(of, server, may_be_other)?;
        self.load(of, server, version)?;
        self.finish(of, server, &version.name())?;
        Ok(began)
    }

    /// Pauses the server, and begins an update. Returns the time of the request to pause.
    ///
    /// # Errors
    /// IO; the caller then calls [`fail`](Self::fail), as for the next two steps.
    pub(crate) fn start<R: Requests>(
        &mut self,
        of: &Workers<R>,
        server: &Server,
        may_be_other: bool,
    ) -> Result<Instant> {
        let said = R::what_it_says(server, Ask::Change)?;
        *self = Self::Begun {
            said,
            may_be_other,
            model: Model::Other,
        };
        of.requests.start(server, of.reads_copy(server))
    }

    /// Loads a version into the server.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn load<R: Requests>(
        &mut self,
        of: &Workers<R>,
        server: &Server,
        version: &Version,
    ) -> Result<()> {
        let Self::Begun { model, .. } = self else {
            return Ok(());
        };
        *model = Model::Version(version.clone());
        let told =
            json!({ "version": version.number, "digest": version.state, "follower": of.follower });
        of.requests.load(server, version, &told)
    }

    /// Ends the update. The server reports this name for its weights, and stays paused.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn finish<R: Requests>(
        &mut self,
        of: &Workers<R>,
        server: &Server,
        name: &str,
    ) -> Result<()> {
        let Self::Begun { model, .. } = self else {
            return Ok(());
        };
        of.requests.finish(server, name)?;
        *self = Self::Finished(model.clone());
        Ok(())
    }

    /// Resumes the server. An update that has not been finished ends: the server continues with its
    /// model if that is whole.
    ///
    /// # Errors
    /// IO: the server stays paused.
    pub(crate) fn resume<R: Requests>(
        &mut self,
        of: &Workers<R>,
        server: &Server,
    ) -> Result<(), Failure> {
        if let Self::Finished(model) = self {
            let left = Some(Condition {
                model: model.clone(),
                is_paused: true,
            });
            of.requests.resume(server).map_err(|error| Failure {
                left,
                ..error.into()
            })?;
            *self = Self::Idle;
        }
        let text = "the update was not finished, and the server may hold parts of two versions";
        let failure = self.fail(of, server, server.failed("/resume", text));
        if failure.stays_paused() {
            Err(failure)
        } else {
            Ok(())
        }
    }

    /// Ends an open update after an error; the server continues with its model if that is whole.
    pub(crate) fn fail<R: Requests>(
        &mut self,
        of: &Workers<R>,
        server: &Server,
        error: Error,
    ) -> Failure {
        let left = match mem::take(self) {
            Self::Begun {
                said, may_be_other, ..
            } => Some(of.go_on(server, &said, may_be_other)),
            other => {
                *self = other;
                None
            }
        };
        Failure {
            left,
            ..error.into()
        }
    }
}

/// Describes the chain that a worker downloads, if it is another one than `chain`.
fn other_chain(worker: &Value, chain: &str) -> Option<String> {
    let own = worker["chain"].as_str().filter(|own| *own != chain)?;
    let start = |digest: &str| digest.chars().take(12).collect::<String>();
    Some(format!(
        "the server downloads another chain, {} (its chain.json has the digest {}..., and the one \
         that is followed here {}...)",
        text(worker, "from"),
        start(own),
        start(chain)
    ))
}

/// Returns the model that a worker reports.
fn model_of(worker: &Value) -> Option<Model> {
    match text(worker, "state") {
        "held" => {
            let state = worker["digest"].as_str()?.to_owned();
            Some(Model::Version(Version {
                number: worker["version"].as_u64()?,
                state,
            }))
        }
        "other" => Some(Model::Other),
        "torn" => Some(Model::Torn),
        _ => None,
    }
}
