//! vLLM with the backend `deltachain` of the Python package. Its workers read DIR, which this
//! process keeps at a version, or download the chain of their own configuration.

use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use serde_json::{Value, json};

use crate::engine::{Engine, Pause, Target, Version, text};
use crate::fit::{Fit, compare};
use crate::server::{Ask, Server};
use crate::workers::{CHANGING, Requests, Workers};

const WORKERS: &str = "/collective_rpc";

/// Servers of vLLM in developer mode.
#[derive(Debug)]
pub(crate) struct Vllm {
    /// The settings for the backend.
    init: Value,
    /// Treatment of running requests when a server is paused.
    pause: Pause,
}

impl Engine {
    /// Makes the engine for vLLM with the backend `deltachain` of the Python package. `backend` is
    /// a JSON object for the backend: the directory that this process keeps, and the mode.
    /// `follower` is the name of this process, such as `HOST:DIR`. Servers are polled every `poll`;
    /// `pause` says what happens to running requests.
    ///
    /// # Errors
    /// USAGE if `backend` is not a JSON object.
    pub fn vllm(backend: &str, follower: String, poll: Duration, pause: Pause) -> Result<Self> {
        let client = Box::new(Vllm::workers(backend, follower, poll, pause)?);
        // Since vLLM 0.33, servers that are paused with `wait` or `abort` refuse requests; before,
        // requests waited.
        Ok(Self {
            client,
            refuses: pause != Pause::Keep,
            sends_unchecked: true,
        })
    }
}

impl Vllm {
    /// # Errors
    /// USAGE if `backend` is not a JSON object.
    pub(crate) fn workers(
        backend: &str,
        follower: String,
        poll: Duration,
        pause: Pause,
    ) -> Result<Workers<Self>> {
        let init: Value = serde_json::from_str(backend).unwrap_or_default();
        if !init.is_object() {
            return Err(Error::usage(
                "settings for the backend must be a JSON object",
            ));
        }
        Ok(Workers::new(Self { init, pause }, follower, poll))
    }

    /// Tells the backend where versions are. A server that does not read this process's directory
    /// must not be given one.
    pub(crate) fn init(&self, server: &Server, reads_copy: bool) -> Result<()> {
        let mut init = self.init.clone();
        if !reads_copy {
            init["host_copy"] = Value::Null;
        }
        server
            .post(
                "/init_weight_transfer_engine",
                &json!({ "init_info": init }),
                Ask::Change,
            )
            .map(drop)
    }
}

impl Requests for Vllm {
    const INFO: &'static str = "/weight_info";
    const UPDATE: &'static str = "/update_weights";

    fn call(&self, server: &Server, method: &str, told: Value, ask: Ask) -> Result<Vec<Value>> {
        let mut answer = server.post(WORKERS, &json!({ "method": method, "kwargs": told }), ask)?;
        Ok(answer["results"]
            .as_array_mut()
            .map(std::mem::take)
            .unwrap_or_default())
    }

    fn disagreement(
        &self,
        server: &Server,
        method: &str,
        told: Value,
        ask: Ask,
    ) -> Result<Option<String>> {
        server.refusal(WORKERS, &json!({ "method": method, "kwargs": told }), ask)
    }

    fn is_paused(&self, server: &Server, _: &[Value]) -> Result<bool> {
        let paused = server.get("/is_paused", Ask::Question)?["is_paused"].as_bool();
        paused.ok_or_else(|| server.failed("/is_paused", "it does not report whether it is paused"))
    }

    fn goes_on(&self, server: &Server) -> bool {
        !server
            .glance("/is_paused", true)
            .is_ok_and(|told| told.is_none_or(|told| told["is_paused"] == true))
    }

    fn keeps_copy(&self) -> bool {
        self.init["host_copy"].is_string()
    }

    fn compare(&self, server: &Server, target: &Target) -> Result<Fit> {
        let models = server.get("/v1/models", Ask::Question)?;
        // Adapters are listed after the model.
        let model = text(&models["data"][0], "root");
        Ok(compare(model, &target.directory))
    }

    fn start(&self, server: &Server, reads_copy: bool) -> Result<Instant> {
        self.init(server, reads_copy)?;
        let began = Instant::now();
        server.post(
            &format!("/pause?mode={}", self.pause.name()),
            &json!({}),
            Ask::Change,
        )?;
        end_update(server, Ask::Change)?;
        self.set_name(server, CHANGING)?;
        server.post("/start_weight_update", &json!({}), Ask::Once)?;
        Ok(began)
    }

    fn load(&self, server: &Server, _: &Version, told: &Value) -> Result<()> {
        server
            .post(Self::UPDATE, &json!({ "update_info": told }), Ask::Once)
            .map(drop)
    }

    fn finish(&self, server: &Server, name: &str) -> Result<()> {
        server
            .post(
                "/finish_weight_update",
                &json!({ "weight_version": name }),
                Ask::Once,
            )
            .map(drop)
    }

    fn end_update(&self, server: &Server) {
        // If this request fails, too, the workers are asked nevertheless.
        drop(end_update(server, Ask::Question));
    }

    fn set_name(&self, server: &Server, name: &str) -> Result<()> {
        server
            .post(
                "/update_weight_version",
                &json!({ "new_version": name }),
                Ask::Change,
            )
            .map(drop)
    }

    fn resume(&self, server: &Server) -> Result<()> {
        server.post("/resume", &json!({}), Ask::Change).map(drop)
    }
}

fn end_update(server: &Server, ask: Ask) -> Result<()> {
    server
        .post(WORKERS, &json!({ "method": "deltachain_end_update" }), ask)
        .map(drop)
}
