//! `export`: writes links as the deltas of another system.

use std::fs;
use std::path::Path;

use deltachain::files::{Layout, SafetensorsState, scratch_state};
use deltachain::tensor::{State, total_bytes};
use deltachain::{Error, Progress, Replay, Result, StateTable, check_sequence};
use deltachain_cli::program::{OpenedLink, Output, grouped, printable_path};
use deltachain_exchange::{Export, Step, Writer, pulsept1};
use serde_json::json;

use crate::args::ExportArgs;
use crate::summary::summary;

pub(crate) fn run(args: &ExportArgs, output: Output) -> Result<()> {
    let writer = args.writer()?;
    let base = SafetensorsState::open(&args.base)?;
    base.check_apart(&args.output.join("step"))?;
    let limits = args.limits.limits();
    let links = args
        .links
        .iter()
        .map(|path| OpenedLink::open(path, &limits))
        .collect::<Result<Vec<_>>>()?;
    let bytes = total_bytes(base.tensors());
    let meter = output.meter(
        "exporting",
        bytes.saturating_mul(1 + 2 * links.len() as u64),
    );

    // All checks that need no decoding come before anything is written.
    let readers: Vec<_> = links.iter().map(|link| &link.reader).collect();
    check_sequence(&readers)?;
    let states = plan(writer, &base, &links, &meter)?;
    let first_digest = match writer {
        Writer::Pulsept1(_) => Some(pulsept1::digest(&base)?),
        _ => None,
    };

    fs::create_dir_all(&args.output)
        .map_err(|error| Error::io("creating", error).in_file(&args.output))?;
    let mut written = Vec::new();
    let mut before: Box<dyn State> = Box::new(base);
    for ((link, number), state) in links.iter().zip(args.first..).zip(states) {
        let target = replay(link, state.table, before.as_ref(), &args.output, &meter)?;
        let mut step = Step::new(number).layout(Some(&state.layout));
        step.model.clone_from(&args.model);
        step.first_digest.clone_from(&first_digest);
        let Export { path, bytes } =
            writer.write(before.as_ref(), &target, &step, &args.output, &meter)?;
        let shown = printable_path(&path);
        let of_link = grouped(link.reader.header().file_length());
        let line = format!("{shown}: {} bytes; the link has {of_link}", grouped(bytes));
        written.push((
            line,
            json!({ "output": path.to_string_lossy(), "bytes": bytes }),
        ));
        before = Box::new(target);
    }
    drop(meter);
    summary(output, "steps", written)
}

/// A state between two links.
struct Planned {
    table: StateTable,
    layout: Layout,
}

/// Checks that the deltas can carry every link. Returns the state before each link, and the last.
fn plan(
    writer: Writer,
    base: &SafetensorsState,
    links: &[OpenedLink],
    progress: &dyn Progress,
) -> Result<Vec<Planned>> {
    let mut state = Planned {
        table: StateTable::of(base, progress)?,
        layout: base.layout().clone(),
    };
    let mut states = Vec::with_capacity(links.len() + 1);
    for link in links {
        let next = plan_step(writer, &state, link).map_err(|error| error.in_file(&link.path))?;
        states.push(std::mem::replace(&mut state, next));
    }
    states.push(state);
    Ok(states)
}

/// Checks that the deltas can carry a link. Returns the state after it.
fn plan_step(writer: Writer, before: &Planned, link: &OpenedLink) -> Result<Planned> {
    let table = before.table.after(&link.reader)?;
    writer.check(&before.table, &table)?;
    let metadata = &link.reader.index().metadata;
    let layout = Layout::of_target(metadata, Some(&before.layout), &table.tensors)?;
    Ok(Planned { table, layout })
}

/// Applies a link to a state. The result is a temporary file in `directory`.
fn replay(
    link: &OpenedLink,
    table: StateTable,
    base: &dyn State,
    directory: &Path,
    progress: &dyn Progress,
) -> Result<impl State + use<>> {
    let mut replay = Replay::new(table);
    replay
        .push(&link.reader)
        .map_err(|error| error.in_file(&link.path))?;
    let target = scratch_state(directory, &replay.tensors())?;
    replay
        .run(base, &target, progress)
        .map_err(|error| error.in_file(&link.path))?;
    Ok(target)
}
