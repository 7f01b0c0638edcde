//! `cargo xtask bench`: runs the benchmarks of `crates/deltachain-bench` and makes `docs/benchmarks.md` of what criterion
//! has noted.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, value_parser};
use serde_json::Value;

use crate::Result;
use crate::memory::{self, CatchUp};
use crate::steps::execute;
use crate::workspace::{build_tool, cargo, checkpoints, root, target, typed};

/// Sizes in MiB whose growth is looked at. The long ones need 11 GiB of memory.
const SIZES: &str = "64,256,1024";
const LONG_SIZES: [u64; 5] = [64, 256, 1024, 4096, 8192];

/// What the rows are.
const WORDS: &str = "\
GB/s are 10^9 bytes of the model per second and core; the slowest and the fastest run are in brackets. \"x \
memcpy\" compares with a copy of the same bytes by as many threads, \"x 1 thread\" with the same work by one \
thread. States are in memory, except where files are named. [bench/rivals](../bench/rivals/RESULTS.md) compares \
links with other tools.\n\
\n\
- `diff, base hashed` is what a user of `diff` gets. `base digests known` is a publisher whose base \
is what it published last. `publish` is the whole step of a publisher with a store in memory: with the `base \
published last`, or with another `base given`, which is hashed. `with sums` is for readers in place.\n\
- `sums of memory` reads all of it and compares its sums, as a check in the background does.\n\
- `apply`, `prepare` and `prove` begin with opening the link, and check all digests. `apply` writes to other \
memory. `prepare` collects the changes for the only copy, which does not change yet; `the pause` puts them into \
the copy, or takes them back. `prove` keeps nothing.\n\
- `in place: prove` begins with opening the link, reads the lanes that it codes and no others, and compares sums \
instead of digests. `in place: pause` is in memory that others can write to: old values are read again and \
compared, then the new ones are written.\n\
- `catch-up` applies several links in one pass: in memory like `apply`, or from file to file, where the base is \
hashed first and the result is on disk at the end.\n";

/// How much each link of the groups `catch-up, ...` changes.
const CATCH_UP_PERCENT: f64 = 0.35;

/// Size in MiB of the file that the tool applies several links to.
const CATCH_UP_MEBIBYTES: u64 = 128;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Synthetic states of up to 8 GiB, which need 11 GiB of memory
    #[arg(long, conflicts_with = "mebibytes")]
    long: bool,
    /// Sizes of the synthetic states in MiB, comma-separated
    #[arg(long, default_value = SIZES, value_delimiter = ',', value_name = "N,N,...")]
    #[arg(value_parser = value_parser!(u64).range(1..))]
    mebibytes: Vec<u64>,
    /// Real checkpoints; the excerpts in the repository if it is not given
    directory: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result {
    let notes = target()?.join("bench-notes");
    // From another run; its figures must not mix with the new ones.
    if notes.exists() {
        fs::remove_dir_all(&notes)?;
    }
    let real = checkpoints(arguments.directory.as_deref())?;
    let sizes = if arguments.long { &LONG_SIZES[..] } else { &arguments.mebibytes };
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let mut bench = cargo(&["bench", "--package", "deltachain-bench", "--bench", "kernels", "--bench", "operations"])?;
    bench.env("CRITERION_HOME", &notes).env("DELTACHAIN_BENCH_REAL", &real);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    build_tool()?;
    let catch_up = memory::catch_up(CATCH_UP_MEBIBYTES)?;
    execute(bench.env("DELTACHAIN_BENCH_MEBIBYTES", sizes.join(",")))?;
    let measured = Measured { figures: read(&notes)?, catch_up };

    let typed = typed(arguments.directory.as_deref());
    let report = report(&measured, &typed, load.split(' ').next().unwrap_or_default());
    println!("\n{report}");
    Ok(fs::write(root()?.join("docs/benchmarks.md"), report)?)
}

/// What criterion has noted of one function.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    name: String,
    bytes: f64,
    /// Seconds.
    median: f64,
    fastest: f64,
    slowest: f64,
}

impl Figure {
    fn speed(&self) -> f64 {
        self.bytes / self.median
    }

    /// The number in "..., N threads"; a figure without it is of one thread.
    fn threads(&self) -> u32 {
        let words = self.name.rsplit_once(", ").and_then(|(_, end)| end.split_once(" thread"));
        words.and_then(|(number, _)| number.parse().ok()).unwrap_or(1)
    }
}

/// Figures by group, in the order in which they were noted.
type Figures = BTreeMap<String, Vec<Figure>>;

/// What a run has found.
struct Measured {
    figures: Figures,
    /// Of the tool.
    catch_up: Vec<CatchUp>,
}

fn read(notes: &Path) -> Result<Figures> {
    let mut found = Vec::new();
    let mut pending = vec![notes.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.ends_with("new") {
                found.push((fs::metadata(path.join("sample.json"))?.modified()?, path));
            } else if path.is_dir() {
                pending.push(path);
            }
        }
    }
    found.sort();
    let mut figures = Figures::new();
    for (_, path) in found {
        let json = |name: &str| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(path.join(name))?)?) };
        let (about, sample, estimates) = (json("benchmark.json")?, json("sample.json")?, json("estimates.json")?);
        let figure =
            figure(&about, &sample, &estimates).ok_or_else(|| format!("{}: not understood", path.display()))?;
        let group = about["group_id"].as_str().unwrap_or_default().to_owned();
        figures.entry(group).or_default().push(figure);
    }
    Ok(figures)
}

fn figure(about: &Value, sample: &Value, estimates: &Value) -> Option<Figure> {
    let numbers = |name: &str| sample[name].as_array().map(|all| all.iter().filter_map(Value::as_f64));
    let times: Vec<f64> = numbers("times")?.zip(numbers("iters")?).map(|(time, runs)| time / runs / 1e9).collect();
    Some(Figure {
        name: about["function_id"].as_str()?.to_owned(),
        bytes: about["throughput"]["Bytes"].as_f64()?,
        median: estimates["median"]["point_estimate"].as_f64()? / 1e9,
        fastest: times.iter().copied().reduce(f64::min)?,
        slowest: times.iter().copied().reduce(f64::max)?,
    })
}

fn report(measured: &Measured, command: &str, load: &str) -> String {
    let Measured { figures, catch_up } = measured;
    let mut text = format!(
        "# Benchmarks\n\n`{command}`, {}, on {}. Load of the machine at the start: {load}.\n\n{WORDS}",
        output("date", &["-u", "+%Y-%m-%d"]),
        machine(),
    );
    text += "\n## What is asked for\n\n| what | at least | measured | |\n|---|---:|---:|---|\n";
    for goal in goals(measured) {
        let verdict = if goal.measured.is_nan() {
            "not measured"
        } else if if goal.at_most { goal.measured <= goal.bound } else { goal.measured >= goal.bound } {
            "reached"
        } else {
            "MISSED"
        };
        let words = if goal.at_most { "at most " } else { "" };
        // Writing to a string does not fail.
        let measured = if goal.measured.is_nan() { "-".to_owned() } else { format!("{:.2}", goal.measured) };
        let _ = writeln!(text, "| {} | {words}{} | {measured} | {verdict} |", goal.what, goal.bound);
    }
    text += &growth(figures);
    text += &catch_up_by_tool(catch_up);
    for (group, rows) in figures {
        let _ = write!(
            text,
            "\n## {group}\n\n| what | median | GB/s per core | x memcpy | x 1 thread |\n|---|---:|---:|---:|---:|\n"
        );
        for row in rows {
            let threads = f64::from(row.threads());
            let speed = |time: f64| row.bytes / time / 1e9 / threads;
            let copy = rows.iter().find(|copy| copy.name.starts_with("memcpy") && copy.threads() == row.threads());
            let ratio = |other: Option<&Figure>| {
                other.map_or(String::new(), |other| format!("{:.2}", row.speed() / other.speed()))
            };
            let _ = writeln!(
                text,
                "| {} | {:.2} ms | {:.3} ({:.3} - {:.3}) | {} | {} |",
                row.name,
                1e3 * row.median,
                speed(row.median),
                speed(row.slowest),
                speed(row.fastest),
                ratio(copy),
                if row.threads() == 1 { String::new() } else { ratio(alone(rows, &row.name)) },
            );
        }
    }
    text
}

/// The same operation by one thread.
fn alone<'a>(rows: &'a [Figure], name: &str) -> Option<&'a Figure> {
    let (operation, _) = name.rsplit_once(", ")?;
    row(rows, &format!("{operation}, 1 thread"))
}

fn row<'a>(rows: &'a [Figure], name: &str) -> Option<&'a Figure> {
    rows.iter().find(|row| row.name == name)
}

fn find<'a>(figures: &'a Figures, group: &str, name: &str) -> Option<&'a Figure> {
    row(figures.get(group)?, name)
}

/// A bound on a ratio of two figures of this run.
struct Goal {
    what: String,
    bound: f64,
    at_most: bool,
    /// NaN if one of the figures is missing.
    measured: f64,
}

fn goals(measured: &Measured) -> Vec<Goal> {
    let figures = &measured.figures;
    let dense = "128 MiB, 1 %";
    let copies = [
        ("diff, encode and target digest, 1 % of BF16, x memcpy", "diff compact, base digests known", 0.2),
        ("apply compact with result digest, x memcpy", "apply compact, with result digest", 0.2),
        ("prepare: one link, 1 % of BF16, all digests, x memcpy", "prepare compact", 0.35),
        ("the pause at 1 %, x memcpy", "the pause", 3.0),
        ("direct to patches, x memcpy", "direct to patches", 2.0),
    ];
    let mut goals: Vec<Goal> = copies
        .into_iter()
        .map(|(what, name, bound)| Goal {
            what: format!("{what}, 1 thread"),
            bound,
            at_most: false,
            measured: seconds(figures, dense, "memcpy") / seconds(figures, dense, name),
        })
        .collect();
    for operation in ["diff compact, base digests known", "apply compact, with result digest"] {
        let measured = find(figures, dense, &format!("{operation}, 2 threads")).map_or(f64::NAN, |two| two.median);
        let measured = seconds(figures, dense, operation) / measured;
        goals.push(Goal { what: format!("{operation}, 2 threads x 1 thread"), bound: 1.8, at_most: false, measured });
    }
    goals.extend(sums(figures));
    goals.extend(in_place(figures));
    goals.extend(steps(figures));
    goals.extend(catch_up(figures));
    goals.extend(measured.catch_up.iter().filter(|run| run.links == 16).map(|run| Goal {
        what: "bytes that the tool writes for 16 links in one pass, x the model".to_owned(),
        bound: 1.02,
        at_most: true,
        measured: run.times_the_model(),
    }));
    for kibibytes in [2, 16] {
        let one = format!("1 x {} KiB, 0.1 %", 70_000 * kibibytes);
        let many = format!("70000 x {kibibytes} KiB, 0.1 %");
        for operation in ["diff compact, base digests known", "apply compact, with result digest"] {
            goals.push(Goal {
                what: format!("{operation}, 1 thread: time of 70,000 tensors of {kibibytes} KiB x one"),
                bound: 1.5,
                at_most: true,
                measured: seconds(figures, &many, operation) / seconds(figures, &one, operation),
            });
        }
    }
    goals
}

/// Goals for what readers in place need: their links, and the check of their memory.
fn sums(figures: &Figures) -> [Goal; 3] {
    let group = "128 MiB, 0.35 %";
    let time = |name: &str| seconds(figures, group, name);
    let goal = |what: &str, bound, measured| Goal { what: format!("{group}: {what}"), bound, at_most: true, measured };
    let with_sums = |profile: &str| time(&format!("diff {profile} with sums, base digests known"));
    [
        goal("sums of memory, 1 thread: time x memcpy", 0.8, time("sums of memory") / time("memcpy")),
        goal(
            "diff local with sums, base digests known, 1 thread, x (memcmp + BLAKE3 of the target)",
            1.4,
            with_sums("local") / (time("memcmp") + time("BLAKE3 of the target")),
        ),
        goal(
            "diff compact, base digests known, 1 thread: time with sums x without",
            1.15,
            with_sums("compact") / time("diff compact, base digests known"),
        ),
    ]
}

/// Goals for links that are taken in place: what goes with the changes costs no more than copying the model does, and links
/// in one pass little more than one link.
fn in_place(figures: &Figures) -> Vec<Goal> {
    let group = "128 MiB, 0.35 %";
    let copies = [("prove local", 0.8), ("prove direct", 0.8), ("pause", 0.15)];
    let copies = copies.into_iter().map(|(name, bound)| Goal {
        what: format!("{group}: in place: {name}, 1 thread: time x memcpy"),
        bound,
        at_most: true,
        measured: seconds(figures, group, &format!("in place: {name}")) / seconds(figures, group, "memcpy"),
    });
    let sequences = figures.keys().filter(|group| group.starts_with("in place, ")).map(|group| Goal {
        what: format!("{group}, 1 thread: 16 links, x 1 link of as many lanes"),
        bound: 1.2,
        at_most: true,
        measured: seconds(figures, group, "16 links") / seconds(figures, group, "1 link of as many lanes"),
    });
    copies.chain(sequences).collect()
}

/// Goals for real pairs of one step, `NAME N-M` with M one more than N.
fn steps(figures: &Figures) -> Vec<Goal> {
    let is_step = |group: &&String| {
        let numbers = group.rsplit_once(' ').and_then(|(_, numbers)| numbers.split_once('-'));
        let numbers = numbers.and_then(|(old, new)| Some((old.parse::<u64>().ok()?, new.parse::<u64>().ok()?)));
        numbers.is_some_and(|(old, new)| old + 1 == new)
    };
    let goals = figures.keys().filter(is_step).flat_map(|group| {
        let time = |name: &str| seconds(figures, group, name);
        let known = time("diff compact, base digests known");
        let goal =
            |what: &str, bound, measured| Goal { what: format!("{group}: {what}"), bound, at_most: true, measured };
        [
            goal(
                "diff compact, base digests known, 1 thread, x (memcmp + BLAKE3 of the target)",
                2.2,
                known / (time("memcmp") + time("BLAKE3 of the target")),
            ),
            goal(
                "publish, base published last, 1 thread, x diff compact, base digests known",
                1.1,
                time("publish, base published last") / known,
            ),
        ]
    });
    goals.collect()
}

/// What each link after the first adds to the time of a pass, compared with the kernels alone: the time to copy 16 MiB
/// and apply a link's piece of the same density to the copy, minus the time of copying, without digests.
fn catch_up(figures: &Figures) -> Vec<Goal> {
    let per_byte = |name: &str| {
        figures.get("kernels").and_then(|rows| row(rows, name)).map_or(f64::NAN, |found| found.median / found.bytes)
    };
    let alone = per_byte(&format!("copy and apply compact, {CATCH_UP_PERCENT} %")) - per_byte("memcpy");
    let mut goals = Vec::new();
    for (group, rows) in figures.iter().filter(|(group, _)| group.starts_with("catch-up, ")) {
        let Some(one) = row(rows, "1 link, 1 thread") else { continue };
        for links in [4_u32, 16, 64] {
            let all = row(rows, &format!("{links} links, 1 thread")).map_or(f64::NAN, |all| all.median);
            let each = (all - one.median) / f64::from(links - 1);
            goals.push(Goal {
                what: format!("{group}, 1 thread: each of links 2 to {links}, x (copy and apply compact - memcpy)"),
                bound: 1.1,
                at_most: true,
                measured: each / (alone * one.bytes),
            });
        }
    }
    goals
}

/// Seconds that an operation takes by one thread; NaN if it has not been measured.
fn seconds(figures: &Figures, group: &str, operation: &str) -> f64 {
    find(figures, group, &format!("{operation}, 1 thread")).map_or(f64::NAN, |figure| figure.median)
}

/// How times grow with the size: the exponent between the smallest and each larger size; 1 is linear.
fn growth(figures: &Figures) -> String {
    let mut text = String::from(
        "\n## Growth\n\nExponent of the time over the size, against the smallest size: 1.00 is linear.\n\n| size | diff compact, base digests known | apply compact, with result digest |\n|---|---:|---:|\n",
    );
    let sized = figures.keys().filter_map(|group| Some((group.strip_suffix(" MiB, 1 %")?.parse::<f64>().ok()?, group)));
    let mut sized: Vec<(f64, &String)> = sized.collect();
    sized.sort_by(|left, right| left.0.total_cmp(&right.0));
    for &(size, group) in &sized {
        let exponent = |operation: &str| {
            let time = |group: &String| seconds(figures, group, operation);
            let (smallest, first) = sized[0];
            if group == first {
                return format!("{:.3} s", time(group));
            }
            format!("{:.3} s, {:.2}", time(group), (time(group) / time(first)).ln() / (size / smallest).ln())
        };
        let (diff, apply) =
            (exponent("diff compact, base digests known"), exponent("apply compact, with result digest"));
        let _ = writeln!(text, "| {size} MiB | {diff} | {apply} |");
    }
    text
}

/// What the tool needs to catch up.
fn catch_up_by_tool(runs: &[CatchUp]) -> String {
    let mut text = format!(
        "\n## Catch-up by the tool\n\n`deltachain apply` with several links at once, from file to file, by all threads: {CATCH_UP_MEBIBYTES} MiB; \
         links that change 1 %, there and back by turns.\n\n| links | time | bytes written | x the model's file | peak memory |\n|---:|---:|---:|---:|---:|\n"
    );
    for run in runs {
        let (seconds, times) = (run.time.as_secs_f64(), run.times_the_model());
        let _ = writeln!(text, "| {} | {seconds:.2} s | {} | {times:.3} | {} MiB |", run.links, run.written, run.peak);
    }
    text
}

fn machine() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = model.map_or("unknown processor", |(_, model)| model);
    format!("{model}, {cores} cores, {}, {}", std::env::consts::OS, output("rustc", &["--version"]))
}

/// What a program says, or nothing.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn figure(name: &str, bytes: f64, median: f64) -> Figure {
        Figure { name: name.to_owned(), bytes, median, fastest: median, slowest: median }
    }

    fn goals_of(figures: impl IntoIterator<Item = (&'static str, Vec<Figure>)>) -> (Vec<Goal>, String) {
        let figures = figures.into_iter().map(|(group, rows)| (group.to_owned(), rows)).collect();
        let run = |links, written| CatchUp { links, time: Duration::from_secs(1), written, model: 1000, peak: 77 };
        let measured = Measured { figures, catch_up: vec![run(1, 1000), run(16, 1010)] };
        (goals(&measured), report(&measured, "command", "0.1"))
    }

    fn measured(goals: &[Goal], what: &str) -> f64 {
        goals.iter().find(|goal| goal.what.contains(what)).unwrap().measured
    }

    #[test]
    fn goals_are_ratios_of_the_same_run() {
        let rows = vec![
            figure("memcpy, 1 thread", 10.0, 1.0),
            figure("diff compact, base digests known, 1 thread", 10.0, 4.0),
            figure("diff compact, base digests known, 2 threads", 10.0, 2.5),
            figure("the pause, 1 thread", 10.0, 0.25),
        ];
        let (goals, report) = goals_of([("128 MiB, 1 %", rows)]);
        assert!((measured(&goals, "diff, encode") - 0.25).abs() < 1e-9);
        assert!((measured(&goals, "the pause") - 4.0).abs() < 1e-9);
        assert!(measured(&goals, "prepare").is_nan());
        assert!((measured(&goals, "known, 2 threads") - 1.6).abs() < 1e-9);
        assert!(report.contains("x memcpy, 1 thread | 0.2 | 0.25 | reached"), "{report}");
        assert!(report.contains("| 1.8 | 1.60 | MISSED"), "{report}");
        assert!(report.contains("x the model | at most 1.02 | 1.01 | reached"), "{report}");
        assert!(report.contains("| 16 | 1.00 s | 1010 | 1.010 | 77 MiB |"), "{report}");
    }

    #[test]
    fn sums_are_held_against_what_memory_takes() {
        let rows = vec![
            figure("memcpy, 1 thread", 10.0, 2.0),
            figure("memcmp, 1 thread", 10.0, 1.0),
            figure("BLAKE3 of the target, 1 thread", 10.0, 3.0),
            figure("sums of memory, 1 thread", 10.0, 1.5),
            figure("diff local with sums, base digests known, 1 thread", 10.0, 6.0),
            figure("diff compact with sums, base digests known, 1 thread", 10.0, 11.0),
            figure("diff compact, base digests known, 1 thread", 10.0, 10.0),
        ];
        let (goals, report) = goals_of([("128 MiB, 0.35 %", rows)]);
        assert!((measured(&goals, "0.35 %: sums of memory") - 0.75).abs() < 1e-9);
        assert!((measured(&goals, "0.35 %: diff local") - 1.5).abs() < 1e-9);
        assert!((measured(&goals, "0.35 %: diff compact") - 1.1).abs() < 1e-9);
        assert!(report.contains("x (memcmp + BLAKE3 of the target) | at most 1.4 | 1.50 | MISSED"), "{report}");
    }

    #[test]
    fn real_pairs_of_one_step_have_goals_of_their_own() {
        let rows = || {
            vec![
                figure("memcmp, 1 thread", 10.0, 1.0),
                figure("BLAKE3 of the target, 1 thread", 10.0, 2.0),
                figure("diff compact, base digests known, 1 thread", 10.0, 6.0),
                figure("publish, base published last, 1 thread", 10.0, 9.0),
            ]
        };
        let (goals, _) = goals_of([("rl 9-10", rows()), ("rl 9-64", rows()), ("kernels", Vec::new())]);
        assert!((measured(&goals, "rl 9-10: diff") - 2.0).abs() < 1e-9);
        assert!((measured(&goals, "rl 9-10: publish") - 1.5).abs() < 1e-9);
        assert!(goals.iter().all(|goal| !goal.what.contains("9-64")));
    }

    #[test]
    fn links_after_the_first_are_held_against_changing_memory() {
        // A byte takes 3 seconds more than copying it.
        let kernels = vec![figure("memcpy", 10.0, 10.0), figure("copy and apply compact, 0.35 %", 10.0, 40.0)];
        let rows = vec![figure("1 link, 1 thread", 20.0, 100.0), figure("4 links, 1 thread", 20.0, 370.0)];
        let (goals, report) = goals_of([("kernels", kernels), ("catch-up, in memory", rows)]);
        assert!((measured(&goals, "links 2 to 4") - 1.5).abs() < 1e-9);
        assert!(measured(&goals, "links 2 to 16").is_nan());
        assert!(report.contains("(copy and apply compact - memcpy) | at most 1.1 | 1.50 | MISSED"), "{report}");
    }

    #[test]
    fn growth_is_an_exponent() {
        let rows = |time| vec![figure("diff compact, base digests known, 1 thread", 1.0, time)];
        let figures = [("64 MiB, 1 %".to_owned(), rows(1.0)), ("256 MiB, 1 %".to_owned(), rows(4.0))];
        assert!(growth(&figures.into()).contains("| 256 MiB | 4.000 s, 1.00 |"));
    }
}
