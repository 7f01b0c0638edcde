//! `verify`: checks a link without writing anything.

use deltachain::tensor::StateDigests;
use deltachain::{Replay, Result, StateTable};
use serde_json::json;

use crate::args::VerifyArgs;
use crate::inputs::{Base, OpenedLink, digests_of};
use crate::numbers::grouped;
use crate::output::{Output, printable_path};

pub(crate) fn run(args: &VerifyArgs, output: Output) -> Result<()> {
    let link = OpenedLink::open(&args.link, &args.limits.limits())?;
    if let Some(path) = &args.base {
        let base = Base::open(Some(path))?;
        with_base(&base, &link, output)?;
    } else {
        let meter = output.meter("checking", link.reader.header().segments_length);
        link.reader.verify(&meter).map_err(|error| error.in_file(&link.path))?;
    }
    let with_base = args.base.is_some();
    let header = link.reader.header();
    output.summary(
        || {
            let what = if with_base {
                "gives exactly the target that it promises"
            } else {
                "sound; with --base, the target would be checked too"
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

/// Applies the link, and throws the result away once its digest is known to be right.
pub(crate) fn with_base(base: &Base, link: &OpenedLink, output: Output) -> Result<StateDigests> {
    let table = StateTable { tensors: base.state().tensors().to_vec(), digests: digests_of(base.state(), output)? };
    let mut replay = Replay::new(table);
    let proven =
        replay.push(&link.reader).and_then(|()| replay.prove(base.state(), &output.meter("verifying", replay.work())));
    proven.map_err(|error| error.in_file(&link.path))?;
    Ok(replay.table().digests.clone())
}
