//! Servers whose workers have the Python package: which version they hold, whether they can load
//! another one, and how they are brought to it, step by step, by followers and trainers alike:
//! integrations/docs/engines.md, "What is asked of a server of vLLM". What is sent for that, each
//! engine's [`Requests`] say.

use std::fmt::Debug;
use std::mem;
use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use serde_json::{Value, json};

use crate::engine::{Client, Condition, Failure, Look, Model, Preparation, Target, Version, text};
use crate::fit::{Fit, not_sent};
use crate::server::{Ask, Server};

/// The names of the weights of a server that is being updated, and of a server whose model is
/// unknown.
pub(crate) const CHANGING: &str = "changing";
const UNKNOWN: &str = "unknown";

/// Time for which a process that does not poll any more keeps other processes from its servers.
const LEASE: Duration = Duration::from_secs(90);

/// The requests to servers of an engine.
pub(crate) trait Requests: Debug + Send + Sync {
    /// A question that costs nothing, whose answer has `weight_version`: what the server says that
    /// it has.
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

    /// The answer of each worker to a call of a method of the package.
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

    /// Whether the workers read the directory that this process keeps.
    fn keeps_copy(&self) -> bool {
        false
    }

    /// Whether a version in the directory of this process fits the server. Workers that download
    /// the chain compare it themselves.
    ///
    /// # Errors
    /// IO.
    fn compare(&self, _server: &Server, _target: &Target) -> Result<Fit> {
        Ok(Fit::Fits)
    }

    /// Pauses the server, and begins an update. Gives when it was told to pause.
    ///
    /// # Errors
    /// IO.
    fn start(&self, server: &Server) -> Result<Instant>;

    /// Makes its workers load a version; `told` is sent to them.
    ///
    /// # Errors
    /// IO.
    fn load(&self, server: &Server, version: &Version, told: &Value) -> Result<()>;

    /// Ends an update, if that is a request of its own. The server says that it has what is named
    /// so.
    ///
    /// # Errors
    /// IO.
    fn finish(&self, _server: &Server, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Ends an update that another process left open.
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
    /// The name that this process gives itself.
    pub(crate) follower: String,
    /// For how long it brings a server after each question.
    lease: Duration,
}

impl<R: Requests> Workers<R> {
    /// Servers that are polled every `poll`.
    pub(crate) fn new(requests: R, follower: String, poll: Duration) -> Self {
        // Between two looks there is a pause, and it takes a moment.
        Self {
            requests,
            follower,
            lease: LEASE.max(poll.saturating_mul(2)),
        }
    }

    /// The states that the workers report. The request claims the server for this process for the
    /// time `lease`.
    fn states(&self, server: &Server, lease: Duration, ask: Ask) -> Result<Vec<Value>, Failure> {
        let told = json!({ "follower": self.follower, "lease": lease.as_secs().to_string() });
        let states = self.requests.call(server, "deltachain_state", told, ask)?;
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

    /// The same; and what all workers hold.
    fn ask(&self, server: &Server, ask: Ask) -> Result<(Model, Vec<Value>), Failure> {
        let states = self.states(server, self.lease, ask)?;
        let models: Option<Vec<Model>> = states.iter().map(model_of).collect();
        match models.as_deref() {
            Some([first, others @ ..]) if others.iter().all(|other| other == first) => {
                Ok((first.clone(), states))
            }
            Some([_, ..]) => Ok((Model::Torn, states)),
            _ => Err(server
                .failed("its version", "its workers do not report their version")
                .into()),
        }
    }

    /// This process wants to bring the server to a version.
    pub(crate) fn claim(&self, server: &Server) -> Result<(), Failure> {
        self.ask(server, Ask::Change).map(drop)
    }

    /// After a failure: lets the server go on with what it holds, if that is whole. `said` is what
    /// it said before; `may_be_other` whether it may go on with a model that is no version of the
    /// chain.
    pub(crate) fn go_on(&self, server: &Server, said: &str, may_be_other: bool) -> Condition {
        self.requests.end_update(server);
        let model = self
            .ask(server, Ask::Question)
            .map_or(Model::Torn, |(model, _)| model);
        let name = match &model {
            Model::Torn => return Condition::TORN,
            Model::Version(version) => version.name(),
            // It has been started again meanwhile. Requests that wait were sent to a server that
            // had a version.
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

    fn compare(&self, server: &Server, target: &Target) -> Result<Fit> {
        self.requests.compare(server, target)
    }

    fn preparation(&self, server: &Server, version: u64) -> Result<Preparation> {
        if self.requests.keeps_copy() {
            // This process has put it there.
            return Ok(Preparation::Done);
        }
        let told = json!({ "follower": self.follower, "version": version.to_string() });
        let workers = self
            .requests
            .call(server, "deltachain_is_ready", told, Ask::Change)?;
        let are_ready = workers.iter().all(|worker| worker["ready"] == true);
        match workers.iter().find_map(|worker| worker["why"].as_str()) {
            Some(why) if are_ready => Err(not_sent(server, why)),
            None if are_ready => Ok(Preparation::Done),
            why => Ok(Preparation::Waits(why.map(str::to_owned))),
        }
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
        let mut steps = || {
            let began = update.start(self, server, may_be_other)?;
            update.load(self, server, &target.version)?;
            update.finish(self, server, &target.version.name())?;
            Ok(began)
        };
        let began: Instant = steps().map_err(|error| update.fail(self, server, error))?;
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
        // One that does not answer gives it up by itself.
        drop(self.states(server, Duration::ZERO, Ask::Question));
    }
}

/// Progress of the update of a server. Steps of an update that is not open do nothing.
#[derive(Debug, Default)]
pub(crate) enum Update {
    /// None is open: the server serves, as far as is known here.
    #[default]
    Idle,
    /// The server may have been paused, and an update may be open.
    Begun {
        /// The text that the server named its weights with before.
        said: String,
        /// Whether it may go on with a model that is no version of the chain.
        may_be_other: bool,
        /// The model that it was told to load.
        model: Model,
    },
    /// The server has this model, and was not told to go on.
    Finished(Model),
}

impl Update {
    /// Pauses the server, and begins an update. Gives when it was told to pause.
    ///
    /// # Errors
    /// IO, after which [`fail`](Self::fail) is called, as for the next two steps.
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
        of.requests.start(server)
    }

    /// Makes the server load a version.
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

    /// Ends the update. The server says that it has what is named so, and stays paused.
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

    /// Lets the server go on. An update that has not been finished ends: the server goes on with
    /// what it holds, if that is whole.
    ///
    /// # Errors
    /// IO: it stays paused.
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

    /// After an error: an open update ends, and the server goes on with what it holds, if that is
    /// whole.
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

/// The model that a worker says that it holds.
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
