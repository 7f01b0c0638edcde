//! `cargo xtask rivals`: this project beside its rivals, on the same pairs in the same run (`bench/rivals/README.md`).

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use crate::Result;
use crate::python::Python;
use crate::steps::execute;
use crate::synthetic::{Change, write_pair};
use crate::workspace::{build_tool, cargo, root, target, tool};

pub(crate) const ARGUMENTS: &str = "[--rounds N] [--mebibytes N] [DIRECTORY]";

struct Options {
    rounds: u64,
    /// Size of the synthetic files.
    mebibytes: u64,
    /// Where real checkpoints are; the excerpts in the repository if it is not given.
    folder: Option<PathBuf>,
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options { rounds: 5, mebibytes: 256, folder: None };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64> {
            let value = arguments.next().and_then(|value| value.parse().ok()).filter(|&value| value > 0);
            Ok(value.ok_or_else(|| format!("{argument} needs a number above 0"))?)
        };
        match argument.as_str() {
            "--rounds" => options.rounds = number()?,
            "--mebibytes" => options.mebibytes = number()?,
            folder if !folder.starts_with('-') && options.folder.is_none() => options.folder = Some(folder.into()),
            _ => return Err(format!("unexpected argument `{argument}`; the arguments are {ARGUMENTS}").into()),
        }
    }
    Ok(options)
}

pub(crate) fn run(arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    build_tool()?;
    execute(&mut cargo(&["build", "--release", "--package", "deltachain-bench", "--bin", "worker"])?)?;
    let python = Python::with("rivals-venv", &["bench/rivals/requirements.txt"])?;
    let made = tempfile::Builder::new().prefix("rivals-").tempdir_in(target()?)?;
    let step = |number| made.path().join(format!("synthetic_step{number}.safetensors"));
    write_pair(&step(0), &step(1), options.mebibytes, Change::Sparse)?;

    let own = root()?.join("bench/rivals");
    // The script runs elsewhere.
    let real = match &options.folder {
        Some(folder) => fs::canonicalize(folder).map_err(|error| format!("{}: {error}", folder.display()))?,
        None => root()?.join("testdata"),
    };
    let typed = ["cargo xtask rivals", &arguments.join(" ")].join(" ");
    let typed =
        options.folder.as_ref().map_or(typed.clone(), |folder| typed.replace(&*folder.to_string_lossy(), "DIRECTORY"));
    let worker = target()?.join("release").join("worker");
    let words: [(&str, OsString); 6] = [
        ("--tool", tool()?.into()),
        ("--worker", worker.into()),
        ("--command", typed.trim_end().into()),
        ("--rounds", options.rounds.to_string().into()),
        ("--results", own.join("RESULTS.md").into()),
        ("--plot", own.join("rivals.svg").into()),
    ];
    let mut arguments: Vec<OsString> = vec!["rivals.py".into()];
    arguments.extend(words.into_iter().flat_map(|(option, value)| [option.into(), value]));
    arguments.extend([real.into(), made.path().into()]);
    python.run("bench/rivals", &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        let parse = |text: &str| parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let options = parse("data --rounds 3").unwrap();
        assert_eq!((options.rounds, options.mebibytes, options.folder), (3, 256, Some("data".into())));
        for wrong in ["--rounds", "--rounds x", "--rounds 0", "a b", "--quick"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
