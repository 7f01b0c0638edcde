//! `fsck`: checks a chain, or all files of a follower's directory. The program fails if there is a
//! problem.

use std::path::Path;

use deltachain::chain::Trust;
use deltachain::{Error, Result};
use deltachain_store::{
    DirectoryReport, FsckOptions, FsckReport, Scratch, SignedVersion, check_directory,
    followed_directory, fsck,
};

use crate::chain_args::FsckArgs;
use crate::commands::chain::prune::unnamed;
use crate::commands::chain::signers;
use crate::failure::{self, more};
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable, printable_path, report_on};
use crate::watcher::watched;

pub(crate) fn run(args: &FsckArgs, output: Output) -> Result<u8> {
    let store = args.chain.open()?;
    if let Some(directory) = followed_directory(&store) {
        if args.deep {
            let text = "--deep is for chains; of the directory of a follower, all files are read \
                        anyway: leave it out";
            return Err(Error::usage(text).in_file(directory));
        }
        if !args.trust.trust.is_empty() {
            let text = "--trust is for chains; of the directory of a follower, `status` says who \
                        signed its version";
            return Err(Error::usage(text).in_file(directory));
        }
        let found = watched(output, |watcher| check_directory(&directory, watcher))?;
        let json = || report_on(("directory", &directory.to_string_lossy()), &found);
        output.result(|| directory_as_text(&directory, &found), json)?;
        return Ok(failure::code(found.problems.is_empty()));
    }
    let (trust, url) = (args.trust.trust()?, args.chain.name());
    let found = watched(output, |watcher| {
        let place = if args.deep {
            Some(Scratch::new(args.scratch.as_deref(), watcher)?)
        } else {
            None
        };
        let deep = place.as_ref().map(|place| place.path().to_owned());
        let options = FsckOptions::default()
            .deep(deep)
            .limits(args.limits.limits())
            .trust(trust.clone());
        fsck(&store, &options, watcher)
    })?;
    let text = || chain_as_text(&url, args.deep, trust.as_ref(), &found);
    output.result(text, || report_on(("url", &url), &found))?;
    Ok(failure::code(found.problems.is_empty()))
}

/// Returns a hint with the command that explains the problems.
pub(crate) fn explained(problems: &[Error]) -> Option<String> {
    more(problems.iter().filter_map(Error::rule))
        .map(|command| format!("note: for more: {command}"))
}

/// Describes the newest signed version.
fn signed(report: &FsckReport, trust: Option<&Trust>) -> Option<String> {
    let counts = |version: &&SignedVersion| trust.is_none() || version.signers.signed == Some(true);
    let newest = report.signatures.iter().rfind(counts);
    let newest = newest.map(|newest| {
        format!(
            "{}, {}",
            newest.version,
            signers::as_text(&newest.signers, trust)
        )
    });
    match (newest, trust) {
        (Some(newest), None) => Some(format!("note: signatures up to version {newest}")),
        (Some(newest), Some(_)) => Some(format!("note: the newest signed version is {newest}")),
        (None, _) => None,
    }
}

fn chain_as_text(url: &str, is_deep: bool, trust: Option<&Trust>, report: &FsckReport) -> String {
    let mut lines: Vec<String> = report
        .problems
        .iter()
        .map(|problem| printable(&problem.to_string()))
        .collect();
    lines.extend(explained(&report.problems));
    lines.extend(
        report
            .hints
            .iter()
            .map(|hint| format!("note: {}", printable(hint))),
    );
    if !report.partials.is_empty() {
        let files = counted(report.partials.len(), "unfinished file", "unfinished files");
        lines.push(format!(
            "note: {files}; pruning removes them when they are a day old"
        ));
    }
    if report.unnamed > 0 {
        lines.push(format!(
            "note: {}",
            unnamed(report.unnamed, report.unnamed_bytes)
        ));
    }
    lines.extend(signed(report, trust));
    lines.push(format!(
        "{}: {}, {} of them pruned; {} ({} bytes) read; {}{}; {} unreferenced ({} bytes); {}",
        printable(url),
        counted(report.versions, "version", "versions"),
        grouped(report.pruned as u64),
        counted(report.files, "file", "files"),
        grouped(report.bytes),
        counted(report.assets, "asset", "assets"),
        if is_deep {
            format!("; {} built", counted(report.rebuilt, "version", "versions"))
        } else {
            String::new()
        },
        counted(report.orphans, "file", "files"),
        grouped(report.orphan_bytes),
        counted(report.problems.len(), "problem", "problems"),
    ));
    lines.join("\n")
}

fn directory_as_text(directory: &Path, report: &DirectoryReport) -> String {
    let mut lines: Vec<String> = report
        .problems
        .iter()
        .map(|problem| printable(&format!("{problem:#}")))
        .collect();
    lines.extend(explained(&report.problems));
    lines.push(format!(
        "{}: {}; {}, {} ({} bytes) read; {} in the cache ({} bytes); {}",
        printable_path(directory),
        report.version.map_or_else(
            || "no version".to_owned(),
            |version| format!("at version {version}")
        ),
        counted(report.versions, "version", "versions"),
        counted(report.tensors, "tensor", "tensors"),
        grouped(report.bytes),
        counted(report.cached, "link", "links"),
        grouped(report.cached_bytes),
        counted(report.problems.len(), "problem", "problems"),
    ));
    lines.join("\n")
}
