//! `import`: makes links, or versions of a chain, from the deltas of another system.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use deltachain::files::{OutputFile, SafetensorsState, scratch_state};
use deltachain::tensor::{State, total_bytes};
use deltachain::{DiffOptions, Error, ErrorClass, Progress, Result};
use deltachain_cli::program::{
    Output, Watcher, describe_link, describe_published, link_as_json, notes, printable,
    refuse_existing, report_on, require,
};
use deltachain_exchange::Import;
use deltachain_store::{Base, Model, PublishOptions, PublishReport, Publisher};
use serde_json::json;

use crate::args::ImportArgs;
use crate::summary::{SummaryPair, summary};

pub(crate) fn run(args: &ImportArgs, output: Output) -> Result<()> {
    require(args.deltas.iter().map(PathBuf::as_path))?;
    let (key, (mut made, all)) = match (&args.output, &args.chain) {
        (Some(path), _) => ("links", make_links(args, path, output)?),
        (None, Some(url)) => ("versions", add_versions(args, url, output)?),
        (None, None) => return Err(Error::usage("give --output or --chain")),
    };
    // In an empty chain, the base is the first of the new versions.
    let first = made.len().saturating_sub(all.len());
    for ((_, object), applied) in made.iter_mut().skip(first).zip(&all) {
        object["imported"] = json!({
            "format": applied.format,
            "version": applied.version,
            "base_version": applied.base_version,
            "remarks": applied.remarks,
        });
    }
    summary(output, key, made)?;
    for applied in &all {
        let remarks = applied
            .remarks
            .iter()
            .map(|remark| format!("note: {}: {remark}", printable(&applied.format)));
        remarks.for_each(|remark| output.remark(&remark));
    }
    Ok(())
}

fn make_links(
    args: &ImportArgs,
    path: &Path,
    output: Output,
) -> Result<(Vec<SummaryPair>, Vec<Import>)> {
    refuse_existing(path, false)?;
    let parent = path
        .parent()
        .filter(|parent| *parent != Path::new(""))
        .unwrap_or(Path::new("."));
    let base = SafetensorsState::open(&args.base)?;
    base.check_apart(path)?;
    let bytes = total_bytes(base.tensors());
    let meter = output.meter(
        "importing",
        bytes.saturating_mul(3 * args.deltas.len() as u64),
    );
    let failed = |error| Error::io("writing", error).in_file(path);
    // The links of several deltas are made in a temporary directory and moved to their place
    // together.
    let staging = if args.deltas.len() > 1 {
        Some(tempfile::tempdir_in(parent).map_err(failed)?)
    } else {
        None
    };
    let mut made: Vec<SummaryPair> = Vec::new();
    let all = steps(args, &base, parent, &meter, |before, after, metadata| {
        let name = format!("{:06}.dcf", made.len() + 1);
        let (link, place) = match &staging {
            Some(directory) => (directory.path().join(&name), path.join(&name)),
            None => (path.to_owned(), path.to_owned()),
        };
        let mut file = OutputFile::create(&link, false)?;
        let options = DiffOptions::default()
            .profile(args.profile)
            .metadata(metadata)
            .progress(&meter);
        let report = deltachain::diff(before, after, &options, &mut file)?;
        file.commit()?;
        made.push((
            describe_link(&place, &report),
            link_as_json(&place, &report),
        ));
        Ok(())
    })?;
    if let Some(directory) = staging {
        fs::create_dir(path).map_err(failed)?;
        for link in fs::read_dir(directory.path()).map_err(failed)? {
            let link = link.map_err(failed)?;
            fs::rename(link.path(), path.join(link.file_name())).map_err(failed)?;
        }
    }
    Ok((made, all))
}

fn add_versions(
    args: &ImportArgs,
    url: &str,
    output: Output,
) -> Result<(Vec<SummaryPair>, Vec<Import>)> {
    let watcher = Watcher::new(output);
    let store = args.store.open(url)?;
    let base = SafetensorsState::open(&args.base)?;
    let options = PublishOptions::default()
        .profiles(vec![args.profile])
        .unsigned(args.unsigned);
    let scratch =
        tempfile::tempdir().map_err(|error| Error::io("creating a temporary directory", error))?;
    let mut versions: Vec<PublishReport> = Vec::new();
    let mut first = Publisher::open(store.clone(), options.clone().metadata(notes(&args.notes)?))?;
    if first.head()?.is_none() {
        versions.push(first.publish(&base, Base::Chain, &watcher)?);
    }
    let all = steps(
        args,
        &base,
        scratch.path(),
        &(),
        |before, after, metadata| {
            // Only the head that existed before this import can be signed.
            let unsigned = args.unsigned || !versions.is_empty();
            let options = options.clone().metadata(metadata).unsigned(unsigned);
            let mut publisher = Publisher::open(store.clone(), options)?;
            let before = Base::State(Model::Like(before, &base));
            versions.push(publisher.publish(Model::Like(after, &base), before, &watcher)?);
            Ok(())
        },
    );
    drop(watcher);
    if all.is_err()
        && let Some(last) = versions.last()
    {
        output.remark(&format!(
            "the deltas before the error are in the chain, up to version {}",
            last.version
        ));
    }
    let made = versions.iter().map(|version| {
        (
            describe_published(url, version),
            report_on(("url", url), version),
        )
    });
    Ok((made.collect(), all?))
}

/// Applies the deltas one after another; calls `each` with the states before and after each delta,
/// and with its metadata.
fn steps(
    args: &ImportArgs,
    base: &SafetensorsState,
    scratch: &Path,
    progress: &dyn Progress,
    mut each: impl FnMut(&dyn State, &dyn State, BTreeMap<String, String>) -> Result<()>,
) -> Result<Vec<Import>> {
    let mut all: Vec<Import> = Vec::new();
    let mut before: Option<Box<dyn State>> = None;
    for delta in &args.deltas {
        let old: &dyn State = before.as_ref().map_or(base, |before| &**before);
        let new = scratch_state(scratch, old.tensors())?;
        let applied = args.from.0.apply(delta, old, &new, progress)?;
        check_order(all.last(), &applied).map_err(|error| error.in_file(delta))?;
        let mut metadata = notes(&args.notes)?;
        let version = applied
            .version
            .as_ref()
            .map_or_else(String::new, |version| format!(", to {version}"));
        metadata.insert(
            "imported".to_owned(),
            format!("{}{version}", applied.format),
        );
        each(old, &new, metadata)?;
        all.push(applied);
        before = Some(Box::new(new));
    }
    Ok(all)
}

/// If both deltas name their versions, the next one must start at the version to which the last one
/// led.
fn check_order(last: Option<&Import>, next: &Import) -> Result<()> {
    match (
        last.and_then(|last| last.version.as_ref()),
        &next.base_version,
    ) {
        (Some(reached), Some(base)) if reached != base => {
            let message = format!(
                "this delta is for version {base:?}, but the previous one leads to {reached:?}"
            );
            Err(Error::refused(ErrorClass::Chain, message))
        }
        _ => Ok(()),
    }
}
