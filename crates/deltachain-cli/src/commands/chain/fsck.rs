//! `fsck`: checks a chain, or reads all of a follower's directory. The program fails if there is a problem.

use std::path::{Path, PathBuf};

use deltachain::{Error, Result};
use deltachain_store::{DirectoryReport, FsckOptions, FsckReport, Observer, Scratch, check_directory, fsck};
use serde_json::{Value, json};

use crate::chain_args::FsckArgs;
use crate::commands::chain::report::{Access, Report};
use crate::failure::describe;
use crate::numbers::{counted, grouped};
use crate::output::{printable, printable_path};

/// Of a chain.
struct OfChain {
    url: String,
    is_deep: bool,
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
        let found = check_directory(&directory, observer)?;
        return Ok(Box::new(OfDirectory { directory, found }));
    }
    let store = access.open(&args.chain)?;
    let place = if args.deep { Some(Scratch::new(args.scratch.as_deref())?) } else { None };
    let deep = place.as_ref().map(|place| place.path().to_owned());
    let options = FsckOptions::default().deep(deep).limits(args.limits.limits());
    let found = fsck(&store, &options, observer)?;
    Ok(Box::new(OfChain { url: args.chain.url.clone(), is_deep: args.deep, found }))
}

/// The directory, if the argument names a follower's directory: one that holds a model, and no chain.
fn directory_of(url: &str) -> Option<PathBuf> {
    let path = Path::new(url);
    let is_kept = path.join("deltachain.directory").is_file();
    (is_kept && !path.join("chain.json").exists()).then(|| path.to_owned())
}

impl Report for OfChain {
    fn text(&self) -> String {
        let report = &self.found;
        let mut lines: Vec<String> = report.problems.iter().map(|problem| printable(&problem.to_string())).collect();
        lines.extend(report.hints.iter().map(|hint| format!("note: {}", printable(hint))));
        if !report.partials.is_empty() {
            let files = counted(report.partials.len(), "unfinished file", "unfinished files");
            lines.push(format!("note: {files}; pruning removes them when they are a day old"));
        }
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
            "unfinished": report.partials.len(),
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
