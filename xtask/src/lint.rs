//! `cargo xtask lint`: formatting, clippy, documentation, which module uses which, and whether packages can be made.

use crate::steps::{Steps, execute};
use crate::workspace::cargo;
use crate::{Result, directions, no_arguments, release};

pub(crate) fn run(arguments: &[String]) -> Result {
    no_arguments(arguments)?;
    let mut steps = Steps::default();
    steps.run("format", || execute(&mut cargo(&["fmt", "--all", "--check"])?));
    steps.run("directions of dependencies", directions::check);
    steps.run("clippy", || {
        execute(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?)
    });
    steps.run("documentation", || {
        let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"])?;
        execute(doc.env("RUSTDOCFLAGS", "--deny warnings"))
    });
    // That they also build is part of `cargo xtask release --dry-run`.
    steps.run("packages", || release::package(&["--no-verify", "--allow-dirty"]));
    steps.finish()
}
