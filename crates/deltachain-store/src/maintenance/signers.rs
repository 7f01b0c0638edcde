//! Who signed a version, for reports: the trusted keys, or whoever claims to have.

use std::collections::BTreeSet;

use deltachain::chain::{Note, Trust, VerifierKey};
use serde::Serialize;

use crate::text;

/// Who signed a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Signers {
    /// Name and key ID of each signature. They prove nothing.
    #[serde(rename = "claimed_signers")]
    pub claimed: BTreeSet<ClaimedSigner>,
    /// Whether enough trusted keys signed; `None` if nobody says whom to trust.
    pub signed: Option<bool>,
    /// The trusted keys that signed; `None` if nobody says whom to trust.
    #[serde(serialize_with = "text::keys")]
    pub signed_by: Option<Vec<VerifierKey>>,
}

/// What a signature says of its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ClaimedSigner {
    /// The key's name.
    pub name: String,
    /// Its ID.
    pub id: String,
}

/// A version that has signatures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SignedVersion {
    /// The version.
    pub version: u64,
    /// Who signed it.
    #[serde(flatten)]
    pub signers: Signers,
}

impl Signers {
    /// By the notes on the version's commit.
    pub(crate) fn of(notes: &[Note], trust: Option<&Trust>) -> Self {
        let claimed = notes.iter().flat_map(Note::signers);
        let claimed = claimed.map(|(name, id)| ClaimedSigner { name: name.to_owned(), id }).collect();
        let signed_by = trust.map(|trust| trust.signers(notes).into_iter().cloned().collect::<Vec<_>>());
        let signed = trust.zip(signed_by.as_ref()).map(|(trust, by)| by.len() >= trust.quorum());
        Self { claimed, signed, signed_by }
    }
}
