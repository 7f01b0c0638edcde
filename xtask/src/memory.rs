//! `cargo xtask memory`: how much memory the tool needs, against its bound, which does not depend on the model's size nor on
//! how many links are applied in one pass.
//!
//! The tool runs as a child process; its peak is the kernel's own high-water mark of resident memory (`VmHWM`), asked
//! for every few milliseconds until the child ends. It never falls, so at most the growth in the last of these is missed.
//! The tool reads by position and maps nothing, so cached pages of its files do not count.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use serde_json::Value;
use tempfile::TempDir;

use crate::Result;
use crate::steps::{say, show};
use crate::synthetic::{Change, write_pair};
use crate::workspace::{build_tool, target, tool};

/// The bound in MiB: this much, and this much for each thread. The first holds 64 MiB of segments that wait until the
/// index is known (more of them wait in a file). The second holds the pieces of both states, 32 MiB for a group, and
/// their coded form. docs/architecture.md has measurements.
fn bound(change: Change) -> (u64, u64) {
    match change {
        Change::Sparse => (128, 64),
        Change::Dense => (192, 192),
    }
}

/// Time between two looks at the child.
const PERIOD: Duration = Duration::from_millis(2);

#[derive(Args)]
pub(crate) struct Arguments {
    /// Size of the synthetic files in MiB
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = value_parser!(u64).range(1..1 << 24))]
    mebibytes: u64,
    /// Threads of the tool; as many as there are processors if it is not given
    #[arg(long, value_name = "T", value_parser = value_parser!(u64).range(1..1 << 24))]
    threads: Option<u64>,
    /// Change every element, not 1 %
    #[arg(long)]
    dense: bool,
}

/// `cargo xtask memory`
pub(crate) fn run(arguments: &Arguments) -> Result {
    build_tool()?;
    let threads = arguments.threads.map_or_else(processors, Ok)?;
    measure(arguments.mebibytes, threads, if arguments.dense { Change::Dense } else { Change::Sparse })
}

/// A run that is short and still tells whether memory grows with the model: each file is more than twice the bound.
pub(crate) fn short() -> Result {
    measure(512, 1, Change::Sparse)
}

fn processors() -> Result<u64> {
    Ok(thread::available_parallelism()?.get() as u64)
}

/// Makes the files, runs the tool on them, prints its memory and time, and compares the memory with the bound.
fn measure(mebibytes: u64, threads: u64, change: Change) -> Result {
    let files = Files::write(mebibytes, threads, change)?;
    let (fixed, per_thread) = bound(change);
    let bound = fixed + threads * per_thread;
    let mut runs = vec![("diff", files.diff(true)?)];
    files.diff(false)?;
    for (name, links) in [("apply", 1), ("apply 16 links", 16)] {
        runs.push((name, files.apply(links)?.0));
    }
    for (name, run) in &runs {
        say(format_args!("{name:14}  peak {:>5} MiB  {:>5.1} s", run.peak, run.time.as_secs_f64()));
    }
    say(format_args!("the link has {} bytes", fs::metadata(files.path("there.dcf"))?.len()));
    say(format_args!("bound  {bound} MiB = {fixed} MiB + threads * {per_thread} MiB"));
    let worst = runs.iter().map(|(_, run)| run.peak).max().unwrap_or_default();
    if worst <= bound { Ok(()) } else { Err(format!("the tool needed {worst} MiB, its bound is {bound} MiB").into()) }
}

/// What catching up costs the tool.
pub(crate) struct CatchUp {
    pub(crate) links: usize,
    pub(crate) time: Duration,
    /// Bytes that it has written, by its own report, and bytes of the model's file.
    pub(crate) written: u64,
    pub(crate) model: u64,
    /// MiB of resident memory.
    pub(crate) peak: u64,
}

impl CatchUp {
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub(crate) fn times_the_model(&self) -> f64 {
        self.written as f64 / self.model as f64
    }
}

/// Lets the built tool apply 1, 4, 16 and 64 links in one pass to a file of this many MiB.
pub(crate) fn catch_up(mebibytes: u64) -> Result<Vec<CatchUp>> {
    let files = Files::write(mebibytes, processors()?, Change::Sparse)?;
    files.diff(true)?;
    files.diff(false)?;
    let model = fs::metadata(files.path("base.safetensors"))?.len();
    let measure = |links| {
        let (Run { peak, time, .. }, written) = files.apply(links)?;
        Ok(CatchUp { links, time, written, model, peak })
    };
    [1, 4, 16, 64].into_iter().map(measure).collect()
}

/// Two neighbouring versions of a model, the links there and back, and what the tool makes of them.
struct Files {
    folder: TempDir,
    tool: PathBuf,
    threads: u64,
}

impl Files {
    fn write(mebibytes: u64, threads: u64, change: Change) -> Result<Self> {
        // Below the target folder, because a system's temporary folder may be memory. Removed whatever happens.
        let folder = tempfile::Builder::new().prefix("memory-").tempdir_in(target()?)?;
        let files = Self { folder, tool: tool()?, threads };
        let changed =
            write_pair(&files.path("base.safetensors"), &files.path("target.safetensors"), mebibytes, change)?;
        say(format_args!(
            "two files of {mebibytes} MiB, {:.2} % of their elements differ; threads: {threads}",
            100.0 * changed
        ));
        Ok(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.tool);
        command.args([name, "--json", "--threads", &self.threads.to_string()]);
        command
    }

    /// Makes the link there, or the one back.
    fn diff(&self, there: bool) -> Result<Run> {
        let (from, to, link) = if there { ("base", "target", "there") } else { ("target", "base", "back") };
        let state = |name| self.path(&format!("{name}.safetensors"));
        let mut command = self.command("diff");
        peak_of(command.args([state(from), state(to), "-o".into(), self.path(&format!("{link}.dcf"))]))
    }

    /// Applies this many links in one pass, alternating between a link and its reverse; also returns the bytes that the
    /// tool says it has written.
    fn apply(&self, links: usize) -> Result<(Run, u64)> {
        let [base, result] = ["base", "result"].map(|name| self.path(&format!("{name}.safetensors")));
        let turns = ["there.dcf", "back.dcf"].map(|name| self.path(name));
        let mut command = self.command("apply");
        command.arg("--base").arg(&base).args(turns.iter().cycle().take(links)).arg("--force").arg("-o").arg(&result);
        let run = peak_of(&mut command)?;
        let expected = if links.is_multiple_of(2) { base } else { self.path("target.safetensors") };
        if !same_bytes(&expected, &result)? {
            return Err(format!("the tool's result of {links} links is wrong").into());
        }
        let report: Value = serde_json::from_str(&run.report)?;
        let written = report["written"].as_u64().ok_or("the tool does not say how much it has written")?;
        Ok((run, written))
    }
}

/// The memory and time of a program, and its output.
struct Run {
    /// MiB of resident memory, rounded up.
    peak: u64,
    time: Duration,
    report: String,
}

fn peak_of(command: &mut Command) -> Result<Run> {
    let start = Instant::now();
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|error| format!("cannot run `{}`: {error}", show(command)))?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak = None;
    // What it says is short, and waits in the pipe until it has ended.
    let end = loop {
        // A process that has ended keeps its number until it is waited for, so this never asks about another one.
        peak = fs::read_to_string(&status).ok().and_then(|text| high_water_mark(&text)).or(peak);
        if let Some(end) = child.try_wait()? {
            break end;
        }
        thread::sleep(PERIOD);
    };
    let time = start.elapsed();
    if !end.success() {
        return Err(format!("`{}` failed with {end}", show(command)).into());
    }
    let kibibytes = peak.ok_or("no peak of memory in /proc: this task needs Linux")?;
    let mut report = String::new();
    child.stdout.take().ok_or("no output")?.read_to_string(&mut report)?;
    Ok(Run { peak: kibibytes.div_ceil(1024), time, report })
}

/// `VmHWM` of a process status, in KiB.
fn high_water_mark(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse().ok()
}

/// Whether two files hold the same bytes.
fn same_bytes(left: &Path, right: &Path) -> Result<bool> {
    let (mut left, mut right) = (File::open(left)?, File::open(right)?);
    if left.metadata()?.len() != right.metadata()?.len() {
        return Ok(false);
    }
    let (mut left_buffer, mut right_buffer) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let length = left.read(&mut left_buffer)?;
        if length == 0 {
            return Ok(true);
        }
        right.read_exact(&mut right_buffer[..length])?;
        if left_buffer[..length] != right_buffer[..length] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_water_mark_is_found() {
        let status = "Name:\tdeltachain\nVmPeak:\t  300 kB\nVmHWM:\t  123456 kB\nVmRSS:\t 5 kB\n";
        assert_eq!(high_water_mark(status), Some(123_456));
        assert_eq!(high_water_mark("Name:\tzombie\n"), None);
    }
}
