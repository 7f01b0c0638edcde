//! The knowledge of a planner with trust about signatures.

use std::collections::BTreeMap;

use crate::chain::{Listing, Note, ObjectName, Trust, VerifierKey};
use crate::limits::Limits;
use crate::tensor::Digest;

/// The knowledge of a planner with trust about signatures.
#[derive(Debug)]
pub(in crate::chain) struct Signatures {
    pub(in crate::chain) trust: Trust,
    /// The newest signed head that was seen before, to be passed to the next planner.
    pub(in crate::chain) recorded: Option<(u64, Digest)>,
    /// The recorded head, as long as it counts.
    pub(in crate::chain) seen: Option<(u64, Digest)>,
    /// Whether the head is wanted.
    pub(in crate::chain) of_head: bool,
    /// The keys that signed the wanted version, once they are known.
    pub(in crate::chain) by: Option<Vec<VerifierKey>>,
    /// The head is below this version.
    pub(in crate::chain) below: u64,
    /// The highest version whose notes were read, and the number of trusted keys that signed it.
    pub(in crate::chain) highest: Option<(u64, usize)>,
    /// Number of versions whose notes are read together.
    pub(in crate::chain) stride: usize,
    /// The notes that a list has shown. Until a list is needed, notes are read as if the store
    /// could not list.
    pub(in crate::chain) listed: Listing,
    /// Digests of the commits that have been supplied.
    pub(in crate::chain) commits: BTreeMap<u64, Digest>,
    /// Contents of the notes that have been supplied, empty if they cannot count.
    pub(in crate::chain) notes: BTreeMap<ObjectName, Vec<u8>>,
}

impl Signatures {
    /// Notes on the supplied commits that must be read but were not supplied yet.
    pub(in crate::chain) fn missing(&self, chain: Digest) -> Vec<ObjectName> {
        let notes = self.commits.iter().flat_map(|(&version, &commit)| {
            self.listed.notes(
                version,
                commit,
                &self.trust.own_notes(chain, version, commit),
            )
        });
        notes
            .filter(|name| !self.notes.contains_key(name))
            .collect()
    }

    /// The trusted keys that the notes on the commit of a version count for, as far as the notes
    /// have been supplied.
    pub(in crate::chain) fn signers(
        &self,
        chain: Digest,
        version: u64,
        commit: Digest,
    ) -> Vec<VerifierKey> {
        let name = |byte| ObjectName::Signature {
            version,
            commit,
            note: Digest([byte; 32]),
        };
        let notes = self.notes.range(name(0)..=name(0xff));
        let notes: Vec<Note> = notes
            .filter_map(|(name, content)| Note::read(*name, chain, content))
            .collect();
        self.trust.signers(&notes).into_iter().cloned().collect()
    }

    /// Treats this version as missing from here on.
    pub(in crate::chain) fn pass_over(&mut self, version: u64) {
        self.below = version;
        self.commits.remove(&version);
        self.notes.retain(
            |name, _| !matches!(name, ObjectName::Signature { version: of, .. } if *of == version),
        );
    }

    /// Takes the content of an object. A commit that is too long counts as unsigned.
    pub(in crate::chain) fn supply(
        &mut self,
        name: ObjectName,
        content: Option<&[u8]>,
        limits: &Limits,
    ) {
        let content = |most: u64| content.filter(|bytes| bytes.len() as u64 <= most);
        match name {
            ObjectName::Commit(version) => {
                self.commits.remove(&version);
                self.commits.extend(
                    content(limits.document_bytes).map(|bytes| (version, Digest::of_bytes(bytes))),
                );
            }
            ObjectName::Signature { .. } => {
                self.notes
                    .insert(name, content(Note::MOST_BYTES).unwrap_or_default().to_vec());
            }
            _ => {}
        }
    }
}
