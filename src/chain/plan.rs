//! What planning starts from and ends with.

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::{FileReference, ObjectName};
use crate::tensor::Digest;

/// The version that a reader holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The version.
    pub version: u64,
    /// Digest of the bytes of its commit, recorded when the version was reached.
    pub commit: Digest,
}

/// What lists of a chain's objects have shown: the head, and which routes documents there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    pub(super) head: Option<u64>,
    generations: BTreeMap<u64, BTreeSet<u64>>,
}

impl Listing {
    /// From names below the chain's prefix, in any order. Names that are no part of the chain are ignored. The commits
    /// are needed from any version on that is known to exist, and only to find the head.
    pub fn new(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut listing = Self::default();
        for name in names {
            match ObjectName::parse(name.as_ref()) {
                Some(ObjectName::Commit(version)) => listing.head = listing.head.max(Some(version)),
                Some(ObjectName::Routes { version, generation }) => {
                    listing.generations.entry(version).or_default().insert(generation);
                }
                _ => {}
            }
        }
        listing
    }

    /// The head: the highest version that has a commit.
    pub fn head(&self) -> Option<u64> {
        self.head
    }

    /// The routes document of a version with the highest generation.
    pub(super) fn routes_document(&self, version: u64) -> Option<ObjectName> {
        let generation = *self.generations.get(&version)?.last()?;
        Some(ObjectName::Routes { version, generation })
    }

    /// Forgets the routes document of a version with the highest generation.
    pub(super) fn forget_routes_document(&mut self, version: u64) {
        if let Some(generations) = self.generations.get_mut(&version) {
            generations.pop_last();
        }
    }

    pub(super) fn has_same_routes_documents(&self, other: &Self) -> bool {
        self.generations == other.generations
    }
}

/// What to do next for a [`Planner`](crate::chain::Planner).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// List the chain as it is now, and [`list`](crate::chain::Planner::list) what is there.
    List,
    /// Fetch these objects, in any order or all at once, and [`supply`](crate::chain::Planner::supply) them.
    Fetch(Vec<ObjectName>),
    /// Follow this plan: steps 5 and 6 of SPEC section 19.
    Follow(Plan),
}

/// The cheapest path to a version, and what proves that it has been reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The version that is reached.
    pub version: u64,
    /// Digest of its commit's bytes: what a reader records that will hold this version.
    pub commit: Digest,
    /// State digest of the version.
    pub state: Digest,
    /// State digest of each shard.
    pub shards: Vec<Digest>,
    /// Bytes of all files on the path together.
    pub bytes: u128,
    /// One after another, from nothing or from the version held. None if the version held is the one wanted.
    pub hops: Vec<Hop>,
}

/// A route on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The version that the route leads to.
    pub version: u64,
    /// The version that it comes from; `None` for nothing.
    pub from: Option<u64>,
    /// The link of each shard.
    pub files: Vec<FileReference>,
    /// State digest of each shard of the version that the route leads to.
    pub shards: Vec<Digest>,
}
