//! `cargo xtask rivals`: this project beside its rivals, on the same pairs in the same run (`bench/rivals/README.md`).

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, value_parser};

use crate::Result;
use crate::python::Python;
use crate::steps::execute;
use crate::synthetic::{Change, write_pair};
use crate::workspace::{build_tool, cargo, checkpoints, root, target, tool, typed};

#[derive(Args)]
pub(crate) struct Arguments {
    /// How often each method is timed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    rounds: u64,
    /// Size of the synthetic files in MiB
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    mebibytes: u64,
    /// Real checkpoints, `NAME_stepNUMBER.safetensors`; the excerpts in the repository if it is not given
    directory: Option<PathBuf>,
}

pub(crate) fn run(options: &Arguments) -> Result {
    build_tool()?;
    execute(&mut cargo(&["build", "--release", "--package", "deltachain-bench", "--bin", "worker"])?)?;
    let python = Python::with("rivals-venv", &["bench/rivals/requirements.txt"])?;
    let made = tempfile::Builder::new().prefix("rivals-").tempdir_in(target()?)?;
    let step = |number| made.path().join(format!("synthetic_step{number}.safetensors"));
    write_pair(&step(0), &step(1), options.mebibytes, Change::Sparse)?;

    let own = root()?.join("bench/rivals");
    let worker = target()?.join("release").join("worker");
    let words: [(&str, OsString); 7] = [
        ("--tool", tool()?.into()),
        ("--worker", worker.into()),
        ("--command", typed(options.directory.as_deref()).into()),
        ("--rounds", options.rounds.to_string().into()),
        ("--results", own.join("RESULTS.md").into()),
        ("--plot", own.join("rivals.svg").into()),
        ("--readme", root()?.join("README.md").into()),
    ];
    let mut arguments: Vec<OsString> = vec!["rivals.py".into()];
    arguments.extend(words.into_iter().flat_map(|(option, value)| [option.into(), value]));
    arguments.extend([checkpoints(options.directory.as_deref())?.into(), made.path().into()]);
    python.run("bench/rivals", &arguments)
}
