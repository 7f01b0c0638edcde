//! `cargo xtask memory`: how much memory the tool needs, against its bound, which does not depend on the model's size.
//!
//! The tool runs as a child process; its peak is the kernel's own high-water mark of resident memory (`VmHWM`), asked
//! for every few milliseconds until the child ends. It never falls, so at most the growth in the last of these is missed.
//! The tool reads by position and maps nothing, so cached pages of its files do not count.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::steps::show;
use crate::synthetic::{Change, write_pair};
use crate::workspace::{build_tool, target, tool};

pub(crate) const ARGUMENTS: &str = "[--mebibytes N] [--threads T] [--dense]";

/// The bound in MiB: this much, and this much for each thread. The first holds 64 MiB of segments that wait until the
/// index is known (more of them wait in a file), the second the pieces of both states, in which a group has 32 MiB, and
/// what they are coded to. ARCHITECTURE.md has measurements.
fn bound(change: Change) -> (u64, u64) {
    match change {
        Change::Sparse => (128, 64),
        Change::Dense => (192, 192),
    }
}

/// Time between two looks at the child.
const PERIOD: Duration = Duration::from_millis(2);

struct Options {
    mebibytes: u64,
    threads: u64,
    change: Change,
}

pub(crate) fn run(arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    build_tool()?;
    measure(&options)
}

/// A run that is short and still tells whether memory grows with the model: each file is more than twice the bound.
pub(crate) fn short() -> Result {
    measure(&Options { mebibytes: 512, threads: 1, change: Change::Sparse })
}

fn parse(arguments: &[String]) -> Result<Options> {
    let threads = thread::available_parallelism()?.get() as u64;
    let mut options = Options { mebibytes: 512, threads, change: Change::Sparse };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64> {
            let value = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
            let number = value.parse().ok().filter(|&number| (1..1 << 24).contains(&number));
            Ok(number.ok_or_else(|| format!("{argument} {value}: not a number from 1 to 2^24 - 1"))?)
        };
        match argument.as_str() {
            "--mebibytes" => options.mebibytes = number()?,
            "--threads" => options.threads = number()?,
            "--dense" => options.change = Change::Dense,
            _ => return Err(format!("unexpected argument `{argument}`; the arguments are {ARGUMENTS}").into()),
        }
    }
    Ok(options)
}

/// Makes the files, runs the tool on them, prints what it needed, and compares that with the bound.
fn measure(options: &Options) -> Result {
    let Options { mebibytes, threads, change } = *options;
    // Below the target folder, because a system's temporary folder may be memory. Removed whatever happens.
    let folder = tempfile::Builder::new().prefix("memory-").tempdir_in(target()?)?;
    let path = |name: &str| folder.path().join(name);
    let (base, target, link, result) =
        (path("base.safetensors"), path("target.safetensors"), path("link.dcf"), path("result.safetensors"));
    let changed = write_pair(&base, &target, mebibytes, change)?;
    println!("two files of {mebibytes} MiB, {:.2} % of their elements differ; threads: {threads}", 100.0 * changed);

    let tool = tool()?;
    let command = |arguments: &[&Path]| {
        let mut command = Command::new(&tool);
        command.args(arguments).args(["--quiet", "--threads", &threads.to_string()]).stdout(Stdio::null());
        command
    };
    let (fixed, per_thread) = bound(change);
    let bound = fixed + threads * per_thread;
    let mut worst = 0;
    let runs = [
        ("diff", command(&["diff".as_ref(), &base, &target, "-o".as_ref(), &link])),
        ("apply", command(&["apply".as_ref(), "--base".as_ref(), &base, &link, "-o".as_ref(), &result])),
    ];
    for (name, mut command) in runs {
        let (peak, time) = peak_of(&mut command)?;
        println!("{name:5}  peak {peak:>5} MiB  {:>5.1} s", time.as_secs_f64());
        worst = worst.max(peak);
    }
    println!("the link has {} bytes", fs::metadata(&link)?.len());
    println!("bound  {bound} MiB = {fixed} MiB + threads * {per_thread} MiB");
    if !same_bytes(&target, &result)? {
        return Err("the tool's result differs from the target".into());
    }
    if worst <= bound { Ok(()) } else { Err(format!("the tool needed {worst} MiB, its bound is {bound} MiB").into()) }
}

/// Runs a command; returns its peak of resident memory in MiB, rounded up, and the time that it took.
fn peak_of(command: &mut Command) -> Result<(u64, Duration)> {
    let start = Instant::now();
    let mut child = command.spawn().map_err(|error| format!("cannot run `{}`: {error}", show(command)))?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak = None;
    let end = loop {
        // A process that has ended keeps its number until it is waited for, so this never asks about another one.
        peak = fs::read_to_string(&status).ok().and_then(|text| high_water_mark(&text)).or(peak);
        if let Some(end) = child.try_wait()? {
            break end;
        }
        thread::sleep(PERIOD);
    };
    if !end.success() {
        return Err(format!("`{}` failed with {end}", show(command)).into());
    }
    let kibibytes = peak.ok_or("no peak of memory in /proc: this task needs Linux")?;
    Ok((kibibytes.div_ceil(1024), start.elapsed()))
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

    #[test]
    fn arguments_are_checked() {
        let parse = |text: &str| parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let options = parse("--dense --mebibytes 7 --threads 3").unwrap();
        assert_eq!((options.mebibytes, options.threads, options.change), (7, 3, Change::Dense));
        for wrong in ["--mebibytes", "--mebibytes x", "--mebibytes 0", "--threads -1", "--mebibites 3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
