//! The signers of a version, for people.

use deltachain::chain::{Trust, VerifierKey};
use deltachain_store::Signers;

use crate::output::printable;

/// Whether there is anything to say.
pub(crate) fn has_any(signers: &Signers) -> bool {
    !signers.claimed.is_empty() || signers.signed.is_some()
}

/// The trusted keys that signed, or without trust all keys with a note.
pub(crate) fn as_text(signers: &Signers, trust: Option<&Trust>) -> String {
    let list = |names: Vec<&str>| printable(&names.join(", "));
    match (&signers.signed_by, trust) {
        (Some(by), _) if by.is_empty() => "no".to_owned(),
        (Some(by), Some(trust)) => {
            let (names, quorum) = (
                list(by.iter().map(VerifierKey::name).collect()),
                trust.quorum(),
            );
            if by.len() < quorum {
                format!("{} of {quorum}: {names}", by.len())
            } else {
                format!("yes: {names}")
            }
        }
        _ if signers.claimed.is_empty() => "-".to_owned(),
        _ => format!(
            "unverified: {}",
            list(
                signers
                    .claimed
                    .iter()
                    .map(|signer| signer.name.as_str())
                    .collect()
            )
        ),
    }
}

/// Public keys as texts.
pub(crate) fn texts(keys: &[VerifierKey]) -> Vec<String> {
    keys.iter().map(VerifierKey::to_string).collect()
}
