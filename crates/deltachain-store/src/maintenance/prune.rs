//! Pruning (SPEC section 21): routes that nobody needs are withdrawn, and files that no route needs are removed. Assets stay.
//!
//! The age of a file is reckoned by the store's clock alone: from when the store says that the file was stored to when it
//! says that a document was stored that this prune has just written. A plan, which writes nothing, takes the newest
//! document instead; a file goes only if it is old by both, so that neither a clock that was once wrong nor one that has
//! been set back makes a young file old.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use deltachain::chain::{History, ObjectName, Route, RoutesDocument, retain, routes_taken};
use deltachain::{Limits, Progress, Result};

use crate::access::documents::{Stretch, stretch, whole};
use crate::access::store::{Store, StoredObject};
use crate::observer::{InPhase, Observer, Phase};

/// Files that were stored within this time stay: they may belong to a commit that is being made, or be on their way to a
/// reader (R-RET-02).
const YOUNG: Duration = Duration::from_hours(24);

/// So many objects are removed before the observer is asked whether to go on.
const BATCH: usize = 1000;

/// Which versions are kept. The head always is, and pruned versions are no longer there to be kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keep {
    /// So many of the newest.
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
    /// The objects that go: files that no route will name, and routes documents that are no longer in force.
    pub removed: Vec<StoredObject>,
    /// Files that no route will name and that stay because they are young.
    pub young: usize,
    /// By which routes are withdrawn. There is one at least if files go.
    documents: Vec<RoutesDocument>,
    head: Option<u64>,
    /// The routes documents that the plan was made by.
    seen: BTreeSet<ObjectName>,
}

impl PrunePlan {
    /// Bytes of the objects that go.
    pub fn removed_bytes(&self) -> u64 {
        self.removed.iter().map(|object| object.size).fold(0, u64::saturating_add)
    }
}

/// What a prune has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Objects that were removed.
    pub removed: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Objects of the plan that were left, because they turned out to be young or needed.
    pub left: usize,
}

/// Finds out what a prune has to do so that these versions are kept. Nothing is changed.
///
/// # Errors
/// R-RET-01 (`CHAIN`) if there is no path from nothing to a version that is to be kept; R-CHN-03 (`CHAIN`) if there is no
/// such version; the fault of a commit if there is any, since then nobody can tell what is needed; USAGE if the store cannot
/// list; IO.
pub fn plan_prune(store: &Store, keep: &Keep) -> Result<PrunePlan> {
    let Stretch { objects, history } = whole(store, &Limits::default())?;
    plan(&objects, history, keep)
}

fn plan(objects: &[StoredObject], mut history: History, keep: &Keep) -> Result<PrunePlan> {
    if let Some(fault) = history.commit_faults.drain(..).next() {
        return Err(fault);
    }
    let kept = keep.select(&history)?;
    let in_force: BTreeMap<u64, Vec<Route>> =
        history.entries.iter().map(|(&version, entry)| (version, entry.routes.clone())).collect();
    let retained = retain(&in_force, &kept)?;

    let mut documents = Vec::new();
    let mut withdrawn = Vec::new();
    // Generations from here on stay, for each version.
    let mut generations = BTreeMap::new();
    for (&version, entry) in &history.entries {
        let routes = &retained[&version];
        let mut generation = generation_of(entry.source);
        if *routes != entry.routes {
            let document = entry.successor(routes.clone());
            generation = document.generation;
            documents.push(document);
            if routes.is_empty() {
                withdrawn.push(version);
            }
        }
        generations.insert(version, generation);
    }

    let named = names_of(retained.values().flatten());
    let now = objects.iter().filter(|object| is_document(object.name)).map(|object| object.stored).max();
    let mut young = 0;
    let mut removed = Vec::new();
    for object in objects {
        match object.name {
            ObjectName::File(_) if named.contains(&object.name) => {}
            ObjectName::File(_) if now.is_none_or(|now| is_young(object, now)) => young += 1,
            ObjectName::File(_) => removed.push(*object),
            ObjectName::Routes { version, generation } => {
                if generations.get(&version).is_some_and(|&lowest| generation < lowest) {
                    removed.push(*object);
                }
            }
            ObjectName::Chain | ObjectName::Commit(_) | ObjectName::Asset(_) => {}
        }
    }
    let goes = |object: &StoredObject| !is_document(object.name);
    if let Some((_, head)) =
        history.entries.last_key_value().filter(|_| documents.is_empty() && removed.iter().any(goes))
    {
        // Nothing is withdrawn, but the time at which the store says that this was stored is needed: see `prune`.
        documents.push(head.successor(head.routes.clone()));
    }
    Ok(PrunePlan {
        kept: kept.into_iter().collect(),
        withdrawn,
        removed,
        young,
        documents,
        head: history.entries.keys().next_back().copied(),
        seen: routes_documents(objects),
    })
}

/// Does what a plan says, unless the chain's routes have changed since. Versions that have been published since keep what
/// they need. Maintenance of a chain is done by one process at a time.
///
/// # Errors
/// R-PUB-06 (`CHAIN`) if routes documents have come or gone since the plan was made: make another; faults of commits; IO;
/// what the observer wants it to end with.
pub fn prune(store: &Store, plan: &PrunePlan, observer: &dyn Observer) -> Result<Pruned> {
    check_unchanged(&store.objects()?, &plan.seen)?;
    let mut expected = plan.seen.clone();
    let mut written = BTreeSet::new();
    // From the highest version down: wherever it stops, no route is left that comes from a version which has gone.
    for document in plan.documents.iter().rev() {
        let name = ObjectName::Routes { version: document.version, generation: document.generation };
        let bytes = document.to_bytes()?;
        if !store.put_if_absent(name, &bytes)? && store.get(name)?.as_ref() != Some(&bytes) {
            return Err(routes_taken(name));
        }
        written.insert(name);
    }
    expected.extend(&written);

    let first = plan.head.map_or(0, |head| head + 1);
    let Stretch { objects, mut history } = stretch(store, |_| first..=u64::MAX, &Limits::default())?;
    if let Some(fault) = history.commit_faults.drain(..).next() {
        return Err(fault);
    }
    check_unchanged(&objects, &expected)?;
    let named = names_of(history.entries.values().flat_map(|entry| &entry.routes));
    let now = objects.iter().filter(|object| written.contains(&object.name)).map(|object| object.stored).max();
    let planned: BTreeSet<ObjectName> = plan.removed.iter().map(|object| object.name).collect();
    // As they are now: a file may have been stored again.
    let going: Vec<StoredObject> = objects
        .into_iter()
        .filter(|object| planned.contains(&object.name) && !named.contains(&object.name))
        .filter(|object| is_document(object.name) || now.is_some_and(|now| !is_young(object, now)))
        .collect();
    let bytes = going.iter().map(|object| object.size).fold(0, u64::saturating_add);
    let phase = InPhase::begin(observer, Phase::Check, bytes);
    for batch in going.chunks(BATCH) {
        store.delete(&batch.iter().map(|object| object.name).collect::<Vec<_>>())?;
        phase.advance(batch.iter().map(|object| object.size).fold(0, u64::saturating_add))?;
    }
    Ok(Pruned { removed: going.len(), bytes, left: plan.removed.len().saturating_sub(going.len()) })
}

/// Refuses a chain with other routes documents than those expected.
fn check_unchanged(objects: &[StoredObject], expected: &BTreeSet<ObjectName>) -> Result<()> {
    routes_documents(objects).symmetric_difference(expected).next().map_or(Ok(()), |&name| Err(routes_taken(name)))
}

fn generation_of(source: ObjectName) -> u64 {
    if let ObjectName::Routes { generation, .. } = source { generation } else { 0 }
}

fn is_document(name: ObjectName) -> bool {
    !matches!(name, ObjectName::File(_) | ObjectName::Asset(_))
}

/// Whether a file may be needed by somebody who has not said so yet. A time after `now` is none of the past.
fn is_young(object: &StoredObject, now: SystemTime) -> bool {
    now.duration_since(object.stored).is_ok_and(|age| age <= YOUNG) || object.stored > now
}

fn names_of<'a>(routes: impl Iterator<Item = &'a Route>) -> BTreeSet<ObjectName> {
    routes.flat_map(|route| &route.files).map(deltachain::chain::FileReference::name).collect()
}

fn routes_documents(objects: &[StoredObject]) -> BTreeSet<ObjectName> {
    objects.iter().map(|object| object.name).filter(|name| matches!(name, ObjectName::Routes { .. })).collect()
}
