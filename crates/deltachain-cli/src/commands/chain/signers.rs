//! Who signed a version, for reports: the trusted keys, or who claims to have.

use deltachain::chain::{Note, Trust, VerifierKey};
use serde_json::{Value, json};

use crate::output::printable;

/// Who signed a version.
pub(crate) struct Signers {
    /// Name and key ID of each signature. They prove nothing.
    claimed: Vec<(String, String)>,
    /// The trusted keys that signed, and how many have to; `None` if nobody says whom to trust.
    verified: Option<(Vec<VerifierKey>, usize)>,
}

impl Signers {
    /// By the notes on the version's commit.
    pub(crate) fn of(notes: &[Note], trust: Option<&Trust>) -> Self {
        let mut claimed: Vec<_> =
            notes.iter().flat_map(Note::signers).map(|(name, id)| (name.to_owned(), id)).collect();
        claimed.sort_unstable();
        claimed.dedup();
        let signed = |trust: &Trust, key: &VerifierKey| notes.iter().any(|note| note.counts_for(trust).contains(&key));
        let verified = trust.map(|trust| {
            let keys = trust.keys().iter().filter(|key| signed(trust, key)).cloned().collect();
            (keys, trust.quorum())
        });
        Self { claimed, verified }
    }

    /// Whether enough trusted keys signed; `None` if nobody says whom to trust.
    pub(crate) fn is_signed(&self) -> Option<bool> {
        self.verified.as_ref().map(|(by, quorum)| by.len() >= *quorum)
    }

    pub(crate) fn text(&self) -> String {
        let list = |names: Vec<&str>| printable(&names.join(", "));
        match &self.verified {
            Some((by, _)) if by.is_empty() => "no".to_owned(),
            Some((by, quorum)) => {
                let names = list(by.iter().map(VerifierKey::name).collect());
                if by.len() < *quorum { format!("{} of {quorum}: {names}", by.len()) } else { format!("yes: {names}") }
            }
            None if self.claimed.is_empty() => "-".to_owned(),
            None => format!("unverified: {}", list(self.claimed.iter().map(|(name, _)| name.as_str()).collect())),
        }
    }

    /// Adds what is known to a JSON object.
    pub(crate) fn add_to(&self, json: &mut Value) {
        let claimed = self.claimed.iter().map(|(name, id)| json!({ "name": name, "id": id }));
        json["claimed_signers"] = claimed.collect();
        json["signed"] = self.is_signed().into();
        json["signed_by"] = self.verified.as_ref().map(|(by, _)| texts(by)).into();
    }
}

/// Public keys as texts.
pub(crate) fn texts(keys: &[VerifierKey]) -> Vec<String> {
    keys.iter().map(VerifierKey::to_string).collect()
}
