//! Reads all of a subscriber's directory and compares it with what was recorded when it was made.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use deltachain::files::SafetensorsState;
use deltachain::tensor::{State, StateDigests, total_bytes};
use deltachain::{Error, Result};
use serde::Serialize;

use crate::advice::problems;
use crate::directory::held::{BUILD_AGAIN, HeldVersion};
use crate::directory::marker::DirectoryKind;
use crate::directory::model_directory::current_in;
use crate::directory::names::{is_link, is_real_directory, is_real_file, is_version};
use crate::directory::status::not_followed;
use crate::directory::versions::{files_of, held_in, open_model};
use crate::fetching::cache::hashed;
use crate::following::selection::Selection;
use crate::following::shard::{has_changed, part};
use crate::observer::{InPhase, Observer, Phase};
use crate::there::if_there;

/// The findings in a subscriber's directory.
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct DirectoryReport {
    /// The version that `current` leads to.
    pub version: Option<u64>,
    /// Number of versions in the directory, with that one.
    pub versions: usize,
    /// Number of their tensors that were read.
    pub tensors: usize,
    /// Bytes of these tensors.
    pub bytes: u64,
    /// Number of links in the cache.
    pub cached: usize,
    /// Their bytes.
    pub cached_bytes: u64,
    /// Everything that is not as it was recorded.
    #[serde(serialize_with = "problems")]
    pub problems: Vec<Error>,
}

/// Reads every version in a subscriber's directory, and every link in its cache, and goes on after
/// each fault. Tensors are compared with the digests that were recorded; for other files, only the
/// lengths were. Nothing is changed and no lock is taken: files that another process removes
/// meanwhile are skipped.
///
/// # Errors
/// USAGE if it is not a subscriber's directory; the observer's error, if it stops the work.
pub fn check_directory(directory: &Path, observer: &dyn Observer) -> Result<DirectoryReport> {
    let mut report = DirectoryReport::default();
    if !DirectoryKind::Model.marks(directory)? {
        return Err(not_followed(directory));
    }
    match current_in(directory) {
        Ok(current) => report.version = current.map(|current| current.version),
        Err(error) => report.problems.push(error),
    }
    for version in ours(
        &directory.join("versions"),
        is_version,
        &mut report.problems,
    ) {
        let before = report.problems.len();
        if !is_real_directory(&version) {
            continue;
        }
        let checked = report.check_version(&version, observer);
        observer.advance(Phase::Hash, 0)?;
        if let Err(error) = checked {
            report.problems.push(error);
        }
        if is_real_directory(&version) {
            report.versions += 1;
        } else {
            // A follower has removed the version meanwhile.
            report.problems.truncate(before);
        }
    }
    for link in ours(&directory.join("cache"), is_link, &mut report.problems) {
        if !is_real_file(&link) {
            continue;
        }
        let checked = report.check_link(&link);
        observer.advance(Phase::Hash, 0)?;
        // A link that a follower has removed meanwhile is not a problem.
        if let Err(error) = checked
            && is_real_file(&link)
        {
            report.problems.push(error);
        }
    }
    Ok(report)
}

impl DirectoryReport {
    fn check_version(&mut self, version: &Path, observer: &dyn Observer) -> Result<()> {
        let held = held_in(version)?;
        let model = &held.directory;
        let there = files_of(model).map_err(|error| Error::io("listing", error).in_file(model))?;
        for (name, length) in &held.files {
            let text = match there.get(name) {
                Some(found) if found == length => continue,
                Some(found) => {
                    format!("has {found} bytes, and had {length} when the version was put here")
                }
                None => "is missing".to_owned(),
            };
            self.problems
                .push(Error::unusable(text, BUILD_AGAIN).in_file(model.join(name)));
        }
        let files = open_model(&held)?;
        self.check_tensors(
            &files,
            &held,
            &Selection::new(None, held.taken.clone())?,
            observer,
        )
    }

    fn check_tensors(
        &mut self,
        files: &SafetensorsState,
        held: &HeldVersion,
        selection: &Selection,
        observer: &dyn Observer,
    ) -> Result<()> {
        for shard in &held.shards {
            let part = part(files, &shard.table, selection)?;
            let bytes = total_bytes(part.tensors());
            let hashing = InPhase::begin(observer, Phase::Hash, bytes);
            let found = StateDigests::of(&part, &hashing)?.tensors;
            drop(hashing);
            self.tensors += found.len();
            self.bytes = self.bytes.saturating_add(bytes);
            let recorded = shard.table.tensors.iter().zip(&shard.table.digests.tensors);
            let taken = recorded.filter(|(info, _)| selection.takes(info.name()));
            let changed = taken.zip(&found).filter(|((_, was), now)| was != now);
            self.problems
                .extend(changed.map(|((info, _), _)| has_changed(files, info)));
        }
        Ok(())
    }

    fn check_link(&mut self, link: &Path) -> Result<()> {
        let found = hashed(link).map_err(|error| Error::io("reading", error).in_file(link))?;
        self.cached += 1;
        self.cached_bytes = self.cached_bytes.saturating_add(found.size);
        if link.file_stem() == Some(OsStr::new(&found.digest.to_string())) {
            return Ok(());
        }
        let text = "is damaged: its digest is not the one in its name";
        Err(
            Error::unusable(text, "nothing: it is downloaded again when it is needed")
                .in_file(link),
        )
    }
}

/// Lists the entries of a directory that have a name of ours, in order; none if the directory is
/// missing.
fn ours(directory: &Path, is_ours: fn(&OsStr) -> bool, problems: &mut Vec<Error>) -> Vec<PathBuf> {
    let list = || -> io::Result<Vec<PathBuf>> {
        let entries = if_there(fs::read_dir(directory))?.into_iter().flatten();
        let entries = entries.collect::<io::Result<Vec<_>>>()?.into_iter();
        let mut paths: Vec<_> = entries
            .filter(|entry| is_ours(&entry.file_name()))
            .map(|entry| entry.path())
            .collect();
        paths.sort_unstable();
        Ok(paths)
    };
    list().unwrap_or_else(|error| {
        problems.push(Error::io("listing", error).in_file(directory));
        Vec::new()
    })
}
