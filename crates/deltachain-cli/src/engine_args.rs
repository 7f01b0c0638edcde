//! The options of `follow --engine`.
#![expect(clippy::doc_markdown, reason = "help texts are for terminals, not for browsers")]

use std::env;
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use deltachain::{Error, Result};
use deltachain_engines::{Engine, Pause, Server, as_text, parse_name, parse_url};
use serde::Serialize;
use serde_json::json;

use crate::shared_args::{SERVERS, parse_seconds};

/// Servers that are brought to each version.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Update the servers of --server to each version: they pause, load it, confirm it, and resume
    ///
    /// A server that fails or was restarted is retried, with a backoff of up to a minute, until it has the newest
    /// version. One that may hold parts of two versions stays paused until then. See docs/integrations.md.
    #[arg(long, requires = "servers", conflicts_with_all = ["command", "shards", "tensors"], help_heading = SERVERS)]
    pub(crate) engine: Option<EngineKind>,
    /// Address of a server, such as http://127.0.0.1:8000; repeatable
    #[arg(long = "server", value_name = "URL", requires = "engine", value_parser = parse_url, help_heading = SERVERS)]
    pub(crate) servers: Vec<String>,
    /// Timeout for each request to a server, in seconds, loading the version included
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, requires = "engine", value_parser = parse_seconds, help_heading = SERVERS)]
    pub(crate) server_timeout: f64,
    /// Environment variable with the token to send to the servers, as Authorization: Bearer TOKEN
    #[arg(long, value_name = "NAME", requires = "engine", help_heading = SERVERS)]
    pub(crate) server_token_env: Option<String>,
    /// With vllm: write the changes in place (sparse, with --no-tensors), or reload everything; auto does what the server
    /// can
    #[arg(long, value_name = "MODE", default_value = "auto", requires = "engine", help_heading = SERVERS)]
    pub(crate) update: UpdateMode,
    /// What becomes of running requests at an update: they go on with the new version (keep), so that one answer is made
    /// of two; they end first (wait), for --server-timeout at most; or they end at once, with what they have (abort)
    /// [default: keep]
    ///
    /// SGLang cannot wait. Adapters (vllm-lora) need no pause.
    #[arg(long, value_name = "MODE", requires = "engine", help_heading = SERVERS)]
    pub(crate) pause: Option<Pause>,
    /// With vllm-lora: name of the adapters, which become NAME@VERSION [default: the name of DIR]
    #[arg(long, value_name = "NAME", requires = "engine", value_parser = parse_name, help_heading = SERVERS)]
    pub(crate) adapter: Option<String>,
    /// With vllm-lora: number of older versions to keep loaded, for requests that name them
    #[arg(long, value_name = "N", default_value_t = 1, requires = "engine", help_heading = SERVERS)]
    pub(crate) keep_adapters: usize,
}

/// An inference engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineKind {
    /// vLLM with the Python package's backend `deltachain`
    Vllm,
    /// SGLang
    Sglang,
    /// vLLM whose adapters (LoRA) are the versions
    VllmLora,
}

/// How vLLM loads a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UpdateMode {
    Auto,
    Sparse,
    Reload,
}

impl EngineKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::VllmLora => "vllm-lora",
        }
    }
}

impl EngineArgs {
    /// What is asked of servers, which are brought to the versions in `directory`, or to these versions by themselves if
    /// that has no tensors. They are looked at every `poll`.
    pub(crate) fn engine(&self, kind: EngineKind, directory: &Path, tensors: bool, poll: Duration) -> Result<Engine> {
        let found = directory.canonicalize();
        let directory = found.map_err(|error| Error::io("looking for", error).in_file(directory))?;
        let pause = self.pause.unwrap_or_default();
        match kind {
            EngineKind::VllmLora if !tensors => {
                Err(Error::usage("--no-tensors: servers of vllm-lora load the tensors in DIR"))
            }
            EngineKind::Sglang if tensors => Engine::sglang(pause),
            EngineKind::Sglang => Engine::sglang_in_place(follower(&directory)?, poll, pause),
            EngineKind::Vllm => {
                // Never the chain: a server opens only that of its own configuration.
                let mode = (self.update != UpdateMode::Auto).then_some(self.update);
                let copy = if tensors { Some(as_text(&directory)?) } else { None };
                let init = json!({ "host_copy": copy, "mode": mode });
                Engine::vllm(&init.to_string(), follower(&directory)?, poll, pause)
            }
            EngineKind::VllmLora if self.pause.is_some() => {
                Err(Error::usage("--pause: adapters are loaded without a pause"))
            }
            EngineKind::VllmLora => {
                let name = match &self.adapter {
                    Some(name) => name.clone(),
                    None => parse_name(&directory.file_name().unwrap_or_default().to_string_lossy())
                        .map_err(|_| Error::usage("DIR's name is not a valid adapter name; use --adapter"))?,
                };
                Ok(Engine::lora(name, self.keep_adapters, &directory, self.servers.len()))
            }
        }
    }

    /// The first server that answers, and whether it downloads the chain of its own configuration: then it reads no
    /// directory. Nothing if none answers.
    pub(crate) fn downloads(&self) -> Result<Option<(bool, &str)>> {
        let engine = match self.engine {
            Some(EngineKind::Vllm) => Engine::vllm("{}", String::new(), Duration::ZERO, Pause::Keep)?,
            Some(EngineKind::Sglang) => Engine::sglang_in_place(String::new(), Duration::ZERO, Pause::Keep)?,
            Some(EngineKind::VllmLora) | None => return Ok(None),
        };
        let servers = self.servers()?;
        Ok(servers.iter().zip(&self.servers).find_map(|(server, url)| Some((engine.downloads(server)?, url.as_str()))))
    }

    /// The servers.
    ///
    /// # Errors
    /// USAGE if one is named twice, or the token is not there.
    pub(crate) fn servers(&self) -> Result<Vec<Server>> {
        if let Some((_, url)) = self.servers.iter().enumerate().find(|(at, url)| self.servers[..*at].contains(*url)) {
            return Err(Error::usage(format!("duplicate --server {url}")));
        }
        let token = self.server_token_env.as_ref().map(|name| {
            let token = env::var(name).ok().filter(|token| !token.is_empty());
            token.ok_or_else(|| Error::usage(format!("--server-token-env: missing variable {name}")))
        });
        let token = token.transpose()?;
        let timeout = Duration::from_secs_f64(self.server_timeout);
        self.servers.iter().map(|url| Server::new(url, token.clone(), timeout)).collect()
    }
}

/// What a process that keeps a directory calls itself.
fn follower(directory: &Path) -> Result<String> {
    Ok(format!("{}:{}", host(), as_text(directory)?))
}

/// What this machine calls itself.
fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = env::var("COMPUTERNAME").unwrap_or_default();
    name
}
