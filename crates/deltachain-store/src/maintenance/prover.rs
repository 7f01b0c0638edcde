//! Proves a chain: applies every link of every route in force, and compares the results with the
//! commits.
//!
//! One directory per shard is brought to each version that routes come from, in ascending order.
//! From there each link is applied, and its result is not written.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::path::Path;

use deltachain::chain::{
    FileReference, HistoryEntry, LayoutProof, ObjectName, Route, check_target, check_union,
    named_layouts,
};
use deltachain::tensor::{Digest, MemoryState, StateDigests};
use deltachain::{Error, Limits, LinkReader, Replay, Result, StateTable};

use crate::access::store::Store;
use crate::access::stored_link::StoredLink;
use crate::observer::{InPhase, Observer, Phase};
use crate::publishing::kept::{KeptPlace, KeptVersion};
use crate::publishing::model::End;

/// Proves routes.
pub(crate) struct RouteProver<'a> {
    pub(crate) store: &'a Store,
    pub(crate) entries: &'a BTreeMap<u64, HistoryEntry>,
    pub(crate) place: &'a Path,
    pub(crate) limits: &'a Limits,
    pub(crate) observer: &'a dyn Observer,
    /// Files that are known to be damaged or missing.
    pub(crate) bad_files: BTreeSet<FileReference>,
    /// The directory of each shard, by its number and the number of shards.
    pub(crate) kept: BTreeMap<(usize, usize), KeptVersion>,
}

/// A route, and the version that it leads to.
type ProposedRoute<'a> = (&'a HistoryEntry, &'a Route);

impl<'a> RouteProver<'a> {
    /// Proves all routes and adds faults to `problems`. Returns the number of versions that could
    /// be built.
    pub(crate) fn prove_all(mut self, problems: &mut Vec<Error>) -> Result<usize> {
        // The routes by the version that they come from, and by their number of shards.
        let mut groups: BTreeMap<(Option<u64>, usize), Vec<ProposedRoute<'a>>> = BTreeMap::new();
        for entry in self.entries.values() {
            let intact =
                |route: &&Route| !route.files.iter().any(|file| self.bad_files.contains(file));
            for route in entry.routes.iter().filter(intact) {
                groups
                    .entry((route.from, route.files.len()))
                    .or_default()
                    .push((entry, route));
            }
        }
        let mut built = BTreeSet::new();
        for ((source, of), routes) in groups {
            let entry = source.and_then(|source| self.entries.get(&source));
            if let Some(entry) = entry.filter(|entry| entry.routes.is_empty()) {
                // This is not a fault: a follower that still holds the version can use the routes.
                // Compaction from a held version makes such routes.
                let version = entry.commit.version;
                self.observer.remark(&format!(
                    "skipping routes from version {version}, which has been pruned"
                ));
                continue;
            }
            let Some(digests) = note(problems, self.bring_all_to(source, of))? else {
                continue;
            };
            for (entry, route) in routes {
                if note(problems, self.prove(entry, route, &digests))?.is_some() {
                    built.insert(entry.commit.version);
                }
            }
        }
        Ok(built.len())
    }

    /// Applies the links of a route to the shards that it comes from, which have these digests.
    fn prove(&self, entry: &HistoryEntry, route: &Route, digests: &[StateDigests]) -> Result<()> {
        let of = route.files.len();
        let mut built: Vec<StateTable> = Vec::with_capacity(of);
        let named = named_layouts(&entry.commit.metadata, of);
        for (shard, ((file, target), digests)) in route
            .files
            .iter()
            .zip(&entry.commit.shards)
            .zip(digests)
            .enumerate()
        {
            let nothing = End {
                state: &MemoryState::new(),
                layout: None,
                named: None,
                digests: None,
            };
            let base = match route.from {
                Some(_) => self.kept.get(&(shard, of)).and_then(|kept| kept.end(shard)),
                None => None,
            };
            let base = base.unwrap_or(nothing);
            let named = named.as_ref().and_then(|named| named.get(shard));
            let applied = self.apply((base, digests), file, (*target, named));
            built.push(applied.map_err(|error| error.in_file(file.name().to_string()))?);
        }
        check_union(
            entry.commit.state,
            built
                .iter()
                .map(|table| (table.tensors.as_slice(), &table.digests)),
        )
        .map_err(|error| error.in_file(ObjectName::Commit(entry.commit.version).to_string()))
    }

    /// Brings the directories of all shards to a version, and returns the digests of the shards.
    /// Without a version, these are the digests of empty shards.
    fn bring_all_to(&mut self, source: Option<u64>, of: usize) -> Result<Vec<StateDigests>> {
        let Some(version) = source else {
            return Ok(vec![StateDigests::from_tensors(&[], Vec::new()); of]);
        };
        let mut digests = Vec::with_capacity(of);
        for shard in 0..of {
            let observer = self.observer;
            let built = self
                .kept_shard(shard, of)?
                .bring_to(version, None, observer)?;
            digests.push(StateDigests::of(built.state, &())?);
        }
        Ok(digests)
    }

    /// Returns the directory of a shard, and opens it when it is first needed.
    fn kept_shard(&mut self, shard: usize, of: usize) -> Result<&mut KeptVersion> {
        match self.kept.entry((shard, of)) {
            Entry::Occupied(kept) => Ok(kept.into_mut()),
            Entry::Vacant(place) => {
                let directory = self.place.join(format!("{shard}-of-{of}"));
                let kept = KeptPlace::Lasting(&directory);
                let kept = KeptVersion::open(self.store, kept, (shard, of), self.limits)?;
                Ok(place.insert(kept))
            }
        }
    }

    /// Applies a link, which must lead to a shard with this digest, and to the layout that the
    /// commit names.
    fn apply(
        &self,
        (base, digests): (End<'_>, &StateDigests),
        file: &FileReference,
        (target, named): (Digest, Option<&Digest>),
    ) -> Result<StateTable> {
        let link = LinkReader::open(StoredLink::new(self.store, *file, &()), self.limits)?;
        check_target(link.header(), target)?;
        let table = StateTable {
            tensors: base.state.tensors().to_vec(),
            digests: digests.clone(),
        };
        let mut replay = Replay::new(table).with_layout(base.layout.cloned());
        replay.push(&link)?;
        replay.layout().map_or(Ok(()), |layout| {
            LayoutProof::default().compare(named, || layout.digest())
        })?;
        replay.prove(
            base.state,
            &InPhase::begin(self.observer, Phase::Build, replay.work()),
        )?;
        Ok(replay.table().clone())
    }
}

/// Adds a fault of the chain to `problems`, unless it is known; any other failure ends the work.
fn note<T>(problems: &mut Vec<Error>, result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.rule().is_some() => {
            let place = |error: &Error| (error.rule(), error.file().map(str::to_owned));
            if !problems.iter().any(|known| place(known) == place(&error)) {
                problems.push(error);
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
