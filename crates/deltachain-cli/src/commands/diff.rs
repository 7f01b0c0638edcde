//! `diff`: makes the link from one state to another. `snapshot`: makes the link from the empty
//! state. Also the report on a new link, for every command that makes links.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::files::{self, FileOptions, SafetensorsState};
use deltachain::{DiffReport, Error, Profile, Result};
use serde_json::{Value, json};

use crate::args::{DiffArgs, NewLink, SnapshotArgs};
use crate::inputs::refuse_existing;
use crate::numbers::{bits_each, counted, decimal, grouped, percent};
use crate::other_files::NotCovered;
use crate::output::{Output, printable_path};

pub(crate) fn run(args: &DiffArgs, output: Output) -> Result<()> {
    let options = FileOptions::default().profile(args.profile);
    make(&args.link, Some(&args.base), &args.target, options, output)
}

pub(crate) fn snapshot(args: &SnapshotArgs, output: Output) -> Result<()> {
    // A snapshot has no base to be relative to, so the profile makes no difference.
    make(
        &args.link,
        None,
        &args.state,
        FileOptions::default().profile(Profile::Direct),
        output,
    )
}

/// Makes a link from a base, or from nothing, to a target, and reports the result.
fn make(
    link: &NewLink,
    base: Option<&Path>,
    target: &Path,
    options: FileOptions<'_>,
    output: Output,
) -> Result<()> {
    refuse_existing(&link.output, link.force)?;
    let base = base.map(SafetensorsState::open).transpose()?;
    let target = SafetensorsState::open(target)?;
    // The other files beside the states are compared before the link is made, too.
    let not_covered = NotCovered::by_link(base.as_ref(), &target)?;
    let meter = output.meter("comparing", 0);
    let options = options
        .replace(link.force)
        .metadata(notes(&link.notes)?)
        .progress(&meter);
    let report = files::diff_opened(base.as_ref(), &target, &link.output, &options)?;
    drop(meter);
    output.summary(
        || describe(&link.output, &report),
        || {
            let mut object = report_as_json(&link.output, &report);
            not_covered.add_to(&mut object);
            object
        },
    )?;
    not_covered.remark(output);
    Ok(())
}

/// Converts notes to metadata.
///
/// # Errors
/// USAGE if a key is given twice.
pub fn notes(notes: &[(String, String)]) -> Result<BTreeMap<String, String>> {
    let mut metadata = BTreeMap::new();
    for (key, value) in notes {
        if metadata.insert(key.clone(), value.clone()).is_some() {
            return Err(Error::usage(format!("duplicate --meta {key:?}")));
        }
    }
    Ok(metadata)
}

/// Describes a new link as text.
pub fn describe(path: &Path, report: &DiffReport) -> String {
    format!(
        "{}: {} bytes, {} of the target's {}\n  {} of {} elements changed ({}), {} bits each; {} \
         listed\n\x20 base   {}\n  target {}",
        printable_path(path),
        grouped(report.bytes),
        percent(report.bytes, report.target_bytes),
        grouped(report.target_bytes),
        grouped(report.changed),
        grouped(report.elements),
        percent(report.changed, report.elements),
        decimal(bits_each(report.bytes, report.changed)),
        counted(report.tensors, "tensor", "tensors"),
        report.base,
        report.target.state,
    )
}

/// Describes a new link as JSON.
pub fn report_as_json(path: &Path, report: &DiffReport) -> Value {
    json!({
        "link": path.to_string_lossy(),
        "bytes": report.bytes,
        "target_bytes": report.target_bytes,
        "changed": report.changed,
        "elements": report.elements,
        "tensors": report.tensors,
        "base": report.base.to_string(),
        "target": report.target.state.to_string(),
    })
}
