//! The work of a publisher before the commit: the links of one shard of the next version are made
//! and stored.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;

use deltachain::chain::{Asset, Commit, Parent, check_folders, named_layouts};
use deltachain::files::SafetensorsState;
use deltachain::tensor::{Digest, StateDigests, TensorInfo};
use deltachain::{Error, Result, StateTable};

use crate::access::attempt::Attempt;
use crate::access::documents;
use crate::access::store::Store;
use crate::assets::in_store::store_assets;
use crate::assets::other_files::list;
use crate::directory::scratch::Scratch;
use crate::observer::{InPhase, Observer, Phase};
use crate::publishing::finite::CountingState;
use crate::publishing::kept::{KeptPlace, KeptVersion};
use crate::publishing::model::End;
use crate::publishing::new_link::{NewLink, RouteCoding};
use crate::publishing::options::{Base, PublishOptions};
use crate::publishing::part::{ShardLink, ShardPart};
use crate::publishing::policy::{PathBytes, skipped_from};

/// The links of one shard of the next version, to be made and stored.
pub(crate) struct Job<'a> {
    pub(crate) store: &'a Store,
    /// The commit that the next version follows, or the chain document.
    pub(crate) parent: &'a Parent,
    /// The cost of the path to the head, if it is known.
    pub(crate) path: Option<PathBytes>,
    /// The shard's next state.
    pub(crate) target: End<'a>,
    /// Its files, if it has any.
    pub(crate) files: Option<&'a SafetensorsState>,
    pub(crate) shard: usize,
    pub(crate) of: usize,
    /// Assets that are in the store for certain: they are never pruned.
    pub(crate) known_assets: &'a [Asset],
    /// If true, no link is stored for a shard that equals the head's.
    pub(crate) if_changed: bool,
    /// The share of the shard's elements that may differ from the head.
    pub(crate) max_changed: Option<f64>,
    /// True if it is not certain that the head can be built, so that the version needs a snapshot.
    pub(crate) is_cut_off: bool,
    pub(crate) options: &'a PublishOptions,
    pub(crate) observer: &'a dyn Observer,
}

/// The head's shard, to make links from.
pub(crate) enum JobBase<'a> {
    /// The base that the caller has given. `last` are the digests of the head, if this publisher
    /// has made it; they are used for [`Base::Last`].
    Given {
        base: Base<'a>,
        last: Option<&'a StateDigests>,
    },
    /// A directory that has all shards of the head. Links are made in `place`.
    Whole {
        kept: &'a mut KeptVersion,
        place: &'a Path,
    },
}

/// Links that have been stored, and the work directory if there is one.
pub(crate) struct StoredLinks {
    pub(crate) part: ShardPart,
    pub(crate) attempt: Attempt,
    pub(crate) work: Option<KeptVersion>,
    /// True if there is nothing to commit, because the shard equals the head's. No link has been
    /// stored then.
    pub(crate) is_head: bool,
}

/// Links, and the version that each comes from.
type LinksByBase = Vec<(Option<u64>, NewLink)>;

/// The states that links are made from, and the directory for the links.
struct Bases<'a> {
    head: Option<u64>,
    /// The head's state as the caller has given it, or as it has been built from the chain.
    given: Option<End<'a>>,
    kept: Option<&'a mut KeptVersion>,
    /// Whether all shards are in `kept`.
    is_whole: bool,
    /// The directory in which links are made.
    place: &'a Path,
    /// True if the assets equal the head's, or do not count.
    has_same_assets: bool,
}

/// Makes the links of a job.
struct LinkMaker<'a> {
    job: &'a Job<'a>,
    /// The directory in which links are made.
    place: &'a Path,
    /// True once values that are not finite have been counted. All links lead to one state, so
    /// counting for the first one is enough.
    is_counted: Cell<bool>,
}

impl LinkMaker<'_> {
    fn make(&self, base: Option<End<'_>>, coding: RouteCoding) -> Result<NewLink> {
        let job = self.job;
        if self.is_counted.get() {
            return NewLink::make(base, job.target, coding, self.place, job.observer);
        }
        let link = job.make_counted(base, coding, self.place)?;
        self.is_counted.set(true);
        Ok(link)
    }
}

impl Job<'_> {
    /// Makes the links of the shard, and stores them.
    pub(crate) fn run(&self, base: JobBase<'_>) -> Result<StoredLinks> {
        self.check_shard()?;
        let parent = self.parent;
        let (base, last, whole) = match base {
            // The digests are known only of a state that this publisher has published.
            JobBase::Given { base, last } => match base {
                Base::Last(_) if last.is_none() => (Base::Chain, None, None),
                Base::Last(_) => (base, last, None),
                _ => (base, None, None),
            },
            JobBase::Whole { kept, place } => (Base::Nothing, None, Some((kept, place))),
        };
        if let Base::State(_) = base {
            parent.head_for_base()?;
        }
        // Routes lead between versions with equally many shards.
        let mut head = parent
            .head()
            .filter(|head| head.shards.len() == self.of)
            .map(|head| head.version);
        let scratch = Scratch::new(self.options.scratch.as_deref(), self.observer)?;
        let assets = self.assets(scratch.path())?;
        let (mut work, place) = match base {
            Base::Work(directory) => (Some(self.keep(KeptPlace::Lasting(directory))?), directory),
            Base::Chain if head.is_some() => (
                Some(self.keep(KeptPlace::Passing(scratch.path()))?),
                scratch.path(),
            ),
            _ => (None, scratch.path()),
        };
        let has_same_assets = !self.options.assets
            || self.files.is_none()
            || parent.head().is_some_and(|commit| commit.assets == assets);
        if let (Some(work), Some(version)) = (&mut work, head) {
            let built = work.bring_to(version, Some(parent.digest()), self.observer);
            if !is_built(built.map(drop), version, self.is_cut_off, self.observer)? {
                head = None;
            }
        }
        // These outlive the base that borrows them.
        let lent;
        let layout;
        let given = match base {
            Base::State(model) | Base::Last(model) => {
                lent = model.lent();
                layout = model.layout()?;
                Some(End {
                    state: &lent,
                    layout: layout.as_deref(),
                    named: parent.head().and_then(|head| self.named(&head.metadata)),
                    digests: last,
                })
            }
            _ => None,
        };
        let attempt = Attempt::begin(self.store);
        let is_whole = whole.is_some();
        let (kept, place) = match whole {
            Some((kept, place)) => (Some(kept), place),
            None => (work.as_mut(), place),
        };
        let mut bases = Bases {
            head,
            given,
            kept,
            is_whole,
            place,
            has_same_assets,
        };
        let (links, is_head) = self.make_and_store(&mut bases)?;
        // The shortest link from the head leads to the new version, once that has been committed.
        let from_head = links
            .iter()
            .filter(|(from, _)| *from == head)
            .min_by_key(|(_, link)| link.reference.size);
        if let (Some(kept), Some((_, link))) = (&mut bases.kept, from_head) {
            kept.remember(link)?;
        }
        let part = self.part(&links, assets)?;
        // A temporary work directory need not be brought to the new version.
        Ok(StoredLinks {
            part,
            attempt,
            work: work.filter(KeptVersion::is_lasting),
            is_head,
        })
    }

    /// Checks the shard's number, and that a model of one shard has tensors.
    fn check_shard(&self) -> Result<()> {
        if self.shard >= self.of {
            return Err(Error::usage(format!(
                "there are {} shards, but no shard {}",
                self.of, self.shard
            )));
        }
        if self.of == 1 {
            self.options
                .check_empty(self.target.state.tensors().is_empty())?;
        }
        Ok(())
    }

    /// Stores the other files of the directory, before the work that takes long. Checks that no
    /// folder of the model's files has the name of one of them.
    fn assets(&self, scratch: &Path) -> Result<Vec<Asset>> {
        let assets = self.store_assets(scratch)?;
        check_folders(
            &assets,
            self.target
                .layout
                .iter()
                .flat_map(|layout| layout.folders()),
        )?;
        Ok(assets)
    }

    fn store_assets(&self, scratch: &Path) -> Result<Vec<Asset>> {
        let Self {
            store,
            shard,
            options,
            observer,
            ..
        } = *self;
        let Some(files) = self.files else {
            return Ok(Vec::new());
        };
        files.check_one_model()?;
        let unindexed = files.unindexed_files();
        if !unindexed.is_empty() {
            let which = list(&unindexed);
            observer.remark(&format!(
                "published as one model, since no index says which files it has: {which}"
            ));
        }
        if options.assets && shard == 0 {
            let exclude = &options.exclude;
            return store_assets(store, files, self.known_assets, exclude, scratch, observer);
        }
        if !files.left_out().is_empty() {
            observer.remark(&format!("not published: {}", list(files.left_out())));
        }
        let others = files.other_files();
        if !others.is_empty() {
            let why = if options.assets {
                "shard 0 publishes the other files"
            } else {
                "other files are turned off"
            };
            observer.remark(&format!("not published ({why}): {}", list(&others)));
        }
        Ok(Vec::new())
    }

    /// Makes links and stores them; each is uploaded while the next is being made. If nothing has
    /// changed and `if_changed` is set, returns true and only the link from the head, which is not
    /// stored.
    fn make_and_store(&self, bases: &mut Bases<'_>) -> Result<(LinksByBase, bool)> {
        let _uploads = InPhase::begin(self.observer, Phase::Upload, 0);
        thread::scope(|scope| {
            let mut uploads = Vec::new();
            let unchanged = self.make_links(bases, &mut |from, link| {
                let upload = move || {
                    link.upload(self.store, self.observer)
                        .map(|()| (from, link))
                };
                let thread = thread::Builder::new().spawn_scoped(scope, upload);
                uploads.push(thread.map_err(|error| Error::io("starting a thread", error))?);
                Ok(())
            })?;
            if let Some(link) = unchanged {
                return Ok((vec![(bases.head, link)], true));
            }
            let failed = |_| Err(Error::usage("a thread that stored a link failed"));
            let stored: Result<_> = uploads
                .into_iter()
                .map(|upload| upload.join().unwrap_or_else(failed))
                .collect();
            Ok((stored?, false))
        })
    }

    /// Makes the links of all routes, and passes each to `add` as soon as it is made. If nothing
    /// has changed and `if_changed` is set, returns the link from the head instead of adding it.
    fn make_links(
        &self,
        bases: &mut Bases<'_>,
        add: &mut dyn FnMut(Option<u64>, NewLink) -> Result<()>,
    ) -> Result<Option<NewLink>> {
        let codings = RouteCoding::of(&self.options.profiles)?;
        let maker = LinkMaker {
            job: self,
            place: bases.place,
            is_counted: Cell::new(false),
        };
        let base = match &bases.kept {
            Some(kept) => kept.end(self.shard),
            None => bases.given,
        };
        let mut needs_snapshot = true;
        if bases.head.is_some()
            && let Some(head) = self.parent.head()
            && let Some(base) = base
        {
            // Tensors may move between shards, so only the names of a single shard are compared.
            if self.of == 1 {
                let tensors = self.target.state.tensors();
                remark_other_names(tensors, base.state.tensors(), self.observer);
            }
            let before = lanes(base.state.tensors());
            let mut least = u64::MAX;
            for &coding in &codings {
                let link = self.link_from_head(head, bases, &maker, coding)?;
                self.check_change(before, &link)?;
                if self.if_changed && self.is_head(head, bases, &link) && !self.is_cut_off {
                    return Ok(Some(link));
                }
                least = least.min(link.reference.size);
                add(bases.head, link)?;
            }
            // All shards must come to the same decision, though each knows only its own links.
            let bytes = if self.of == 1 { least } else { 0 };
            needs_snapshot = self.is_cut_off
                || self
                    .options
                    .snapshots
                    .want(self.parent, self.path, bytes, self.observer);
        }
        if needs_snapshot {
            // One coding is enough: a snapshot has no old values that profiles could treat
            // differently.
            add(None, maker.make(None, codings[0])?)?;
        }
        for from in skipped_from(self.parent.next_version(), &self.options.skips) {
            self.make_older(from, bases, &maker, &codings, add)?;
        }
        Ok(None)
    }

    /// Makes a link from the head.
    fn link_from_head(
        &self,
        head: &Commit,
        bases: &mut Bases<'_>,
        maker: &LinkMaker<'_>,
        coding: RouteCoding,
    ) -> Result<NewLink> {
        let own = head.shards.get(self.shard).copied();
        let make = |base: Option<End<'_>>| maker.make(base, coding);
        let link = match &mut bases.kept {
            Some(kept) => kept.link(self.shard, own, self.observer, &make)?,
            None => make(bases.given)?,
        };
        self.parent.check_base(self.shard, link.report.base)?;
        Ok(link)
    }

    /// Checks that no more of the shard, which had `before` elements, changes than the options
    /// allow.
    fn check_change(&self, before: u64, link: &NewLink) -> Result<()> {
        match self.max_changed {
            Some(most) => {
                let report = &link.report;
                check_changed(most, before, report.elements, report.changed)
            }
            None => Ok(()),
        }
    }

    /// True if a link from the head leads to the head: same tensors, layout and assets.
    fn is_head(&self, head: &Commit, bases: &Bases<'_>, link: &NewLink) -> bool {
        let has_moved = match self.named(&head.metadata) {
            Some(named) => named != link.layout,
            None => link.has_moved,
        };
        link.report.base == link.report.target.state && !has_moved && bases.has_same_assets
    }

    /// Makes the links from an older version. Readers can do without them, so a version that cannot
    /// be built is only reported to the observer.
    fn make_older(
        &self,
        from: u64,
        bases: &Bases<'_>,
        maker: &LinkMaker<'_>,
        codings: &[RouteCoding],
        add: &mut dyn FnMut(Option<u64>, NewLink) -> Result<()>,
    ) -> Result<()> {
        let (mut older, own) = match self.older(from, self.parent.next_version(), bases) {
            Ok(Some(older)) => older,
            Ok(None) => return Ok(()),
            Err(error) if error.rule().is_some() => {
                self.observer.remark(&format!(
                    "skipping the link from version {from}, which cannot be built: {error}"
                ));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for &coding in codings {
            let make = |base: Option<End<'_>>| maker.make(base, coding);
            let link = older.link(self.shard, own, self.observer, &make)?;
            add(Some(from), link)?;
        }
        Ok(())
    }

    /// Makes a link, and counts the values that are not finite while the target is read for it.
    fn make_counted(
        &self,
        base: Option<End<'_>>,
        coding: RouteCoding,
        place: &Path,
    ) -> Result<NewLink> {
        let counting = CountingState::new(self.target.state);
        let target = End {
            state: &counting,
            ..self.target
        };
        let link = NewLink::make(base, target, coding, place, self.observer)?;
        if self.options.refuse_nonfinite {
            counting.check()?;
        } else if let Some(found) = counting.new_since(base.map(|base| base.state))? {
            self.observer.remark(&format!(
                "new values are not finite (NaN or infinite): {found}. They are published; \
                 --refuse-nonfinite (in Python Guard(refuse_nonfinite=True)) refuses them"
            ));
        }
        Ok(link)
    }

    /// Builds this shard of an older version, and returns it with its state digest; `None` if the
    /// version has another number of shards. With a work directory, there is a directory beside it
    /// for each distance, from which the path to the next such version is short.
    fn older(
        &self,
        version: u64,
        next: u64,
        bases: &Bases<'_>,
    ) -> Result<Option<(KeptVersion, Option<Digest>)>> {
        let older = documents::parent(self.store, Some(version), &self.options.limits)?;
        let Some(commit) = older.head().filter(|commit| commit.shards.len() == self.of) else {
            return Ok(None);
        };
        let lasting = bases.place.join(format!("skip-{}", next - version));
        let is_lasting = bases.kept.as_ref().is_some_and(|kept| kept.is_lasting());
        let place = if is_lasting {
            KeptPlace::Lasting(&lasting)
        } else {
            KeptPlace::Passing(bases.place)
        };
        let mut kept = if bases.is_whole && is_lasting {
            KeptVersion::open_whole(self.store, place, &self.options.limits)?
        } else {
            self.keep(place)?
        };
        kept.bring_to(version, Some(older.digest()), self.observer)?;
        Ok(Some((kept, commit.shards.get(self.shard).copied())))
    }

    /// The digest of the shard's layout, as the metadata of a commit name it.
    fn named(&self, metadata: &BTreeMap<String, String>) -> Option<Digest> {
        named_layouts(metadata, self.of)?.get(self.shard).copied()
    }

    fn keep(&self, place: KeptPlace<'_>) -> Result<KeptVersion> {
        KeptVersion::open(
            self.store,
            place,
            (self.shard, self.of),
            &self.options.limits,
        )
    }

    fn part(&self, links: &[(Option<u64>, NewLink)], assets: Vec<Asset>) -> Result<ShardPart> {
        let Some((_, first)) = links.first() else {
            return Err(Error::usage("no link was made"));
        };
        // All links must lead to one state; otherwise another process writes to its files.
        if links
            .iter()
            .any(|(_, link)| link.report.target != first.report.target)
        {
            return Err(match self.files {
                Some(files) => Error::changed(files.path()),
                None => Error::usage("the memory was changed while it was published"),
            });
        }
        let shard_link = |(from, link): &(Option<u64>, NewLink)| ShardLink {
            from: *from,
            digest: link.reference.digest,
            size: link.reference.size,
            is_direct: link.report.is_direct,
            is_in_place: link.is_in_place,
        };
        Ok(ShardPart {
            form: ShardPart::FORM,
            version: self.parent.next_version(),
            parent: self.parent.digest(),
            shard: self.shard,
            of: self.of,
            state: first.report.target.state,
            folders: self
                .target
                .layout
                .iter()
                .flat_map(|layout| layout.folders())
                .map(str::to_owned)
                .collect(),
            layout: first.layout,
            table: StateTable {
                tensors: self.target.state.tensors().to_vec(),
                digests: first.report.target.clone(),
            },
            assets,
            links: links.iter().map(shard_link).collect(),
            session: rand::random(),
            began: None,
            changed: first.report.changed,
            elements: first.report.elements,
        })
    }
}

/// Returns true if the head could be built, to make links from it, and false if it could not and
/// `is_cut_off` says that this may happen.
///
/// # Errors
/// The error of building, if the head should be there.
pub(crate) fn is_built(
    built: Result<()>,
    version: u64,
    is_cut_off: bool,
    observer: &dyn Observer,
) -> Result<bool> {
    match built {
        Err(error) if is_cut_off && error.rule().is_some() => {
            observer.remark(&format!(
                "version {version} cannot be built, so no link is made from it: {error}"
            ));
            Ok(false)
        }
        built => built.map(|()| true),
    }
}

/// Warns of a model that shares no name of a tensor with the head: it is likely to be another one.
pub(crate) fn remark_other_names(own: &[TensorInfo], head: &[TensorInfo], observer: &dyn Observer) {
    let names: BTreeSet<&str> = own.iter().map(TensorInfo::name).collect();
    if names.is_empty() || head.is_empty() {
        return;
    }
    if head.iter().any(|tensor| names.contains(tensor.name())) {
        return;
    }
    observer.remark(
        "the model and the newest version have no tensor name in common: check that the model \
         belongs to this chain",
    );
}

/// Guards against publishing another model by mistake. `before` is the number of elements of the
/// head, and `elements` that of the version. Elements that are removed count as changed.
pub(crate) fn check_changed(most: f64, before: u64, elements: u64, changed: u64) -> Result<()> {
    let (all, same) = (elements.max(before), elements.saturating_sub(changed));
    #[expect(clippy::cast_precision_loss, reason = "a guard need not be exact")]
    let share = all.saturating_sub(same) as f64 / all.max(1) as f64;
    if share <= most {
        return Ok(());
    }
    let (share, most) = (share * 100.0, most * 100.0);
    let message = format!(
        "{share:.2} % of the elements differ from the head, more than the limit of {most:.2} %: \
         nothing was published"
    );
    Err(Error::usage(message))
}

/// Number of elements of these tensors.
pub(crate) fn lanes(tensors: &[TensorInfo]) -> u64 {
    tensors
        .iter()
        .map(TensorInfo::lanes)
        .fold(0, u64::saturating_add)
}
