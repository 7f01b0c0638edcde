//! `cargo xtask fuzz`: collects seeds, builds the fuzzers of `fuzz/`, runs them, and says how often each was executed.
//!
//! Needs a nightly toolchain and a C compiler; cargo-fuzz is installed into the target folder when it is missing there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};

use crate::Result;
use crate::steps::{execute, show};
use crate::tools::installed;
use crate::workspace::{cargo, host, root, target};

/// The version of cargo-fuzz that is installed.
const CARGO_FUZZ: &str = "0.13.2";
/// Where everything is, relative to the root.
const FUZZ: &str = "fuzz";
/// Longest input: short ones find the same faults, and are fast.
const MAX_BYTES: u32 = 2048;
/// The same for chains, which hold several links.
const MAX_CHAIN_BYTES: u32 = 4096;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The fuzzers to run; all of them if none is given
    targets: Vec<String>,
    /// How long each of them runs
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    seconds: u64,
    /// Only collect their seeds
    #[arg(long, exclusive = true)]
    seeds: bool,
    /// Only replay what is known
    #[arg(long, exclusive = true)]
    regressions: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result {
    let Arguments { targets, seconds, seeds, regressions } = arguments;
    if *seeds {
        return collect_seeds();
    }
    let bound = if *regressions { "-runs=0".to_owned() } else { format!("-max_total_time={seconds}") };
    Fuzzers::build()?.run_all(targets, &[&bound])
}

/// Writes the seeds into `fuzz/corpus`, where fuzzers add their inputs.
fn collect_seeds() -> Result {
    let root = root()?;
    // In the profile of the tests, which have built the same dependencies.
    let mut seeds =
        cargo(&["run", "--quiet", "--profile", "test", "--package", "deltachain-fuzz", "--example", "seeds", "--"])?;
    execute(seeds.arg(&root).arg(root.join(FUZZ).join("corpus")))
}

/// The built fuzzers.
struct Fuzzers {
    /// `fuzz/`.
    folder: PathBuf,
    /// Where the programs are.
    programs: PathBuf,
    /// Names of all targets.
    targets: Vec<String>,
}

impl Fuzzers {
    /// Collects seeds and builds all targets.
    fn build() -> Result<Self> {
        let folder = root()?.join(FUZZ);
        let mut targets = Vec::new();
        for entry in fs::read_dir(folder.join("fuzz_targets"))? {
            let name = entry?.path().file_stem().map(|name| name.to_string_lossy().into_owned());
            targets.extend(name);
        }
        targets.sort_unstable();
        collect_seeds()?;
        let built = target()?.join("fuzz");
        let mut build = nightly(&installed("cargo-fuzz", CARGO_FUZZ)?);
        build.args(["build", "--fuzz-dir"]).arg(&folder).arg("--target-dir").arg(&built);
        // C code, too, is built with AddressSanitizer. GCC poisons a table of zstd's that it has made static.
        execute(build.env("CFLAGS", "-fno-sanitize-address-use-after-scope").current_dir(&folder))?;
        Ok(Self { programs: built.join(nightly_host()?).join("release"), folder, targets })
    }

    /// Runs the chosen targets, or all; prints executions. An error names the targets that failed.
    fn run_all(&self, chosen: &[String], arguments: &[&str]) -> Result {
        if let Some(unknown) = chosen.iter().find(|name| !self.targets.contains(name)) {
            return Err(format!("there is no target `{unknown}`; there are {}", self.targets.join(", ")).into());
        }
        let chosen = if chosen.is_empty() { &self.targets } else { chosen };
        let mut failed = Vec::new();
        let (mut executions, mut time) = (0, Duration::ZERO);
        for target in chosen {
            let start = Instant::now();
            let (own, passed) = self.run(target, arguments)?;
            let seconds = start.elapsed();
            println!(
                "{target:14} {own:>12} executions, {:>8} per second  {}",
                own / seconds.as_secs().max(1),
                if passed { "ok" } else { "FAILED" }
            );
            executions += own;
            time += seconds;
            if !passed {
                failed.push(target.as_str());
            }
        }
        println!("{:14} {executions:>12} executions in {} s", "total", time.as_secs());
        if failed.is_empty() { Ok(()) } else { Err(format!("{} FAILED", failed.join(", ")).into()) }
    }

    /// Runs one target over its seeds and regressions and the inputs that it makes from them. Returns the number of
    /// executions, and whether all of them passed.
    fn run(&self, target: &str, arguments: &[&str]) -> Result<(u64, bool)> {
        let corpus = self.folder.join("corpus").join(target);
        let artifacts = self.folder.join("artifacts").join(target);
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(&artifacts)?;
        let log = artifacts.with_extension("log");
        let mut fuzzer = Command::new(self.programs.join(target));
        fuzzer.arg(corpus);
        let regressions = self.folder.join("regressions").join(target);
        if regressions.exists() {
            fuzzer.arg(regressions);
        }
        fuzzer.args(arguments).args(["-print_final_stats=1", "-timeout=20", "-rss_limit_mb=4096"]);
        let most = if target == "chain" { MAX_CHAIN_BYTES } else { MAX_BYTES };
        fuzzer.arg(format!("-max_len={most}")).arg(format!("-dict={}", self.folder.join("dictionary").display()));
        fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display()));
        let output = File::create(&log)?;
        let status = fuzzer.stdout(output.try_clone()?).stderr(output).status();
        let status = status.map_err(|error| format!("cannot run `{}`: {error}", show(&fuzzer)))?;
        let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !status.success() {
            println!("{}", last_lines(&text, 60));
            println!("`{}` failed with {status}; its output is in {}", show(&fuzzer), log.display());
        }
        Ok((executions(&text), status.success()))
    }
}

/// The number of executions that libFuzzer reports at the end.
fn executions(output: &str) -> u64 {
    let line = output.lines().rev().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// A program that uses the nightly toolchain, whatever toolchain runs this.
fn nightly(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("RUSTUP_TOOLCHAIN", "nightly").env_remove("CARGO").env_remove("RUSTC").env_remove("CARGO_TARGET_DIR");
    command
}

/// The nightly toolchain's name of this machine's kind.
fn nightly_host() -> Result<String> {
    let host = host(&mut nightly(Path::new("rustc")));
    host.map_err(|_| "there is no nightly toolchain: `rustup toolchain install nightly`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_found() {
        let output = "#123\tDONE cov: 1\nstat::number_of_executed_units: 4711\nstat::average_exec_per_sec:     12\n";
        assert_eq!(executions(output), 4711);
        assert_eq!(executions("deadly signal"), 0);
    }
}
