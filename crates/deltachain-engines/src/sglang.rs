//! SGLang, which reads a version from its directory.

use std::time::{Duration, Instant};

use deltachain::{Error, Result};
use serde_json::json;

use crate::engine::{Client, Engine, Found, Pause, Seen, Target, Trouble, Version, text};
use crate::fit::refused;
use crate::server::{Ask, Server};

/// How long a server that is not paused may take to make a token: SGLang's own limit.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server of SGLang.
#[derive(Debug)]
struct Sglang {
    /// How it is paused.
    mode: &'static str,
}

impl Engine {
    /// SGLang. `pause` is what becomes of running requests.
    ///
    /// # Errors
    /// USAGE: SGLang cannot wait for them.
    pub fn sglang(pause: Pause) -> Result<Self> {
        let mode = match pause {
            // Requests wait, and what was computed with the old weights is computed again.
            Pause::Keep => "retract",
            Pause::Wait => return Err(Error::usage("SGLang cannot wait for running requests; use keep or abort")),
            Pause::Abort => "abort",
        };
        Ok(Self(Box::new(Sglang { mode })))
    }
}

impl Client for Sglang {
    fn look(&self, server: &Server, target: &Target, known: Option<&Version>) -> Result<Found> {
        let info = server.get("/model_info", Ask::Question)?;
        let named = known.filter(|known| text(&info, "weight_version") == known.name());
        // Nothing else tells that it is paused. It makes a token, unless it is making others.
        let seen =
            named.map(|version| Seen { is_paused: !server.responds("/health_generate", PATIENCE), ..version.seen() });
        let is_wanted = seen == Some(target.version.seen()) && text(&info, "model_path") == target.directory;
        Ok(Found { is_wanted, seen })
    }

    fn says(&self, server: &Server, versions: &[Version], is_changing: bool) -> bool {
        match server.glance("/model_info", is_changing) {
            Ok(Some(info)) => versions.iter().any(|version| text(&info, "weight_version") == version.name()),
            Ok(None) => is_changing,
            Err(_) => false,
        }
    }

    fn bring(&self, server: &Server, target: &Target, _: Option<&Seen>) -> Result<Option<Duration>, Trouble> {
        // SGLang reads a version into its model, and dies of one that does not fit.
        let info = server.get("/model_info", Ask::Question)?;
        if let Some(error) = refused(server, "/update_weights_from_disk", text(&info, "model_path"), &target.directory)
        {
            return Err(error.into());
        }
        let began = Instant::now();
        if let Err(error) = server.post("/pause_generation", &json!({ "mode": self.mode }), Ask::Change) {
            let resumed = server.post("/continue_generation", &json!({}), Ask::Change);
            return Err(Trouble { error, left: resumed.is_err().then_some(Seen::TORN) });
        }
        let update = json!({
            // Not `current`, which may lead to another version before all ranks have read it.
            "model_path": target.directory,
            "weight_version": target.version.name(),
            "flush_cache": true,
        });
        let updated = server.post("/update_weights_from_disk", &update, Ask::Once);
        // SGLang says that it takes back what it has loaded, but it reads the new files for that.
        updated
            .and_then(|_| server.post("/continue_generation", &json!({}), Ask::Change))
            .map_err(|error| Trouble { error, left: Some(Seen::TORN) })?;
        Ok(Some(began.elapsed()))
    }
}
