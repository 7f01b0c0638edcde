//! `cargo xtask mutants`: do the library's tests notice when an operator, a branch or a result of `src/format` or `src/codec`
//! is another? By cargo-mutants and `.cargo/mutants.toml`. Takes an hour or two; `fuzz/MUTANTS.md` has results.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::steps::show;
use crate::tools::installed;
use crate::workspace::{root, target};

/// The version of cargo-mutants that is installed.
const CARGO_MUTANTS: &str = "27.1.0";
/// Least share of the mutants of each module that the tests must notice, in percent.
const LEAST: usize = 90;

pub(crate) fn run(shard: Option<&str>) -> Result {
    let (program, out) = (installed("cargo-mutants", CARGO_MUTANTS)?, target()?);
    let mut mutants = Command::new(program);
    mutants.args(["mutants", "--package", "deltachain", "--output"]).arg(&out).current_dir(root()?);
    if let Some(shard) = shard {
        mutants.args(["--sharding", "round-robin", "--shard", shard]);
    }
    // Quick to build, and quick enough to run. Each mutant is built in a copy of the tree, with a target folder there.
    mutants.envs([("CARGO_PROFILE_TEST_OPT_LEVEL", "1"), ("CARGO_PROFILE_TEST_DEBUG", "0")]);
    mutants.env_remove("CARGO_TARGET_DIR");
    let status = mutants.status().map_err(|error| format!("cannot run `{}`: {error}", show(&mutants)))?;
    // 2 and 3 say that tests missed mutants or ran into the time limit, which is judged here.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        return Err(format!("`{}` failed with {status}", show(&mutants)).into());
    }
    judge(&out.join("mutants.out"))
}

/// Prints how many mutants of each module were noticed. An error if they are too few.
fn judge(results: &Path) -> Result {
    let read = |name: &str| fs::read_to_string(results.join(name));
    let (caught, late, missed) = (read("caught.txt")?, read("timeout.txt")?, read("missed.txt")?);
    let mut poor = Vec::new();
    for module in ["src/codec", "src/format"] {
        let count = |list: &str| list.lines().filter(|line| line.starts_with(module)).count();
        let (noticed, missed) = (count(&caught) + count(&late), count(&missed));
        println!("{module:12} {noticed:>5} noticed ({} by the time limit), {missed:>4} missed", count(&late));
        if noticed * 100 < (noticed + missed) * LEAST {
            poor.push(module);
        }
    }
    if poor.is_empty() { Ok(()) } else { Err(format!("below {LEAST} %: {}", poor.join(", ")).into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_noticed_mutants_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, module: &str, count: usize| {
            fs::write(folder.path().join(name), format!("{module}/a.rs:1:1: replace\n").repeat(count)).unwrap();
        };
        write("caught.txt", "src/codec", 8);
        write("timeout.txt", "src/codec", 1);
        write("missed.txt", "src/codec", 1);
        judge(folder.path()).unwrap();
        write("missed.txt", "src/codec", 2);
        assert!(judge(folder.path()).is_err());
        write("missed.txt", "src/format", 1);
        assert!(judge(folder.path()).is_err());
    }
}
