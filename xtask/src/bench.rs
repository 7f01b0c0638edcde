//! `cargo xtask bench`: runs the benchmarks of `crates/deltachain-bench` and makes `BENCHMARKS.md` of what criterion
//! has noted.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Result;
use crate::steps::execute;
use crate::workspace::{cargo, root, target};

pub(crate) const ARGUMENTS: &str = "[--long] [--mebibytes N,N,...] [DIRECTORY]";

/// Sizes in MiB whose growth is looked at. The long ones need 11 GiB of memory.
const SIZES: &str = "64,256,1024";
const LONG_SIZES: &str = "64,256,1024,4096,8192";

struct Options {
    sizes: String,
    /// Where real checkpoints are; the excerpts in the repository if it is not given.
    folder: Option<PathBuf>,
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options = Options { sizes: SIZES.to_owned(), folder: None };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--long" => LONG_SIZES.clone_into(&mut options.sizes),
            "--mebibytes" => {
                let sizes = arguments.next().ok_or("--mebibytes needs sizes")?;
                if sizes.split(',').any(|size| !size.parse().is_ok_and(|size: u64| size > 0)) {
                    return Err(format!("--mebibytes {sizes}: not sizes above 0 with commas between them").into());
                }
                options.sizes.clone_from(sizes);
            }
            folder if !folder.starts_with('-') && options.folder.is_none() => options.folder = Some(folder.into()),
            _ => return Err(format!("unexpected argument `{argument}`; the arguments are {ARGUMENTS}").into()),
        }
    }
    Ok(options)
}

pub(crate) fn run(arguments: &[String]) -> Result {
    let options = parse(arguments)?;
    let notes = target()?.join("bench-notes");
    // Of another run, whose figures must not mix with those of this one.
    if notes.exists() {
        fs::remove_dir_all(&notes)?;
    }
    let real = match &options.folder {
        Some(folder) => fs::canonicalize(folder).map_err(|error| format!("{}: {error}", folder.display()))?,
        None => root()?.join("testdata"),
    };
    let mut bench = cargo(&["bench", "--package", "deltachain-bench", "--bench", "kernels", "--bench", "operations"])?;
    bench.env("CRITERION_HOME", &notes).env("DELTACHAIN_BENCH_REAL", &real);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    execute(bench.env("DELTACHAIN_BENCH_MEBIBYTES", &options.sizes))?;

    let mut typed = vec!["cargo xtask bench".to_owned()];
    typed.extend(arguments.iter().map(|argument| {
        let is_folder = options.folder.as_deref() == Some(Path::new(argument));
        if is_folder { "DIRECTORY".to_owned() } else { argument.clone() }
    }));
    let report = report(&read(&notes)?, &typed.join(" "), load.split(' ').next().unwrap_or_default());
    println!("\n{report}");
    Ok(fs::write(root()?.join("BENCHMARKS.md"), report)?)
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

fn report(figures: &Figures, command: &str, load: &str) -> String {
    let mut text = format!(
        "# Benchmarks\n\n`{command}`, {}, on {}. Load of the machine at the start: {load}.\n\n\
         GB/s are 10^9 bytes of the model per second and core; beside them the slowest and the fastest run. \"x memcpy\" \
         compares with copying the same bytes by as many threads, \"x 1 thread\" with the same work by one. States are in memory, \
         except where files are named. What links are compared with is in [bench/rivals](bench/rivals/RESULTS.md).\n",
        output("date", &["-u", "+%Y-%m-%d"]),
        machine(),
    );
    text += "\n## What is asked for\n\n| what | at least | measured | |\n|---|---:|---:|---|\n";
    for goal in goals(figures) {
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
    find(rows, &format!("{operation}, 1 thread"))
}

fn find<'a>(rows: &'a [Figure], name: &str) -> Option<&'a Figure> {
    rows.iter().find(|row| row.name == name)
}

/// A bound on a ratio of two figures of this run.
struct Goal {
    what: String,
    bound: f64,
    at_most: bool,
    /// NaN if one of the figures is missing.
    measured: f64,
}

fn goals(figures: &Figures) -> Vec<Goal> {
    let speed =
        |group: &str, name: &str| figures.get(group).and_then(|rows| find(rows, name)).map_or(f64::NAN, Figure::speed);
    let dense = "128 MiB, 1 %";
    let copy = speed(dense, "memcpy, 1 thread");
    let mut goals: Vec<Goal> = [
        ("diff, encode and target digest, 1 % of BF16, 1 thread, x memcpy", "diff compact, 1 thread", 0.2),
        ("apply compact with result digest, 1 thread, x memcpy", "apply compact, with result digest, 1 thread", 0.2),
        (
            "apply compact without result digest, 1 thread, x memcpy",
            "apply compact, without result digest, 1 thread",
            0.35,
        ),
        ("direct to patches, 1 thread, x memcpy", "direct to patches, 1 thread", 2.0),
    ]
    .into_iter()
    .map(|(what, name, bound)| Goal {
        what: what.to_owned(),
        bound,
        at_most: false,
        measured: speed(dense, name) / copy,
    })
    .collect();
    for operation in ["diff compact", "apply compact, with result digest"] {
        let (one, two) = (format!("{operation}, 1 thread"), format!("{operation}, 2 threads"));
        let measured = speed(dense, &two) / speed(dense, &one);
        goals.push(Goal { what: format!("{operation}, 2 threads x 1 thread"), bound: 1.8, at_most: false, measured });
    }
    for kibibytes in [2, 16] {
        let one = format!("1 x {} KiB, 0.1 %", 70_000 * kibibytes);
        let many = format!("70000 x {kibibytes} KiB, 0.1 %");
        for operation in ["diff compact, 1 thread", "apply compact, with result digest, 1 thread"] {
            goals.push(Goal {
                what: format!("{operation}: time of 70,000 tensors of {kibibytes} KiB x one"),
                bound: 1.5,
                at_most: true,
                measured: speed(&one, operation) / speed(&many, operation),
            });
        }
    }
    goals
}

/// How times grow with the size: the exponent between the smallest and each larger size; 1 is linear.
fn growth(figures: &Figures) -> String {
    let mut text = String::from(
        "\n## Growth\n\nExponent of the time over the size, against the smallest size: 1.00 is linear.\n\n| size | diff compact | apply compact, with result digest |\n|---|---:|---:|\n",
    );
    let sized = figures.keys().filter_map(|group| Some((group.strip_suffix(" MiB, 1 %")?.parse::<f64>().ok()?, group)));
    let mut sized: Vec<(f64, &String)> = sized.collect();
    sized.sort_by(|left, right| left.0.total_cmp(&right.0));
    for &(size, group) in &sized {
        let exponent = |operation: &str| {
            let time = |group: &String| find(&figures[group], operation).map_or(f64::NAN, |figure| figure.median);
            let (smallest, first) = sized[0];
            if group == first {
                return format!("{:.3} s", time(group));
            }
            format!("{:.3} s, {:.2}", time(group), (time(group) / time(first)).ln() / (size / smallest).ln())
        };
        let (diff, apply) =
            (exponent("diff compact, 1 thread"), exponent("apply compact, with result digest, 1 thread"));
        let _ = writeln!(text, "| {size} MiB | {diff} | {apply} |");
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
    use super::*;

    fn figure(name: &str, bytes: f64, median: f64) -> Figure {
        Figure { name: name.to_owned(), bytes, median, fastest: median, slowest: median }
    }

    #[test]
    fn goals_are_ratios_of_the_same_run() {
        let rows = vec![
            figure("memcpy, 1 thread", 10.0, 1.0),
            figure("diff compact, 1 thread", 10.0, 4.0),
            figure("diff compact, 2 threads", 10.0, 2.5),
        ];
        let figures = Figures::from([("128 MiB, 1 %".to_owned(), rows)]);
        let goals = goals(&figures);
        assert!((goals[0].measured - 0.25).abs() < 1e-9);
        assert!(goals[1].measured.is_nan());
        assert!((goals[4].measured - 1.6).abs() < 1e-9);
        let report = report(&figures, "command", "0.1");
        assert!(report.contains("x memcpy | 0.2 | 0.25 | reached"), "{report}");
        assert!(report.contains("| 1.8 | 1.60 | MISSED"), "{report}");
    }

    #[test]
    fn growth_is_an_exponent() {
        let rows = |time| vec![figure("diff compact, 1 thread", 1.0, time)];
        let figures = [("64 MiB, 1 %".to_owned(), rows(1.0)), ("256 MiB, 1 %".to_owned(), rows(4.0))];
        assert!(growth(&figures.into()).contains("| 256 MiB | 4.000 s, 1.00 |"));
    }

    #[test]
    fn arguments_are_checked() {
        let parse = |text: &str| parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("--long").unwrap().sizes, LONG_SIZES);
        let options = parse("data --mebibytes 64,128").unwrap();
        assert_eq!((options.sizes.as_str(), options.folder), ("64,128", Some("data".into())));
        for wrong in ["--mebibytes", "--mebibytes 1,x", "--mebibytes 0", "a b", "--quick"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
