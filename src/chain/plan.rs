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

/// The objects of a chain that lists have shown: the head, the routes documents and the notes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    head: Option<u64>,
    generations: BTreeMap<u64, BTreeSet<u64>>,
    /// Digests of the notes, by version and commit.
    notes: BTreeMap<u64, BTreeMap<Digest, BTreeSet<Digest>>>,
    /// Whether the store cannot list.
    pub(super) is_head_alone: bool,
}

impl Listing {
    /// Creates a listing from names below the chain's prefix, in any order. Names that are not part
    /// of the chain are ignored. Of the commits only the last is needed, to find the head.
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

    /// Adds objects that a list has shown.
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

    /// The notes on a commit of a version that readers read: those in `own`, which are the
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

    /// The versions below this one whose commits have notes, the highest first.
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

/// The cheapest path to a version, and the digests that prove that it has been reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The version that the path leads to.
    pub version: u64,
    /// Digest of its commit's bytes, which a reader records when it holds this version.
    pub commit: Digest,
    /// Digest of the chain document's bytes, which a reader records, too.
    pub chain: Digest,
    /// State digest of the version.
    pub state: Digest,
    /// State digest of each shard.
    pub shards: Vec<Digest>,
    /// The version's assets.
    pub assets: Vec<Asset>,
    /// The commit's metadata.
    pub metadata: BTreeMap<String, String>,
    /// Total bytes of the files on the path.
    pub bytes: u128,
    /// If the path starts from the held version, the state digest that each of its shards must
    /// have, for [`check_held`](crate::chain::check_held); `None` if the path starts from nothing.
    pub start: Option<Vec<Digest>>,
    /// The routes of the path, in order; empty if the held version is the wanted one.
    pub hops: Vec<Hop>,
    /// The check of the version's signatures; `None` for a planner without
    /// [trust](crate::chain::Planner::trust).
    pub signed: Option<SignatureCheck>,
}

/// The findings of a planner with [trust](crate::chain::Planner::trust).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureCheck {
    /// The trusted keys that have signed the version of the plan: at least as many as the quorum.
    pub by: Vec<VerifierKey>,
    /// The newest signed head that has been seen, by version and digest of its commit. Record it
    /// before you follow the plan, and pass it to the next planner. If the version was requested by
    /// its number, this is the head that the planner was given.
    pub seen: Option<(u64, Digest)>,
    /// The listed head, if it is above the signed one: the versions between come from a stranger,
    /// or still lack required signatures.
    pub unsigned_head: Option<UnsignedVersion>,
}

/// A route on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The version that the route leads to.
    pub version: u64,
    /// The version that it starts from; `None` if it starts from nothing.
    pub from: Option<u64>,
    /// The link of each shard.
    pub files: Vec<FileReference>,
    /// State digest of each shard of the version that the route leads to.
    pub shards: Vec<Digest>,
    /// Digest of the layout of each shard of that version, if its commit names them (SPEC section
    /// 25.1).
    pub layouts: Option<Vec<Digest>>,
    /// Whether the version's commit names the route, not only a routes document. No other route may
    /// be taken in place (SPEC R-SUM-08).
    pub is_in_commit: bool,
}
