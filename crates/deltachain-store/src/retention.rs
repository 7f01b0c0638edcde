//! Pruning (SPEC section 21): routes that are not needed any more are withdrawn, and their files
//! are removed a day later. Assets stay, and so do files that no document names: they may belong to
//! lost commits.
//!
//! Ages are measured by the store's clock alone: from the time at which an object was stored to the
//! time at which the store says that a probe was stored, which this prune has just written. A plan,
//! which writes nothing, uses the time of this machine or of the newest object instead, and only
//! predicts what will be removed.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deltachain::chain::{
    FileReference, History, ObjectName, Route, RoutesDocument, came_late, check_duration,
    commits_missing, no_path_without, retain, routes_taken,
};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Limits, Progress, Result};
use serde::Serialize;

use crate::access::attempt::{Attempt, put_routes, was_in_time};
use crate::access::documents::{ChainWindow, Documents, refuse_faults, whole};
use crate::access::lost::{ends_of, is_lost, versions_of};
use crate::access::partial::Partial;
use crate::access::store::{Store, StoredObject};
use crate::observer::{InPhase, Observer, Phase};
use crate::text;
use crate::there::if_there;

/// An object that was stored or withdrawn within this time stays: it may belong to a commit that is
/// being made, or be on its way to a reader (R-RET-02).
const YOUNG: Duration = Duration::from_hours(24);

/// Number of objects removed between two calls of the observer, which may stop the work.
const BATCH: usize = 1000;

/// The versions to keep, and what else may be removed. The head always stays. Versions that have
/// been pruned already are not selected again by `last` and `every`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keep {
    /// Number of newest versions to keep.
    pub last: u64,
    /// Also keeps the versions whose number is a multiple of this one.
    pub every: Option<u64>,
    /// Also keeps these versions.
    pub versions: Vec<u64>,
    /// Whether old files that no document names are removed. Killed publishers leave such files,
    /// and so do lost commits.
    pub abandoned: bool,
    /// Whether commits that seem to be missing are lost for good.
    pub accept_loss: bool,
}

impl Keep {
    /// Selects the versions of a chain that are kept.
    fn select(&self, history: &History) -> Result<BTreeSet<u64>> {
        let Some((&head, _)) = history.entries.last_key_value() else {
            return Ok(BTreeSet::new());
        };
        let mut kept: BTreeSet<u64> = self.versions.iter().copied().chain([head]).collect();
        for &version in &kept {
            history.entry(version)?;
        }
        let rule = |version: u64| {
            head - version < self.last
                || self
                    .every
                    .is_some_and(|every| version.is_multiple_of(every))
        };
        let not_pruned = history
            .entries
            .iter()
            .filter(|(_, entry)| !entry.routes.is_empty());
        kept.extend(
            not_pruned
                .map(|(&version, _)| version)
                .filter(|&version| rule(version)),
        );
        Ok(kept)
    }
}

/// The plan of a prune.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrunePlan {
    /// The report of the prune, as it is expected now.
    pub expected: PruneReport,
    /// The routes documents that withdraw routes.
    documents: Vec<RoutesDocument>,
    /// The objects that were listed for the plan.
    seen: BTreeSet<ObjectName>,
    /// The documents that have been read.
    pub(crate) read: Documents,
    keep: Keep,
    known: Option<(u64, Digest)>,
}

/// The report of a prune, or of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PruneReport {
    /// True for a prune, false for a plan.
    pub done: bool,
    /// The versions that are kept.
    pub kept: Vec<u64>,
    /// The versions that lose their last route. Other versions may lose routes, and stay because a
    /// version that is kept is built from them.
    pub withdrawn: Vec<u64>,
    /// The versions that were not selected and stay, because versions that are kept are built from
    /// them. A snapshot of the lowest version that is kept lets the next prune withdraw the
    /// versions below it.
    pub needed: Vec<u64>,
    /// The objects that are removed: files that no route will name, and routes documents that are
    /// no longer in force.
    pub removed: Vec<ObjectName>,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Objects that no version will need and that stay for now, because they were stored or
    /// withdrawn within the last 24 hours, or are withdrawn by this prune. A prune that runs a day
    /// later removes them.
    #[serde(serialize_with = "text::count")]
    pub young: Vec<ObjectName>,
    /// Their bytes.
    pub young_bytes: u64,
    /// Files that no document names and that stay: killed publishers have left them, or their
    /// commits are lost.
    #[serde(serialize_with = "text::count")]
    pub unnamed: Vec<ObjectName>,
    /// Their bytes.
    pub unnamed_bytes: u64,
    /// Parts of objects that killed writers left behind in a chain's directory. They are removed
    /// when they are old.
    #[serde(rename = "unfinished", serialize_with = "text::count")]
    pub partials: Vec<PathBuf>,
}

/// The versions of a chain, by what a prune does with them.
struct PlannedVersions {
    kept: Vec<u64>,
    withdrawn: Vec<u64>,
    needed: Vec<u64>,
}

impl PruneReport {
    fn new(
        done: bool,
        versions: PlannedVersions,
        unneeded: UnneededFiles,
        partials: Vec<Partial>,
    ) -> Self {
        let PlannedVersions {
            kept,
            withdrawn,
            needed,
        } = versions;
        let lists = [unneeded.old, unneeded.young, unneeded.unnamed];
        let [removed_bytes, young_bytes, unnamed_bytes] =
            lists.each_ref().map(|objects| bytes_of(objects));
        let [removed, young, unnamed] =
            lists.map(|objects| objects.iter().map(|object| object.name).collect());
        let partials = partials.into_iter().map(|partial| partial.path).collect();
        Self {
            done,
            kept,
            withdrawn,
            needed,
            removed,
            removed_bytes,
            young,
            young_bytes,
            unnamed,
            unnamed_bytes,
            partials,
        }
    }
}

/// Finds out what a prune has to do so that these versions are kept. Nothing is changed.
///
/// # Errors
/// R-RET-01 (`CHAIN`) if there is no path from nothing to a version to keep, or none whose files
/// are there; R-RET-05 (`CHAIN`) if commits seem to be missing; R-CHN-03 (`CHAIN`) if a version
/// does not exist; the fault of a commit, if one has a fault, because then it is unknown which
/// files are needed; USAGE if the store cannot list; IO.
pub fn plan_prune(store: &Store, keep: &Keep) -> Result<PrunePlan> {
    plan_again(store, keep, Documents::new(), None)
}

/// Same as [`plan_prune`], for a caller that has already read these documents, and knows that this
/// version has this commit.
pub(crate) fn plan_again(
    store: &Store,
    keep: &Keep,
    mut read: Documents,
    known: Option<(u64, Digest)>,
) -> Result<PrunePlan> {
    if !store.can_list() {
        return Err(
            Error::usage("this store cannot be listed, so it cannot be pruned")
                .in_file(store.to_string()),
        );
    }
    let ChainWindow {
        objects,
        mut history,
        ..
    } = whole(store, &mut read, &Limits::default())?;
    let lost = check_commits(&objects, &mut history, known, keep.accept_loss)?;
    let kept = keep.select(&history)?;
    let retained = retain_whole(&mut StoredFiles::new(store, &objects), &history, &kept)?;

    let mut documents = Vec::new();
    let mut withdrawn = Vec::new();
    let mut needed = Vec::new();
    for (version, entry) in &mut history.entries {
        let routes = &retained[version];
        if !routes.is_empty() && !kept.contains(version) {
            needed.push(*version);
        }
        if *routes == entry.routes {
            continue;
        }
        let document = entry.successor(routes.clone(), |_| false);
        if routes.is_empty() {
            withdrawn.push(*version);
        }
        // The rest of the plan assumes that the document has been replaced.
        let before = std::mem::replace(&mut entry.source, document.name());
        let routes = std::mem::replace(&mut entry.routes, document.routes.clone());
        entry.superseded.insert(before.generation(), routes);
        documents.push(document);
    }
    let now = probable_now(&objects);
    let unneeded = unneeded(&objects, &history, now, &lost, keep);
    check_abandoned(store, &objects, &history, &unneeded.old, keep)?;
    let partials = store
        .partials()?
        .into_iter()
        .filter(|partial| is_old(partial.stored, now))
        .collect();
    Ok(PrunePlan {
        expected: PruneReport::new(
            false,
            PlannedVersions {
                kept: kept.into_iter().collect(),
                withdrawn,
                needed,
            },
            unneeded,
            partials,
        ),
        documents,
        seen: objects.iter().map(|object| object.name).collect(),
        read,
        keep: keep.clone(),
        known,
    })
}

/// Carries out a plan, unless the chain's routes have changed since. Versions that are published
/// meanwhile keep the files that they need; publishers need not stop. Only one process at a time
/// may do maintenance of a chain.
///
/// # Errors
/// R-PUB-06 (`CHAIN`) if routes documents have been added or removed since the plan was made: make
/// a new plan; R-RET-01 and R-RET-05 as for [`plan_prune`]; faults of commits; IO; the observer's
/// error.
pub fn prune(store: &Store, plan: &PrunePlan, observer: &dyn Observer) -> Result<PruneReport> {
    check_unchanged(&store.objects()?, &plan.seen)?;
    let mut expected = plan.seen.clone();
    // From the highest version down: after an interruption, no route is left that comes from a
    // version that was withdrawn.
    for document in plan.documents.iter().rev() {
        bring_into_force(store, document, &[])?;
        expected.insert(document.name());
    }

    // The probe must be stored before the chain is listed: a document that is not in the list was
    // then stored after the probe, and names no file that is old at the time of the probe.
    let probe = store.probe()?;
    let read = whole(store, &mut plan.read.clone(), &Limits::default());
    store.remove_probes([&probe])?;
    let (
        now,
        ChainWindow {
            objects,
            probes,
            mut history,
        },
    ) = (probe.last_modified.into(), read?);
    // Only the name is compared: a put that was retried may have given the probe another time
    // since.
    if probes
        .iter()
        .all(|listed| listed.location != probe.location)
    {
        return Err(commits_missing(
            ObjectName::Chain,
            "an object that was just stored is not listed",
        ));
    }
    store.remove_probes(
        probes
            .iter()
            .filter(|probe| is_old(probe.last_modified.into(), now)),
    )?;
    check_unchanged(&objects, &expected)?;
    let lost = check_commits(&objects, &mut history, plan.known, plan.keep.accept_loss)?;
    let wanted = &plan.expected.kept;
    let newest = wanted.last().map_or(0, |head| head.saturating_add(1));
    let kept = wanted
        .iter()
        .chain(history.entries.range(newest..).map(|(version, _)| version))
        .copied()
        .collect();
    retain_whole(&mut StoredFiles::new(store, &objects), &history, &kept)?;
    let unneeded = unneeded(&objects, &history, now, &lost, &plan.keep);
    let old = &unneeded.old;
    check_abandoned(store, &objects, &history, old, &plan.keep)?;
    // Files first: as long as the documents exist, they show when their files were withdrawn.
    let (files, documents): (Vec<StoredObject>, Vec<StoredObject>) = old
        .iter()
        .copied()
        .partition(|object| matches!(object.name, ObjectName::File(_)));
    let phase = InPhase::begin(observer, Phase::Check, bytes_of(old));
    for batch in files.chunks(BATCH).chain(documents.chunks(BATCH)) {
        store.delete(&batch.iter().map(|object| object.name).collect::<Vec<_>>())?;
        phase.advance(bytes_of(batch))?;
    }
    let mut partials = store.partials()?;
    partials.retain(|partial| is_old(partial.stored, now));
    for Partial { path, .. } in &partials {
        if_there(fs::remove_file(path))
            .map_err(|error| Error::io("removing", error).in_file(path))?;
    }
    Ok(PruneReport::new(
        true,
        PlannedVersions {
            kept: wanted.clone(),
            withdrawn: plan.expected.withdrawn.clone(),
            needed: plan.expected.needed.clone(),
        },
        unneeded,
        partials,
    ))
}

/// Brings routes that were withdrawn within the last 20 hours into force again (R-PUB-02), as far
/// as their files exist. Returns the versions that have their routes again. Call it again if it was
/// interrupted.
///
/// # Errors
/// CHAIN if nothing was withdrawn within this time; R-CHN-09 (`CHAIN`) if no such route has all its
/// files; R-PUB-06 (`CHAIN`) if another process changes the routes of a version meanwhile; R-PUB-08
/// (`CHAIN`) if the time is up; faults of commits; IO.
pub fn undo_prune(store: &Store, observer: &dyn Observer) -> Result<Vec<u64>> {
    let now = store.now()?;
    let ChainWindow {
        objects,
        mut history,
        ..
    } = whole(store, &mut Documents::new(), &Limits::default())?;
    refuse_faults(&mut history)?;
    let mut files = StoredFiles::new(store, &objects);
    let (mut versions, mut missing) = (Vec::new(), None);
    // From the lowest version up: after an interruption, the version that a route comes from has
    // its routes again.
    for (&version, entry) in &history.entries {
        let (mut routes, mut earliest) = (entry.routes.clone(), now);
        for (_, replaced, by) in entry.replaced() {
            let Ok(by) = objects.binary_search_by_key(&by, |object| object.name) else {
                continue;
            };
            let withdrawn = objects[by].stored;
            if check_duration(now.duration_since(withdrawn).unwrap_or_default().as_secs()).is_err()
            {
                continue;
            }
            for route in replaced {
                if routes.contains(route) {
                    continue;
                }
                if let Some(file) = files.lacking(route)? {
                    observer.remark(&format!(
                        "a route to version {version} stays withdrawn: {}",
                        file.missing()
                    ));
                    missing = Some(file);
                    continue;
                }
                routes.push(route.clone());
                earliest = earliest.min(withdrawn);
            }
        }
        if routes.len() > entry.routes.len() {
            let attempts = [Attempt::since(store, earliest)?];
            let direct = entry.commit.routes.iter().zip(entry.commit.direct_routes());
            let direct: Vec<&Route> = direct
                .filter(|(_, direct)| *direct)
                .map(|(route, _)| route)
                .collect();
            let document = entry.successor(routes, |route| direct.contains(&route));
            bring_into_force(store, &document, &attempts)?;
            if !was_in_time(store, &attempts, document.name(), [])? {
                return Err(came_late(document.name()));
            }
            versions.push(version);
        }
    }
    match missing {
        _ if !versions.is_empty() => Ok(versions),
        Some(file) => Err(file.missing()),
        None => Err(Error::refused(
            ErrorClass::Chain,
            "no route was withdrawn within the last 20 hours",
        )
        .with_advice("nothing is left to restore; a copy may have older routes: docs/copies.md")
        .in_file(store.to_string())),
    }
}

/// Brings routes into force, as long as these attempts have time.
fn bring_into_force(store: &Store, document: &RoutesDocument, attempts: &[Attempt]) -> Result<()> {
    if put_routes(store, attempts, document)? {
        return Ok(());
    }
    attempts.iter().try_for_each(Attempt::check)?;
    Err(routes_taken(document.name()))
}

/// The files that the store has. A file that is not in the list is requested by name: it may have
/// been stored after files were listed, and before documents were.
struct StoredFiles<'a> {
    store: &'a Store,
    sizes: BTreeMap<ObjectName, Option<u64>>,
}

impl<'a> StoredFiles<'a> {
    fn new(store: &'a Store, objects: &[StoredObject]) -> Self {
        Self {
            store,
            sizes: objects
                .iter()
                .map(|object| (object.name, Some(object.size)))
                .collect(),
        }
    }

    /// Returns a file of the route that is missing or has another length; `None` if there is no
    /// such file.
    fn lacking(&mut self, route: &Route) -> Result<Option<FileReference>> {
        for file in &route.files {
            let size = match self.sizes.entry(file.name()) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => {
                    *unknown.insert(self.store.find(file.name())?.map(|object| object.size))
                }
            };
            if size != Some(file.size) {
                return Ok(Some(*file));
            }
        }
        Ok(None)
    }
}

/// Returns the routes that stay if these versions are kept (R-RET-06): the routes that would stay
/// if no file were missing, because a file may come back, and a path whose files exist.
fn retain_whole(
    files: &mut StoredFiles<'_>,
    history: &History,
    kept: &BTreeSet<u64>,
) -> Result<BTreeMap<u64, Vec<Route>>> {
    let in_force: BTreeMap<u64, Vec<Route>> = history
        .entries
        .iter()
        .map(|(&version, entry)| (version, entry.routes.clone()))
        .collect();
    let retained = retain(&in_force, kept)?;
    let (mut there, mut lacking) = (in_force.clone(), None);
    loop {
        let whole = retain(&there, kept).map_err(|error| match lacking {
            Some(file) => no_path_without(file, &error),
            None => error,
        })?;
        let mut is_whole = true;
        for (version, route) in whole
            .iter()
            .flat_map(|(version, routes)| routes.iter().map(move |route| (version, route)))
        {
            if let Some(file) = files.lacking(route)? {
                there
                    .entry(*version)
                    .or_default()
                    .retain(|other| other != route);
                (lacking, is_whole) = (Some(file), false);
            }
        }
        if is_whole {
            let stays = |version: &u64, route: &Route| {
                [&retained, &whole]
                    .iter()
                    .any(|stay| stay[version].contains(route))
            };
            let stay = |(version, mut routes): (u64, Vec<Route>)| {
                routes.retain(|route| stays(&version, route));
                (version, routes)
            };
            return Ok(in_force.into_iter().map(stay).collect());
        }
    }
}

/// Refuses a list that shows that commits are missing (R-RET-05). If the loss is accepted, returns
/// the routes documents that show it.
fn check_commits(
    objects: &[StoredObject],
    history: &mut History,
    known: Option<(u64, Digest)>,
    accept_loss: bool,
) -> Result<BTreeSet<ObjectName>> {
    refuse_faults(history)?;
    if let Some((version, commit)) = known
        && history
            .entries
            .get(&version)
            .is_none_or(|entry| entry.digest != commit)
    {
        return Err(commits_missing(
            ObjectName::Commit(version),
            "it was published, but is not listed",
        ));
    }
    let head = history.entries.keys().next_back().copied();
    let stray: Vec<ObjectName> = history
        .route_faults
        .iter()
        .filter(|fault| fault.breaks(&["R-CHN-06"]))
        .filter_map(|fault| ObjectName::parse(fault.file()?))
        .collect();
    let is_lost = |name: ObjectName| match name {
        ObjectName::Routes { version, .. } => Some(version) > head || stray.contains(&name),
        _ => false,
    };
    let names = objects.iter().map(|object| object.name);
    let shows = |name: &ObjectName| is_lost(*name) || head.is_none() && *name != ObjectName::Chain;
    match names.clone().find(shows) {
        Some(name) if !accept_loss => Err(commits_missing(
            name,
            "it belongs to a commit that is missing",
        )),
        Some(_) => Ok(names.filter(|&name| is_lost(name)).collect()),
        None => Ok(BTreeSet::new()),
    }
}

/// Refuses to remove files that no document names if a note, or one of these files, shows that a
/// commit is missing (R-RET-04).
fn check_abandoned(
    store: &Store,
    objects: &[StoredObject],
    history: &History,
    old: &[StoredObject],
    keep: &Keep,
) -> Result<()> {
    if !keep.abandoned || keep.accept_loss {
        return Ok(());
    }
    let head = history.entries.keys().next_back().copied();
    let is_note = |object: &&StoredObject| matches!(object.name, ObjectName::Signature { version, .. } if Some(version) > head);
    if let Some(note) = objects.iter().find(is_note) {
        return Err(commits_missing(
            note.name,
            "it is a note on a commit that is missing",
        ));
    }
    let (named, versions) = (history.named(), versions_of(&history.entries));
    for file in old.iter().filter(|object| !named.contains(&object.name)) {
        if let Some((base, _)) = ends_of(store, file)?.filter(|(base, _)| is_lost(*base, &versions))
        {
            return Err(commits_missing(
                file.name,
                &format!("it starts from the state {base}, which no version has"),
            ));
        }
    }
    Ok(())
}

/// The objects that no route in force needs.
struct UnneededFiles {
    /// Objects that may be removed.
    old: Vec<StoredObject>,
    /// Objects that may be removed later.
    young: Vec<StoredObject>,
    /// Files that no document names, without those in `old`.
    unnamed: Vec<StoredObject>,
}

/// Finds the unneeded objects among the listed ones, by R-RET-02 to R-RET-04. `lost` are routes
/// documents of commits that are lost for good.
fn unneeded(
    objects: &[StoredObject],
    history: &History,
    now: SystemTime,
    lost: &BTreeSet<ObjectName>,
    keep: &Keep,
) -> UnneededFiles {
    let stored: BTreeMap<ObjectName, SystemTime> = objects
        .iter()
        .map(|object| (object.name, object.stored))
        .collect();
    // An object that is not in the list is stored by this prune, so it is young.
    let is_old = |name: ObjectName| stored.get(&name).is_some_and(|time| is_old(*time, now));
    let needed = names_of(history.entries.values().flat_map(|entry| &entry.routes));
    let named = history.named();
    // For each file, true if every document that names it was replaced long ago.
    let mut withdrawn: BTreeMap<ObjectName, bool> = BTreeMap::new();
    let mut superseded = BTreeMap::new();
    for (&version, entry) in &history.entries {
        for (generation, routes, by) in entry.replaced() {
            let (files, is_long_ago) = (names_of(routes), is_old(by));
            files
                .iter()
                .for_each(|&file| *withdrawn.entry(file).or_insert(true) &= is_long_ago);
            superseded.insert(
                ObjectName::Routes {
                    version,
                    generation,
                },
                (files, is_long_ago),
            );
        }
    }
    withdrawn.extend(
        names_of(&history.unusable)
            .into_iter()
            .map(|file| (file, false)),
    );
    let goes = |file: &ObjectName| {
        withdrawn
            .get(file)
            .is_some_and(|&is_long_ago| is_long_ago && is_old(*file))
    };
    let mut unneeded = UnneededFiles {
        old: Vec::new(),
        young: Vec::new(),
        unnamed: Vec::new(),
    };
    for object in objects {
        let may_go = match object.name {
            ObjectName::File(_) if needed.contains(&object.name) => continue,
            ObjectName::File(_) if named.contains(&object.name) => goes(&object.name),
            ObjectName::File(_) if keep.abandoned && is_old(object.name) => true,
            ObjectName::File(_) => {
                unneeded.unnamed.push(*object);
                continue;
            }
            ObjectName::Routes {
                version,
                generation,
            } => match superseded.get(&object.name) {
                // The document shows when its files were withdrawn, so it goes after them.
                Some((files, is_long_ago)) => {
                    *is_long_ago
                        && files.iter().all(|file| {
                            needed.contains(file) || !stored.contains_key(file) || goes(file)
                        })
                }
                // The document cannot be used. It is obsolete only below the one in force.
                None => match history.entries.get(&version) {
                    _ if lost.contains(&object.name) => is_old(object.name),
                    Some(entry) if generation < entry.source.generation() => is_old(entry.source),
                    _ => continue,
                },
            },
            ObjectName::Chain
            | ObjectName::Commit(_)
            | ObjectName::Asset(_)
            | ObjectName::Signature { .. } => continue,
        };
        if may_go {
            unneeded.old.push(*object);
        } else {
            unneeded.young.push(*object);
        }
    }
    unneeded
}

/// Refuses a list with other routes documents than expected, or without another expected object.
fn check_unchanged(objects: &[StoredObject], expected: &BTreeSet<ObjectName>) -> Result<()> {
    let listed: BTreeSet<ObjectName> = objects.iter().map(|object| object.name).collect();
    let mut differing = listed.symmetric_difference(expected);
    if let Some(&name) = differing
        .clone()
        .find(|name| matches!(name, ObjectName::Routes { .. }))
    {
        return Err(routes_taken(name));
    }
    match differing.find(|name| expected.contains(name)) {
        Some(&name) => Err(commits_missing(
            name,
            "it was listed a moment ago, but is not any more",
        )),
        None => Ok(()),
    }
}

/// Estimates the time without a probe: the time of this machine or of the newest object, whichever
/// is later.
#[expect(
    clippy::disallowed_methods,
    reason = "without a probe, this machine's time is the best that there is"
)]
pub(crate) fn probable_now(objects: &[StoredObject]) -> SystemTime {
    objects
        .iter()
        .map(|object| object.stored)
        .max()
        .unwrap_or(UNIX_EPOCH)
        .max(SystemTime::now())
}

/// Whether an object is old enough to be removed. A time after `now` is not in the past.
pub(crate) fn is_old(stored: SystemTime, now: SystemTime) -> bool {
    now.duration_since(stored).is_ok_and(|age| age > YOUNG)
}

pub(crate) fn bytes_of(objects: &[StoredObject]) -> u64 {
    objects
        .iter()
        .map(|object| object.size)
        .fold(0, u64::saturating_add)
}

fn names_of<'a>(routes: impl IntoIterator<Item = &'a Route>) -> BTreeSet<ObjectName> {
    routes
        .into_iter()
        .flat_map(|route| &route.files)
        .map(FileReference::name)
        .collect()
}
