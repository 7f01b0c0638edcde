//! What planning starts from and ends with.

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::{Asset, FileReference, ObjectName};
use crate::tensor::Digest;

/// The version that a reader holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The version.
    pub version: u64,
    /// Digest of the bytes of its commit, recorded when the version was reached.
    pub commit: Digest,
    /// Digest of the bytes of the chain document, recorded at the same time.
    pub chain: Digest,
}

/// What lists of a chain's objects have shown: the head, and which routes documents there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    head: Option<u64>,
    generations: BTreeMap<u64, BTreeSet<u64>>,
}

impl Listing {
    /// From names below the chain's prefix, in any order. Names that are not part of the chain are ignored. Of the commits
    /// the last is enough: they are needed to find the head.
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

    /// The routes documents of a version, the highest generation first.
    pub(super) fn routes_documents(&self, version: u64) -> impl Iterator<Item = ObjectName> {
        let generations = self.generations.get(&version).into_iter().flatten().rev();
        generations.map(move |&generation| ObjectName::Routes { version, generation })
    }

    /// Whether both show the same routes documents of all versions from this one on.
    pub(super) fn has_same_routes_documents(&self, other: &Self, from: u64) -> bool {
        self.generations.range(from..).eq(other.generations.range(from..))
    }
}

/// What to do next for a [`Planner`](crate::chain::Planner).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// List the commits and the routes documents, as they are now, and [`list`](crate::chain::Planner::list) them. A
    /// store that cannot list gives the head alone, found by asking for one commit after another.
    List {
        /// Those of all versions from this one on; others do no harm.
        from: u64,
    },
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
    /// Digest of the chain document's bytes: likewise.
    pub chain: Digest,
    /// State digest of the version.
    pub state: Digest,
    /// State digest of each shard.
    pub shards: Vec<Digest>,
    /// The version's assets.
    pub assets: Vec<Asset>,
    /// The commit's metadata.
    pub metadata: BTreeMap<String, String>,
    /// Bytes of all files on the path together.
    pub bytes: u128,
    /// If the path starts from the version held, the state digest of each shard that this has to have, for
    /// [`check_held`](crate::chain::check_held); `None` if it starts from nothing.
    pub start: Option<Vec<Digest>>,
    /// One after another. None if the version held is the one wanted.
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
