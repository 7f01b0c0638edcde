//! `fsck` of a follower's directory: reads all of it. The program fails if there is a problem.

use std::path::{Path, PathBuf};

use deltachain::Result;
use deltachain_store::check_directory;
use serde_json::json;

use crate::exit;
use crate::failure::describe;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable, printable_path};
use crate::watcher::Watcher;

/// The directory, if the argument names a follower's directory: one that holds a model, and no chain.
pub(crate) fn directory_of(url: &str) -> Option<PathBuf> {
    let path = Path::new(url);
    let is_kept = path.join("deltachain.directory").is_file();
    (is_kept && !path.join("chain.json").exists()).then(|| path.to_owned())
}

pub(crate) fn run(directory: &Path, output: Output) -> Result<u8> {
    let watcher = Watcher::new(output);
    let report = check_directory(directory, &watcher)?;
    drop(watcher);
    output.result(
        || {
            let mut lines: Vec<String> =
                report.problems.iter().map(|problem| printable(&format!("{problem:#}"))).collect();
            lines.push(format!(
                "{}: {}; {}, {} ({} bytes) read; {} in the cache ({} bytes); {}",
                printable_path(directory),
                report.current.map_or_else(|| "no version".to_owned(), |current| format!("at version {current}")),
                counted(report.versions, "version", "versions"),
                counted(report.tensors, "tensor", "tensors"),
                grouped(report.bytes),
                counted(report.cached, "link", "links"),
                grouped(report.cached_bytes),
                counted(report.problems.len(), "problem", "problems"),
            ));
            lines.join("\n")
        },
        || {
            json!({
                "directory": directory.to_string_lossy(),
                "version": report.current,
                "versions": report.versions,
                "tensors": report.tensors,
                "bytes": report.bytes,
                "cached": report.cached,
                "cached_bytes": report.cached_bytes,
                "problems": report.problems.iter().map(describe).collect::<Vec<_>>(),
            })
        },
    )?;
    Ok(if report.problems.is_empty() { exit::SUCCESS } else { exit::FAILURE })
}
