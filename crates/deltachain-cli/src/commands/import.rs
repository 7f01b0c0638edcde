//! `import`: makes links from the deltas of another system.

use std::fs;
use std::path::{Path, PathBuf};

use deltachain::files::{OutputFile, ScratchState};
use deltachain::tensor::{State, total_bytes};
use deltachain::{DiffOptions, DiffReport, Error, ErrorClass, Result};
use deltachain_exchange::Applied;
use serde_json::{Value, json};

use crate::commands::diff::{describe, notes, report_as_json};
use crate::exchange_args::ImportArgs;
use crate::inputs::{open_state, refuse_existing, require};
use crate::output::{Output, printable};

pub(crate) fn run(args: &ImportArgs, output: Output) -> Result<()> {
    refuse_existing(&args.output, false)?;
    require(args.deltas.iter().map(PathBuf::as_path))?;
    let parent = match args.output.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let base = open_state(&args.base)?;
    let bytes = total_bytes(base.tensors());
    let meter = output.meter("importing", bytes.saturating_mul(3 * args.deltas.len() as u64));
    let failed = |error| Error::io("writing", error).in_file(&args.output);
    // The links of several deltas are moved to their place when all of them are made.
    let staging = if args.deltas.len() > 1 { Some(tempfile::tempdir_in(parent).map_err(failed)?) } else { None };
    let mut made: Vec<(PathBuf, Applied, DiffReport)> = Vec::new();
    let mut before: Box<dyn State> = Box::new(base);
    for (number, delta) in (1..).zip(&args.deltas) {
        let scratch = ScratchState::create_in(parent, before.tensors())?;
        let applied = args.from.reader().apply(delta, before.as_ref(), &scratch, &meter)?;
        check_order(made.last().map(|(_, last, _)| last), &applied).map_err(|error| error.in_file(delta))?;
        let name = format!("{number:06}.dcf");
        let (link, path) = match &staging {
            Some(directory) => (directory.path().join(&name), args.output.join(&name)),
            None => (args.output.clone(), args.output.clone()),
        };
        let mut metadata = notes(&args.notes)?;
        let version = applied.version.as_ref().map_or_else(String::new, |version| format!(", to {version}"));
        metadata.insert("imported".to_owned(), format!("{}{version}", applied.format));
        let mut file = OutputFile::create(&link, false)?;
        let options = DiffOptions::default().profile(args.profile.into()).metadata(metadata).progress(&meter);
        let report = deltachain::diff(before.as_ref(), &scratch, &options, &mut file)?;
        file.commit()?;
        made.push((path, applied, report));
        before = Box::new(scratch);
    }
    if let Some(directory) = staging {
        fs::create_dir(&args.output).map_err(failed)?;
        for (path, _, _) in &made {
            let staged = directory.path().join(path.file_name().unwrap_or_default());
            fs::rename(staged, path).map_err(failed)?;
        }
    }
    drop(meter);
    output.summary(
        || made.iter().map(|(path, _, report)| describe(path, report)).collect::<Vec<_>>().join("\n"),
        || json!({ "links": made.iter().map(as_json).collect::<Vec<_>>() }),
    )?;
    for (_, applied, _) in &made {
        let remarks = applied.remarks.iter().map(|remark| format!("note: {}: {remark}", printable(&applied.format)));
        remarks.for_each(|remark| output.remark(&remark));
    }
    Ok(())
}

/// Where both say which versions they are of, one has to begin where the last has ended.
fn check_order(last: Option<&Applied>, next: &Applied) -> Result<()> {
    match (last.and_then(|last| last.version.as_ref()), &next.base_version) {
        (Some(reached), Some(base)) if reached != base => {
            let message = format!("this delta is for version {base:?}, and the one before leads to {reached:?}");
            Err(Error::refused(ErrorClass::Chain, message))
        }
        _ => Ok(()),
    }
}

fn as_json((path, applied, report): &(PathBuf, Applied, DiffReport)) -> Value {
    let mut object = report_as_json(path, report);
    object["format"] = json!(applied.format);
    object["version"] = json!(applied.version);
    object["base_version"] = json!(applied.base_version);
    object["remarks"] = json!(applied.remarks);
    object
}
