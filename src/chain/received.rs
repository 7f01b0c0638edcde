//! Objects that have been fetched for the planner.

use crate::chain::{ChainDocument, Commit, ObjectName, RoutesDocument};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::tensor::Digest;

/// A document of any kind, parsed and checked on its own.
#[derive(Debug)]
pub(super) enum ReceivedDocument {
    /// Digest of its bytes.
    Chain(Digest),
    Commit(ReadCommit),
    Routes(RoutesDocument),
}

/// A commit with the digest of its bytes.
#[derive(Debug)]
pub(super) struct ReadCommit {
    pub(super) digest: Digest,
    pub(super) commit: Commit,
}

impl ReceivedDocument {
    /// Parses the document with this name.
    pub(super) fn parse(name: ObjectName, bytes: &[u8], limits: &Limits) -> Result<Self> {
        let digest = Digest::of_bytes(bytes);
        match name {
            ObjectName::Chain => ChainDocument::parse(bytes, limits).map(|_| Self::Chain(digest)),
            ObjectName::Commit(_) => {
                let commit = Commit::parse(bytes, limits)?;
                Ok(Self::Commit(ReadCommit { digest, commit }))
            }
            ObjectName::Routes { .. } => RoutesDocument::parse(bytes, limits).map(Self::Routes),
            ObjectName::File(_) | ObjectName::Asset(_) | ObjectName::Signature { .. } => {
                Err(Error::usage("this object is not a document"))
            }
        }
    }
}
