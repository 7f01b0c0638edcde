//! SGLang, which reads a version from its directory.

use std::time::{Duration, Instant};

use deltachain::Result;
use serde_json::json;

use crate::engine::{Client, Engine, Found, Seen, Target, Trouble, text};
use crate::server::{Ask, Server};

/// A server of SGLang.
#[derive(Debug)]
struct Sglang;

impl Engine {
    /// SGLang.
    pub fn sglang() -> Self {
        Self(Box::new(Sglang))
    }
}

impl Client for Sglang {
    fn look(&self, server: &Server, target: &Target, is_known: bool) -> Result<Found> {
        let info = server.get("/model_info", Ask::Question)?;
        let says = text(&info, "weight_version") == target.name() && text(&info, "model_path") == target.directory;
        Ok(Found { is_wanted: is_known && says, seen: None })
    }

    fn bring(&self, server: &Server, target: &Target) -> Result<Option<Duration>, Trouble> {
        let began = Instant::now();
        // Requests wait, and what was computed with the old weights is computed again.
        if let Err(error) = server.post("/pause_generation", &json!({ "mode": "retract" }), Ask::Change) {
            let resumed = server.post("/continue_generation", &json!({}), Ask::Change);
            return Err(Trouble { error, left: resumed.is_err().then_some(Seen::TORN) });
        }
        let update = json!({
            // Not `current`, which may lead to another version before all ranks have read it.
            "model_path": target.directory,
            "weight_version": target.name(),
            "flush_cache": true,
        });
        let updated = server.post("/update_weights_from_disk", &update, Ask::Once);
        // SGLang says that it takes back what it has loaded, but reads the same files for that.
        updated
            .and_then(|_| server.post("/continue_generation", &json!({}), Ask::Change))
            .map_err(|error| Trouble { error, left: Some(Seen::TORN) })?;
        Ok(Some(began.elapsed()))
    }
}
