//! The input and the result of planning.

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::{Asset, FileReference, Note, ObjectName, UnsignedVersion, VerifierKey};
use crate::tensor::Digest;

/// The version that a reader holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionId {
    /// The version.
    pub version: u64,
    /// Digest of the bytes of its commit, recorded when the version was reached.
    pub commit: Digest,
    /// Digest of the bytes of the chain document, recorded at the same time.
    pub chain: Digest,
}

/// The objects of a chain that lists have shown: the head, which routes documents there are, and
/// which notes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    head: Option<u64>,
    generations: BTreeMap<u64, BTreeSet<u64>>,
    /// By version and commit.
    notes: BTreeMap<u64, BTreeMap<Digest, BTreeSet<Digest>>>,
    /// Whether the store cannot list.
    pub(super) is_head_alone: bool,
}

impl Listing {
    /// From names below the chain's prefix, in any order. Names that are not part of the chain are
    /// ignored. Of the commits the last is enough: they are needed to find the head.
    pub fn new(names: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self::default().with(
            names
                .into_iter()
                .filter_map(|name| ObjectName::parse(name.as_ref())),
        )
    }

    /// The listing of a store that cannot list: the head alone, found by asking for one commit
    /// after another.
    pub fn of_head(head: Option<u64>) -> Self {
        Self {
            head,
            is_head_alone: true,
            ..Self::default()
        }
    }

    /// With more objects that a list has shown.
    #[must_use]
    pub fn with(mut self, names: impl IntoIterator<Item = ObjectName>) -> Self {
        for name in names {
            match name {
                ObjectName::Commit(version) => self.head = self.head.max(Some(version)),
                ObjectName::Routes {
                    version,
                    generation,
                } => {
                    self.generations
                        .entry(version)
                        .or_default()
                        .insert(generation);
                }
                ObjectName::Signature {
                    version,
                    commit,
                    note,
                } => {
                    self.notes
                        .entry(version)
                        .or_default()
                        .entry(commit)
                        .or_default()
                        .insert(note);
                }
                ObjectName::Chain | ObjectName::File(_) | ObjectName::Asset(_) => {}
            }
        }
        self
    }

    /// The head: the highest version that has a commit.
    pub fn head(&self) -> Option<u64> {
        self.head
    }

    /// The routes documents of a version, the highest generation first.
    pub(super) fn routes_documents(&self, version: u64) -> impl Iterator<Item = ObjectName> {
        let generations = self.generations.get(&version).into_iter().flatten().rev();
        generations.map(move |&generation| ObjectName::Routes {
            version,
            generation,
        })
    }

    /// The notes on a commit of a version that readers look at: those of `own`, which are the
    /// [own notes](crate::chain::Trust::own_notes) of trusted keys, and the first 64 of the others.
    /// If the store cannot list, all of `own`.
    pub fn notes(
        &self,
        version: u64,
        commit: Digest,
        own: &BTreeSet<ObjectName>,
    ) -> Vec<ObjectName> {
        if self.is_head_alone {
            return own.iter().copied().collect();
        }
        let notes = self
            .notes
            .get(&version)
            .and_then(|notes| notes.get(&commit))
            .into_iter()
            .flatten();
        let names = notes.map(|&note| ObjectName::Signature {
            version,
            commit,
            note,
        });
        let (mut notes, others): (Vec<_>, Vec<_>) = names.partition(|name| own.contains(name));
        notes.extend(others.into_iter().take(Note::MOST_OF_COMMIT));
        notes
    }

    /// The versions below this one for whose commits there are notes, the highest first.
    pub(super) fn versions_with_notes(&self, below: u64) -> impl Iterator<Item = u64> {
        self.notes.range(..below).rev().map(|(&version, _)| version)
    }

    /// Whether both show the same routes documents of all versions from this one on.
    pub(super) fn has_same_routes_documents(&self, other: &Self, from: u64) -> bool {
        self.generations
            .range(from..)
            .eq(other.generations.range(from..))
    }
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
    /// If the path starts from the version held, the state digest of each shard that this has to
    /// have, for [`check_held`](crate::chain::check_held); `None` if it starts from nothing.
    pub start: Option<Vec<Digest>>,
    /// One after another. None if the version held is the one wanted.
    pub hops: Vec<Hop>,
    /// The check of who signed the version; `None` for a planner without
    /// [trust](crate::chain::Planner::trust).
    pub signed: Option<SignatureCheck>,
}

/// The findings of a planner with [trust](crate::chain::Planner::trust).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureCheck {
    /// The trusted keys that have signed the version of the plan: at least as many as the quorum
    /// says.
    pub by: Vec<VerifierKey>,
    /// The newest signed head that has been met, by version and digest of its commit: to be
    /// recorded before the plan is followed, and given to the next planner. If the version was
    /// asked for by its number, it is what was given.
    pub seen: Option<(u64, Digest)>,
    /// The head as listed, if it is above the signed one: the versions between are a stranger's, or
    /// have not been signed by all who have to.
    pub unsigned_head: Option<UnsignedVersion>,
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
    /// Digest of the layout of each shard of that version, if its commit names them (SPEC section
    /// 25.1).
    pub layouts: Option<Vec<Digest>>,
    /// Whether the route stands in the version's commit, and not in a routes document alone. No
    /// other one may be taken in place (SPEC R-SUM-08).
    pub is_in_commit: bool,
}
