//! `demo`: makes links between real checkpoints, applies them, tries a wrong base and a damaged
//! link, and publishes the checkpoints as a chain.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

/// The first checkpoint of the excerpt, and the links to the next ones. testdata/README.md says
/// where it comes from. `data` has a symbolic link to the checkpoint, so that packages contain it.
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

const LEGEND: &str = "\
profile: compact has the fewest bytes; direct has new values instead of differences, for engines
that change their weights in place. bits/change: bits of the file for each changed element. made,
applied: until the file is safely on disk. exact: applying the link gave the checkpoint's file
again, byte for byte.

Why 0.65 %: header and index are a quarter of a link as small as this. In the whole model, 45 MB, a
step that changes 0.82 % takes 0.4 %. Other models and learning rates: docs/comparison.md.";

const NEXT: &str = "\
Next, with two checkpoints of your own:
  deltachain diff STEP0 STEP1 -o 1.dcf      how large is a step of your training?
  deltachain inspect 1.dcf --html 1.html    what changed where: a page for your browser";

/// A link that the demo makes.
struct Planned {
    /// The name of its file, without the extension.
    name: &'static str,
    /// The step that the link starts from; `None` for a snapshot.
    from: Option<usize>,
    /// The step that the link leads to.
    to: usize,
    profile: Profile,
}

/// The links that the demo makes. The first four lead to the last step.
const MADE: [Planned; 5] = [
    Planned::new("0", None, 0, Profile::Direct),
    Planned::new("0-1", Some(0), 1, Profile::Compact),
    Planned::new("1-2", Some(1), 2, Profile::Compact),
    Planned::new("2-3", Some(2), 3, Profile::Compact),
    Planned::new("0-1-direct", Some(0), 1, Profile::Direct),
];

impl Planned {
    const fn new(name: &'static str, from: Option<usize>, to: usize, profile: Profile) -> Self {
        Self {
            name,
            from,
            to,
            profile,
        }
    }
}

/// A link that was made and applied.
struct Made {
    /// The line in the table.
    row: Vec<String>,
    json: Value,
    report: DiffReport,
}

/// A link that was refused, as it must be.
struct Refused {
    text: String,
    json: Value,
}

/// The results of the demo.
struct Demo {
    links: Vec<Made>,
    /// Bytes of the snapshot and the links to the last step.
    chain_bytes: u64,
    /// The link that was applied to a wrong base, and the damaged link.
    refused: [Refused; 2],
    /// The report on the chain, for people and as JSON.
    chain: (String, Value),
}

pub(crate) fn run(args: &DemoArgs, output: Output) -> Result<()> {
    let temporary = tempfile::Builder::new()
        .prefix("deltachain-demo-")
        .tempdir();
    let temporary =
        temporary.map_err(|error| Error::io("creating a temporary directory", error))?;
    let directory = args.keep.as_deref().unwrap_or(temporary.path());
    create_empty(directory)?;
    let steps = write_checkpoints(directory)?;
    let links = MADE
        .iter()
        .map(|planned| make_link(directory, &steps, planned))
        .collect::<Result<Vec<_>>>()?;
    let chain_bytes = links.iter().take(steps.len());
    let demo = Demo {
        chain_bytes: chain_bytes.map(|link| link.report.bytes).sum(),
        refused: apply_and_refuse(directory, &steps)?,
        chain: demo_chain::run(directory, &steps, output)?,
        links,
    };
    output.summary(|| demo.as_text(args.keep.as_deref()), || demo.as_json())
}

/// Creates a directory. An empty one may exist.
fn create_empty(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .map_err(|error| Error::io("creating", error).in_file(directory))?;
    if fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Error::usage("the directory is not empty").in_file(directory));
    }
    Ok(())
}

/// Applies all links up to the last step in one call. Then applies a link to a wrong base, and a
/// damaged link, which must both be refused.
fn apply_and_refuse(directory: &Path, steps: &[PathBuf]) -> Result<[Refused; 2]> {
    let path: Vec<_> = MADE
        .iter()
        .take(steps.len())
        .map(|planned| directory.join(format!("{}.dcf", planned.name)))
        .collect();
    let all = directory.join("chain.applied.safetensors");
    files::apply(None, &path, &all, &FileOptions::default())?;
    check(
        read(&all)? == read(&steps[3])?,
        "the last step is not exact",
    )?;

    let damaged = directory.join("0-1-damaged.dcf");
    let mut flipped = read(&path[1])?;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    write(&damaged, &flipped)?;
    Ok([
        check_refusal(
            "the link of step 1 -> 2 applied to step 0",
            &path[2],
            &steps[0],
        )?,
        check_refusal(
            "the link of step 0 -> 1 with one bit flipped",
            &damaged,
            &steps[0],
        )?,
    ])
}

impl Demo {
    /// Returns the bytes of a checkpoint.
    fn state_bytes(&self) -> u64 {
        self.links[0].report.target_bytes
    }

    fn as_text(&self, keep: Option<&Path>) -> String {
        let title = Style::new().bold();
        let good = AnsiColor::Green.on_default();
        let each = grouped(self.state_bytes());
        let columns =
            "link|profile|>bytes|>of the state|>smaller|>changed|>bits/change|>made|>applied|exact";
        let rows: Vec<_> = self.links.iter().map(|link| link.row.clone()).collect();
        let table = layout(columns, &rows);
        let bytes = grouped(self.chain_bytes);
        let four = grouped(self.state_bytes() * (LINKS.len() as u64 + 1));
        let [Refused { text: base, .. }, Refused { text: bit, .. }] = &self.refused;
        let (chain, _) = &self.chain;
        let files = match keep.map(printable_path) {
            Some(kept) => {
                format!("deltachain log {kept}/chain, deltachain inspect {kept}/0-1.dcf")
            }
            None => "deltachain demo --keep DIR                the files of this demo".to_owned(),
        };
        format!(
            "{title}deltachain demo{title:#}\n{INTRODUCTION} {each} bytes each;\n\
             this program has the first one, and links to the others.\n\n{table}\n\n{LEGEND}\n\n\
             {good}exact{good:#}    snapshot + 3 links ({bytes} bytes) give step 3, byte for byte; \
             the four checkpoints have {four} bytes\n\
             {good}refused{good:#}  {base}\n{good}refused{good:#}  {bit}\n\n{chain}\n\n\
             {NEXT}\n  {files}\n\
             docs/demo.md says more about these columns, and where to read on."
        )
    }

    fn as_json(&self) -> Value {
        let links: Vec<_> = self.links.iter().map(|link| &link.json).collect();
        let refused: Vec<_> = self.refused.iter().map(|refused| &refused.json).collect();
        let (_, in_store) = &self.chain;
        json!({
            "state_bytes": self.state_bytes(),
            "links": links,
            "chain": { "bytes": self.chain_bytes, "exact": true },
            "in_store": in_store,
            "refused": refused,
        })
    }
}

/// Makes a link, applies it, and compares the result with the original.
fn make_link(directory: &Path, steps: &[PathBuf], planned: &Planned) -> Result<Made> {
    let Planned {
        name,
        from,
        to,
        profile,
    } = *planned;
    let base = from.map(|step| steps[step].as_path());
    let target = steps[to].as_path();
    let link = directory.join(format!("{name}.dcf"));
    let result = directory.join(format!("{name}.applied.safetensors"));
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
    let made = began.elapsed();
    let began = Instant::now();
    let built = files::apply(base, &[link], &result, &options)?;
    let applied = began.elapsed();
    check(
        built.target == report.target && read(&result)? == read(target)?,
        "a result is not exact",
    )?;
    Ok(describe(planned, report, made, applied))
}

/// Describes a link that took `made` to make and `applied` to apply.
fn describe(planned: &Planned, report: DiffReport, made: Duration, applied: Duration) -> Made {
    let to = planned.to;
    let (what, profile) = match planned.from {
        None => (format!("step {to}, complete"), "snapshot"),
        Some(from) => (format!("step {from} -> {to}"), planned.profile.name()),
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
    Made { row, json, report }
}

/// Writes the checkpoints.
fn write_checkpoints(directory: &Path) -> Result<Vec<PathBuf>> {
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

/// Applies the link to this base, which must be refused.
fn check_refusal(what: &str, link: &Path, base: &Path) -> Result<Refused> {
    let checked = OpenedLink::open(link, &Limits::default())
        .and_then(|link| with_base(base, &link, Output::silent()));
    let error = checked
        .err()
        .ok_or_else(|| failed(&format!("{what} was accepted")))?;
    let Some(rule) = error.rule() else {
        return Err(error);
    };
    let json = json!({ "what": what, "class": error.class().name(), "rule": rule });
    let text = format!("{what}: {} {rule}", error.class());
    Ok(Refused { text, json })
}
