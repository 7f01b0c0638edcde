//! Bringing a directory to versions of a chain (SPEC section 19).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use deltachain::chain::{FileReference, Plan, named_layouts};
use deltachain::files::{Layout, SafetensorsState};
use deltachain::memory::Proof;
use deltachain::tensor::Digest;
use deltachain::{Error, Result};

use crate::access::store::Store;
use crate::assets::in_store::take_assets;
use crate::assets::other_files::{OtherFiles, failed_with, has_other_files, take_model, take_other_files};
use crate::directory::model_directory::{Current, ModelDirectory};
use crate::directory::own::{check_outside, sync_folders};
use crate::directory::record::Record;
use crate::directory::versions::open_model;
use crate::fetching::links::{Failure, Received};
use crate::following::follower::{Follower, FollowerOptions, sealed::Place};
use crate::following::reach::{Destination, Reached, Reader};
use crate::following::selection::Choice;
use crate::following::shard::{HeldModel, Shard};
use crate::following::switched::{HeldVersion, Preparation, Switched};
use crate::following::trusting::Trusting;
use crate::observer::{Observer, Phase};

/// A directory at a version of a chain: a [`Follower`] keeps it.
///
/// The model's files are in `DIR/current`, a symbolic link to the directory of a version. It is switched when a version
/// is complete and on disk. Until then, and after any failure, it does not change. If you open several files, resolve
/// the link first: the directory that it leads to stays until the version after the next is being built.
#[derive(Debug)]
pub struct Directory {
    kept: ModelDirectory,
    trust: bool,
    other_files: OtherFiles,
    /// What `current` leads to.
    held: Option<Known>,
    /// Why the version in the directory cannot be used.
    unusable: Option<Error>,
}

/// The version that the directory is at.
#[derive(Debug)]
struct Known {
    record: Record,
    public: HeldVersion,
    files: Files,
}

/// A shard of the version held.
#[derive(Debug)]
pub(crate) struct HeldShard {
    /// The files of all shards here.
    pub(crate) files: SafetensorsState,
    /// The layout that the chain gives to it, which need not be that of the files.
    pub(crate) layout: Layout,
    /// Digest of the layout that its commit names.
    pub(crate) named: Option<Digest>,
}

/// Whether files are what the record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    Unread,
    Proven,
    /// They are not, or they are not those that are wanted. The record still counts: a chain must not go back behind
    /// it.
    Useless,
}

/// A version that is complete in the directory, and on disk. Nothing but the switch is left to do. Dropped, or followed
/// by another [`Follower::prepare`], it is removed when that begins to write.
#[derive(Debug)]
pub struct Prepared {
    made: Current,
    preparation: Preparation,
}

impl Prepared {
    /// The version.
    pub fn version(&self) -> u64 {
        self.made.record.version
    }

    /// State digest of the version.
    pub fn state(&self) -> Digest {
        self.made.record.state
    }

    /// Digest of its commit's bytes.
    pub fn commit(&self) -> Digest {
        self.made.record.commit
    }

    /// Its commit's metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.made.record.metadata
    }

    /// The directory of its files, which `current` does not lead to yet.
    pub fn directory(&self) -> &Path {
        &self.made.model
    }
}

impl Follower<Directory> {
    /// Opens or makes a directory. No other process may be keeping it at the same time.
    ///
    /// The file `deltachain.directory` in it says that it is one of these. A directory that is missing or empty becomes
    /// one. Any other is refused, and nothing in it is touched. Only what a follower has made is ever removed, and
    /// never through a symbolic link; what else lies there stays.
    ///
    /// # Errors
    /// USAGE if the directory is not empty and not a managed one, if it lies in the chain's own directory, if another
    /// process keeps it, if `current` in it is not a symbolic link or leads out of it, if no shard is selected, or if a
    /// pattern is not valid; IO.
    pub fn in_directory(store: Store, directory: &Path, options: FollowerOptions) -> Result<Self> {
        let choice = options.choice()?;
        check_outside(directory, store.directory().as_deref())?;
        let kept = ModelDirectory::open(directory)?;
        let (held, unusable) = match kept.current() {
            Ok(current) => (current.map(|current| Known::new(current, Files::Unread)), None),
            Err(error) => (None, Some(error)),
        };
        let trust = Trusting::in_directory(directory, options.trust.clone(), options.forget_trust)?;
        let reader = options.reader(store, kept.cache(), choice, trust)?;
        let FollowerOptions { trust_directory: trust, other_files, .. } = options;
        Ok(Self { reader, place: Directory { kept, trust, other_files, held, unusable } })
    }

    /// Switches to a version that has been prepared. Nothing is read or downloaded.
    ///
    /// # Errors
    /// USAGE if another one has been prepared since; IO. The directory is at either version then, and is complete.
    pub fn apply(&mut self, prepared: Prepared) -> Result<Switched> {
        self.place.switch(&self.reader, prepared, &())
    }

    /// The first shard here of the version held.
    pub(crate) fn open_shard(&self) -> Result<HeldShard> {
        let held = self.place.held.as_ref().and_then(|known| Some((known, known.record.shards.first()?)));
        let (Known { record, public, .. }, shard) =
            held.ok_or_else(|| Error::usage("the directory holds no version"))?;
        let named = named_layouts(&record.metadata, record.of);
        Ok(HeldShard {
            files: open_model(&public.directory, record)?,
            layout: Layout::parse(&shard.layout, &shard.table.tensors)?,
            named: named.and_then(|named| named.get(shard.number).copied()),
        })
    }

    /// The directory that was opened.
    pub(crate) fn path(&self) -> &Path {
        self.place.kept.path()
    }

    /// Adds a link to the cache that is known to be this one, so that it need not be fetched.
    pub(crate) fn remember(&self, link: &Path, reference: &FileReference) -> Result<()> {
        self.reader.cache.add(link, reference)
    }
}

impl Place for Directory {
    type Prepared = Prepared;
    type At = PathBuf;

    fn held(&self) -> Option<HeldVersion> {
        self.held.as_ref().filter(|known| known.files != Files::Useless).map(|known| known.public.clone())
    }

    fn is_there(&self) -> bool {
        self.held().is_none_or(|held| held.directory.is_dir())
    }

    fn prepare(&mut self, reader: &Reader, version: Option<u64>, observer: &dyn Observer) -> Result<Option<Prepared>> {
        if self.find_directory(observer)? {
            reader.trust.iter().try_for_each(Trusting::write)?;
        }
        let model = self.open_held(&reader.choice, observer)?;
        let known = self.held.as_ref().map(|known| &known.record);
        let held = model.as_ref();
        let to = InDirectory { directory: &self.kept, other_files: &self.other_files, known, held };
        match reader.prepare(version, known, &to, observer)? {
            Reached::Made(made, preparation) => Ok(Some(Prepared { made, preparation })),
            Reached::Held => Ok(None),
        }
    }

    fn switch(&mut self, _reader: &Reader, prepared: Prepared, _observer: &dyn Observer) -> Result<Switched> {
        let Prepared { made, mut preparation } = prepared;
        let began = Instant::now();
        self.kept.switch(&made.model)?;
        preparation.times.switch = began.elapsed();
        let from = self.held().map(|before| before.version);
        let known = self.held.insert(Known::new(made, Files::Proven));
        Ok(Switched::new(from, known.public.clone(), preparation))
    }
}

impl Directory {
    /// Makes the directory again if somebody has removed it. Whether it had to.
    fn find_directory(&mut self, observer: &dyn Observer) -> Result<bool> {
        if self.kept.is_there() {
            return Ok(false);
        }
        let path = self.kept.path().to_owned();
        observer.remark(&format!("{:?} has been removed or replaced; recreating it", path.to_string_lossy()));
        self.kept = ModelDirectory::open(&path)?;
        match self.kept.current() {
            Ok(Some(current)) => self.held = Some(Known::new(current, Files::Unread)),
            // What was held still counts.
            _ => self.held.iter_mut().for_each(|known| known.files = Files::Useless),
        }
        Ok(true)
    }

    /// The files of the held version, if they are unchanged. They are read when this is asked for the first time.
    fn open_held(&mut self, choice: &Choice, observer: &dyn Observer) -> Result<Option<HeldModel>> {
        if let Some(error) = self.unusable.take() {
            observer.remark(&format!("the contents of the directory are unusable and will be recreated: {error:#}"));
        }
        let Some(known) = self.held.as_mut().filter(|known| known.files != Files::Useless) else { return Ok(None) };
        let record = &known.record;
        let Choice { numbers, selection } = choice;
        let opened = if record.has_just(numbers.as_deref(), choice.patterns()) {
            let trust = self.trust || known.files == Files::Proven;
            HeldModel::open(&known.public.directory, record, selection.as_ref(), trust, observer)
        } else {
            Err(Error::usage("it has other shards or tensors than the selected ones"))
        };
        match opened {
            Ok(model) => {
                known.files = Files::Proven;
                Ok(Some(model))
            }
            // That it is to end says nothing about the files.
            Err(error) if observer.advance(Phase::Hash, 0).is_err() => Err(error),
            Err(error) => {
                let version = record.version;
                observer.remark(&format!(
                    "version {version} in the directory is unusable and will be recreated: {error:#}"
                ));
                known.files = Files::Useless;
                Ok(None)
            }
        }
    }
}

/// The directory as a place for versions.
struct InDirectory<'a> {
    directory: &'a ModelDirectory,
    other_files: &'a OtherFiles,
    /// The version that was held, whether its files are usable or not.
    known: Option<&'a Record>,
    held: Option<&'a HeldModel>,
}

impl InDirectory<'_> {
    /// Whether the version has assets and they are wanted.
    fn takes_assets(&self, plan: &Plan) -> bool {
        *self.other_files == OtherFiles::Assets && !plan.assets.is_empty()
    }
}

impl Destination for InDirectory<'_> {
    type Made = Current;

    fn held(&self) -> Option<&Record> {
        self.held.map(HeldModel::record)
    }

    fn has_files(&self) -> bool {
        true
    }

    fn shards(&self, _plan: &Plan) -> Result<Vec<Shard<'_>>> {
        self.held.map_or(Ok(Vec::new()), HeldModel::shards)
    }

    fn lacks_files(&self, plan: &Plan) -> bool {
        let Some(held) = self.held else { return false };
        let record = held.record();
        let others = match self.other_files {
            // Whatever is wrong with the directory is found out when its files are taken.
            OtherFiles::Directory(from) => has_other_files(from, &held.files, record.files.keys()).unwrap_or(false),
            _ => true,
        };
        record.assets != self.takes_assets(plan) || !others
    }

    /// Puts the version among the others.
    fn make(
        &self,
        reader: &Reader,
        plan: &Plan,
        observer: &dyn Observer,
        received: &mut Received,
    ) -> Result<Current, Failure> {
        let unfinished = self.directory.begin(observer)?;
        let model = unfinished.model();
        let shards = match self.held.filter(|_| plan.hops.is_empty()) {
            Some(held) => {
                take_model(&held.files, &model)?;
                held.record().shards.clone()
            }
            None => {
                let build = reader.follow(plan, self, observer, received, |following, pushed| {
                    following.write(pushed, self.held, &model)
                });
                let (written, shards, _) = build?;
                received.written += written;
                shards
            }
        };
        match self.other_files {
            OtherFiles::Assets => {
                let before = self.held.map(|held| held.files.path());
                received.downloaded += take_assets(&reader.store, &plan.assets, before, &model, observer)?;
            }
            OtherFiles::Directory(directory) => take_other_files(directory, &model, observer)?,
            OtherFiles::None => {}
        }
        sync_folders(&model).map_err(failed_with("synchronising", &model))?;
        let record = reader.record(plan, self.known, self.takes_assets(plan), shards);
        Ok(self.directory.complete(&unfinished, record)?)
    }
}

impl Known {
    fn new(current: Current, files: Files) -> Self {
        let Current { record, model: directory } = current;
        let public = HeldVersion::new(&record, directory, Proof::Hashed);
        Self { record, public, files }
    }
}
