//! Keeps a directory at versions of a chain (SPEC section 19).

use std::path::{Path, PathBuf};
use std::time::Instant;

use deltachain::chain::{FileReference, Plan};
use deltachain::files::SafetensorsState;
use deltachain::{Error, Result};

use crate::access::store::Store;
use crate::assets::in_store::take_assets;
use crate::assets::other_files::{
    OtherFiles, failed_with, has_other_files, take_model, take_other_files,
};
use crate::directory::held::{HeldVersion, ShardRecord};
use crate::directory::model_directory::{ModelDirectory, current_in};
use crate::directory::own::{check_outside, sync_folders};
use crate::directory::versions::{MODEL, open_model};
use crate::fetching::links::{Blame, FetchTotals};
use crate::following::follower::{Follower, FollowerOptions};
use crate::following::reach::{ChainReader, Destination, PreparedVersion};
use crate::following::selection::Selection;
use crate::following::shard::{BaseShard, open_unchanged, part};
use crate::following::switched::SwitchReport;
use crate::following::trusting::FollowerTrust;
use crate::observer::{Observer, Phase};

/// A directory that a [`Follower`] keeps at a version of a chain.
///
/// The model's files are in `DIR/current`, a symbolic link to the directory of a version. It is
/// switched when a version is complete and on disk. Until then, and after any failure, it does not
/// change. If you open several files, resolve the link first: the directory that it leads to stays
/// until the version after the next is being built.
#[derive(Debug)]
pub struct Directory {
    kept: ModelDirectory,
    trust: bool,
    other_files: OtherFiles,
    /// The version that `current` leads to.
    held: Option<HeldVersion>,
    files: FilesState,
    /// The files of the held version, open while another version is being prepared.
    model: Option<SafetensorsState>,
    /// Why the version in the directory cannot be used.
    unusable: Option<Error>,
}

/// State of the files of the held version, compared with its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilesState {
    Unread,
    Proven,
    /// The files differ from the record, or are not the selected ones. The record still counts: the
    /// chain must not be rolled back below it.
    Useless,
}

impl Follower<Directory> {
    /// Opens or creates a managed directory, which no other process may be using.
    ///
    /// The file `deltachain.directory` marks a managed directory. A directory that is missing or
    /// empty becomes one. Any other is refused, and nothing in it is touched. Only files that a
    /// follower has made are ever removed, and never through a symbolic link; all others stay.
    ///
    /// # Errors
    /// USAGE if the directory is not empty and not a managed one, if it lies in the chain's own
    /// directory, if another process uses it, if no shard is selected, or if a pattern is not
    /// valid; IO, also if `current` in it is not a symbolic link or leads out of it.
    pub fn in_directory(store: Store, directory: &Path, options: FollowerOptions) -> Result<Self> {
        let selection = Selection::new(options.shards.clone(), options.tensors.clone())?;
        check_outside(directory, store.directory().as_deref())?;
        let kept = ModelDirectory::open(directory)?;
        let (held, unusable) = match current_in(directory) {
            Ok(current) => (current, None),
            Err(error) => (None, Some(error)),
        };
        let trust =
            FollowerTrust::in_directory(directory, options.trust.clone(), options.forget_trust)?;
        let reader = options.reader(store, kept.cache(), selection, trust)?;
        let FollowerOptions {
            trust_directory: trust,
            other_files,
            ..
        } = options;
        let (files, model) = (FilesState::Unread, None);
        Ok(Self {
            reader,
            place: Directory {
                kept,
                trust,
                other_files,
                held,
                files,
                model,
                unusable,
            },
        })
    }

    /// Switches to a prepared version, without reading or downloading anything.
    ///
    /// # Errors
    /// IO, also if another version has been prepared since. After an error, the directory is at the
    /// old or at the new version, and is complete.
    pub fn apply(&mut self, prepared: PreparedVersion<Directory>) -> Result<SwitchReport> {
        let PreparedVersion {
            held, mut report, ..
        } = prepared;
        let began = Instant::now();
        self.place.kept.switch(&held.directory)?;
        report.times.switch = began.elapsed();
        (self.place.held, self.place.files) = (Some(held), FilesState::Proven);
        Ok(report)
    }

    /// Returns the held version, and opens its files.
    pub(crate) fn open_files(&self) -> Result<(&HeldVersion, SafetensorsState)> {
        let held = self
            .place
            .held
            .as_ref()
            .ok_or_else(|| Error::usage("the directory holds no version"))?;
        Ok((held, open_model(held)?))
    }

    /// The directory that was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.place.kept.path
    }

    /// Copies a link that is known to have this digest to the cache, so that it need not be
    /// downloaded.
    pub(crate) fn remember(&self, link: &Path, reference: &FileReference) -> Result<()> {
        self.reader.cache.add(link, reference)
    }
}

impl Destination for Directory {
    type Change = ();
    type At = PathBuf;

    const HAS_FILES: bool = true;

    fn held(&self) -> Option<&HeldVersion> {
        match self.files {
            FilesState::Useless => None,
            _ => self.held.as_ref(),
        }
    }

    fn last(&self) -> Option<&HeldVersion> {
        self.held.as_ref()
    }

    fn is_there(&self) -> bool {
        self.held().is_none_or(|held| held.directory.is_dir())
    }

    fn prepare(
        &mut self,
        reader: &ChainReader,
        version: Option<u64>,
        observer: &dyn Observer,
    ) -> Result<Option<PreparedVersion<Self>>> {
        if self.find_directory(observer)? {
            reader.trust.iter().try_for_each(FollowerTrust::write)?;
        }
        self.model = self.open_held(&reader.selection, observer)?;
        let prepared = reader.prepare(version, self, observer);
        self.model = None;
        prepared
    }

    fn shards(&self, _: &Plan, selection: &Selection) -> Result<Vec<BaseShard<'_>>> {
        let Some((held, files)) = self.held().zip(self.model.as_ref()) else {
            return Ok(Vec::new());
        };
        let shard = |record: &ShardRecord| {
            let part = part(files, &record.table, selection)?;
            BaseShard::held(record, Box::new(part), None)
        };
        held.shards.iter().map(shard).collect()
    }

    fn lacks_files(&self, plan: &Plan) -> bool {
        let Some((held, files)) = self.held().zip(self.model.as_ref()) else {
            return false;
        };
        let others = match &self.other_files {
            // Faults of the directory are reported when its files are copied.
            OtherFiles::Directory(from) => {
                has_other_files(from, files, held.files.keys()).unwrap_or(false)
            }
            _ => true,
        };
        held.assets != self.takes_assets(plan) || !others
    }

    /// Builds the version and moves it to the others.
    fn make(
        &self,
        reader: &ChainReader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut FetchTotals,
    ) -> Result<(HeldVersion, ()), Blame> {
        let (_unfinished, version) = self.kept.begin(observer)?;
        let model = version.join(MODEL);
        let shards = match (self.held(), &self.model) {
            (Some(held), Some(files)) if plan.hops.is_empty() => {
                take_model(files, &model)?;
                held.shards.clone()
            }
            _ => {
                let build = reader.follow(plan, self, observer, received, |following, pushed| {
                    following.write(pushed, self.model.as_ref(), &model)
                });
                let followed = build?;
                received.written += followed.built;
                followed.shards
            }
        };
        match &self.other_files {
            OtherFiles::Assets => {
                let before = self.model.as_ref().map(SafetensorsState::path);
                received.downloaded +=
                    take_assets(&reader.files, &plan.assets, before, &model, observer)?;
            }
            OtherFiles::Directory(directory) => take_other_files(directory, &model, observer)?,
            OtherFiles::None => {}
        }
        sync_folders(&model).map_err(failed_with("synchronising", &model))?;
        let held = reader.version(plan, self, self.takes_assets(plan), shards);
        Ok((self.kept.complete(&version, held)?, ()))
    }
}

impl Directory {
    /// Whether the version has assets, and they are the other files of this directory.
    fn takes_assets(&self, plan: &Plan) -> bool {
        self.other_files == OtherFiles::Assets && !plan.assets.is_empty()
    }

    /// Creates the directory again if it was removed. Returns true if it was.
    fn find_directory(&mut self, observer: &dyn Observer) -> Result<bool> {
        if self.kept.is_there() {
            return Ok(false);
        }
        let path = self.kept.path.clone();
        observer.remark(&format!(
            "{:?} has been removed or replaced; recreating it",
            path.to_string_lossy()
        ));
        self.kept = ModelDirectory::open(&path)?;
        match current_in(&path) {
            Ok(Some(current)) => (self.held, self.files) = (Some(current), FilesState::Unread),
            // The record of the held version still counts.
            _ => self.files = FilesState::Useless,
        }
        Ok(true)
    }

    /// Opens the files of the held version; `None` if they have changed. The first call reads them
    /// to compare their content, unless the directory is trusted.
    fn open_held(
        &mut self,
        selection: &Selection,
        observer: &dyn Observer,
    ) -> Result<Option<SafetensorsState>> {
        if let Some(error) = self.unusable.take() {
            observer.remark(&format!(
                "the contents of the directory are unusable and will be recreated: {error:#}"
            ));
        }
        if self.files == FilesState::Useless {
            return Ok(None);
        }
        let Some(held) = &self.held else {
            return Ok(None);
        };
        let opened = if held.has_just(selection.numbers.as_deref(), selection.patterns.as_deref()) {
            let trust = self.trust || self.files == FilesState::Proven;
            open_unchanged(held, selection, trust, observer)
        } else {
            Err(Error::usage(
                "it has other shards or tensors than the selected ones",
            ))
        };
        match opened {
            Ok(model) => {
                self.files = FilesState::Proven;
                Ok(Some(model))
            }
            // An error of the observer says nothing about the files.
            Err(error) if observer.advance(Phase::Hash, 0).is_err() => Err(error),
            Err(error) => {
                let version = held.version;
                observer.remark(&format!(
                    "version {version} in the directory is unusable and will be recreated: \
                     {error:#}"
                ));
                self.files = FilesState::Useless;
                Ok(None)
            }
        }
    }
}
