//! `fsck`: checks a chain, or reads all of a follower's directory. The program fails if there is a problem.

use std::path::{Path, PathBuf};

use deltachain::chain::Trust;
use deltachain::{Error, Result};
use deltachain_store::{DirectoryReport, FsckOptions, FsckReport, Observer, Scratch, check_directory, fsck};
use serde_json::{Value, json};

use crate::chain_args::FsckArgs;
use crate::commands::chain::prune::unnamed;
use crate::commands::chain::report::{Access, Report};
use crate::commands::chain::signers::Signers;
use crate::failure::{describe, more};
use crate::numbers::{counted, grouped};
use crate::output::{printable, printable_path};

/// Of a chain.
struct OfChain {
    url: String,
    is_deep: bool,
    trust: Option<Trust>,
    found: FsckReport,
}

/// Of a follower's directory.
struct OfDirectory {
    directory: PathBuf,
    found: DirectoryReport,
}

pub(crate) fn report(args: &FsckArgs, access: &Access, observer: &dyn Observer) -> Result<Box<dyn Report>> {
    if let Some(directory) = directory_of(&args.chain.url) {
        if args.deep {
            let text = "--deep is for chains; of this directory all files are read anyway";
            return Err(Error::usage(text).in_file(directory));
        }
        if !args.trust.trust.is_empty() {
            let text = "--trust is for chains; `status` says who signed the version of this directory";
            return Err(Error::usage(text).in_file(directory));
        }
        let found = check_directory(&directory, observer)?;
        return Ok(Box::new(OfDirectory { directory, found }));
    }
    let trust = args.trust.trust()?;
    let store = access.open(&args.chain)?;
    let place = if args.deep { Some(Scratch::new(args.scratch.as_deref(), observer)?) } else { None };
    let deep = place.as_ref().map(|place| place.path().to_owned());
    let options = FsckOptions::default().deep(deep).limits(args.limits.limits());
    let found = fsck(&store, &options, observer)?;
    Ok(Box::new(OfChain { url: args.chain.name(), is_deep: args.deep, trust, found }))
}

/// The directory, if the argument names a follower's directory: one that holds a model, and no chain.
fn directory_of(url: &str) -> Option<PathBuf> {
    let path = Path::new(url);
    let is_kept = path.join("deltachain.directory").is_file();
    (is_kept && !path.join("chain.json").exists()).then(|| path.to_owned())
}

/// Where to read about the problems.
fn explained(problems: &[Error]) -> Option<String> {
    more(problems.iter().filter_map(Error::rule)).map(|command| format!("note: for more: {command}"))
}

impl OfChain {
    /// By version, who signed it: those with notes.
    fn signers(&self) -> impl DoubleEndedIterator<Item = (u64, Signers)> {
        self.found.notes.iter().map(|(&version, notes)| (version, Signers::of(notes, self.trust.as_ref())))
    }

    /// Which version is the newest that is signed.
    fn signed(&self) -> String {
        if self.trust.is_none() {
            return match self.signers().next_back() {
                None => String::new(),
                Some((version, signers)) => format!("note: signatures up to version {version}, {}", signers.text()),
            };
        }
        let newest = self.signers().rfind(|(_, signers)| signers.is_signed() == Some(true));
        newest.map_or_else(
            || "note: no version is signed by the trusted keys".to_owned(),
            |(version, signers)| format!("note: the newest signed version is {version}, {}", signers.text()),
        )
    }
}

impl Report for OfChain {
    fn text(&self) -> String {
        let report = &self.found;
        let mut lines: Vec<String> = report.problems.iter().map(|problem| printable(&problem.to_string())).collect();
        lines.extend(explained(&report.problems));
        lines.extend(report.hints.iter().map(|hint| format!("note: {}", printable(hint))));
        if !report.partials.is_empty() {
            let files = counted(report.partials.len(), "unfinished file", "unfinished files");
            lines.push(format!("note: {files}; pruning removes them when they are a day old"));
        }
        if report.unnamed > 0 {
            lines.push(format!("note: {}", unnamed(report.unnamed, report.unnamed_bytes)));
        }
        lines.extend(Some(self.signed()).filter(|line| !line.is_empty()));
        lines.push(format!(
            "{}: {}, {} of them pruned; {} ({} bytes) read; {}{}; {} unreferenced ({} bytes); {}",
            printable(&self.url),
            counted(report.versions, "version", "versions"),
            grouped(report.pruned as u64),
            counted(report.files, "file", "files"),
            grouped(report.bytes),
            counted(report.assets, "asset", "assets"),
            if self.is_deep {
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

    fn json(&self) -> Value {
        let report = &self.found;
        let signatures = self.signers().map(|(version, signers)| {
            let mut json = json!({ "version": version });
            signers.add_to(&mut json);
            json
        });
        json!({
            "url": self.url,
            "versions": report.versions,
            "pruned": report.pruned,
            "files": report.files,
            "bytes": report.bytes,
            "assets": report.assets,
            "rebuilt": report.rebuilt,
            "orphans": report.orphans,
            "orphan_bytes": report.orphan_bytes,
            "unnamed": report.unnamed,
            "unnamed_bytes": report.unnamed_bytes,
            "unfinished": report.partials.len(),
            "signatures": signatures.collect::<Vec<_>>(),
            "hints": report.hints,
            "problems": report.problems.iter().map(describe).collect::<Vec<_>>(),
        })
    }

    fn is_good(&self) -> bool {
        self.found.problems.is_empty()
    }
}

impl Report for OfDirectory {
    fn text(&self) -> String {
        let report = &self.found;
        let mut lines: Vec<String> = report.problems.iter().map(|problem| printable(&format!("{problem:#}"))).collect();
        lines.extend(explained(&report.problems));
        lines.push(format!(
            "{}: {}; {}, {} ({} bytes) read; {} in the cache ({} bytes); {}",
            printable_path(&self.directory),
            report.current.map_or_else(|| "no version".to_owned(), |current| format!("at version {current}")),
            counted(report.versions, "version", "versions"),
            counted(report.tensors, "tensor", "tensors"),
            grouped(report.bytes),
            counted(report.cached, "link", "links"),
            grouped(report.cached_bytes),
            counted(report.problems.len(), "problem", "problems"),
        ));
        lines.join("\n")
    }

    fn json(&self) -> Value {
        let report = &self.found;
        json!({
            "directory": self.directory.to_string_lossy(),
            "version": report.current,
            "versions": report.versions,
            "tensors": report.tensors,
            "bytes": report.bytes,
            "cached": report.cached,
            "cached_bytes": report.cached_bytes,
            "problems": report.problems.iter().map(describe).collect::<Vec<_>>(),
        })
    }

    fn is_good(&self) -> bool {
        self.found.problems.is_empty()
    }
}
