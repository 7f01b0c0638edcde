//! `apply`: builds a state from links.

use std::path::PathBuf;

use deltachain::Result;
use deltachain::files::{self, FileOptions};
use serde_json::json;

use crate::args::ApplyArgs;
use crate::inputs::{refuse_existing, require};
use crate::numbers::{counted, grouped};
use crate::other_files::list;
use crate::output::{Output, printable_path};

pub(crate) fn run(args: &ApplyArgs, output: Output) -> Result<()> {
    refuse_existing(&args.output, args.force)?;
    require(args.links.iter().chain(&args.base).map(PathBuf::as_path))?;
    let meter = output.meter("applying", 0);
    let options = FileOptions::default()
        .replace(args.force)
        .limits(args.limits.limits())
        .progress(&meter);
    let built = files::apply(args.base.as_deref(), &args.links, &args.output, &options)?;
    drop(meter);
    let links = args.links.len();
    output.summary(
        || {
            format!(
                "{}: {} bytes in {}, exactly as promised by {}\n  state  {}",
                printable_path(&args.output),
                grouped(built.target_bytes),
                counted(built.target.tensors.len(), "tensor", "tensors"),
                counted(links, "link", "links"),
                built.target.state,
            )
        },
        || {
            json!({
                "output": args.output.to_string_lossy(),
                "state": built.target.state.to_string(),
                "base": built.base.to_string(),
                "bytes": built.target_bytes,
                "written": built.written,
                "tensors": built.target.tensors.len(),
                "links": links,
                "copied": built.copied,
            })
        },
    )?;
    if !built.copied.is_empty() {
        output.remark(&format!(
            "note: copied from the base, since links carry tensors only: {}",
            list(&built.copied)
        ));
    }
    Ok(())
}
