//! `diff`: makes the link from one state to another. Also what every other command that makes links uses.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::files::{LAYOUT_KEY, Layout};
use deltachain::tensor::State;
use deltachain::{DiffOptions, DiffReport, Error, Profile, Result, diff};
use serde_json::{Value, json};

use crate::args::{DiffArgs, NewLink};
use crate::inputs::{Base, bytes_of, open_state};
use crate::numbers::{bits_each, counted, decimal, grouped, percent};
use crate::other_files::NotCovered;
use crate::output::{Output, printable_path};
use crate::output_file::{OutputFile, refuse_existing};

pub(crate) fn run(args: &DiffArgs, output: Output) -> Result<()> {
    run_with_base(Some(&args.base), &args.target, &args.link, args.profile.into(), output)
}

/// Makes a link from files, or from nothing, and tells what came of it.
pub(crate) fn run_with_base(
    base: Option<&Path>,
    target: &Path,
    link: &NewLink,
    profile: Profile,
    output: Output,
) -> Result<()> {
    refuse_existing(&link.output, link.force)?;
    let metadata = notes(&link.notes)?;
    let base = Base::open(base)?;
    let target = open_state(target)?;
    let job = Job {
        base: base.state(),
        base_layout: base.layout(),
        target: &target,
        target_layout: target.layout(),
        profile,
        metadata,
        path: &link.output,
        replace: link.force,
    };
    let target_bytes = bytes_of(target.tensors());
    let report = make(job, output)?;
    let not_covered = NotCovered::by_link(base.files(), &target)?;
    output.summary(
        || describe(&link.output, &report, target_bytes),
        || {
            let mut object = report_as_json(&link.output, &report, target_bytes);
            not_covered.add_to(&mut object);
            object
        },
    )?;
    not_covered.remark(output);
    Ok(())
}

/// A link to be made, from two opened states.
pub(crate) struct Job<'a> {
    pub(crate) base: &'a dyn State,
    pub(crate) base_layout: Option<&'a Layout>,
    pub(crate) target: &'a dyn State,
    pub(crate) target_layout: &'a Layout,
    pub(crate) profile: Profile,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) path: &'a Path,
    pub(crate) replace: bool,
}

/// Makes the link. It appears when it is complete and on disk.
pub(crate) fn make(job: Job<'_>, output: Output) -> Result<DiffReport> {
    let mut metadata = job.metadata;
    if let Some(layout) = Layout::metadata_value(job.target_layout, job.base_layout, job.target.tensors()) {
        metadata.insert(LAYOUT_KEY.to_owned(), layout);
    }
    let mut file = OutputFile::create(job.path, job.replace)?;
    let meter = output.meter("comparing", bytes_of(job.base.tensors()).saturating_add(bytes_of(job.target.tensors())));
    let options = DiffOptions { profile: job.profile, metadata, progress: &meter, ..DiffOptions::default() };
    // An error that names no file is one of writing: those of reading name theirs.
    let report = diff(job.base, job.target, &options, &mut file).map_err(|error| error.in_file(job.path))?;
    file.commit()?;
    Ok(report)
}

/// Notes as metadata; each key once.
pub(crate) fn notes(notes: &[(String, String)]) -> Result<BTreeMap<String, String>> {
    let mut metadata = BTreeMap::new();
    for (key, value) in notes {
        if metadata.insert(key.clone(), value.clone()).is_some() {
            return Err(Error::usage(format!("--meta {key:?} is given twice")));
        }
    }
    Ok(metadata)
}

pub(crate) fn describe(path: &Path, report: &DiffReport, target_bytes: u64) -> String {
    format!(
        "{}: {} bytes, {} of the target's {}\n  {} of {} elements changed ({}), {} bits each; {} listed\n  base   {}\n  target {}",
        printable_path(path),
        grouped(report.bytes),
        percent(report.bytes, target_bytes),
        grouped(target_bytes),
        grouped(report.changed),
        grouped(report.elements),
        percent(report.changed, report.elements),
        decimal(bits_each(report.bytes, report.changed)),
        counted(report.tensors, "tensor", "tensors"),
        report.base,
        report.target.state,
    )
}

pub(crate) fn report_as_json(path: &Path, report: &DiffReport, target_bytes: u64) -> Value {
    json!({
        "link": path.to_string_lossy(),
        "bytes": report.bytes,
        "target_bytes": target_bytes,
        "changed": report.changed,
        "elements": report.elements,
        "tensors": report.tensors,
        "base": report.base.to_string(),
        "target": report.target.state.to_string(),
    })
}
