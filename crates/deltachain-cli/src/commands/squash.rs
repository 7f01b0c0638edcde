//! `squash`: joins links into one.

use std::path::PathBuf;

use deltachain::Result;
use deltachain::files::{self, FileOptions};

use crate::args::SquashArgs;
use crate::commands::diff::{describe, report_as_json};
use crate::inputs::{refuse_existing, require};
use crate::output::Output;

pub(crate) fn run(args: &SquashArgs, output: Output) -> Result<()> {
    refuse_existing(&args.output, args.force)?;
    require(args.links.iter().chain(&args.base).map(PathBuf::as_path))?;
    let meter = output.meter("squashing", 0);
    let options = FileOptions::default()
        .replace(args.force)
        .profile(args.profile)
        .limits(args.limits.limits())
        .progress(&meter);
    let report = files::squash(args.base.as_deref(), &args.links, &args.output, &options)?;
    drop(meter);
    output.summary(
        || describe(&args.output, &report),
        || report_as_json(&args.output, &report),
    )
}
