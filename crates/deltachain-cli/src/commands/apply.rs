//! `apply`: builds a state from links.

use std::path::Path;

use deltachain::Result;
use deltachain::files::{Layout, StagedSafetensors};
use deltachain::tensor::{State, StateDigests, TensorInfo};
use serde_json::json;

use crate::args::ApplyArgs;
use crate::inputs::{Base, OpenedLink, bytes_of};
use crate::interrupt;
use crate::numbers::{counted, grouped};
use crate::other_files::list;
use crate::output::{Output, printable_path};
use crate::output_file::refuse_existing;
use crate::replay::replay;

pub(crate) fn run(args: &ApplyArgs, output: Output) -> Result<()> {
    refuse_existing(&args.output, args.force)?;
    let links = OpenedLink::open_all(&args.links, &args.limits.limits())?;
    let base = Base::open(args.base.as_deref())?;
    let built = build(&base, &links, &args.output, args.force, output)?;
    output.summary(
        || {
            format!(
                "{}: {} bytes in {}, exactly as promised by {}\n  state  {}",
                printable_path(&args.output),
                grouped(built.bytes),
                counted(built.tensors, "tensor", "tensors"),
                counted(links.len(), "link", "links"),
                built.digests.state,
            )
        },
        || {
            json!({
                "output": args.output.to_string_lossy(),
                "state": built.digests.state.to_string(),
                "base": built.base.state.to_string(),
                "bytes": built.bytes,
                "tensors": built.tensors,
                "links": links.len(),
                "copied": built.copied,
            })
        },
    )?;
    if !built.copied.is_empty() {
        output.remark(&format!("note: copied from the base, since links carry tensors only: {}", list(&built.copied)));
    }
    Ok(())
}

/// A state that has been built and is visible.
pub(crate) struct Built {
    pub(crate) digests: StateDigests,
    pub(crate) base: StateDigests,
    pub(crate) bytes: u64,
    pub(crate) tensors: usize,
    /// Names of files copied from the base's directory.
    pub(crate) copied: Vec<String>,
}

/// Applies links to a base and puts the result at `path`.
pub(crate) fn build(base: &Base, links: &[OpenedLink], path: &Path, replace: bool, output: Output) -> Result<Built> {
    let create = |tensors: &[TensorInfo], layout: &Layout| {
        StagedSafetensors::create(path, tensors, layout, base.files(), replace)
    };
    let replayed = replay(base, links, create, output)?;
    let built = Built {
        bytes: bytes_of(replayed.state.tensors()),
        tensors: replayed.state.tensors().len(),
        copied: replayed.state.copied_files(),
        digests: replayed.digests,
        base: replayed.base_digests,
    };
    interrupt::check()?;
    replayed.state.commit()?;
    Ok(built)
}
