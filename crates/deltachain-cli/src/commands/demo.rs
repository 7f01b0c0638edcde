//! `demo`: a small chain of real checkpoints, made, applied and attacked before the user's eyes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use deltachain::files::{self, FileOptions};
use deltachain::tensor::{State, total_bytes};
use deltachain::{DiffReport, Error, Limits, Profile, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::args::DemoArgs;
use crate::commands::demo_chain::{ChainDemo, failed, read};
use crate::commands::verify::with_base;
use crate::inputs::{OpenedLink, open_state};
use crate::numbers::{bits_each, decimal, grouped, percent, ratio, time};
use crate::output::{Output, printable_path};
use crate::table::{Align, layout};
use crate::watcher::Watcher;

/// The excerpt: testdata/README.md says where it comes from. `data` has symbolic links, so that packages have the
/// files.
const STEPS: [&[u8]; 4] = [
    include_bytes!("../../data/rl3e6_step0.safetensors"),
    include_bytes!("../../data/rl3e6_step1.safetensors"),
    include_bytes!("../../data/rl3e6_step2.safetensors"),
    include_bytes!("../../data/rl3e6_step3.safetensors"),
];

const _: () = assert!(STEPS[0].len() > 100_000, "the files were checked out without symbolic links");

const INTRODUCTION: &str = "\
Four consecutive checkpoints of a real model: all-MiniLM-L6-v2 in BF16, one policy-gradient step
(AdamW, learning rate 3e-6) between neighbours. This is an excerpt, 6 of its 102 tensors.";

const REMARK: &str = "\
made, applied: until the file is safely on disk. exact: applying the link gave the checkpoint's file
again, byte for byte. Fixed costs weigh more in an excerpt this small than in a whole model. How many
elements change in a step depends on learning rate and number format.";

pub(crate) fn run(args: &DemoArgs, output: Output) -> Result<()> {
    let (directory, _temporary) = prepare(args.keep.as_deref())?;
    let demo = Demo::run(&directory, output)?;
    output.result(|| demo.as_text(args.keep.as_deref()), || demo.as_json())
}

/// The directory for the demo's files, and what removes a temporary one in the end.
fn prepare(keep: Option<&Path>) -> Result<(PathBuf, Option<TempDir>)> {
    let Some(path) = keep else {
        let directory = tempfile::Builder::new().prefix("deltachain-demo-").tempdir();
        let directory = directory.map_err(|error| Error::io("creating a temporary directory", error))?;
        return Ok((directory.path().to_owned(), Some(directory)));
    };
    fs::create_dir_all(path).map_err(|error| Error::io("creating", error).in_file(path))?;
    let mut entries = fs::read_dir(path).map_err(|error| Error::io("reading", error).in_file(path))?;
    if entries.next().is_some() {
        return Err(Error::usage("the directory is not empty").in_file(path));
    }
    Ok((path.to_owned(), None))
}

/// A link of the demo with its figures.
struct Row {
    what: String,
    profile: &'static str,
    report: DiffReport,
    made: Duration,
    applied: Duration,
    exact: bool,
}

/// Something that must not work.
struct Refusal {
    what: &'static str,
    error: Error,
}

struct Demo {
    state_bytes: u64,
    in_store: ChainDemo,
    rows: Vec<Row>,
    /// Bytes of the snapshot and the compact links, and whether they give the last checkpoint.
    chain: (u64, bool),
    refusals: Vec<Refusal>,
}

/// Paths of the demo's files.
struct Paths<'a>(&'a Path);

impl Paths<'_> {
    fn step(&self, step: usize) -> PathBuf {
        self.0.join(format!("step{step}.safetensors"))
    }

    fn link(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.dcf"))
    }

    fn applied(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.applied.safetensors"))
    }
}

impl Demo {
    fn run(directory: &Path, output: Output) -> Result<Self> {
        let paths = Paths(directory);
        for (step, bytes) in STEPS.iter().enumerate() {
            let path = paths.step(step);
            fs::write(&path, bytes).map_err(|error| Error::io("writing", error).in_file(&path))?;
        }
        let rows = vec![
            one_link(&paths, "0", None, 0, Profile::Direct)?,
            one_link(&paths, "0-1", Some(0), 1, Profile::Compact)?,
            one_link(&paths, "1-2", Some(1), 2, Profile::Compact)?,
            one_link(&paths, "2-3", Some(2), 3, Profile::Compact)?,
            one_link(&paths, "0-1-direct", Some(0), 1, Profile::Direct)?,
        ];
        let names = ["0", "0-1", "1-2", "2-3"];
        let links: Vec<PathBuf> = names.iter().map(|name| paths.link(name)).collect();
        let all = paths.applied("chain");
        files::apply(None, &links, &all, &FileOptions::default())?;
        let chain_bytes = rows.iter().take(names.len()).map(|row| row.report.bytes).sum();
        let states: Vec<PathBuf> = (0..STEPS.len()).map(|step| paths.step(step)).collect();
        let demo = Self {
            in_store: ChainDemo::run(directory, &states, &Watcher::new(output))?,
            state_bytes: total_bytes(open_state(&paths.step(0))?.tensors()),
            chain: (chain_bytes, read(&all)? == STEPS[3]),
            refusals: vec![wrong_base(&paths)?, flipped_bit(&paths)?],
            rows,
        };
        if demo.chain.1 && demo.rows.iter().all(|row| row.exact) {
            Ok(demo)
        } else {
            Err(failed("a result is not exact"))
        }
    }

    fn as_text(&self, kept: Option<&Path>) -> String {
        let columns = [
            ("link", Align::Left),
            ("profile", Align::Left),
            ("bytes", Align::Right),
            ("of the state", Align::Right),
            ("smaller", Align::Right),
            ("changed", Align::Right),
            ("bits/change", Align::Right),
            ("made", Align::Right),
            ("applied", Align::Right),
            ("exact", Align::Left),
        ];
        let cells: Vec<Vec<String>> = self.rows.iter().map(Row::cells).collect();
        let title = Style::new().bold();
        let good = AnsiColor::Green.on_default();
        let mut lines = vec![
            format!("{title}deltachain demo{title:#}"),
            format!("{INTRODUCTION} {} bytes each.", grouped(self.state_bytes)),
            String::new(),
            layout(&columns, &cells),
            String::new(),
            REMARK.to_owned(),
            String::new(),
            format!(
                "{good}exact{good:#}    snapshot + 3 links ({} bytes) give step 3, byte for byte; the four checkpoints have {} bytes",
                grouped(self.chain.0),
                grouped(self.state_bytes * STEPS.len() as u64),
            ),
        ];
        for refusal in &self.refusals {
            let rule = refusal.error.rule().unwrap_or_default();
            lines.push(format!("{good}refused{good:#}  {}: {} {rule}", refusal.what, refusal.error.class()));
        }
        lines.extend([String::new(), self.in_store.as_text(), String::new()]);
        lines.push(match kept {
            Some(directory) => {
                let directory = printable_path(directory);
                format!(
                    "The files are in {directory}. Try: deltachain inspect {directory}/0-1.dcf, deltachain log {directory}/chain"
                )
            }
            None => "Run it with --keep DIR to see the files.".to_owned(),
        });
        lines.join("\n")
    }

    fn as_json(&self) -> Value {
        let rows = self.rows.iter().map(Row::as_json).collect::<Vec<_>>();
        let refused = self.refusals.iter().map(|refusal| {
            json!({ "what": refusal.what, "class": refusal.error.class().name(), "rule": refusal.error.rule() })
        });
        json!({
            "state_bytes": self.state_bytes,
            "links": rows,
            "chain": { "bytes": self.chain.0, "exact": self.chain.1 },
            "in_store": self.in_store.as_json(),
            "refused": refused.collect::<Vec<_>>(),
        })
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let bytes = self.report.bytes;
        vec![
            self.what.clone(),
            self.profile.to_owned(),
            grouped(bytes),
            percent(bytes, self.report.target_bytes),
            ratio(self.report.target_bytes, bytes).map_or_else(String::new, |times| format!("{times:.1}x")),
            percent(self.report.changed, self.report.elements),
            decimal(bits_each(bytes, self.report.changed)),
            time(self.made),
            time(self.applied),
            if self.exact { "yes" } else { "NO" }.to_owned(),
        ]
    }

    fn as_json(&self) -> Value {
        json!({
            "link": self.what,
            "profile": self.profile,
            "bytes": self.report.bytes,
            "state_bytes": self.report.target_bytes,
            "changed": self.report.changed,
            "elements": self.report.elements,
            "bits_per_change": bits_each(self.report.bytes, self.report.changed),
            "made_seconds": self.made.as_secs_f64(),
            "applied_seconds": self.applied.as_secs_f64(),
            "exact": self.exact,
        })
    }
}

/// Makes a link, applies it, and compares the result with the original.
fn one_link(paths: &Paths<'_>, name: &str, from: Option<usize>, to: usize, profile: Profile) -> Result<Row> {
    let (target, path) = (paths.step(to), paths.link(name));
    let options = FileOptions::default().profile(profile).metadata([("step".to_owned(), to.to_string())].into());
    let started = Instant::now();
    let base = from.map(|step| paths.step(step));
    let report = match &base {
        Some(base) => files::diff(base, &target, &path, &options)?,
        None => files::snapshot(&target, &path, &options)?,
    };
    let made = started.elapsed();

    let result = paths.applied(name);
    let started = Instant::now();
    let built = files::apply(base.as_deref(), &[path], &result, &options)?;
    let applied = started.elapsed();
    let exact = read(&result)? == STEPS[to] && built.target == report.target;
    let (what, profile) = match (from, profile) {
        (None, _) => (format!("step {to}, complete"), "snapshot"),
        (Some(from), profile) => (format!("step {from} -> {to}"), profile.name()),
    };
    Ok(Row { what, profile, report, made, applied, exact })
}

fn wrong_base(paths: &Paths<'_>) -> Result<Refusal> {
    let link = OpenedLink::open(&paths.link("1-2"), &Limits::default())?;
    refused("the link of step 1 -> 2 applied to step 0", with_base(&paths.step(0), &link, Output::silent()))
}

fn flipped_bit(paths: &Paths<'_>) -> Result<Refusal> {
    let mut bytes = read(&paths.link("0-1"))?;
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 1;
    }
    let path = paths.link("0-1-damaged");
    fs::write(&path, bytes).map_err(|error| Error::io("writing", error).in_file(&path))?;
    let result =
        OpenedLink::open(&path, &Limits::default()).and_then(|link| with_base(&paths.step(0), &link, Output::silent()));
    refused("the link of step 0 -> 1 with one bit flipped", result)
}

fn refused<T>(what: &'static str, result: Result<T>) -> Result<Refusal> {
    match result {
        Ok(_) => Err(failed(&format!("{what} was accepted"))),
        Err(error) if error.rule().is_some() => Ok(Refusal { what, error }),
        Err(error) => Err(error),
    }
}
