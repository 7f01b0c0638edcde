//! `cargo xtask deny`: licences, sources and banned crates among the dependencies, by cargo-deny and `deny.toml`.

use std::process::Command;

use crate::Result;
use crate::steps::{Steps, execute};
use crate::tools::installed;
use crate::workspace::root;

/// The version of cargo-deny that is installed.
const CARGO_DENY: &str = "0.20.2";

pub(crate) fn run() -> Result {
    let (program, root) = (installed("cargo-deny", CARGO_DENY)?, root()?);
    let mut steps = Steps::default();
    // The fuzzers are a workspace of their own.
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        steps.run(&format!("dependencies of {manifest}"), || {
            let mut deny = Command::new(&program);
            deny.args(["--manifest-path", manifest, "--workspace", "--locked", "--config", "deny.toml", "check"]);
            // Not `advisories`: its database would have to be downloaded.
            execute(deny.args(["licenses", "bans", "sources"]).current_dir(&root))
        });
    }
    steps.finish()
}
