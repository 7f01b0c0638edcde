//! `export`: writes links as the deltas of another system.

use std::fs;

use deltachain::files::{Layout, SafetensorsState, scratch_state};
use deltachain::tensor::{State, total_bytes};
use deltachain::{Error, Replay, Result, StateTable, check_sequence};
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
    let mut tables = vec![StateTable::of(&base, &meter)?];
    let mut layouts = vec![base.layout().clone()];
    for (number, link) in links.iter().enumerate() {
        let next = || {
            let table = tables[number].after(&link.reader)?;
            writer.check(&tables[number], &table)?;
            let layout = Layout::of_target(
                &link.reader.index().metadata,
                layouts.last(),
                &table.tensors,
            )?;
            Ok((table, layout))
        };
        let (table, layout) = next().map_err(|error: Error| error.in_file(&link.path))?;
        tables.push(table);
        layouts.push(layout);
    }
    let first_digest = match writer {
        Writer::Pulsept1(_) => Some(pulsept1::digest(&base)?),
        _ => None,
    };

    fs::create_dir_all(&args.output)
        .map_err(|error| Error::io("creating", error).in_file(&args.output))?;
    let mut written = Vec::new();
    let mut before: Box<dyn State> = Box::new(base);
    for ((link, number), (table, layout)) in links
        .iter()
        .zip(args.first..)
        .zip(tables.into_iter().zip(&layouts))
    {
        let mut replay = Replay::new(table);
        replay
            .push(&link.reader)
            .map_err(|error| error.in_file(&link.path))?;
        let target = scratch_state(&args.output, &replay.tensors())?;
        replay
            .run(before.as_ref(), &target, &meter)
            .map_err(|error| error.in_file(&link.path))?;
        let mut step = Step::new(number).layout(Some(layout));
        (step.model, step.first_digest) = (args.model.clone(), first_digest.clone());
        let Export { path, bytes } =
            writer.write(before.as_ref(), &target, &step, &args.output, &meter)?;
        let (shown, of_link) = (
            printable_path(&path),
            grouped(link.reader.header().file_length()),
        );
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
