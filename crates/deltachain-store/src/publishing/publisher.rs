//! Publishing versions (SPEC section 20): links are made and stored, and a commit makes them a
//! version.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::time::{SystemTime, UNIX_EPOCH};

use deltachain::chain::{Commit, ObjectName, Parent, Route, Trust};
use deltachain::tensor::Digest;
use deltachain::{Error, Result};

use crate::access::attempt::Attempt;
use crate::access::documents::{self, Documents};
use crate::access::stop::Stop;
use crate::access::store::Store;
use crate::access::whole::{ChainFile, check_there};
use crate::assets::excluded::Excluded;
use crate::assets::in_store::LEAVE_OUT;
use crate::observer::Observer;
use crate::publishing::commit::{CommitTo, Committed, StoredParts, check_complete, commit};
use crate::publishing::job::{Job, JobBase, StoredLinks};
use crate::publishing::kept::KeptVersion;
use crate::publishing::known_head::{KnownHead, OwnParts, PreparedParts};
use crate::publishing::model::{End, Model};
use crate::publishing::new_link::RouteCoding;
use crate::publishing::once::skipped_step;
use crate::publishing::options::{Base, PublishOptions};
use crate::publishing::part::ShardPart;
use crate::publishing::policy::{PathBytes, Snapshots};
use crate::publishing::published::{Head, PublishReport};
use crate::publishing::signing::{check_head, has_note, trust_of};
use crate::retention::{Keep, plan_again, prune};

mod whole;

/// Adds versions to a chain: whole models, or shards that several processes publish together.
///
/// It remembers the head and the digests of what it published last, which saves requests and work.
/// Nothing depends on that, so a publisher may be restarted at any time.
#[derive(Debug)]
pub struct Publisher {
    store: Store,
    options: PublishOptions,
    /// The content of the chain document, which never changes.
    chain: Vec<u8>,
    /// The keys that must have signed the head; `None` if every head is followed.
    trust: Option<Trust>,
    /// Memory of the head.
    known: KnownHead,
    /// The documents that have been read to prune.
    documents: Documents,
}

/// Number of bytes of new other files from which the user may be warned.
const MUCH: u64 = 1 << 20;

/// A shard of the next version, to be made.
#[derive(Clone, Copy)]
struct NewShard<'a> {
    number: usize,
    /// Number of all shards.
    of: usize,
    model: Model<'a>,
    /// True if no link is stored for a shard that equals the head's.
    if_changed: bool,
    /// The share of the shard's elements that may differ from the head.
    max_changed: Option<f64>,
}

/// Parent of a version that is to be committed.
struct CommitParent {
    parent: Parent,
    /// Cost of the path to the parent, if it is known.
    path: Option<PathBytes>,
    /// Attempts of this publisher that stored files of the version.
    attempts: Vec<Attempt>,
    /// Session of the parts that this publisher prepared last; `None` if other processes prepared
    /// the parts.
    session: Option<u64>,
}

impl Publisher {
    /// Opens a publisher for the chain in this store. The head is not read before something is
    /// published.
    ///
    /// # Errors
    /// R-CHN-01 (`CHAIN`) and the rules of documents, if there is no chain; USAGE if there is no
    /// profile or a duplicate one, if a pattern of [`PublishOptions::exclude`] is malformed, if one
    /// of the keys that sign is given twice or not trusted, or if there are such keys and
    /// [`PublishOptions::unsigned`] is set; IO.
    pub fn open(store: Store, options: PublishOptions) -> Result<Self> {
        store.check_is_written()?;
        RouteCoding::of(&options.profiles)?;
        Excluded::new(&options.exclude)?;
        if options.unsigned && !options.sign.is_empty() {
            return Err(Error::usage(
                "a key to sign with is given (--sign-key, DELTACHAIN_SIGNING_KEY; in Python \
                 sign_key=), and so is --unsigned (in Python unsigned=True): leave one of the two \
                 out",
            ));
        }
        let chain = store.get(ObjectName::Chain)?;
        let trust = trust_of(
            &options,
            Parent::read(chain.as_deref(), None, &options.limits)?.digest(),
        )?;
        Ok(Self {
            store,
            options,
            chain: chain.unwrap_or_default(),
            trust,
            known: KnownHead::default(),
            documents: Documents::new(),
        })
    }

    /// From now on, `stop` ends waits for the store.
    pub fn stop_with(&mut self, stop: Stop) {
        self.store = self.store.with_stop(stop);
    }

    /// The newest version; `None` if the chain has none. Asks the store.
    ///
    /// # Errors
    /// R-PUB-09 (`CHAIN`) if the chain has a gap; R-SIG-03 (`CHAIN`) if the newest version is not
    /// signed as [`PublishOptions::trust`] wants; USAGE if it is signed and this publisher has no
    /// key, see [`PublishOptions::unsigned`]; the rules of documents; IO.
    pub fn head(&mut self) -> Result<Option<Head>> {
        let head = |head: &Commit| Head {
            version: head.version,
            shards: head.shards.clone(),
        };
        Ok(self.parent()?.head().map(head))
    }

    /// Returns the head if a version with this metadata (and that of the options) would repeat a
    /// step, so that nothing is to be published: [`PublishOptions::once`]. Asks the store if that
    /// option is set; a [`prepare`](Self::prepare) that follows at once does not ask again.
    /// [`publish`](Self::publish) does this by itself.
    ///
    /// # Errors
    /// USAGE if the metadata do not have the entry, or it is not an integer; same errors as
    /// [`head`](Self::head).
    pub fn repeated(
        &mut self,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Option<PublishReport>> {
        drop(self.known.take_fresh());
        if self.options.once.is_none() {
            return Ok(None);
        }
        let parent = self.parent()?;
        let head = self.known_repeated(metadata)?;
        if head.is_none() {
            self.known.keep_fresh(parent);
        }
        Ok(head)
    }

    /// Same as [`repeated`](Self::repeated), by the newest version that this publisher has seen or
    /// published, without a request to the store.
    ///
    /// # Errors
    /// USAGE if the metadata do not have the entry, or it is not an integer.
    pub fn known_repeated(
        &self,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Option<PublishReport>> {
        let mut own = self.options.metadata.clone();
        own.extend(metadata.clone());
        let newest = self.known.newest();
        let skipped = skipped_step(
            self.options.once.as_deref(),
            &own,
            newest.map(|newest| &newest.metadata),
        )?;
        let (Some(skipped), Some(report)) = (skipped, self.known.report()) else {
            return Ok(None);
        };
        Ok(Some(PublishReport {
            skipped: Some(skipped),
            ..report.clone()
        }))
    }

    /// From now on versions may repeat a step, whatever [`PublishOptions::once`] says.
    pub fn repeat(&mut self) {
        self.options.once = None;
    }

    /// Publishes a model as the version after the head. It becomes visible atomically. A failure
    /// before that leaves the chain unchanged. A state that equals the head's becomes a version
    /// too, unless [`PublishOptions::if_changed`] is set.
    ///
    /// If the head has several shards, the version has as many: each tensor stays in its shard, and
    /// new ones are [divided](crate::divide) among them. With [`Base::Nothing`], all tensors are
    /// divided anew, unless this publisher has made the head.
    ///
    /// If other threads write to a state in memory meanwhile, each piece is published as it was
    /// read, or nothing is published if several links are needed.
    ///
    /// # Errors
    /// R-PUB-01 (`CHAIN`) if the base is not the head's state; R-PUB-03 (`CHAIN`) if another writer
    /// was first; R-SIG-03 (`CHAIN`) if the head is not signed as [`PublishOptions::trust`] wants;
    /// USAGE if it is signed and this publisher has no key, see [`PublishOptions::unsigned`];
    /// R-PUB-11 (`CHAIN`) if versions have been lost that this publisher knows, or that have routes
    /// documents; R-PUB-08 (`CHAIN`) if it took 20 hours, or if the store could not be asked about
    /// that after the commit: then the version may exist and be unusable, and the next one gets a
    /// snapshot; R-PUB-10 (`CHAIN`) if a folder with tensor files has the name of an asset,
    /// ignoring case; USAGE if the metadata entry of [`PublishOptions::once`] is missing or not an
    /// integer; R-CHN and R-DOC rules if the head cannot be read; USAGE if there are more other
    /// files than a version can have assets; errors of reading the states; LIMIT; IO, also if a
    /// file changes while it is read; the observer's error.
    pub fn publish<'m>(
        &mut self,
        model: impl Into<Model<'m>>,
        base: Base<'_>,
        observer: &dyn Observer,
    ) -> Result<PublishReport> {
        self.known.discard_prepared();
        if let Some(head) = self.repeated(&BTreeMap::new())? {
            head.remark_skipped(observer);
            return Ok(head);
        }
        let parent = self.parent()?;
        let path = self.path_to(&parent)?;
        let of = parent.head().map_or(1, |head| head.shards.len());
        if of > 1 {
            return self.publish_shards((parent, path), model.into(), base, observer);
        }
        let shard = NewShard {
            number: 0,
            of,
            model: model.into(),
            if_changed: self.options.if_changed,
            max_changed: self.options.max_changed,
        };
        let made = self.make(
            (&parent, path),
            shard,
            self.given(&parent, 0, base),
            observer,
        )?;
        let StoredLinks {
            part,
            attempt,
            work,
            is_head,
        } = made;
        let own = OwnParts::of(slice::from_ref(&part));
        if let (true, Some(head)) = (is_head, parent.head()) {
            self.known.set_own(parent.digest(), own);
            let (shards, elements) = (vec![part.table.digests], part.elements);
            return Ok(PublishReport {
                shards,
                elements,
                ..PublishReport::head(head, parent.digest())
            });
        }
        self.known.prepare(PreparedParts {
            parent,
            path,
            attempt,
            session: part.session,
            own,
        });
        let published = self.commit(vec![part], BTreeMap::new(), observer)?;
        if let Some(work) = work {
            bring_work(work, published.version, observer);
        }
        Ok(published)
    }

    /// Makes and stores the links of some shards of the version after the head. Each shard is given
    /// by its number, its tensors, and the source of the same shard of the head; `of` is the number
    /// of all shards. If the head has another number of shards, the shard is made from nothing.
    /// Nothing becomes visible before [`commit`](Self::commit), which needs the parts of all
    /// shards, whichever processes prepared them. The metadata are known only there, so call
    /// [`repeated`](Self::repeated) before if a step is to be published only
    /// [once](PublishOptions::once).
    ///
    /// # Errors
    /// Same errors as [`publish`](Self::publish), except R-PUB-03.
    pub fn prepare<'m>(
        &mut self,
        shards: impl IntoIterator<Item = (usize, Model<'m>, Base<'m>)>,
        of: usize,
        observer: &dyn Observer,
    ) -> Result<Vec<ShardPart>> {
        self.known.discard_prepared();
        let parent = self.parent()?;
        let path = self.path_to(&parent)?;
        let mut attempt = None;
        let mut parts: Vec<ShardPart> = Vec::new();
        for (number, model, base) in shards {
            let shard = NewShard {
                number,
                of,
                model,
                if_changed: false,
                max_changed: self.options.max_changed,
            };
            let base = self.given(&parent, number, base);
            let made = self.make((&parent, path), shard, base, observer)?;
            attempt.get_or_insert(made.attempt);
            parts.push(made.part);
        }
        let attempt = attempt.unwrap_or_else(|| Attempt::begin(&self.store));
        self.keep_prepared((parent, path), attempt, &mut parts);
        Ok(parts)
    }

    /// Remembers parts that have been prepared together.
    fn keep_prepared(
        &mut self,
        (parent, path): (Parent, Option<PathBytes>),
        attempt: Attempt,
        parts: &mut [ShardPart],
    ) {
        let session = rand::random();
        let began = attempt
            .earliest
            .and_then(|date| Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs()));
        parts
            .iter_mut()
            .for_each(|part| (part.session, part.began) = (session, began));
        self.known.prepare(PreparedParts {
            parent,
            path,
            attempt,
            session,
            own: OwnParts::of(parts),
        });
    }

    /// Commits a version from the parts of all its shards, in any order. They become visible
    /// atomically. `metadata` is added to that of the options. Call this again with the same parts
    /// if it is not known whether it succeeded. If the version would repeat a step
    /// ([`PublishOptions::once`]), nothing becomes visible, and the result is the head.
    ///
    /// For the parts that this publisher did not prepare last, the store is asked for one link of
    /// each [`prepare`](Self::prepare), and for their assets. A store that tells no dates, such as
    /// a directory, is asked for the times of all links, and for the time: what was stored less
    /// than 20 hours ago cannot have been pruned.
    ///
    /// # Errors
    /// USAGE if parts are missing or duplicate, or were made for different versions, or the
    /// metadata entry of [`PublishOptions::once`] is missing or not an integer; R-CHN-12
    /// (`STATE_MISMATCH`) if two have a tensor of the same name; R-CHN-09 or R-CHN-15 (`CHAIN`) if
    /// such a link, or an asset, is not in the store; R-PUB-01 (`CHAIN`) if the parts were made to
    /// follow another commit than the head's; R-PUB-03 (`CHAIN`) if another writer was first;
    /// R-PUB-04 (`CHAIN`) if no route has a link for each shard; R-PUB-08 (`CHAIN`) if a link was
    /// stored 20 hours ago: prepare the shards again; R-PUB-10 (`CHAIN`) if a folder with tensor
    /// files has the name of an asset; LIMIT; IO.
    pub fn commit(
        &mut self,
        mut parts: Vec<ShardPart>,
        metadata: BTreeMap<String, String>,
        observer: &dyn Observer,
    ) -> Result<PublishReport> {
        parts.sort_by_key(|part| part.shard);
        let (version, follows) = check_complete(&parts)?;
        let CommitParent {
            parent,
            path,
            mut attempts,
            session,
        } = self.parent_of(version, follows)?;
        let mut options = self.options.clone();
        options.metadata.extend(metadata);
        let head = parent.head();
        let skipped = skipped_step(
            options.once.as_deref(),
            &options.metadata,
            head.map(|head| &head.metadata),
        )?;
        if let (Some(skipped), Some(head)) = (skipped, head)
            && !self.known.is_cut_off()
        {
            let head = PublishReport {
                skipped: Some(skipped),
                ..PublishReport::head(head, parent.digest())
            };
            head.remark_skipped(observer);
            return Ok(head);
        }
        let foreign: Vec<&ShardPart> = parts
            .iter()
            .filter(|part| Some(part.session) != session)
            .collect();
        // Once the store has been asked for the time, this machine's clock goes on from there.
        attempts.extend(attempt_of(&self.store, &foreign)?);
        let to = CommitTo {
            store: &self.store,
            chain: Digest::of_bytes(&self.chain),
            options: &options,
            trust: self.trust.as_ref(),
        };
        let stored = StoredParts {
            parts: &parts,
            parent: &parent,
            path,
            attempts: &attempts,
        };
        let Committed { published, doubt } = commit(&to, &stored)?;
        if published.is_new {
            let is_signed = match &self.trust {
                Some(trust) => self.options.sign.len() >= trust.quorum(),
                None => false,
            };
            self.known.publish(&published, is_signed, doubt.is_some());
        }
        self.known.set_report(&published);
        published.remark_skipped(observer);
        if let Some(doubt) = doubt {
            return Err(doubt);
        }
        if published.is_new {
            remark_assets(&published, observer);
            self.keep_last((published.version, published.commit), observer);
        }
        Ok(published)
    }

    /// Finds the parent of the version that parts were made for: by what this publisher prepared
    /// last, or in the store.
    fn parent_of(&mut self, version: u64, follows: Digest) -> Result<CommitParent> {
        if let Some(own) = self.known.prepared(version, follows) {
            return Ok(CommitParent {
                parent: own.parent.clone(),
                path: own.path,
                attempts: vec![own.attempt],
                session: Some(own.session),
            });
        }
        let parent = documents::parent(&self.store, version.checked_sub(1), &self.options.limits)?;
        parent.check_follows(version, follows)?;
        // If the version exists already, its parent is no longer the head, and is not checked.
        let is_above = match self.known.followed() {
            Some((known, _)) => known < version,
            None => true,
        };
        if is_above || self.store.find(ObjectName::Commit(version))?.is_none() {
            self.check_head(&parent)?;
        }
        Ok(CommitParent {
            path: parent.head().and_then(PathBytes::of),
            parent,
            attempts: Vec::new(),
            session: None,
        })
    }

    /// Notes that another process has committed the parts that this publisher prepared last. They
    /// are the head.
    pub fn committed(&mut self, version: u64, commit: Digest) {
        self.known.commit(version, commit);
    }

    /// The commit that the next version follows, or the chain document.
    fn parent(&mut self) -> Result<Parent> {
        if let Some(parent) = self.known.take_fresh() {
            return Ok(parent);
        }
        let known = self.known.followed().map(|(version, _)| version);
        let parent = documents::head(&self.store, Some(&self.chain), known, &self.options.limits)?;
        self.check_head(&parent)?;
        self.known.follow(&parent);
        Ok(parent)
    }

    /// Checks R-PUB-11 and R-SIG-03 for the parent of the next version. Refuses a signed head if
    /// this publisher signs nothing.
    fn check_head(&mut self, parent: &Parent) -> Result<()> {
        let commit = parent.digest();
        self.check_signing(parent)?;
        if self.options.vouch == Some(commit) {
            return Ok(());
        }
        match self.known.followed() {
            Some(known) => parent.check_goes_on(known)?,
            None => self.check_first(parent)?,
        }
        if let (Some(trust), Some(head)) = (&self.trust, parent.head())
            && !self.known.is_signed(commit)
        {
            check_head(
                &self.store,
                Digest::of_bytes(&self.chain),
                (head.version, commit),
                trust,
            )?;
            self.known.set_signed(commit);
        }
        Ok(())
    }

    /// Refuses to follow a signed head without a key of its own: followers that trust a key would
    /// stop there. A key that was not passed on is the usual cause.
    fn check_signing(&mut self, parent: &Parent) -> Result<()> {
        let commit = parent.digest();
        if self.options.unsigned
            || !self.options.sign.is_empty()
            || self.known.is_without_note(commit)
        {
            return Ok(());
        }
        let Some(head) = parent.head() else {
            return Ok(());
        };
        let chain = Digest::of_bytes(&self.chain);
        if has_note(&self.store, chain, head.version, commit)? {
            return Err(Error::usage(format!(
                "version {} is signed, and no key is given to sign the next one, so followers with \
                 trust would stop there: give the key (--sign-key, DELTACHAIN_SIGNING_KEY; in \
                 Python sign_key=), or publish without signatures from now on (--unsigned; in \
                 Python unsigned=True). Nothing was published",
                head.version
            )));
        }
        self.known.set_without_note(commit);
        Ok(())
    }

    /// Checks the first head that this publisher follows. Routes documents of versions above it
    /// show that commits have been lost. Notes whether a route of its commit has all of its files,
    /// unless routes have been changed since.
    fn check_first(&mut self, parent: &Parent) -> Result<()> {
        let head = parent.head();
        let versions = self
            .store
            .versions_with_routes(head.map_or(0, |head| head.version))?;
        if let Some(&last) = versions
            .last()
            .filter(|&&last| last >= parent.next_version())
            && self.store.find(ObjectName::Commit(last))?.is_none()
        {
            return Err(parent.head_lost(last));
        }
        let Some(head) = head.filter(|head| !versions.contains(&head.version)) else {
            return Ok(());
        };
        let mut is_cut_off = true;
        for route in &head.routes {
            if self.has_files(route)? {
                is_cut_off = false;
                break;
            }
        }
        self.known.set_cut_off(is_cut_off);
        Ok(())
    }

    /// True if all files of a route are in the store.
    fn has_files(&self, route: &Route) -> Result<bool> {
        for file in &route.files {
            match check_there(&self.store, ChainFile::Link(*file)) {
                Ok(_) => {}
                Err(error) if error.rule().is_some() => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The cost of the path to the head, if it is known.
    fn path_to(&self, parent: &Parent) -> Result<Option<PathBytes>> {
        match self.options.snapshots {
            Snapshots::Cost(_) => PathBytes::to_head(&self.store, parent, &self.options.limits),
            // This publisher only notes the cost for the next one, so no commits are read for it.
            Snapshots::Every(_) | Snapshots::Never => Ok(parent.head().and_then(PathBytes::of)),
        }
    }

    /// The base of a shard as the caller has given it.
    fn given<'a>(&'a self, parent: &Parent, shard: usize, base: Base<'a>) -> JobBase<'a> {
        let own = self.known.own(parent);
        let last = own.and_then(|own| Some(&own.shards.get(&shard)?.digests));
        JobBase::Given { base, last }
    }

    fn make(
        &self,
        (parent, path): (&Parent, Option<PathBytes>),
        new: NewShard<'_>,
        base: JobBase<'_>,
        observer: &dyn Observer,
    ) -> Result<StoredLinks> {
        let NewShard {
            number,
            of,
            model,
            if_changed,
            max_changed,
        } = new;
        // All shards of a model that is like a checkpoint name the same other files. Shard 0
        // publishes them, so the other shards must not report them as left out.
        let files = if number > 0 && matches!(model, Model::Like(..)) {
            None
        } else {
            model.files()
        };
        let (layout, lent) = (model.layout()?, model.lent());
        let target = End {
            state: &lent,
            layout: layout.as_deref(),
            named: None,
            digests: None,
        };
        Job {
            store: &self.store,
            parent,
            path,
            target,
            files,
            shard: number,
            of,
            known_assets: self
                .known
                .own(parent)
                .map_or(&[][..], |own| own.assets.as_slice()),
            if_changed,
            max_changed,
            is_cut_off: self.known.is_cut_off(),
            options: &self.options,
            observer,
        }
        .run(base)
    }

    /// Prunes after some of the versions. The version has been published, even if this fails.
    fn keep_last(&mut self, head: (u64, Digest), observer: &dyn Observer) {
        let Some(last) = self
            .options
            .keep_last
            .filter(|last| head.0.is_multiple_of((last / 10).max(1)))
        else {
            return;
        };
        let keep = Keep {
            last,
            ..Keep::default()
        };
        let pruned = plan_again(
            &self.store,
            &keep,
            std::mem::take(&mut self.documents),
            Some(head),
        )
        .and_then(|plan| {
            prune(&self.store, &plan, observer)?;
            Ok(plan.read)
        });
        match pruned {
            Ok(documents) => self.documents = documents,
            Err(error) => observer.remark(&format!("old versions are kept for now: {error}")),
        }
    }
}

/// Brings a work directory to the version that has been published, if it lasts.
fn bring_work(mut work: KeptVersion, version: u64, observer: &dyn Observer) {
    if !work.is_lasting() {
        return;
    }
    // The version has been published, even if the directory stays behind.
    if let Err(error) = work.bring_to(version, None, observer) {
        observer.remark(&format!(
            "the work directory stays at the previous version for now: {error}"
        ));
    }
}

/// Warns the user if followers download more of other files than of the model, as they do if a
/// trainer has saved more than a model.
fn remark_assets(published: &PublishReport, observer: &dyn Observer) {
    let link = published.routes.iter().map(|route| route.bytes).min();
    let new = published.new_asset_bytes;
    if new >= MUCH && link.is_some_and(|link| new > link) {
        observer.remark(&format!(
            "{new} bytes of other files are new in version {}, more than the {} of its link: each \
             follower downloads both. {LEAVE_OUT}",
            published.version,
            link.unwrap_or_default()
        ));
    }
}

/// Checks that the files of other processes are stored, and returns the attempt that began before
/// all of them; `None` without such files.
fn attempt_of(store: &Store, parts: &[&ShardPart]) -> Result<Option<Attempt>> {
    let mut sessions = BTreeSet::new();
    let mut earliest: Option<SystemTime> = None;
    for part in parts {
        // One link of a session with a date shows that it was this store; otherwise the store is
        // asked for the times of all links.
        let began = match store.date() {
            Some(_) => part.began(),
            None => None,
        };
        let links = if began.is_none() || sessions.insert(part.session) {
            part.links.as_slice()
        } else {
            &[]
        };
        for link in &links[..links.len().min(began.map_or(usize::MAX, |_| 1))] {
            let stored = check_there(store, ChainFile::Link(link.file()))?;
            let first = began.unwrap_or(stored);
            earliest = Some(earliest.map_or(first, |earliest| earliest.min(first)));
        }
        part.assets
            .iter()
            .try_for_each(|asset| check_there(store, ChainFile::Asset(asset)).map(drop))?;
    }
    earliest
        .map(|earliest| Attempt::since(store, earliest))
        .transpose()
}
