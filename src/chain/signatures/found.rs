//! What a planner with trust knows of signatures.

use std::collections::BTreeMap;

use crate::chain::{Note, ObjectName, Trust, VerifierKey};
use crate::limits::Limits;
use crate::tensor::Digest;

/// What a planner with trust knows of signatures.
#[derive(Debug)]
pub(in crate::chain) struct Signatures {
    pub(in crate::chain) trust: Trust,
    /// The newest signed head that was met before, to be given to the next planner.
    pub(in crate::chain) recorded: Option<(u64, Digest)>,
    /// The same, as long as it counts.
    pub(in crate::chain) seen: Option<(u64, Digest)>,
    /// Whether the head is wanted.
    pub(in crate::chain) of_head: bool,
    /// Who signed the version wanted, when it is known.
    pub(in crate::chain) by: Option<Vec<VerifierKey>>,
    /// The head is below this version.
    pub(in crate::chain) below: u64,
    /// The highest version whose notes have been looked at, and how many of the trusted keys have signed it.
    pub(in crate::chain) highest: Option<(u64, usize)>,
    /// How many versions are looked at together.
    pub(in crate::chain) stride: usize,
    /// Digests of the commits that have been supplied.
    pub(in crate::chain) commits: BTreeMap<u64, Digest>,
    /// Contents of the notes that have been supplied, empty if they cannot count.
    pub(in crate::chain) notes: BTreeMap<ObjectName, Vec<u8>>,
}

impl Signatures {
    /// Takes what an object is. A commit that is too long is not signed.
    pub(in crate::chain) fn supply(&mut self, name: ObjectName, content: Option<&[u8]>, limits: &Limits) {
        let content = |most: u64| content.filter(|bytes| bytes.len() as u64 <= most);
        match name {
            ObjectName::Commit(version) => {
                self.commits.remove(&version);
                self.commits.extend(content(limits.document_bytes).map(|bytes| (version, Digest::of_bytes(bytes))));
            }
            ObjectName::Signature { .. } => {
                self.notes.insert(name, content(Note::MOST_BYTES).unwrap_or_default().to_vec());
            }
            _ => {}
        }
    }
}
