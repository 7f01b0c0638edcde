//! `squash`: joins links into one.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::files::{LAYOUT_KEY, Layout, ScratchState};
use deltachain::tensor::{State, TensorInfo};
use deltachain::{DiffReport, Profile, Result, squash};
use serde_json::json;

use crate::args::SquashArgs;
use crate::commands::diff::{Job, describe, make, report_as_json};
use crate::inputs::{Base, OpenedLink, bytes_of};
use crate::interrupt;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable_path};
use crate::output_file::{OutputFile, parent_of, refuse_existing};
use crate::replay::replay;

pub(crate) fn run(args: &SquashArgs, output: Output) -> Result<()> {
    refuse_existing(&args.output, args.force)?;
    let links = OpenedLink::open_all(&args.links, &args.limits.limits())?;
    if let Some(base) = &args.base {
        let base = Base::open(Some(base))?;
        let profile = args.profile.map_or_else(Profile::default, Into::into);
        let (report, target_bytes) = through_states(&base, &links, profile, &args.output, args.force, output)?;
        return output.summary(
            || describe(&args.output, &report, target_bytes),
            || report_as_json(&args.output, &report, target_bytes),
        );
    }
    let bytes = without_states(&links, &args.output, args.force)?;
    let ends =
        links.first().zip(links.last()).map(|(first, last)| (first.reader.header().base, last.reader.header().target));
    output.summary(
        || {
            format!(
                "{}: {} bytes, from {}",
                printable_path(&args.output),
                grouped(bytes),
                counted(links.len(), "link", "links")
            )
        },
        || {
            json!({
                "link": args.output.to_string_lossy(),
                "bytes": bytes,
                "base": ends.map(|(base, _)| base.to_string()),
                "target": ends.map(|(_, target)| target.to_string()),
            })
        },
    )
}

/// Joins what the links say, which works for absolute values.
fn without_states(links: &[OpenedLink], path: &Path, replace: bool) -> Result<u64> {
    let readers: Vec<_> = links.iter().map(|link| &link.reader).collect();
    let mut file = OutputFile::create(path, replace)?;
    let bytes = squash(&readers, &mut file)?;
    interrupt::check()?;
    file.commit()?;
    Ok(bytes)
}

/// Applies the links and compares the result with the base. Returns also the bytes of the result.
fn through_states(
    base: &Base,
    links: &[OpenedLink],
    profile: Profile,
    path: &Path,
    replace: bool,
    output: Output,
) -> Result<(DiffReport, u64)> {
    let scratch = parent_of(path);
    let create = |tensors: &[TensorInfo], _: &Layout| ScratchState::create_in(scratch, tensors);
    let replayed = replay(base, links, create, output)?;
    // As the library does it: what a later link says replaces what an earlier one said. The layout is worked out anew.
    let mut metadata = BTreeMap::new();
    for link in links {
        metadata.extend(link.reader.index().metadata.clone());
    }
    metadata.remove(LAYOUT_KEY);
    let job = Job {
        base: base.state(),
        base_layout: base.layout(),
        target: &replayed.state,
        target_layout: &replayed.layout,
        profile,
        metadata,
        path,
        replace,
    };
    Ok((make(job, output)?, bytes_of(replayed.state.tensors())))
}
