//! `cargo xtask site`: the documentation as a site in `target/site`, and a check of all links in it. Its pages are the
//! Markdown files of the repository; beside them are the references of Rust, Python and JavaScript, and the inspector.
//! Nothing is downloaded once Sphinx is installed.

use std::fs;
use std::path::PathBuf;

use crate::python::Python;
use crate::steps::Steps;
use crate::workspace::target;
use crate::{Result, lint, node};

pub(crate) fn run() -> Result {
    let mut steps = Steps::default();
    let installed = node::install(&mut steps);
    steps.run("documentation", lint::document);
    add_steps(&mut steps, installed);
    steps.finish()
}

/// The site, with the documentation of crates that was made before. `installed`: whether the packages of the JavaScript
/// reader are there, which make its reference.
pub(crate) fn add_steps(steps: &mut Steps, installed: bool) {
    let types = if installed {
        steps.get("types for the site", types)
    } else {
        steps.skip("types for the site", "no packages of the JavaScript reader");
        None
    };
    let Some(python) = steps.get("Sphinx", || Python::with("venv-site", &["site/requirements.txt"])) else { return };
    if steps.run("site", || build(&python, types)) {
        steps.run("links of the site", || {
            python.run("site", &["-m", "unittest", "--quiet"])?;
            let site = target()?.join("site").display().to_string();
            python.run("site", &["check.py", &site])
        });
    }
}

/// Declarations of the JavaScript reader's types. In a folder of their own: other steps make those of the package.
fn types() -> Result<PathBuf> {
    let folder = target()?.join("site-types");
    let out = folder.display().to_string();
    node::run("npx", &["tsc", "-p", "tsconfig.types.json", "--outDir", &out])?;
    Ok(folder)
}

fn build(python: &Python, types: Option<PathBuf>) -> Result {
    let target = target()?;
    let site = target.join("site");
    if site.exists() {
        fs::remove_dir_all(&site)?;
    }
    // What is doubtful is an error, but all of it is shown.
    let mut arguments: Vec<String> = "-m sphinx --fail-on-warning --keep-going --fresh-env --quiet --conf-dir site"
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    arguments.push(format!("--doctree-dir={}", target.join("site-doctrees").display()));
    let rustdoc = target.join("doc");
    if rustdoc.join("deltachain/index.html").exists() {
        arguments.push(format!("--define=rustdoc={}", rustdoc.display()));
    }
    if let Some(types) = types {
        arguments.push(format!("--define=javascript_types={}", types.display()));
    }
    arguments.extend([".".to_owned(), site.display().to_string()]);
    python.run("", &arguments)
}
