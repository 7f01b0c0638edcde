//! The requests to inference servers that bring them to a version of a chain: servers of vLLM with
//! the Python package's backend, servers of SGLang, and adapters in vLLM. Which request follows
//! which, and what follows from a failure, is written in integrations/docs/integrations.md.
//!
//! [`Fleet`] keeps servers at the version that is wanted, for followers. [`Servers`] brings servers
//! of vLLM to a version when a trainer says so, and leaves them paused until it says that they may
//! go on. Both use the same steps for one server (`workers.rs`), but not the same loop: a
//! follower's servers are independent of each other, each retries alone, and the loop never ends,
//! while a trainer's servers take each step together, a server that fails drops out, and nothing is
//! retried.
//!
//! ```text
//! fleet.rs    a thread for each server: tries until the server has the version, and looks whether it still has it
//! servers.rs  all servers at once, when a trainer says so
//! engine.rs   what an engine is
//! vllm.rs, sglang.rs, lora.rs   what is asked of a server, in which order
//! workers.rs  the same for all servers whose workers have the Python package, and the steps of one update
//! fit.rs      whether a version fits a server
//! server.rs   requests to one server
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
mod vllm;
mod workers;

pub use engine::{Engine, Failure, Pause, Target, as_text};
pub use fit::{Shapes, misfit};
pub use fleet::{AttemptResult, Fleet, News};
pub use lora::parse_name;
pub use server::{Server, parse_url};
pub use servers::Servers;
