//! vLLM with the backend `deltachain` of the Python package (docs/integrations.md). Its workers read DIR, which this process
//! keeps.

use std::time::{Duration, Instant};

use deltachain::Result;
use serde_json::{Value, json};

use crate::engines::server::Server;
use crate::engines::{Engine, Target, Trouble, text};

/// A server of vLLM in developer mode.
#[derive(Debug)]
pub(super) struct Vllm {
    /// What the backend is told: the chain, DIR and the mode.
    pub(super) init: Value,
}

impl Engine for Vllm {
    fn has(&self, server: &Server, target: &Target) -> Result<bool> {
        Ok(text(&server.get("/weight_info")?, "weight_version") == target.version.to_string())
    }

    fn bring(&self, server: &Server, target: &Target) -> Result<Option<Duration>, Trouble> {
        // Does nothing in a server that knows the chain. One that was started again does not.
        server.post("/init_weight_transfer_engine", &json!({ "init_info": self.init }))?;
        let began = Instant::now();
        let paused = server.post("/pause?mode=keep", &json!({}));
        let started = paused.and_then(|_| server.post("/start_weight_update", &json!({})));
        if let Err(error) = started {
            // Nothing has been touched. It may have been paused, even if it did not say so.
            let resumed = server.post("/resume", &json!({}));
            return Err(Trouble { error, stays_paused: resumed.is_err() });
        }
        let update = json!({ "version": target.version, "digest": target.state });
        let updated = server
            .post("/update_weights", &json!({ "update_info": update }))
            .and_then(|_| {
                server.post("/finish_weight_update", &json!({ "weight_version": target.version.to_string() }))
            })
            .inspect_err(|_| {
                // Without it, the update that can mend the server would be refused. What it answers means nothing.
                let _ = server.post("/finish_weight_update", &json!({}));
            })
            .and_then(|_| server.post("/resume", &json!({})));
        updated.map_err(|error| Trouble { error, stays_paused: true })?;
        Ok(Some(began.elapsed()))
    }
}
