//! Properties of chains and of their documents.

use std::cell::Cell;

use deltachain::chain::{
    ChainDocument, Commit, FileReference, Hop, Listing, ObjectName, Plan, Planner, RoutesDocument,
    VersionId, check_target, check_union,
};
use deltachain::tensor::{Digest, MemoryState, State, StateDigests};
use deltachain::{Error, Limits, LinkReader, Result, apply};

use crate::archive::{ACCEPTED, Archive, FORKED, MOVED, Store};
use crate::memory::{peak_of, single_threaded};
use crate::raw::{limits, refused_by_rule};

/// Parses any bytes as each kind of document: a rule refuses them, or writing the document again
/// gives the same bytes.
pub fn document(data: &[u8]) {
    let limits = Limits::default();
    has_one_form(
        data,
        || ChainDocument::parse(data, &limits),
        ChainDocument::to_bytes,
    );
    has_one_form(data, || Commit::parse(data, &limits), Commit::to_bytes);
    has_one_form(
        data,
        || RoutesDocument::parse(data, &limits),
        RoutesDocument::to_bytes,
    );
}

/// Checks that the memory for parsing is proportional to the text, and that writing the document
/// gives the same bytes.
fn has_one_form<T>(
    data: &[u8],
    parse: impl FnOnce() -> Result<T>,
    write: impl FnOnce(&T) -> Result<Vec<u8>>,
) {
    let (document, peak) = peak_of(parse);
    refused_by_rule(&document);
    let bound = 4096 + 4 * data.len() as u64;
    assert!(
        peak <= bound,
        "{} bytes made the reader allocate {peak}, at most {bound}",
        data.len()
    );
    if let Ok(document) = document {
        assert_eq!(
            write(&document).expect("what was read can be written"),
            data,
            "writing the document again gives other bytes"
        );
    }
}

/// Reads any objects as a chain, to the end, with a reader that holds nothing or a version that it
/// has read before.
pub fn chain(data: &[u8]) {
    single_threaded();
    let Some(archive) = Archive::parse(data) else {
        return;
    };
    let (before, now) = archive.stores();
    let held = archive
        .held()
        .and_then(|version| Reader::new(&before).replay(Some(version), None).ok());
    let held = held.map(|mut held| {
        held.commit.0[0] ^= u8::from(archive.flags & FORKED != 0);
        held.chain.0[0] ^= u8::from(archive.flags & MOVED != 0);
        held
    });
    let held = held.as_ref();
    let reader = Reader::new(&now);
    let from_nothing = reader.replay(archive.wanted(), None);
    // Only a commit that exists can be accepted.
    let accept = match &from_nothing {
        Ok(reached) if archive.flags & ACCEPTED != 0 => Some(reached.commit),
        _ => None,
    };
    let reader = Reader { accept, ..reader };
    let first = reader.replay(archive.wanted(), held);
    refused_by_rule(&first);
    same(&first, &from_nothing);
    // Accepting the commit that is held has no effect.
    let step = accept.filter(|accept| held.is_none_or(|held| held.commit != *accept));
    assert!(
        step.is_none() || first.is_ok(),
        "the accepted commit cannot be reached: {:?}",
        first.err()
    );
    assert!(
        step.is_some() || held.is_none() || archive.flags & MOVED == 0 || first.is_err(),
        "a version of another chain was followed"
    );

    // The failure that is met first decides only which error is reported.
    let backwards = Reader {
        backwards: true,
        ..reader
    };
    let other = backwards.replay(archive.wanted(), held);
    refused_by_rule(&other);
    assert_eq!(
        first.is_ok(),
        other.is_ok(),
        "{:?} or {:?}",
        first.as_ref().err(),
        other.as_ref().err()
    );
    same(&first, &other);

    // A damaged object can make a version unreachable, but cannot change its state.
    let wanted = first
        .as_ref()
        .map_or(archive.wanted(), |first| Some(first.version));
    let names: Vec<ObjectName> = now.objects.keys().copied().collect();
    let Some(&name) = names.get(usize::from(archive.fault) % names.len().max(1)) else {
        return;
    };
    for fault in [Fault::Missing, Fault::Damaged] {
        let failing = Reader {
            fault: Some((name, fault)),
            ..reader
        };
        let result = failing.replay(wanted, held);
        refused_by_rule(&result);
        same(&first, &result);
    }
}

/// Checks that two readers of one version have the same state.
fn same(first: &Result<Reached>, second: &Result<Reached>) {
    if let (Ok(first), Ok(second)) = (first, second) {
        assert_eq!(first.version, second.version);
        assert!(
            first.shards == second.shards,
            "version {} has two states",
            first.version
        );
    }
}

/// A version that a reader has reached.
#[derive(Debug)]
struct Reached {
    version: u64,
    commit: Digest,
    chain: Digest,
    shards: Vec<MemoryState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The object is listed, but does not exist.
    Missing,
    /// One bit of the object has flipped.
    Damaged,
}

/// A reader of a chain in memory.
#[derive(Clone, Copy)]
struct Reader<'a> {
    store: &'a Store,
    accept: Option<Digest>,
    /// True if the reader supplies one object at a time, the last first, and reads the last file
    /// first.
    backwards: bool,
    fault: Option<(ObjectName, Fault)>,
}

impl<'a> Reader<'a> {
    fn new(store: &'a Store) -> Self {
        Self {
            store,
            accept: None,
            backwards: false,
            fault: None,
        }
    }

    /// Reads an object.
    fn get(&self, name: ObjectName) -> Option<Vec<u8>> {
        let mut content = self.store.objects.get(&name)?.clone();
        match self.fault.filter(|(failing, _)| *failing == name) {
            Some((_, Fault::Missing)) => return None,
            Some((_, Fault::Damaged)) => {
                let middle = content.len() / 2;
                content
                    .get_mut(middle)?
                    .clone_from(&(self.store.objects[&name][middle] ^ 1));
            }
            None => {}
        }
        Some(content)
    }

    /// Runs all steps of SPEC section 19.
    fn replay(&self, wanted: Option<u64>, held: Option<&Reached>) -> Result<Reached> {
        let recorded = held.map(|held| VersionId {
            version: held.version,
            commit: held.commit,
            chain: held.chain,
        });
        let mut planner = Planner::new(wanted, recorded, self.accept, &limits());
        let bytes: usize = self.store.objects.values().map(Vec::len).sum();
        // The planner asks for each object once, and for some that would come after the last one;
        // each plan that fails rules out a route.
        let mut patience = 1200 + 4 * self.store.objects.len() + bytes;
        loop {
            let (plan, peak) = peak_of(|| self.plan(&mut planner, &mut patience));
            let bound = (1 << 20) + 64 * bytes as u64;
            assert!(
                peak <= bound,
                "a chain of {bytes} bytes made the planner allocate {peak}, at most {bound}"
            );
            let plan = plan?;
            self.check(&plan, wanted, held);
            match self.follow(&plan, held) {
                Ok(shards) => {
                    let whole = union(&shards);
                    assert_eq!(
                        digests(&whole).state,
                        plan.state,
                        "a wrong state was accepted"
                    );
                    return Ok(Reached {
                        version: plan.version,
                        commit: plan.commit,
                        chain: plan.chain,
                        shards,
                    });
                }
                Err(Failure::File(file, error)) => planner.fail_file(file, error),
                Err(Failure::Route(hop, error)) => planner.fail_route(hop, error),
                Err(Failure::Final(error)) => return Err(error),
            }
        }
    }

    fn plan(&self, planner: &mut Planner, patience: &mut usize) -> Result<Plan> {
        let left = Cell::new(*patience);
        let spend = |cost: usize| {
            left.set(
                left.get()
                    .checked_sub(cost)
                    .expect("the planner does not end"),
            );
        };
        let list = |from, _| {
            spend(1);
            Ok(self.list(from))
        };
        let fetch = |names: &[ObjectName], _| {
            assert!(!names.is_empty(), "the planner asks for no object");
            spend(if self.backwards { 1 } else { names.len() });
            let first = if self.backwards { names.len() - 1 } else { 0 };
            Ok(names[first..]
                .iter()
                .map(|&name| (name, self.get(name)))
                .collect())
        };
        let plan = planner.plan_with(list, fetch);
        *patience = left.get();
        plan
    }

    /// Lists the names that a store returns for versions from this one on.
    fn list(&self, from: u64) -> Listing {
        let is_listed = |name: &String| match ObjectName::parse(name) {
            Some(ObjectName::Commit(version) | ObjectName::Routes { version, .. }) => {
                version >= from
            }
            _ => true,
        };
        Listing::new(self.store.names().into_iter().filter(is_listed))
    }

    /// Checks that a plan is a path: a chain of routes that start from nothing or the held version
    /// and end at the version wanted.
    fn check(&self, plan: &Plan, wanted: Option<u64>, held: Option<&Reached>) {
        assert!(wanted.is_none_or(|wanted| wanted == plan.version));
        let commit = self
            .get(ObjectName::Commit(plan.version))
            .expect("the version has a commit");
        assert_eq!(plan.commit, Digest::of_bytes(&commit));
        let commit = Commit::parse(&commit, &limits()).expect("the commit is valid");
        assert_eq!((plan.state, &plan.shards), (commit.state, &commit.shards));
        let sizes = plan
            .hops
            .iter()
            .flat_map(|hop| &hop.files)
            .map(|file| u128::from(file.size));
        assert_eq!(plan.bytes, sizes.sum());
        let chain = self
            .get(ObjectName::Chain)
            .expect("the chain document exists");
        assert_eq!(
            (plan.chain, &plan.assets),
            (Digest::of_bytes(&chain), &commit.assets)
        );
        let start = if plan.start.is_some() { held } else { None };
        let shards = start.map(|start| {
            start
                .shards
                .iter()
                .map(|shard| digests(shard).state)
                .collect::<Vec<_>>()
        });
        assert_eq!(plan.start, shards, "the plan starts from another version");
        let mut at = start.map(|start| start.version);
        for hop in &plan.hops {
            assert!(hop.from == at && hop.from < Some(hop.version));
            assert!(hop.files.len() == hop.shards.len() && hop.shards.len() == plan.shards.len());
            at = Some(hop.version);
        }
        assert_eq!(at, Some(plan.version));
    }

    /// Runs steps 5 and 6.
    fn follow<'p>(
        &self,
        plan: &'p Plan,
        held: Option<&Reached>,
    ) -> Result<Vec<MemoryState>, Failure<'p>> {
        if self.backwards {
            for file in plan
                .hops
                .iter()
                .rev()
                .flat_map(|hop| hop.files.iter().rev())
            {
                self.fetch(file)
                    .map_err(|error| Failure::File(file, error))?;
            }
        }
        let mut shards = match held {
            Some(held) if plan.start.is_some() => held.shards.clone(),
            _ => vec![MemoryState::new(); plan.shards.len()],
        };
        for hop in &plan.hops {
            for ((file, target), shard) in hop.files.iter().zip(&hop.shards).zip(&mut shards) {
                let bytes = self
                    .fetch(file)
                    .map_err(|error| Failure::File(file, error))?;
                let next = LinkReader::open(bytes, &limits()).and_then(|link| {
                    check_target(link.header(), *target)?;
                    apply(&*shard, &link)
                });
                *shard = next.map_err(|error| Failure::Route(hop, error))?;
            }
        }
        let digests: Vec<StateDigests> = shards.iter().map(digests).collect();
        check_union(plan.state, shards.iter().map(State::tensors).zip(&digests))
            .map_err(Failure::Final)?;
        Ok(shards)
    }

    fn fetch(&self, file: &FileReference) -> Result<Vec<u8>> {
        let bytes = self.get(file.name()).ok_or_else(|| file.missing())?;
        file.check(bytes.len() as u64, Digest::of_bytes(&bytes))?;
        Ok(bytes)
    }
}

/// Reason why a plan could not be followed.
enum Failure<'p> {
    File(&'p FileReference, Error),
    Route(&'p Hop, Error),
    Final(Error),
}

fn digests(state: &MemoryState) -> StateDigests {
    StateDigests::of(state, &()).expect("memory can be read")
}

fn union(shards: &[MemoryState]) -> MemoryState {
    let mut whole = MemoryState::new();
    for (info, data) in shards.iter().flat_map(MemoryState::iter) {
        whole
            .insert(info.name(), info.dtype(), info.shape(), data.to_vec())
            .expect("the data fits its shape");
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::SEALED;
    use crate::seeds::{files_below, unpacked};

    #[test]
    fn valid_chains_are_read() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../conformance/vectors/chains/valid");
        let files = files_below(&folder).unwrap();
        assert!(files.len() >= 25);
        for path in files {
            let named = unpacked(&std::fs::read(&path).unwrap());
            if !named.iter().any(|(name, _)| name.starts_with("files/")) {
                // The vector is only for the operation *plan*.
                continue;
            }
            let mut archive = Archive::of(named);
            for flags in [0, SEALED] {
                archive.flags = flags;
                let archive = Archive::parse(&archive.to_bytes()).unwrap();
                let (before, now) = archive.stores();
                let reached = Reader::new(&now)
                    .replay(None, None)
                    .unwrap_or_else(|error| panic!("{path:?}: {error}"));
                assert_eq!(
                    Some(reached.version),
                    now.objects.keys().filter_map(version_of_commit).max()
                );
                // A reader that holds the head has nothing to do.
                let again = Reader::new(&before).replay(None, Some(&reached)).unwrap();
                assert!(again.shards == reached.shards);
            }
        }
    }

    fn version_of_commit(name: &ObjectName) -> Option<u64> {
        if let ObjectName::Commit(version) = name {
            Some(*version)
        } else {
            None
        }
    }
}
