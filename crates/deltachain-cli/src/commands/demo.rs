//! `demo`: a small chain of real checkpoints, made, applied and attacked before the user's eyes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anstyle::{AnsiColor, Style};
use deltachain::files::{self, FileOptions};
use deltachain::{DiffReport, Error, Limits, Profile, Result};
use serde_json::{Value, json};

use crate::args::DemoArgs;
use crate::commands::demo_chain::{self, check, failed, read, write};
use crate::commands::verify::with_base;
use crate::inputs::OpenedLink;
use crate::numbers::{bits_each, decimal, grouped, percent, ratio, time};
use crate::output::{Output, printable_path};
use crate::table::layout;

/// The first checkpoint of the excerpt, and the links to those after it: testdata/README.md says
/// where it comes from. `data` has a symbolic link, so that packages have the file.
const FIRST: &[u8] = include_bytes!("../../data/rl3e6_step0.safetensors");
const LINKS: [&[u8]; 3] = [
    include_bytes!("../../data/rl3e6_0-1.dcf"),
    include_bytes!("../../data/rl3e6_1-2.dcf"),
    include_bytes!("../../data/rl3e6_2-3.dcf"),
];

const _: () = assert!(
    FIRST.len() > 100_000,
    "the files were checked out without symbolic links"
);

const INTRODUCTION: &str = "\
Four consecutive checkpoints of a real model: all-MiniLM-L6-v2 in BF16, one policy-gradient step
(AdamW, learning rate 3e-6) between neighbours. This is an excerpt, 6 of its 102 tensors.";

const REMARK: &str = "\
made, applied: until the file is safely on disk. exact: applying the link gave the checkpoint's file
again, byte for byte. Fixed costs weigh more in an excerpt this small than in a whole model. How many
elements change in a step depends on learning rate and number format.";

/// The links: the names of their files, from which step to which, and how. The first four lead to
/// the last step.
const MADE: [(&str, Option<usize>, usize, Profile); 5] = [
    ("0", None, 0, Profile::Direct),
    ("0-1", Some(0), 1, Profile::Compact),
    ("1-2", Some(1), 2, Profile::Compact),
    ("2-3", Some(2), 3, Profile::Compact),
    ("0-1-direct", Some(0), 1, Profile::Direct),
];

pub(crate) fn run(args: &DemoArgs, output: Output) -> Result<()> {
    let temporary = tempfile::Builder::new()
        .prefix("deltachain-demo-")
        .tempdir();
    let temporary =
        temporary.map_err(|error| Error::io("creating a temporary directory", error))?;
    let directory = args.keep.as_deref().unwrap_or(temporary.path());
    fs::create_dir_all(directory)
        .map_err(|error| Error::io("creating", error).in_file(directory))?;
    if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::usage("the directory is not empty").in_file(directory));
    }
    let steps = checkpoints(directory)?;
    let made = MADE
        .into_iter()
        .map(|made| one_link(directory, &steps, made));
    let (rows, links, reports) = made.collect::<Result<(Vec<_>, Vec<_>, Vec<_>)>>()?;
    let path: Vec<_> = MADE
        .iter()
        .take(steps.len())
        .map(|(name, ..)| directory.join(format!("{name}.dcf")))
        .collect();
    let all = directory.join("chain.applied.safetensors");
    files::apply(None, &path, &all, &FileOptions::default())?;
    check(
        read(&all)? == read(&steps[3])?,
        "the last step is not exact",
    )?;
    let bytes: u64 = reports
        .iter()
        .take(path.len())
        .map(|report| report.bytes)
        .sum();

    let (damaged, mut flipped) = (directory.join("0-1-damaged.dcf"), read(&path[1])?);
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    write(&damaged, &flipped)?;
    let refused = [
        refused(
            "the link of step 1 -> 2 applied to step 0",
            &path[2],
            &steps[0],
        )?,
        refused(
            "the link of step 0 -> 1 with one bit flipped",
            &damaged,
            &steps[0],
        )?,
    ];
    let (chain, in_store) = demo_chain::run(directory, &steps, output)?;
    let state_bytes = reports[0].target_bytes;
    let text = || {
        let title = Style::new().bold();
        let good = AnsiColor::Green.on_default();
        let each = grouped(state_bytes);
        let columns =
            "link|profile|>bytes|>of the state|>smaller|>changed|>bits/change|>made|>applied|exact";
        let table = layout(columns, &rows);
        let bytes = grouped(bytes);
        let four = grouped(state_bytes * steps.len() as u64);
        let [(base, _), (bit, _)] = &refused;
        let end = match args.keep.as_ref().map(printable_path) {
            Some(kept) => {
                format!("Try: deltachain inspect {kept}/0-1.dcf, deltachain log {kept}/chain")
            }
            None => "Run it with --keep DIR to see the files.".to_owned(),
        };
        format!(
            "{title}deltachain demo{title:#}\n{INTRODUCTION} {each} bytes each;\n\
             this program has the first one, and links to the others.\n\n{table}\n\n{REMARK}\n\n\
             {good}exact{good:#}    snapshot + 3 links ({bytes} bytes) give step 3, byte for byte; \
             the four checkpoints have {four} bytes\n\
             {good}refused{good:#}  {base}\n{good}refused{good:#}  {bit}\n\n{chain}\n\n{end}"
        )
    };
    let json = || {
        json!({
            "state_bytes": state_bytes,
            "links": links,
            "chain": { "bytes": bytes, "exact": true },
            "in_store": in_store,
            "refused": refused.iter().map(|(_, json)| json).collect::<Vec<_>>(),
        })
    };
    output.summary(text, json)
}

/// Makes a link, applies it, and compares the result with the original.
fn one_link(
    directory: &Path,
    steps: &[PathBuf],
    (name, from, to, profile): (&str, Option<usize>, usize, Profile),
) -> Result<(Vec<String>, Value, DiffReport)> {
    let (base, target) = (from.map(|step| steps[step].as_path()), steps[to].as_path());
    let (link, result) = (
        directory.join(format!("{name}.dcf")),
        directory.join(format!("{name}.applied.safetensors")),
    );
    let metadata = [("step".to_owned(), to.to_string())].into();
    let options = FileOptions::default()
        .profile(profile)
        .metadata(metadata)
        .replace(true);
    let began = Instant::now();
    let report = match base {
        Some(base) => files::diff(base, target, &link, &options)?,
        None => files::snapshot(target, &link, &options)?,
    };
    let (made, began) = (began.elapsed(), Instant::now());
    let built = files::apply(base, &[link], &result, &options)?;
    let applied = began.elapsed();
    check(
        built.target == report.target && read(&result)? == read(target)?,
        "a result is not exact",
    )?;
    let (what, profile) = match from {
        None => (format!("step {to}, complete"), "snapshot"),
        Some(from) => (format!("step {from} -> {to}"), profile.name()),
    };
    let bits = bits_each(report.bytes, report.changed);
    let json = json!({
        "link": what,
        "profile": profile,
        "bytes": report.bytes,
        "state_bytes": report.target_bytes,
        "changed": report.changed,
        "elements": report.elements,
        "bits_per_change": bits,
        "made_seconds": made.as_secs_f64(),
        "applied_seconds": applied.as_secs_f64(),
        "exact": true,
    });
    let smaller = ratio(report.target_bytes, report.bytes).unwrap_or_default();
    let row = vec![
        what,
        profile.to_owned(),
        grouped(report.bytes),
        percent(report.bytes, report.target_bytes),
        format!("{smaller:.1}x"),
        percent(report.changed, report.elements),
        decimal(bits),
        time(made),
        time(applied),
        "yes".to_owned(),
    ];
    Ok((row, json, report))
}

/// Writes the checkpoints.
fn checkpoints(directory: &Path) -> Result<Vec<PathBuf>> {
    let steps: Vec<_> = (0..=LINKS.len())
        .map(|step| directory.join(format!("step{step}.safetensors")))
        .collect();
    write(&steps[0], FIRST)?;
    for (step, link) in LINKS.iter().enumerate() {
        let file = directory.join(format!("{step}-{}.dcf", step + 1));
        write(&file, link)?;
        files::apply(
            Some(&steps[step]),
            &[file],
            &steps[step + 1],
            &FileOptions::default(),
        )?;
    }
    Ok(steps)
}

/// Applies the link to this base, which must not work. Gives the refusal, for people and as JSON.
fn refused(what: &str, link: &Path, base: &Path) -> Result<(String, Value)> {
    let checked = OpenedLink::open(link, &Limits::default())
        .and_then(|link| with_base(base, &link, Output::silent()));
    let error = checked
        .err()
        .ok_or_else(|| failed(&format!("{what} was accepted")))?;
    let Some(rule) = error.rule() else {
        return Err(error);
    };
    let json = json!({ "what": what, "class": error.class().name(), "rule": rule });
    Ok((format!("{what}: {} {rule}", error.class()), json))
}
