//! `cargo xtask rivals`: this project beside its rivals, on the same pairs in the same run (`bench/rivals/README.md`).

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use clap::{Args, value_parser};

use crate::Result;
use crate::python::Python;
use crate::steps::execute;
use crate::synthetic::{Change, write_pair};
use crate::workspace::{build_tool, cargo, checkpoints, root, target, tool, typed};

const FOLDER: &str = "bench/rivals";

#[derive(Args)]
pub(crate) struct Arguments {
    /// How often each method is timed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    rounds: u64,
    /// Size of the synthetic files in MiB
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    mebibytes: u64,
    /// Also the methods of this Python file, or of all files of this folder (bench/rivals/README.md); repeatable
    #[arg(long, value_name = "FILE")]
    method: Vec<PathBuf>,
    /// Only methods whose names contain this word; repeatable
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// Real checkpoints, `NAME_stepNUMBER.safetensors`; the excerpts in the repository if it is not given
    directory: Option<PathBuf>,
}

pub(crate) fn run(options: &Arguments) -> Result {
    let find = |method: &PathBuf| fs::canonicalize(method).map_err(|error| format!("{}: {error}", method.display()));
    let methods = options.method.iter().map(find).collect::<std::result::Result<Vec<_>, _>>()?;
    build_tool()?;
    execute(&mut cargo(&["build", "--release", "--package", "deltachain-bench", "--bin", "worker"])?)?;
    let python = environment()?;
    let made = tempfile::Builder::new().prefix("rivals-").tempdir_in(target()?)?;
    let step = |number| made.path().join(format!("synthetic_step{number}.safetensors"));
    write_pair(&step(0), &step(1), options.mebibytes, Change::Sparse)?;

    let worker = target()?.join("release").join("worker");
    let mut words: Vec<(&str, OsString)> = vec![
        ("--tool", tool()?.into()),
        ("--worker", worker.into()),
        ("--command", typed(options.directory.as_deref()).into()),
        ("--rounds", options.rounds.to_string().into()),
    ];
    if methods.is_empty() && options.only.is_empty() {
        words.extend([("--results", root()?.join(FOLDER).into()), ("--pages", root()?.into())]);
    } else {
        // Of other methods than these pages show.
        words.push(("--results", target()?.join("rivals").into()));
    }
    words.extend(methods.into_iter().map(|method| ("--method", method.into())));
    words.extend(options.only.iter().map(|word| ("--only", word.into())));
    let mut arguments: Vec<OsString> = vec!["rivals.py".into()];
    arguments.extend(words.into_iter().flat_map(|(option, value)| [option.into(), value]));
    arguments.extend([checkpoints(options.directory.as_deref())?.into(), made.path().into()]);
    python.run(FOLDER, &arguments)
}

/// The methods that need no package, the example of the README, and the tables; for `cargo xtask ci`.
pub(crate) fn test() -> Result {
    // That of the Python package's tests has numpy.
    let python = Python::with("venv-package", &["python/requirements-test.txt"])?;
    python.run(FOLDER, &["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "."])
}

/// The environment of the rivals. One of them is installed without its dependencies, most of which need a GPU.
pub(crate) fn environment() -> Result<Python> {
    let python = Python::with("rivals-venv", &["bench/rivals/requirements.txt"])?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    python.run(FOLDER, &[&pip[..], &["--requirement", "requirements-modelexpress.txt"]].concat())?;
    python.run(FOLDER, &[&pip[..], &["--no-deps", "modelexpress==0.7.0"]].concat())?;
    Ok(python)
}
