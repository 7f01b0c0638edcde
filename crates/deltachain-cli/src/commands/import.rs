//! `import`: makes links, or versions of a chain, from the deltas of another system.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use deltachain::files::{OutputFile, SafetensorsState, ScratchState};
use deltachain::tensor::{State, total_bytes};
use deltachain::{DiffOptions, DiffReport, Error, ErrorClass, Progress, Result};
use deltachain_exchange::Applied;
use deltachain_store::{Base, Model, PublishOptions, Published, Publisher};
use serde_json::{Value, json};

use crate::commands::chain::publish;
use crate::commands::diff::{describe, notes, report_as_json};
use crate::exchange_args::ImportArgs;
use crate::inputs::{open_state, refuse_existing, require};
use crate::output::{Output, printable};
use crate::watcher::Watcher;

pub(crate) fn run(args: &ImportArgs, output: Output) -> Result<()> {
    require(args.deltas.iter().map(PathBuf::as_path))?;
    match (&args.output, &args.chain) {
        (Some(path), _) => make_links(args, path, output),
        (None, Some(url)) => add_versions(args, url, output),
        (None, None) => Err(Error::usage("give --output or --chain")),
    }
}

fn make_links(args: &ImportArgs, path: &Path, output: Output) -> Result<()> {
    refuse_existing(path, false)?;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let base = open_state(&args.base)?;
    base.check_apart(path)?;
    let bytes = total_bytes(base.tensors());
    let meter = output.meter("importing", bytes.saturating_mul(3 * args.deltas.len() as u64));
    let failed = |error| Error::io("writing", error).in_file(path);
    // The links of several deltas are moved to their place when all of them are made.
    let staging = if args.deltas.len() > 1 { Some(tempfile::tempdir_in(parent).map_err(failed)?) } else { None };
    let mut made: Vec<(PathBuf, DiffReport)> = Vec::new();
    let all = steps(args, &base, parent, &meter, |before, after, metadata| {
        let name = format!("{:06}.dcf", made.len() + 1);
        let (link, place) = match &staging {
            Some(directory) => (directory.path().join(&name), path.join(&name)),
            None => (path.to_owned(), path.to_owned()),
        };
        let mut file = OutputFile::create(&link, false)?;
        let options = DiffOptions::default().profile(args.profile.into()).metadata(metadata).progress(&meter);
        let report = deltachain::diff(before, after, &options, &mut file)?;
        file.commit()?;
        made.push((place, report));
        Ok(())
    })?;
    if let Some(directory) = staging {
        fs::create_dir(path).map_err(failed)?;
        for (place, _) in &made {
            let staged = directory.path().join(place.file_name().unwrap_or_default());
            fs::rename(staged, place).map_err(failed)?;
        }
    }
    drop(meter);
    output.summary(
        || made.iter().map(|(place, report)| describe(place, report)).collect::<Vec<_>>().join("\n"),
        || {
            let links = made
                .iter()
                .zip(&all)
                .map(|((place, report), applied)| with_origin(report_as_json(place, report), applied));
            json!({ "links": links.collect::<Vec<_>>() })
        },
    )?;
    remark(&all, output);
    Ok(())
}

fn add_versions(args: &ImportArgs, url: &str, output: Output) -> Result<()> {
    let watcher = Watcher::new(output);
    let store = args.store.open(url)?;
    let base = open_state(&args.base)?;
    let options = PublishOptions::default().profiles(vec![args.profile.into()]);
    let scratch = tempfile::tempdir().map_err(|error| Error::io("creating a temporary directory", error))?;
    let mut made: Vec<Published> = Vec::new();
    let mut first = Publisher::open(store.clone(), options.clone().metadata(notes(&args.notes)?))?;
    if first.head()?.is_none() {
        made.push(first.publish(&base, Base::Chain, &watcher)?);
    }
    let began = made.len();
    let all = steps(args, &base, scratch.path(), &(), |before, after, metadata| {
        let mut publisher = Publisher::open(store.clone(), options.clone().metadata(metadata))?;
        let before = Base::State(Model::Like(before, &base));
        made.push(publisher.publish(Model::Like(after, &base), before, &watcher)?);
        Ok(())
    });
    drop(watcher);
    if all.is_err()
        && let Some(last) = made.last()
    {
        output.remark(&format!("what was imported before the error is in the chain, up to version {}", last.version));
    }
    let all = all?;
    output.summary(
        || made.iter().map(|published| publish::describe(url, published)).collect::<Vec<_>>().join("\n"),
        || {
            let first = made.iter().take(began).map(|published| publish::as_json(url, published));
            let others = made.iter().skip(began).zip(&all);
            let others = others.map(|(published, applied)| with_origin(publish::as_json(url, published), applied));
            json!({ "versions": first.chain(others).collect::<Vec<_>>() })
        },
    )?;
    remark(&all, output);
    Ok(())
}

/// Applies the deltas one after another and passes on the states before and after each, and the notes for it.
fn steps(
    args: &ImportArgs,
    base: &SafetensorsState,
    scratch: &Path,
    progress: &dyn Progress,
    mut each: impl FnMut(&dyn State, &dyn State, BTreeMap<String, String>) -> Result<()>,
) -> Result<Vec<Applied>> {
    let mut all: Vec<Applied> = Vec::new();
    let mut before: Option<ScratchState> = None;
    for delta in &args.deltas {
        let old: &dyn State = before.as_ref().map_or(base, |before| before);
        let new = ScratchState::create_in(scratch, old.tensors())?;
        let applied = args.from.reader().apply(delta, old, &new, progress)?;
        check_order(all.last(), &applied).map_err(|error| error.in_file(delta))?;
        let mut metadata = notes(&args.notes)?;
        let version = applied.version.as_ref().map_or_else(String::new, |version| format!(", to {version}"));
        metadata.insert("imported".to_owned(), format!("{}{version}", applied.format));
        each(old, &new, metadata)?;
        all.push(applied);
        before = Some(new);
    }
    Ok(all)
}

/// Where both say which versions they are of, one has to begin where the last has ended.
fn check_order(last: Option<&Applied>, next: &Applied) -> Result<()> {
    match (last.and_then(|last| last.version.as_ref()), &next.base_version) {
        (Some(reached), Some(base)) if reached != base => {
            let message = format!("this delta is for version {base:?}, but the previous one leads to {reached:?}");
            Err(Error::refused(ErrorClass::Chain, message))
        }
        _ => Ok(()),
    }
}

fn remark(all: &[Applied], output: Output) {
    for applied in all {
        let remarks = applied.remarks.iter().map(|remark| format!("note: {}: {remark}", printable(&applied.format)));
        remarks.for_each(|remark| output.remark(&remark));
    }
}

fn with_origin(mut object: Value, applied: &Applied) -> Value {
    object["imported"] = json!({
        "format": applied.format,
        "version": applied.version,
        "base_version": applied.base_version,
        "remarks": applied.remarks,
    });
    object
}
