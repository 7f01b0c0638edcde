//! `cargo xtask lint`: formatting, clippy, documentation, which module uses which, whether packages can be made, and the
//! linters of Python and JavaScript.

use std::process::Command;

use crate::python::Python;
use crate::steps::{Steps, execute};
use crate::workspace::{cargo, root, target};
use crate::{Result, directions, node, release};

pub(crate) fn run() -> Result {
    let mut steps = Steps::default();
    let installed = node::install(&mut steps);
    add_steps(&mut steps, installed);
    steps.finish()
}

/// All of it. `installed`: whether the packages of the JavaScript reader are there.
pub(crate) fn add_steps(steps: &mut Steps, installed: bool) {
    add_rust_steps(steps);
    steps.run("budget", || execute(Command::new("python3").arg("tasks/budget.py").current_dir(root()?)));
    steps.run("documentation", document);
    // That they also build is part of `cargo xtask release --dry-run`.
    steps.run("packages", || release::package(&["--no-verify", "--allow-dirty"]));
    if let Some(python) = steps.get("Python linters", || Python::with("venv-lint", &["python/requirements-lint.txt"])) {
        steps.run("ruff", || python.run("", &["-m", "ruff", "check", "--quiet", "--no-cache"]));
        steps.run("mypy", || {
            let cache = format!("--cache-dir={}", target()?.join("mypy").display());
            python.run("python", &["-m", "mypy", &cache])
        });
        steps.run("imports of the Python package", || {
            let mut lint = Command::new(python.path().with_file_name("lint-imports"));
            lint.args(["--no-cache", "--no-logo"]).env("PYTHONDONTWRITEBYTECODE", "1");
            execute(lint.current_dir(root()?.join("python")))
        });
    }
    if installed {
        steps.run("JavaScript linter", || node::run("npm", &["run", "lint"]));
    }
}

/// The documentation of all crates, in `target/doc`.
pub(crate) fn document() -> Result {
    let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"])?;
    execute(doc.env("RUSTDOCFLAGS", "--deny warnings"))
}

/// What finds most mistakes in Rust code.
pub(crate) fn add_rust_steps(steps: &mut Steps) {
    steps.run("format", || execute(&mut cargo(&["fmt", "--all", "--check"])?));
    steps.run("directions of dependencies", directions::check);
    steps.run("clippy", || {
        execute(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])?)
    });
}
