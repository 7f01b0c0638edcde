//! SGLang, which reads a version from its directory.

use std::time::{Duration, Instant};

use deltachain::Result;
use serde_json::json;

use crate::engines::server::Server;
use crate::engines::{Engine, Target, Trouble, text};

/// A server of SGLang.
#[derive(Debug)]
pub(super) struct Sglang;

impl Engine for Sglang {
    fn has(&self, server: &Server, target: &Target) -> Result<bool> {
        let info = server.get("/model_info")?;
        let version = text(&info, "weight_version") == target.version.to_string();
        Ok(version && text(&info, "model_path") == target.directory)
    }

    fn bring(&self, server: &Server, target: &Target) -> Result<Option<Duration>, Trouble> {
        let began = Instant::now();
        // Requests wait, and what was computed with the old weights is computed again.
        if let Err(error) = server.post("/pause_generation", &json!({ "mode": "retract" })) {
            let resumed = server.post("/continue_generation", &json!({}));
            return Err(Trouble { error, stays_paused: resumed.is_err() });
        }
        let update = json!({
            // Not `current`, which may lead to another version before all ranks have read it.
            "model_path": target.directory,
            "weight_version": target.version.to_string(),
            "flush_cache": true,
        });
        let updated = server.post("/update_weights_from_disk", &update);
        // SGLang says that it takes back what it has loaded, but reads the same files for that.
        updated
            .and_then(|_| server.post("/continue_generation", &json!({})))
            .map_err(|error| Trouble { error, stays_paused: true })?;
        Ok(Some(began.elapsed()))
    }
}
