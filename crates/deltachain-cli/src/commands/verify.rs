//! `verify`: checks a link without writing anything.

use std::path::Path;

use deltachain::files::SafetensorsState;
use deltachain::tensor::State;
use deltachain::{Replay, Result, StateTable};
use serde_json::json;

use crate::args::VerifyArgs;
use crate::inputs::{OpenedLink, digests_of};
use crate::numbers::grouped;
use crate::output::{Output, printable_path};

pub(crate) fn run(args: &VerifyArgs, output: Output) -> Result<()> {
    let link = OpenedLink::open(&args.link, &args.limits.limits())?;
    if let Some(path) = &args.base {
        with_base(path, &link, output)?;
    } else {
        let meter = output.meter("checking", link.reader.header().segments_length);
        link.reader
            .verify(&meter)
            .map_err(|error| error.in_file(&link.path))?;
    }
    let with_base = args.base.is_some();
    let header = link.reader.header();
    output.summary(
        || {
            let what = if with_base {
                "gives exactly the target that it promises"
            } else {
                "sound; --base checks the target, too"
            };
            format!(
                "{}: {what}\n  bytes  {}\n  base   {}\n  target {}",
                printable_path(&args.link),
                grouped(header.file_length()),
                header.base,
                header.target,
            )
        },
        || {
            json!({
                "link": args.link.to_string_lossy(),
                "checked": if with_base { "target" } else { "link" },
                "bytes": header.file_length(),
                "base": header.base.to_string(),
                "target": header.target.to_string(),
            })
        },
    )
}

/// Checks that the link leads from this base exactly to its target. Builds the target without
/// keeping it.
pub(crate) fn with_base(base: &Path, link: &OpenedLink, output: Output) -> Result<()> {
    let base = SafetensorsState::open(base)?;
    let table = StateTable {
        tensors: base.tensors().to_vec(),
        digests: digests_of(&base, output)?,
    };
    let mut replay = Replay::new(table);
    let pushed = replay.push(&link.reader);
    pushed
        .and_then(|()| replay.prove(&base, &output.meter("verifying", replay.work())))
        .map_err(|error| error.in_file(&link.path))
}
