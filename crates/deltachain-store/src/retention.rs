//! Pruning (SPEC section 21): routes that nobody needs are withdrawn, and files that no route needs are removed a day later. Assets
//! stay.
//!
//! Ages are reckoned by the store's clock alone: from when the store says that an object was stored to when it says that a
//! probe was stored that this prune has just written. A plan, which writes nothing, takes the time of this machine or of the
//! newest object instead, and only foretells what will go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use deltachain::chain::{History, ObjectName, Route, RoutesDocument, retain, routes_taken};
use deltachain::{Error, Limits, Progress, Result};

use crate::access::documents::{Documents, Stretch, whole};
use crate::access::partial::Partial;
use crate::access::store::{Store, StoredObject};
use crate::observer::{InPhase, Observer, Phase};

/// What was stored or withdrawn within this time stays: it may belong to a commit that is being made, or be on its way to a
/// reader (R-RET-02).
const YOUNG: Duration = Duration::from_hours(24);

/// How many objects are removed before the observer is asked whether to go on.
const BATCH: usize = 1000;

/// Which versions are kept. The head always is, and pruned versions are no longer there to be kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keep {
    /// How many of the newest versions.
    pub last: u64,
    /// Those whose number is a multiple of this one.
    pub every: Option<u64>,
    /// These.
    pub versions: Vec<u64>,
}

impl Keep {
    /// The versions of a chain that are kept.
    fn select(&self, history: &History) -> Result<BTreeSet<u64>> {
        let Some((&head, _)) = history.entries.last_key_value() else { return Ok(BTreeSet::new()) };
        let mut kept: BTreeSet<u64> = self.versions.iter().copied().chain([head]).collect();
        for &version in &kept {
            history.entry(version)?;
        }
        let rule =
            |version: u64| head - version < self.last || self.every.is_some_and(|every| version.is_multiple_of(every));
        let not_pruned = history.entries.iter().filter(|(_, entry)| !entry.routes.is_empty());
        kept.extend(not_pruned.map(|(&version, _)| version).filter(|&version| rule(version)));
        Ok(kept)
    }
}

/// What a prune will do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrunePlan {
    /// The versions that are kept.
    pub kept: Vec<u64>,
    /// The versions that lose their last route. Other versions may lose routes, and stay because a version that is kept is
    /// built from them.
    pub withdrawn: Vec<u64>,
    /// The objects that go, as it seems now: files that no route will name, and routes documents that are no longer in force.
    pub removed: Vec<StoredObject>,
    /// Objects that nothing will need and that stay for now, because they were stored or withdrawn within the last 24 hours, or are
    /// withdrawn by this prune. A prune that runs a day later removes them.
    pub young: Vec<StoredObject>,
    /// Parts of objects in a chain's directory that writers left behind which were killed. They go when they are old.
    pub partials: Vec<Partial>,
    /// By which routes are withdrawn.
    documents: Vec<RoutesDocument>,
    /// The routes documents that the plan was made by.
    seen: BTreeSet<ObjectName>,
    read: Documents,
}

impl PrunePlan {
    /// Bytes of the objects that go.
    pub fn removed_bytes(&self) -> u64 {
        bytes_of(&self.removed)
    }

    /// The documents that have been read.
    pub(crate) fn into_documents(self) -> Documents {
        self.read
    }
}

/// What a prune has done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The objects that were removed.
    pub removed: Vec<StoredObject>,
    /// Objects that nothing needs and that stay because they are young: a prune that runs a day later removes them.
    pub young: Vec<StoredObject>,
    /// Parts of objects that were removed.
    pub partials: Vec<Partial>,
}

impl Pruned {
    /// Bytes of the objects that were removed.
    pub fn removed_bytes(&self) -> u64 {
        bytes_of(&self.removed)
    }

    /// Bytes of the objects that stay for now.
    pub fn young_bytes(&self) -> u64 {
        bytes_of(&self.young)
    }
}

/// Finds out what a prune has to do so that these versions are kept. Nothing is changed.
///
/// # Errors
/// R-RET-01 (`CHAIN`) if there is no path from nothing to a version to keep; R-CHN-03 (`CHAIN`) if a version does not
/// exist; the fault of a commit, if one has a fault, because then it is unknown which files are needed; USAGE if the
/// store cannot list; IO.
pub fn plan_prune(store: &Store, keep: &Keep) -> Result<PrunePlan> {
    plan_again(store, keep, Documents::new())
}

/// As [`plan_prune`], for a caller that has these documents already.
#[expect(clippy::disallowed_methods, reason = "without a probe, this machine's time is the best that there is")]
pub(crate) fn plan_again(store: &Store, keep: &Keep, mut read: Documents) -> Result<PrunePlan> {
    if !store.can_list() {
        return Err(Error::usage("this store cannot be listed, so it cannot be pruned").in_file(store.to_string()));
    }
    let Stretch { objects, mut history } = whole(store, &mut read, &Limits::default())?;
    if let Some(fault) = history.commit_faults.drain(..).next() {
        return Err(fault);
    }
    let kept = keep.select(&history)?;
    let in_force: BTreeMap<u64, Vec<Route>> =
        history.entries.iter().map(|(&version, entry)| (version, entry.routes.clone())).collect();
    let retained = retain(&in_force, &kept)?;

    let mut documents = Vec::new();
    let mut withdrawn = Vec::new();
    for (version, entry) in &mut history.entries {
        let routes = &retained[version];
        if *routes == entry.routes {
            continue;
        }
        let document = entry.successor(routes.clone(), |_| false);
        if routes.is_empty() {
            withdrawn.push(*version);
        }
        // As it will be.
        let (version, generation) = (document.version, document.generation);
        let before = std::mem::replace(&mut entry.source, ObjectName::Routes { version, generation });
        let routes = std::mem::replace(&mut entry.routes, document.routes.clone());
        entry.superseded.insert(before.generation(), routes);
        documents.push(document);
    }
    let newest = objects.iter().map(|object| object.stored).max();
    let now = newest.unwrap_or(UNIX_EPOCH).max(SystemTime::now());
    let Unneeded { old, young } = unneeded(&objects, &history, now);
    Ok(PrunePlan {
        kept: kept.into_iter().collect(),
        withdrawn,
        removed: old,
        young,
        partials: store.partials()?.into_iter().filter(|partial| is_old(partial.stored, now)).collect(),
        documents,
        seen: routes_documents(&objects),
        read,
    })
}

/// Does what a plan says, unless the chain's routes have changed since. Versions that are published meanwhile keep the
/// files that they need; publishers need not stop. Maintenance of a chain is done by one process at a time.
///
/// # Errors
/// R-PUB-06 (`CHAIN`) if routes documents have come or gone since the plan was made: make another; faults of commits; IO;
/// what the observer wants it to end with.
pub fn prune(store: &Store, plan: &PrunePlan, observer: &dyn Observer) -> Result<Pruned> {
    check_unchanged(&store.objects()?, &plan.seen)?;
    let mut expected = plan.seen.clone();
    // From the highest version down: wherever it stops, no route is left that comes from a version which has gone.
    for document in plan.documents.iter().rev() {
        let name = ObjectName::Routes { version: document.version, generation: document.generation };
        let bytes = document.to_bytes()?;
        if !store.put_if_absent(name, &bytes)? && store.get(name)?.as_ref() != Some(&bytes) {
            return Err(routes_taken(name));
        }
        expected.insert(name);
    }

    // The order matters: a document that is listed later was stored before this, or names no file that is old by then.
    let now = store.now()?;
    store.remove_probes(now.checked_sub(YOUNG).unwrap_or(UNIX_EPOCH))?;
    let Stretch { objects, mut history } = whole(store, &mut plan.read.clone(), &Limits::default())?;
    if let Some(fault) = history.commit_faults.drain(..).next() {
        return Err(fault);
    }
    check_unchanged(&objects, &expected)?;
    let Unneeded { old, young } = unneeded(&objects, &history, now);
    // Files first: as long as the documents are there, everybody can tell when their files were withdrawn.
    let (files, documents): (Vec<StoredObject>, Vec<StoredObject>) =
        old.iter().copied().partition(|object| matches!(object.name, ObjectName::File(_)));
    let phase = InPhase::begin(observer, Phase::Check, bytes_of(&old));
    for batch in files.chunks(BATCH).chain(documents.chunks(BATCH)) {
        store.delete(&batch.iter().map(|object| object.name).collect::<Vec<_>>())?;
        phase.advance(bytes_of(batch))?;
    }
    let mut partials = store.partials()?;
    partials.retain(|partial| is_old(partial.stored, now));
    for Partial { path, .. } in &partials {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("removing", error).in_file(path));
            }
            _ => {}
        }
    }
    Ok(Pruned { removed: old, young, partials })
}

/// What no route in force needs.
struct Unneeded {
    /// What may be removed.
    old: Vec<StoredObject>,
    /// What may be removed later.
    young: Vec<StoredObject>,
}

/// R-RET-02 and R-RET-03, for the listed objects.
fn unneeded(objects: &[StoredObject], history: &History, now: SystemTime) -> Unneeded {
    let stored: BTreeMap<ObjectName, SystemTime> = objects.iter().map(|object| (object.name, object.stored)).collect();
    // What is not there yet is stored by this prune.
    let is_old = |name: ObjectName| stored.get(&name).is_some_and(|time| is_old(*time, now));
    let needed = names_of(history.entries.values().flat_map(|entry| &entry.routes));
    let mut withdrawn_lately = BTreeSet::new();
    let mut superseded = BTreeMap::new();
    for (&version, entry) in &history.entries {
        let successors = entry.superseded.keys().skip(1).copied().chain([entry.source.generation()]);
        for ((&generation, routes), next) in entry.superseded.iter().zip(successors) {
            let is_long_ago = is_old(ObjectName::Routes { version, generation: next });
            superseded.insert(ObjectName::Routes { version, generation }, is_long_ago);
            if !is_long_ago {
                withdrawn_lately.extend(names_of(routes.iter()));
            }
        }
    }
    let mut unneeded = Unneeded { old: Vec::new(), young: Vec::new() };
    for object in objects {
        let may_go = match object.name {
            ObjectName::File(_) if needed.contains(&object.name) => continue,
            ObjectName::File(_) => is_old(object.name) && !withdrawn_lately.contains(&object.name),
            ObjectName::Routes { version, generation } => match superseded.get(&object.name) {
                Some(&is_long_ago) => is_long_ago,
                // It cannot be used. Only below the one in force does it mean nothing any more.
                None => match history.entries.get(&version) {
                    Some(entry) if generation < entry.source.generation() => is_old(entry.source),
                    _ => continue,
                },
            },
            ObjectName::Chain | ObjectName::Commit(_) | ObjectName::Asset(_) | ObjectName::Signature { .. } => continue,
        };
        if may_go { unneeded.old.push(*object) } else { unneeded.young.push(*object) }
    }
    unneeded
}

/// Refuses a chain with other routes documents than those expected.
fn check_unchanged(objects: &[StoredObject], expected: &BTreeSet<ObjectName>) -> Result<()> {
    routes_documents(objects).symmetric_difference(expected).next().map_or(Ok(()), |&name| Err(routes_taken(name)))
}

/// A time after `now` is none of the past.
fn is_old(stored: SystemTime, now: SystemTime) -> bool {
    now.duration_since(stored).is_ok_and(|age| age > YOUNG)
}

fn bytes_of(objects: &[StoredObject]) -> u64 {
    objects.iter().map(|object| object.size).fold(0, u64::saturating_add)
}

fn names_of<'a>(routes: impl Iterator<Item = &'a Route>) -> BTreeSet<ObjectName> {
    routes.flat_map(|route| &route.files).map(deltachain::chain::FileReference::name).collect()
}

fn routes_documents(objects: &[StoredObject]) -> BTreeSet<ObjectName> {
    objects.iter().map(|object| object.name).filter(|name| matches!(name, ObjectName::Routes { .. })).collect()
}
