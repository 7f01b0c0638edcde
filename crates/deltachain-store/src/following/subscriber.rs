//! Bringing a directory to versions of a chain (SPEC section 19).

use std::path::Path;
use std::time::Instant;

use deltachain::chain::{FileReference, Plan};
use deltachain::files::SafetensorsState;
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};

use crate::access::store::Store;
use crate::directory::own::{check_outside, sync_folders};
use crate::following::assets::take_assets;
use crate::following::held::Record;
use crate::following::links::{Failure, Received};
use crate::following::model_directory::{Current, ModelDirectory};
use crate::following::other_files::{OtherFiles, failed_with, has_other_files, take_model, take_other_files};
use crate::following::reach::{Consent, Destination, Reached, Reader};
use crate::following::selection::Choice;
use crate::following::shard::{HeldModel, Shard};
use crate::following::switched::{HeldVersion, Switched, Trip};
use crate::following::versions::open_model;
use crate::observer::{Observer, Phase};

/// How a subscriber works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SubscriberOptions {
    /// What documents and links may make the subscriber allocate and write.
    pub limits: Limits,
    /// Numbers of the shards to take, counted from 0; all if `None`. That the shards are together the state that the commit
    /// names, only a subscriber can check that takes all.
    pub shards: Option<Vec<usize>>,
    /// Patterns of the names of the tensors to take, such as `model.layers.{0,1}.*`; all if `None`. `?` stands for a
    /// character, `*` for any number of them, `[a-f]` for one of these, `{a,b}` for either. Only what these tensors need is
    /// fetched of a link that is longer than [`part_bytes`](crate::StoreOptions::part_bytes); what that means for the
    /// checks, SPEC section 19 says.
    pub tensors: Option<Vec<String>>,
    /// Bytes of links that are kept when they have been used.
    pub cache_bytes: u64,
    /// Do not read the version in the directory at the start to check that it is unchanged.
    pub trust_directory: bool,
    /// Where the files come from that hold no tensors.
    pub other_files: OtherFiles,
    /// Digest of the bytes of a commit that may be reached although the chain has gone back below the held version, has
    /// another commit for it (a store that was restored and then written to), or is another chain. Otherwise R-CHN-14,
    /// R-CHN-04, R-CHN-05 or R-CHN-13 is reported, and the version held stays. This works once: when a version with
    /// this commit has been held, which is recorded, the option has no further effect. If the chain has gone on from
    /// this commit, which is one of the newest then, its version is reached first.
    pub allow_rollback: Option<Digest>,
    /// Whether the first version that is reached may be of another chain than the version held (R-CHN-13). From then on that
    /// chain is the one that is followed. A chain of the same identity that has gone back is refused all the same.
    pub adopt: bool,
}

impl Default for SubscriberOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            shards: None,
            tensors: None,
            cache_bytes: 1 << 30,
            trust_directory: false,
            other_files: OtherFiles::default(),
            allow_rollback: None,
            adopt: false,
        }
    }
}

impl SubscriberOptions {
    deltachain::setters! {
        limits: Limits,
        shards: Option<Vec<usize>>,
        tensors: Option<Vec<String>>,
        cache_bytes: u64,
        trust_directory: bool,
        other_files: OtherFiles,
        allow_rollback: Option<Digest>,
        adopt: bool,
    }
}

/// Keeps a directory at a version of a chain.
///
/// The model's files are in `DIR/current`, a symbolic link to the directory of a version. It is switched when a version
/// is complete and on disk. Until then, and after any failure, it does not change. If you open several files, resolve
/// the link first: the directory that it leads to stays until the version after the next is being built.
#[derive(Debug)]
pub struct Subscriber {
    reader: Reader,
    directory: ModelDirectory,
    trust_directory: bool,
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

/// Whether files are what the record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    Unread,
    Proven,
    /// They are not, or they are not those that are wanted. The record still counts: a chain must not go back behind it.
    Useless,
}

/// A version that is complete in the subscriber's directory, and on disk. Nothing but the switch is left to do. Dropped, or
/// followed by another [`Subscriber::prepare`], it is removed when that begins to write.
#[derive(Debug)]
pub struct Prepared {
    made: Current,
    trip: Trip,
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

    /// The directory of its files, which `current` does not lead to yet.
    pub fn directory(&self) -> &Path {
        &self.made.model
    }
}

impl Subscriber {
    /// Opens or makes a directory. No other process may be keeping it at the same time.
    ///
    /// The file `deltachain.directory` in it says that it is one of these. A directory that is missing or empty
    /// becomes one. Any other is refused, and nothing in it is touched. Only what a subscriber has made is ever removed, and
    /// never through a symbolic link; what else lies there stays.
    ///
    /// # Errors
    /// USAGE if the directory is not empty and not a subscriber's directory, if it lies in the chain's own directory,
    /// if another process keeps it, if `current` in it is not a symbolic link or leads out of it, if no shard or tensor
    /// is wanted, or if a pattern is not valid; IO.
    pub fn open(store: Store, directory: &Path, options: SubscriberOptions) -> Result<Self> {
        let SubscriberOptions { limits, shards, tensors, cache_bytes, trust_directory, other_files, .. } = options;
        let consent = Consent { rollback: options.allow_rollback, adopt: options.adopt };
        let choice = Choice::new(shards, tensors)?;
        check_outside(directory, store.directory().as_deref())?;
        let directory = ModelDirectory::open(directory)?;
        let reader = Reader::open(store, (directory.cache(), cache_bytes), choice, limits, consent)?;
        let (held, unusable) = match directory.current() {
            Ok(current) => (current.map(|current| Known::new(current, Files::Unread)), None),
            Err(error) => (None, Some(error)),
        };
        Ok(Self { reader, directory, trust_directory, other_files, held, unusable })
    }

    /// The version that the directory is at. The first [`prepare`](Self::prepare) finds out whether its files are
    /// unchanged; if not, there is no held version from then on.
    pub fn held(&self) -> Option<&HeldVersion> {
        self.held.as_ref().filter(|known| known.files != Files::Useless).map(|known| &known.public)
    }

    /// The files of tensors of the version held.
    pub(crate) fn open_files(&self) -> Result<SafetensorsState> {
        let known = self.held.as_ref().ok_or_else(|| Error::usage("the directory holds no version"))?;
        open_model(&known.public.directory, &known.record)
    }

    /// The directory that was opened.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.reader.store
    }

    /// Adds a link to the cache that is known to be this one, so that it need not be fetched.
    pub(crate) fn remember(&self, link: &Path, reference: &FileReference) -> Result<()> {
        self.reader.cache.add(link, reference)
    }

    /// Fetches, checks and builds a version, or the head. Everything that can fail happens here; `current` stays as it is.
    /// `None` if the directory is at this version already.
    ///
    /// # Errors
    /// The rules of SPEC section 19, if no path is left or the version does not have a wanted shard; USAGE if it does not
    /// have any wanted tensor, or if its tensors cannot be written as safetensors; IO; the observer's error, if it stops
    /// the work.
    pub fn prepare(&mut self, version: Option<u64>, observer: &dyn Observer) -> Result<Option<Prepared>> {
        self.find_directory(observer)?;
        let model = self.open_held(observer)?;
        let known = self.held.as_ref().map(|known| &known.record);
        let held = model.as_ref();
        let to = InDirectory { directory: &self.directory, other_files: &self.other_files, known, held };
        match self.reader.prepare(version, known, &to, observer)? {
            Reached::Made(made, trip) => Ok(Some(Prepared { made, trip })),
            Reached::Held => Ok(None),
        }
    }

    /// Makes the directory again if somebody has removed it.
    fn find_directory(&mut self, observer: &dyn Observer) -> Result<()> {
        if self.directory.is_there() {
            return Ok(());
        }
        let path = self.directory.path().to_owned();
        observer.remark(&format!("{:?} has been removed or replaced; recreating it", path.to_string_lossy()));
        self.directory = ModelDirectory::open(&path)?;
        match self.directory.current() {
            Ok(Some(current)) => self.held = Some(Known::new(current, Files::Unread)),
            // What was held still counts.
            _ => self.held.iter_mut().for_each(|known| known.files = Files::Useless),
        }
        Ok(())
    }

    /// The files of the held version, if they are unchanged. They are read when this is asked for the first time.
    fn open_held(&mut self, observer: &dyn Observer) -> Result<Option<HeldModel>> {
        if let Some(error) = self.unusable.take() {
            observer.remark(&format!("the contents of the directory are unusable and will be recreated: {error:#}"));
        }
        let Some(known) = self.held.as_mut().filter(|known| known.files != Files::Useless) else { return Ok(None) };
        let record = &known.record;
        let Choice { numbers, selection } = &self.reader.choice;
        let opened = if record.has_just(numbers.as_deref(), self.reader.choice.patterns()) {
            let trust = self.trust_directory || known.files == Files::Proven;
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

    /// Switches to a version that has been prepared. Nothing is read or fetched.
    ///
    /// # Errors
    /// USAGE if another one has been prepared since; IO. The directory is at either version then, and is complete.
    pub fn apply(&mut self, prepared: Prepared) -> Result<Switched> {
        let Prepared { made, mut trip } = prepared;
        let began = Instant::now();
        self.directory.switch(&made.model)?;
        trip.times.switch = began.elapsed();
        let from = self.held().map(|before| before.version);
        let known = self.held.insert(Known::new(made, Files::Proven));
        Ok(Switched::new(from, known.public.clone(), trip))
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

    fn shards(&self) -> Result<Vec<Shard<'_>>> {
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
                let (written, shards) = build?;
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
        let accepted = reader.accepted(self.known, plan.commit);
        sync_folders(&model).map_err(failed_with("synchronising", &model))?;
        let record = Record::new(plan, reader.choice.patterns(), self.takes_assets(plan), accepted, shards);
        Ok(self.directory.complete(&unfinished, record)?)
    }
}

impl Known {
    fn new(current: Current, files: Files) -> Self {
        let Current { record, model: directory } = current;
        let public = HeldVersion::new(&record, directory);
        Self { record, public, files }
    }
}
