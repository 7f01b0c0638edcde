//! Bringing a directory to versions of a chain (SPEC section 19).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use deltachain::chain::{FileReference, Plan, Planner, check_held};
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};

use crate::access::read;
use crate::access::store::Store;
use crate::following::assets::take_assets;
use crate::following::cache::Cache;
use crate::following::held::Record;
use crate::following::links::{Failure, Links, Received};
use crate::following::model_directory::{Current, ModelDirectory, sync_directory};
use crate::following::other_files::{OtherFiles, failed_with, take_model, take_other_files};
use crate::following::replay::Following;
use crate::following::selection::Selection;
use crate::following::shard::{HeldModel, Shard};
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
    /// Do not read the version in the directory at the start to see whether it is what it was.
    pub trust_directory: bool,
    /// Where the files come from that hold no tensors.
    pub other_files: OtherFiles,
    /// Digest of the bytes of a commit that may be reached although the chain is another one than that of the version held, or
    /// has gone back behind it, or says something else of it. Otherwise R-CHN-13, R-CHN-14 and others are reported, and
    /// the version held stays.
    pub accept: Option<Digest>,
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
            accept: None,
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
        accept: Option<Digest>,
    }
}

/// Keeps a directory at a version of a chain.
///
/// The model's files are in `DIR/current`, a symbolic link to the directory of a version. It is switched when a version is
/// complete and on disk; until then, and whatever fails, it stays as it was. If you open several files, resolve
/// the link first: the directory that it leads to stays until the version after the next is being built.
#[derive(Debug)]
pub struct Subscriber {
    store: Store,
    options: SubscriberOptions,
    /// The tensors to take.
    selection: Option<Selection>,
    directory: ModelDirectory,
    cache: Cache,
    /// What `current` leads to.
    held: Option<Known>,
    /// Why what is in the directory is of no use.
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

/// The version that a subscriber's directory is at.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldVersion {
    /// The version.
    pub version: u64,
    /// State digest of the whole version, also if only some shards or tensors are here.
    pub state: Digest,
    /// Digest of the commit's bytes.
    pub commit: Digest,
    /// The directory of its files: the one that `current` leads to.
    pub directory: PathBuf,
}

/// A version that is complete in the subscriber's directory, and on disk. Nothing but the switch is left to do. Dropped, or
/// followed by another [`Subscriber::prepare`], it is removed when that begins to write.
#[derive(Debug)]
pub struct Prepared {
    made: Current,
    routes: Vec<(Option<u64>, u64)>,
    received: Received,
    times: PhaseTimes,
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
}

/// How long the phases took. Downloading and building overlap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhaseTimes {
    /// Listing and reading documents.
    pub plan: Duration,
    /// Until the last byte came.
    pub download: Duration,
    /// Until everything was decoded, checked, written and on disk.
    pub build: Duration,
    /// The switch.
    pub switch: Duration,
}

/// How far a version is behind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Lag {
    /// Versions between it and the head.
    pub versions: u64,
    /// Seconds since its commit was stored, as far as the clocks agree; `None` if the store does not tell.
    pub seconds: Option<f64>,
}

/// What a switch has changed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Switched {
    /// The version that the directory was at.
    pub from: Option<u64>,
    /// The version that it is at now.
    pub version: u64,
    /// Its state digest.
    pub state: Digest,
    /// Digest of its commit's bytes.
    pub commit: Digest,
    /// The directory of its files: the one that `current` leads to.
    pub directory: PathBuf,
    /// The routes that were taken, each with the version it comes from, if any, and the one it leads to.
    pub routes: Vec<(Option<u64>, u64)>,
    /// Bytes of links and assets that were fetched.
    pub downloaded: u64,
    /// Bytes of links that were in the cache.
    pub from_cache: u64,
    /// How long it took.
    pub times: PhaseTimes,
    /// How far it was behind. `None` unless [`follow`](crate::follow()) has found out.
    pub lag: Option<Lag>,
}

impl Subscriber {
    /// Opens or makes a directory. No other process may be keeping it at the same time.
    ///
    /// # Errors
    /// USAGE if another process keeps it, if `current` in it is no symbolic link, or if no shard or tensor is
    /// wanted or a pattern is none; IO.
    pub fn open(store: Store, directory: &Path, mut options: SubscriberOptions) -> Result<Self> {
        if let Some(shards) = &mut options.shards {
            shards.sort_unstable();
            shards.dedup();
            if shards.is_empty() {
                return Err(Error::usage("no shard is wanted"));
            }
        }
        let selection = options.tensors.take().map(Selection::new).transpose()?;
        let directory = ModelDirectory::open(directory)?;
        let cache = Cache::open(directory.cache(), options.cache_bytes)?;
        let (held, unusable) = match directory.current() {
            Ok(current) => (current.map(|current| Known::new(current, Files::Unread)), None),
            Err(error) => (None, Some(error)),
        };
        Ok(Self { store, options, selection, directory, cache, held, unusable })
    }

    /// The version that the directory is at. Whether its files are what they were, the first
    /// [`prepare`](Self::prepare) finds out; if not, there is none from then on.
    pub fn held(&self) -> Option<&HeldVersion> {
        self.held.as_ref().filter(|known| known.files != Files::Useless).map(|known| &known.public)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Adds a link to the cache that is known to be this one, so that it need not be fetched.
    pub(crate) fn remember(&self, link: &Path, reference: &FileReference) -> Result<()> {
        self.cache.add(link, reference)
    }

    /// Fetches, checks and builds a version, or the head. Everything that can fail happens here; `current` stays as it is.
    /// `None` if the directory is at this version already.
    ///
    /// # Errors
    /// Those of SPEC section 19, if no path is left; USAGE if a shard is wanted that the version does not have, if it has no
    /// tensor that is wanted, or if its tensors cannot be written as safetensors; IO; what the observer wants it to end with.
    pub fn prepare(&mut self, version: Option<u64>, observer: &dyn Observer) -> Result<Option<Prepared>> {
        let model = self.open_held(observer)?;
        let mut told = BTreeSet::new();
        match self.reach(version, None, model.as_ref(), observer, &mut told) {
            // What is held is of use as long as the chain goes on from there.
            Err(error) if self.options.accept.is_some() && error.rule().is_some() => {
                self.reach(version, self.options.accept, model.as_ref(), observer, &mut told)
            }
            result => result,
        }
    }

    /// The files of the version held, if they are what they were. They are read when this is asked for the first time.
    fn open_held(&mut self, observer: &dyn Observer) -> Result<Option<HeldModel>> {
        if let Some(error) = self.unusable.take() {
            observer.remark(&format!("what is in the directory cannot be used, and is made anew: {error:#}"));
        }
        let Some(known) = self.held.as_mut().filter(|known| known.files != Files::Useless) else { return Ok(None) };
        let record = &known.record;
        let selection = self.selection.as_ref();
        let opened = if record.has_just(self.options.shards.as_deref(), selection.map(Selection::patterns)) {
            let trust = self.options.trust_directory || known.files == Files::Proven;
            HeldModel::open(&known.public.directory, record, selection, trust, observer)
        } else {
            Err(Error::usage("it has other shards or tensors than those that are wanted"))
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
                observer
                    .remark(&format!("version {version} in the directory cannot be used, and is made anew: {error:#}"));
                known.files = Files::Useless;
                Ok(None)
            }
        }
    }

    /// Plans and follows the plan, and plans again as long as there is another path. `accept` is as for [`Planner::new`], `model`
    /// what is of use of the version held; `told` holds what has been remarked.
    fn reach(
        &self,
        version: Option<u64>,
        accept: Option<Digest>,
        model: Option<&HeldModel>,
        observer: &dyn Observer,
        told: &mut BTreeSet<String>,
    ) -> Result<Option<Prepared>> {
        let held = self.held.as_ref().map(|known| known.record.held());
        let mut planner = Planner::new(version, held, accept, &self.options.limits);
        let mut received = Received::default();
        let mut times = PhaseTimes::default();
        loop {
            let began = Instant::now();
            let plan = read::plan(&self.store, &mut planner);
            times.plan += began.elapsed();
            for fault in planner.passed_over() {
                let text = format!("passed over: {fault}");
                if !told.contains(&text) {
                    observer.remark(&text);
                    told.insert(text);
                }
            }
            let plan = plan?;
            if let Some(Err(error)) = plan.start.as_deref().map(|shards| check_start(shards, model)) {
                planner.fail_held(error);
                continue;
            }
            if plan.hops.is_empty() && model.is_none_or(|held| held.record().assets == self.takes_assets(&plan)) {
                return Ok(None);
            }
            let began = Instant::now();
            let built = self.build(&plan, model, observer, &mut received);
            times.build += began.elapsed();
            times.download = received.time;
            match built {
                Ok(made) => {
                    self.cache.trim().unwrap_or_else(|error| observer.remark(&format!("{error:#}")));
                    let routes = plan.hops.iter().map(|hop| (hop.from, hop.version)).collect();
                    return Ok(Some(Prepared { made, routes, received, times }));
                }
                Err(Failure::File(file, error)) => planner.fail_file(&file, error),
                Err(Failure::Route(hop, error)) => planner.fail_route(&hop, error),
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    /// Whether the version has assets and they are wanted.
    fn takes_assets(&self, plan: &Plan) -> bool {
        self.options.other_files == OtherFiles::Assets && !plan.assets.is_empty()
    }

    /// Follows a plan and puts the version among the others. What has been received is added to `received`.
    fn build(
        &self,
        plan: &Plan,
        held: Option<&HeldModel>,
        observer: &dyn Observer,
        received: &mut Received,
    ) -> Result<Current, Failure> {
        let wanted = self.wanted(plan)?;
        let unfinished = self.directory.begin()?;
        let model = unfinished.model();
        let shards = match held.filter(|_| plan.hops.is_empty()) {
            Some(held) => {
                take_model(&held.files, &model)?;
                held.record().shards.clone()
            }
            None => {
                let (selection, limits) = (self.selection.as_ref(), &self.options.limits);
                let following = Following { plan, wanted: &wanted, selection, limits, observer };
                let access = (&self.store, &self.cache, observer);
                let links = Links::fetch(access, selection.is_some(), &plan.hops, &wanted, received)?;
                let shards = start(plan, &wanted, held)?;
                following.run(&shards, &links, received, |pushed| following.write(pushed, held, &model))?.1
            }
        };
        match &self.options.other_files {
            OtherFiles::Assets => {
                let before = held.map(|held| held.files.path());
                received.downloaded += take_assets(&self.store, &plan.assets, before, &model, observer)?;
            }
            OtherFiles::Directory(directory) => take_other_files(directory, &model)?,
            OtherFiles::None => {}
        }
        sync_directory(&model).map_err(failed_with("synchronising", &model))?;
        let taken = self.selection.as_ref().map(Selection::patterns);
        let record = Record::new(plan, taken, self.takes_assets(plan), shards);
        Ok(self.directory.complete(&unfinished, record)?)
    }

    /// The shards of a plan that are wanted.
    fn wanted(&self, plan: &Plan) -> Result<Vec<usize>> {
        let count = plan.shards.len();
        let Some(wanted) = &self.options.shards else { return Ok((0..count).collect()) };
        match wanted.iter().find(|&&shard| shard >= count) {
            Some(shard) => Err(Error::usage(format!(
                "shard {shard} is wanted, version {} has {count}, counted from 0",
                plan.version
            ))),
            None => Ok(wanted.clone()),
        }
    }

    /// Switches to a version that has been prepared. Nothing is read or fetched.
    ///
    /// # Errors
    /// USAGE if another one has been prepared since; IO. The directory is at either version then, and is complete.
    pub fn apply(&mut self, prepared: Prepared) -> Result<Switched> {
        let Prepared { made, routes, received, mut times } = prepared;
        let began = Instant::now();
        self.directory.switch(&made.model)?;
        times.switch = began.elapsed();
        let known = Known::new(made, Files::Proven);
        let HeldVersion { version, state, commit, directory } = known.public.clone();
        let from = self.held().map(|before| before.version);
        self.held = Some(known);
        Ok(Switched {
            from,
            version,
            state,
            commit,
            directory,
            routes,
            downloaded: received.downloaded,
            from_cache: received.from_cache,
            times,
            lag: None,
        })
    }
}

/// The shards that a plan starts from.
fn start<'a>(plan: &Plan, wanted: &[usize], held: Option<&'a HeldModel>) -> Result<Vec<Shard<'a>>> {
    let from = plan.hops.first().and_then(|hop| hop.from);
    match held {
        Some(held) if from == Some(held.record().version) => held.shards(),
        None | Some(_) if from.is_none() => Ok(wanted.iter().map(|&number| Shard::nothing(number)).collect()),
        _ => Err(Error::usage("the plan starts from a version that is not held")),
    }
}

/// Compares the shards held with those that a plan starts from. Without any of use, there are none.
fn check_start(shards: &[Digest], model: Option<&HeldModel>) -> Result<()> {
    let record = model.map(HeldModel::record);
    let held = record.iter().flat_map(|record| &record.shards);
    check_held(
        shards,
        record.map_or(0, |record| record.of),
        held.map(|shard| (shard.number, shard.table.digests.state)),
    )
}

impl Known {
    fn new(current: Current, files: Files) -> Self {
        let Current { record, model: directory } = current;
        let public = HeldVersion { version: record.version, state: record.state, commit: record.commit, directory };
        Self { record, public, files }
    }
}
