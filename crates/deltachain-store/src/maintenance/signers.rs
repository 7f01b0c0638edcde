//! The signers of a version, for reports: the keys that signatures claim, and the trusted keys that
//! have signed.

use std::collections::BTreeSet;

use deltachain::chain::{Note, Trust, VerifierKey};
use serde::Serialize;

/// The signers of a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Signers {
    /// Name and key ID of each signature. They prove nothing.
    #[serde(rename = "claimed_signers")]
    pub claimed: BTreeSet<ClaimedSigner>,
    /// True if enough trusted keys signed; `None` without trusted keys.
    pub signed: Option<bool>,
    /// The trusted keys that signed; `None` without trusted keys.
    pub signed_by: Option<Vec<VerifierKey>>,
}

/// The key of a signature, as the signature states it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ClaimedSigner {
    /// The key's name.
    pub name: String,
    /// Its ID.
    id: String,
}

/// A version that has signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SignedVersion {
    /// The version.
    pub version: u64,
    /// The signers of the version.
    #[serde(flatten)]
    pub signers: Signers,
}

impl Signers {
    /// The signers by the notes on the version's commit.
    pub(crate) fn of(notes: &[Note], trust: Option<&Trust>) -> Self {
        let claimed = notes.iter().flat_map(Note::signers);
        let claimed = claimed
            .map(|(name, id)| ClaimedSigner {
                name: name.to_owned(),
                id,
            })
            .collect();
        let signed_by = trust.map(|trust| {
            trust
                .signers(notes)
                .into_iter()
                .cloned()
                .collect::<Vec<_>>()
        });
        let signed = trust
            .zip(signed_by.as_ref())
            .map(|(trust, by)| by.len() >= trust.quorum());
        Self {
            claimed,
            signed,
            signed_by,
        }
    }
}
