//! Requests to inference servers that load versions of a chain: servers of vLLM with the Python
//! package's backend, servers of SGLang, and adapters in vLLM. integrations/docs/integrations.md
//! describes the order of the requests, and what follows from a failure.
//!
//! [`Fleet`] keeps servers at the wanted version, for followers. [`Servers`] loads a version into
//! servers of vLLM when a trainer asks for it, and leaves them paused until the trainer resumes
//! them. Both use the same steps for one server (`workers.rs`), but not the same loop: a follower's
//! servers are independent of each other, each retries alone, and the loop never ends, while a
//! trainer's servers take each step together, a server that fails drops out, and nothing is
//! retried.
//!
//! ```text
//! fleet.rs    a thread for each server: retries until the server has the version, and polls whether it still has it
//! servers.rs  all servers at once, when a trainer asks for it
//! engine.rs   the interface of an engine
//! vllm.rs, sglang.rs, lora.rs   the requests of each engine, and their order
//! workers.rs  servers whose workers have the Python package, and the steps of one update
//! fit.rs      the check that a version fits a server
//! server.rs   requests to one server
//! survey.rs   what the members of a fleet hold, by digest
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod engine;
mod fit;
mod fleet;
mod lora;
mod server;
mod servers;
mod sglang;
mod survey;
mod vllm;
mod workers;

pub use engine::{Engine, Failure, Pause, Target, as_text};
pub use fit::{Shapes, difference, misfit};
pub use fleet::{AttemptResult, Fleet, News};
pub use lora::parse_name;
pub use server::{Server, parse_url};
pub use servers::Servers;
pub use survey::{
    Address, Awaited, Member, MemberCondition, Survey, find_version, survey, wait_for,
};
