//! `cargo xtask exchange`: imports and exports against the real packages of other systems (`e2e/exchange`).

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use clap::Args;

use crate::workspace::{build_tool, root, tool};
use crate::{Result, rivals};

const PROOF: &str = "e2e/exchange";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Pairs `NAME_step0.safetensors` and `NAME_step1.safetensors`, which are tried too
    directory: Option<PathBuf>,
}

pub(crate) fn run(Arguments { directory }: &Arguments) -> Result {
    let mut states = Vec::new();
    for entry in directory.iter().map(fs::read_dir).collect::<std::io::Result<Vec<_>>>()?.into_iter().flatten() {
        let path = fs::canonicalize(entry?.path())?;
        if path.to_string_lossy().ends_with("_step0.safetensors") {
            states.push(path);
        }
    }
    states.sort();
    build_tool()?;
    let python = rivals::environment()?;
    let mut words: Vec<OsString> = vec!["proof.py".into(), tool()?.into()];
    words.extend(states.into_iter().map(OsString::from));
    python.run(PROOF, &words)?;
    let words = ["modelexpress_reader.py".into(), tool()?.into(), root()?.join("testdata").into()];
    python.run::<OsString>(PROOF, &words)
}
