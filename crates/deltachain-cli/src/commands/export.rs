//! `export`: writes links as the deltas of another system.

use std::fs;
use std::path::PathBuf;

use deltachain::files::{Layout, ScratchState};
use deltachain::tensor::{State, total_bytes};
use deltachain::{Error, Replay, Result, StateTable, check_sequence};
use deltachain_exchange::{Step, Writer, Written, pulsept1};
use serde_json::json;

use crate::exchange_args::ExportArgs;
use crate::inputs::{OpenedLink, open_state};
use crate::numbers::grouped;
use crate::output::{Output, printable_path};

pub(crate) fn run(args: &ExportArgs, output: Output) -> Result<()> {
    let writer = args.writer()?;
    let base = open_state(&args.base)?;
    base.check_apart(&args.output.join("step"))?;
    let limits = args.limits.limits();
    let links = args.links.iter().map(|path| OpenedLink::open(path, &limits)).collect::<Result<Vec<_>>>()?;
    let bytes = total_bytes(base.tensors());
    let meter = output.meter("exporting", bytes.saturating_mul(1 + 2 * links.len() as u64));

    // All that can be known without decoding comes before anything is written.
    let readers: Vec<_> = links.iter().map(|link| &link.reader).collect();
    check_sequence(&readers)?;
    let mut tables = vec![StateTable::of(&base, &meter)?];
    let mut layouts = vec![base.layout().clone()];
    for (number, link) in links.iter().enumerate() {
        let next = || {
            let table = tables[number].after(&link.reader)?;
            writer.check(&tables[number], &table)?;
            let layout = Layout::of_target(&link.reader.index().metadata, layouts.last(), &table.tensors)?;
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

    fs::create_dir_all(&args.output).map_err(|error| Error::io("creating", error).in_file(&args.output))?;
    let mut written: Vec<Written> = Vec::new();
    let mut before: Box<dyn State> = Box::new(base);
    for ((link, number), (table, layout)) in links.iter().zip(args.first..).zip(tables.into_iter().zip(&layouts)) {
        let mut replay = Replay::new(table);
        replay.push(&link.reader).map_err(|error| error.in_file(&link.path))?;
        let target = ScratchState::create_in(&args.output, &replay.tensors())?;
        replay.run(before.as_ref(), &target, &meter).map_err(|error| error.in_file(&link.path))?;
        let mut step = Step::new(number).layout(Some(layout));
        (step.model, step.first_digest) = (args.model.clone(), first_digest.clone());
        written.push(writer.write(before.as_ref(), &target, &step, &args.output, &meter)?);
        before = Box::new(target);
    }
    drop(meter);
    let bytes = |path: &PathBuf| fs::metadata(path).map_or(0, |status| status.len());
    output.summary(
        || {
            let line = |(written, link): (&Written, &PathBuf)| {
                let path = printable_path(&written.path);
                format!("{path}: {} bytes; the link has {}", grouped(written.bytes), grouped(bytes(link)))
            };
            written.iter().zip(&args.links).map(line).collect::<Vec<_>>().join("\n")
        },
        || {
            let object =
                |written: &Written| json!({ "output": written.path.to_string_lossy(), "bytes": written.bytes });
            json!({ "steps": written.iter().map(object).collect::<Vec<_>>() })
        },
    )
}
