//! The options of `follow --engine`.
#![expect(
    clippy::doc_markdown,
    reason = "help texts are for terminals, not for browsers"
)]

use std::env;
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use deltachain::{Error, Result};
use deltachain_engines::{Engine, Pause, Server, as_text, parse_name, parse_url};
use serde_json::json;

use crate::shared_args::{SERVERS, parse_seconds};

/// Environment variable with the token for servers.
const TOKEN: &str = "DELTACHAIN_SERVER_TOKEN";

/// Servers that are updated to each version.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Update the servers of --server to each version
    ///
    /// They pause, load it, confirm it, and resume. A server that fails or was restarted is
    /// retried, with a backoff of up to a minute, until it has the newest version. One that may
    /// hold parts of two versions stays paused until then. Servers of vLLM write the changes in
    /// place if they can. See integrations/docs/integrations.md.
    #[arg(long, requires = "servers", conflicts_with_all = ["command", "tensors"], help_heading = SERVERS)]
    pub(crate) engine: Option<EngineKind>,
    /// Address of a server, such as http://127.0.0.1:8000; repeatable
    ///
    /// If the variable DELTACHAIN_SERVER_TOKEN is set, it is sent to the servers, as Authorization:
    /// Bearer TOKEN.
    #[arg(long = "server", value_name = "URL", requires = "engine", value_parser = parse_url, help_heading = SERVERS)]
    pub(crate) servers: Vec<String>,
    /// Timeout for each request to a server, loading included
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "600",
        requires = "engine"
    )]
    #[arg(value_parser = parse_seconds, help_heading = SERVERS)]
    pub(crate) server_timeout: Duration,
    /// Running requests at an update: keep (the default), wait or abort
    ///
    /// keep: they continue with the new version, so one answer may come from two versions. wait:
    /// the update waits until they end, for at most --server-timeout. abort: they end at once, with
    /// the text so far. SGLang cannot wait. Adapters (vllm-lora) need no pause.
    #[arg(long, value_name = "MODE", requires = "engine", help_heading = SERVERS)]
    pub(crate) pause: Option<Pause>,
    /// With sglang: send a version also if it cannot be compared with the server's model
    ///
    /// SGLang crashes if the tensors of a version have other names or shapes. They are compared
    /// with the files that the server has read, which must be on this machine: at a path, or in the
    /// hub's cache.
    #[arg(long, requires = "engine", help_heading = SERVERS)]
    pub(crate) send_unchecked: bool,
    /// Adapters of vllm-lora are NAME@VERSION [default: the name of DIR]
    #[arg(long, value_name = "NAME", requires = "engine", value_parser = parse_name, help_heading = SERVERS)]
    pub(crate) adapter: Option<String>,
    /// With vllm-lora: number of older versions to keep loaded
    ///
    /// Requests can name them.
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

impl EngineArgs {
    /// Makes the engine. Its servers get the versions in `directory`, or download them if the
    /// directory has no tensors. Servers are polled every `poll`.
    pub(crate) fn engine(
        &self,
        kind: EngineKind,
        directory: &Path,
        tensors: bool,
        poll: Duration,
    ) -> Result<Engine> {
        let found = directory.canonicalize();
        let directory =
            found.map_err(|error| Error::io("resolving the path", error).in_file(directory))?;
        if self.send_unchecked && kind != EngineKind::Sglang {
            return Err(Error::usage(
                "--send-unchecked is for sglang: other engines refuse versions that do not fit",
            ));
        }
        let pause = self.pause.unwrap_or_default();
        match kind {
            EngineKind::VllmLora if !tensors => Err(Error::usage(
                "--no-tensors is not for vllm-lora, whose servers load the tensors in DIR",
            )),
            EngineKind::Sglang if tensors => Engine::sglang(pause, self.send_unchecked),
            EngineKind::Sglang => Engine::sglang_in_place(follower(&directory)?, poll, pause),
            EngineKind::Vllm => {
                // The chain is never sent: a server opens only the chain of its own configuration.
                let copy = if tensors {
                    Some(as_text(&directory)?)
                } else {
                    None
                };
                let init = json!({ "host_copy": copy, "mode": null });
                Engine::vllm(&init.to_string(), follower(&directory)?, poll, pause)
            }
            EngineKind::VllmLora if self.pause.is_some() => Err(Error::usage(
                "--pause is not for vllm-lora: adapters are loaded without a pause",
            )),
            EngineKind::VllmLora => {
                let name = match &self.adapter {
                    Some(name) => name.clone(),
                    None => {
                        parse_name(&directory.file_name().unwrap_or_default().to_string_lossy())
                            .map_err(|_| {
                                Error::usage(
                                    "DIR's name is not a valid adapter name; use --adapter",
                                )
                            })?
                    }
                };
                Ok(Engine::lora(
                    name,
                    self.keep_adapters,
                    &directory,
                    self.servers.len(),
                ))
            }
        }
    }

    /// Returns whether the first server that answers downloads the chain of its own configuration,
    /// instead of reading a directory, and the server's URL. `None` if no server answers.
    pub(crate) fn downloads(&self) -> Result<Option<(bool, &str)>> {
        let engine = match self.engine {
            Some(EngineKind::Vllm) => {
                Engine::vllm("{}", String::new(), Duration::ZERO, Pause::Keep)?
            }
            Some(EngineKind::Sglang) => {
                Engine::sglang_in_place(String::new(), Duration::ZERO, Pause::Keep)?
            }
            Some(EngineKind::VllmLora) | None => return Ok(None),
        };
        let servers = self.servers()?;
        Ok(servers
            .iter()
            .zip(&self.servers)
            .find_map(|(server, url)| Some((engine.downloads(server)?, url.as_str()))))
    }

    /// Returns the servers.
    ///
    /// # Errors
    /// USAGE if one is named twice.
    pub(crate) fn servers(&self) -> Result<Vec<Server>> {
        if let Some((_, url)) = self
            .servers
            .iter()
            .enumerate()
            .find(|(at, url)| self.servers[..*at].contains(*url))
        {
            return Err(Error::usage(format!("duplicate --server {url}")));
        }
        let token = env::var(TOKEN).ok().filter(|token| !token.is_empty());
        self.servers
            .iter()
            .map(|url| Server::new(url, token.clone(), self.server_timeout))
            .collect()
    }
}

/// Returns the name of the process that follows a chain in this directory.
fn follower(directory: &Path) -> Result<String> {
    Ok(format!("{}:{}", host(), as_text(directory)?))
}

/// Returns this machine's own host name.
fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    #[cfg(not(unix))]
    let name = env::var("COMPUTERNAME").unwrap_or_default();
    name
}
