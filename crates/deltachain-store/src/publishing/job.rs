//! What a publisher does before the commit: the links of one shard of the next version are made and stored.

use std::path::Path;
use std::thread;

use deltachain::chain::{Asset, Parent};
use deltachain::files::SafetensorsState;
use deltachain::tensor::State;
use deltachain::{Error, Result, StateTable};

use crate::access::documents;
use crate::access::store::Store;
use crate::following::assets::store_assets;
use crate::observer::{InPhase, Observer, Phase};
use crate::publishing::kept::Kept;
use crate::publishing::new_link::NewLink;
use crate::publishing::options::{Base, PublishOptions};
use crate::publishing::part::ShardPart;
use crate::publishing::policy::skipped_from;

/// The links of one shard of the next version, to be made and stored.
pub(crate) struct Job<'a> {
    pub(crate) store: &'a Store,
    pub(crate) state: &'a SafetensorsState,
    pub(crate) shard: usize,
    pub(crate) of: usize,
    pub(crate) options: &'a PublishOptions,
    pub(crate) observer: &'a dyn Observer,
}

/// Links that have been stored, and the work directory if there is one.
pub(crate) struct Made {
    pub(crate) part: ShardPart,
    pub(crate) work: Option<Kept>,
}

/// What links are made from.
struct Bases<'a> {
    parent: &'a Parent,
    /// The head, and its state.
    head: Option<(u64, &'a SafetensorsState)>,
    work_directory: Option<&'a Path>,
}

impl Job<'_> {
    pub(crate) fn run(&self, base: Base<'_>) -> Result<Made> {
        if self.shard >= self.of {
            return Err(Error::usage(format!("of {} shards, none has number {}", self.of, self.shard)));
        }
        let parent = documents::head(self.store, &self.options.limits)?;
        if let Base::State(_) = base {
            parent.head_for_base()?;
        }
        // Routes lead between versions with equally many shards.
        let head = parent.head().filter(|head| head.shards.len() == self.of).map(|head| head.version);
        let assets = self.assets()?;
        let work_directory = if let Base::Work(directory) = base { Some(directory) } else { None };
        let mut work = match base {
            Base::Work(directory) => Some(self.keep(Some(directory))?),
            Base::Chain if head.is_some() => Some(self.keep(None)?),
            _ => None,
        };
        if let (Some(work), Some(head)) = (&mut work, head) {
            work.bring_to(head, self.observer)?;
        }
        let base_state = match base {
            Base::Nothing => None,
            Base::State(state) => Some(state),
            Base::Work(_) | Base::Chain => work.as_ref().and_then(Kept::state),
        };
        let links = self.make_and_store(&Bases { parent: &parent, head: head.zip(base_state), work_directory })?;
        // The way to the new version, once it has been committed.
        if let (Some(work), Some((_, link))) = (&mut work, links.iter().find(|(from, _)| *from == head)) {
            work.remember(link)?;
        }
        let part = self.part(&parent, &links, assets)?;
        // What is only there for this once need not get to the new version.
        Ok(Made { part, work: work.filter(|_| work_directory.is_some()) })
    }

    /// Stores the other files of the directory, before the work that takes long.
    fn assets(&self) -> Result<Vec<Asset>> {
        let Self { store, state, shard, options, observer, .. } = *self;
        if options.assets && shard == 0 {
            return store_assets(store, state, observer);
        }
        let others = state.other_files();
        if !others.is_empty() {
            let why = if options.assets { "shard 0 brings the other files" } else { "no other files are wanted" };
            observer.remark(&format!("not published, because {why}: {}", others.join(", ")));
        }
        Ok(Vec::new())
    }

    /// Makes links and stores them; one is on its way while the next is being made.
    fn make_and_store(&self, bases: &Bases<'_>) -> Result<Vec<(Option<u64>, NewLink)>> {
        let _uploads = InPhase::begin(self.observer, Phase::Upload, 0);
        thread::scope(|scope| {
            let mut uploads = Vec::new();
            self.make_links(bases, &mut |from, link| {
                uploads.push(scope.spawn(move || link.upload(self.store, self.observer).map(|()| (from, link))));
            })?;
            let failed = |_| Err(Error::usage("a thread that stored a link has failed"));
            uploads.into_iter().map(|upload| upload.join().unwrap_or_else(failed)).collect()
        })
    }

    fn make_links(&self, bases: &Bases<'_>, add: &mut dyn FnMut(Option<u64>, NewLink)) -> Result<()> {
        let Self { shard, of, options, observer, .. } = *self;
        let place = bases.work_directory;
        let make = |base: Option<&SafetensorsState>| NewLink::make(base, self.state, options.profile, place, observer);
        let mut needs_snapshot = true;
        if let Some((head, state)) = bases.head {
            let link = make(Some(state))?;
            bases.parent.check_base(shard, link.report.base)?;
            // Several shards must come to the same result, though each knows its own link only.
            let bytes = if of == 1 { link.reference.size } else { 0 };
            add(Some(head), link);
            needs_snapshot = options.snapshots.want(self.store, bases.parent, bytes, &options.limits, observer)?;
        }
        if needs_snapshot {
            add(None, make(None)?);
        }
        let version = bases.parent.next_version();
        for from in skipped_from(version, &options.skips) {
            match self.older(from, version, place) {
                Ok(None) => {}
                Ok(Some(older)) => add(Some(from), make(older.state())?),
                // Readers can do without this link.
                Err(error) if error.rule().is_some() => {
                    observer.remark(&format!("no link is made from version {from}, which cannot be built: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// This shard of an older version; `None` if that has other shards. Beside the work directory it has one of its own,
    /// for each distance, from which the way to the next such version is short.
    fn older(&self, version: u64, next: u64, work_directory: Option<&Path>) -> Result<Option<Kept>> {
        let older = documents::parent(self.store, Some(version), &self.options.limits)?;
        if older.head().is_none_or(|commit| commit.shards.len() != self.of) {
            return Ok(None);
        }
        let directory = work_directory.map(|work| work.join(format!("skip-{}", next - version)));
        let mut kept = self.keep(directory.as_deref())?;
        kept.bring_to(version, self.observer)?;
        Ok(Some(kept))
    }

    fn keep(&self, directory: Option<&Path>) -> Result<Kept> {
        Kept::open(self.store, directory, (self.shard, self.of), &self.options.limits)
    }

    fn part(&self, parent: &Parent, links: &[(Option<u64>, NewLink)], assets: Vec<Asset>) -> Result<ShardPart> {
        let Some((_, first)) = links.first() else { return Err(Error::usage("no link has been made")) };
        // All links lead to one state, or somebody writes to its files.
        if links.iter().any(|(_, link)| link.report.target != first.report.target) {
            return Err(Error::usage("the files have changed while they were read").in_file(self.state.path()));
        }
        Ok(ShardPart {
            version: parent.next_version(),
            parent: parent.digest(),
            shard: self.shard,
            of: self.of,
            table: StateTable { tensors: self.state.tensors().to_vec(), digests: first.report.target.clone() },
            assets,
            routes: links.iter().map(|(from, link)| (*from, link.reference)).collect(),
            changed: first.report.changed,
            elements: first.report.elements,
        })
    }
}
