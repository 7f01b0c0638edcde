//! `squash`: joins links into one.

use std::path::PathBuf;

use deltachain::files::{self, FileOptions, OutputFile};
use deltachain::{Result, squash};
use serde_json::json;

use crate::args::SquashArgs;
use crate::commands::diff::{describe, report_as_json};
use crate::inputs::{OpenedLink, refuse_existing, require};
use crate::interrupt;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable_path};

pub(crate) fn run(args: &SquashArgs, output: Output) -> Result<()> {
    refuse_existing(&args.output, args.force)?;
    require(args.links.iter().chain(&args.base).map(PathBuf::as_path))?;
    let limits = args.limits.limits();
    if let Some(base) = &args.base {
        let meter = output.meter("squashing", 0);
        let options = FileOptions::default()
            .replace(args.force)
            .profile(args.profile.unwrap_or_default())
            .limits(limits)
            .progress(&meter);
        let report = files::squash(base, &args.links, &args.output, &options)?;
        drop(meter);
        return output.summary(|| describe(&args.output, &report), || report_as_json(&args.output, &report));
    }
    let links = args.links.iter().map(|path| OpenedLink::open(path, &limits)).collect::<Result<Vec<_>>>()?;
    files::check_apart(&args.output, args.links.iter().map(PathBuf::as_path))?;
    // What the links say is joined, which works for absolute values.
    let readers: Vec<_> = links.iter().map(|link| &link.reader).collect();
    let mut file = OutputFile::create(&args.output, args.force)?;
    let bytes = squash(&readers, &mut file)?;
    interrupt::check()?;
    file.commit()?;
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
