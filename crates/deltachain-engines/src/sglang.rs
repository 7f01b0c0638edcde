//! SGLang, whose servers read a version from its directory; or whose workers, with the Python
//! package as a plugin, download the chain of their own configuration and write versions in place.

use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding as _};
use deltachain::{Error, Result};
use serde_json::{Value, json};

use crate::engine::{Client, Condition, Engine, Failure, Look, Pause, Target, Version, text};
use crate::fit::{Fit, compare};
use crate::server::{Ask, Server};
use crate::workers::{CHANGING, Requests, Workers};

/// Time in which a server that is not paused generates a token; it is SGLang's own limit.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server of SGLang.
#[derive(Debug)]
struct Sglang {
    /// The mode of SGLang's pause.
    mode: &'static str,
}

impl Engine {
    /// Makes the engine for SGLang whose servers read versions from their directories. `pause` says
    /// what happens to running requests. SGLang crashes if a version does not fit its model; a
    /// version that cannot be compared with the model's files is sent only if `sends_unchecked` is
    /// true.
    ///
    /// # Errors
    /// USAGE if `pause` is `wait`: SGLang cannot wait for running requests.
    pub fn sglang(pause: Pause, sends_unchecked: bool) -> Result<Self> {
        Ok(Self {
            client: Box::new(Sglang::new(pause)?),
            refuses: false,
            sends_unchecked,
        })
    }

    /// Makes the engine for SGLang with the Python package, whose workers download the chain of
    /// their own configuration. The other parameters are those of [`vllm`](Self::vllm).
    ///
    /// # Errors
    /// USAGE if `pause` is `wait`: SGLang cannot wait for running requests.
    pub fn sglang_in_place(follower: String, poll: Duration, pause: Pause) -> Result<Self> {
        Ok(Self {
            client: Box::new(Workers::new(Sglang::new(pause)?, follower, poll)),
            refuses: false,
            // Workers that download the chain compare versions themselves.
            sends_unchecked: true,
        })
    }
}

impl Sglang {
    fn new(pause: Pause) -> Result<Self> {
        let mode = match pause {
            // Requests wait, and the cache of the old weights is computed again.
            Pause::Keep => "retract",
            Pause::Wait => {
                return Err(Error::usage(
                    "SGLang cannot wait for running requests; use keep or abort",
                ));
            }
            Pause::Abort => "abort",
        };
        Ok(Self { mode })
    }

    fn pause(&self, server: &Server) -> Result<()> {
        server
            .post(
                "/pause_generation",
                &json!({ "mode": self.mode }),
                Ask::Change,
            )
            .map(drop)
    }
}

/// Path of a question that the package's plugin answers. SGLang's own answers to such questions
/// have room only for the values of a weight: here, the bytes of a text.
const QUESTION: &str = "/get_weights_by_name";

impl Requests for Sglang {
    const INFO: &'static str = "/model_info";
    const UPDATE: &'static str = "/update_weights_from_tensor";

    fn call(&self, server: &Server, method: &str, told: Value, ask: Ask) -> Result<Vec<Value>> {
        let name = json!({ "method": method, "kwargs": told }).to_string();
        let answer = server.post(QUESTION, &json!({ "name": name }), ask)?;
        let bytes: Vec<f64> = serde_json::from_value(answer).unwrap_or_default();
        let bytes: Vec<u8> = bytes
            .iter()
            .filter_map(|byte| format!("{byte}").parse().ok())
            .collect();
        match serde_json::from_slice(&bytes) {
            Ok(Value::Array(workers)) => Ok(workers),
            Ok(told) => Err(server.failed(QUESTION, text(&told, "error"))),
            Err(_) => {
                Err(server.failed(QUESTION, "the server has no deltachain plugin, or no chain"))
            }
        }
    }

    fn is_paused(&self, _: &Server, states: &[Value]) -> Result<bool> {
        Ok(states.iter().any(|state| state["paused"] == true))
    }

    fn start(&self, server: &Server, _: bool) -> Result<Instant> {
        let began = Instant::now();
        self.pause(server)?;
        self.set_name(server, CHANGING)?;
        Ok(began)
    }

    fn load(&self, server: &Server, version: &Version, told: &Value) -> Result<()> {
        let update = json!({
            "load_format": "deltachain",
            "serialized_named_tensors": [Base64::encode_string(told.to_string().as_bytes())],
            "weight_version": version.name(),
            "flush_cache": true,
        });
        server.post(Self::UPDATE, &update, Ask::Once).map(drop)
    }

    fn set_name(&self, server: &Server, name: &str) -> Result<()> {
        let told = json!({ "new_version": name, "abort_all_requests": false });
        server
            .post("/update_weight_version", &told, Ask::Change)
            .map(drop)
    }

    fn resume(&self, server: &Server) -> Result<()> {
        server
            .post("/continue_generation", &json!({}), Ask::Change)
            .map(drop)
    }
}

impl Client for Sglang {
    fn compare(&self, server: &Server, target: &Target) -> Result<Fit> {
        let info = server.get("/model_info", Ask::Question)?;
        Ok(compare(text(&info, "model_path"), &target.directory))
    }

    fn look(&self, server: &Server, target: &Target, known: Option<&Version>) -> Result<Look> {
        let info = server.get("/model_info", Ask::Question)?;
        let named = known.filter(|known| text(&info, "weight_version") == known.name());
        // Only this request tells whether the server is paused: it generates a token, unless the
        // server is generating others.
        let is_paused = || !server.responds("/health_generate", PATIENCE);
        let condition = named.map(|version| Condition {
            is_paused: is_paused(),
            ..version.served()
        });
        let is_wanted = condition == Some(target.version.served())
            && text(&info, "model_path") == target.directory;
        Ok(if is_wanted {
            Look::Wanted
        } else {
            Look::Other(condition)
        })
    }

    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool {
        match server.glance("/model_info", is_changing) {
            Ok(Some(info)) => versions
                .iter()
                .any(|version| text(&info, "weight_version") == version.name()),
            Ok(None) => is_changing,
            Err(_) => false,
        }
    }

    fn bring(
        &self,
        server: &Server,
        target: &Target,
        _: Option<&Condition>,
    ) -> Result<Option<Duration>, Failure> {
        let began = Instant::now();
        if let Err(error) = self.pause(server) {
            let resumed = self.resume(server);
            return Err(Failure {
                left: resumed.is_err().then_some(Condition::TORN),
                ..error.into()
            });
        }
        let update = json!({
            // Not `current`, which may be switched to another version before all ranks have read
            // it.
            "model_path": target.directory,
            "weight_version": target.version.name(),
            "flush_cache": true,
        });
        let updated = server.post("/update_weights_from_disk", &update, Ask::Once);
        // SGLang claims to roll back after an error, but reads the new files to do so: the model
        // may be torn.
        let done = updated.and_then(|_| self.resume(server));
        done.map_err(|error| Failure {
            left: Some(Condition::TORN),
            ..error.into()
        })?;
        Ok(Some(began.elapsed()))
    }
}
