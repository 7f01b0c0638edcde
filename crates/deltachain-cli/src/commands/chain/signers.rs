//! Shows the signers of a version to people.

use deltachain::chain::{Trust, VerifierKey};
use deltachain_store::Signers;

use crate::output::printable;

/// True if there is something to show: a note with signatures, or the result of a check.
pub(crate) fn has_any(signers: &Signers) -> bool {
    !signers.claimed.is_empty() || signers.signed.is_some()
}

/// Describes the trusted keys that signed. Without trust, names all keys that claim to have signed.
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

/// Formats public keys.
pub(crate) fn texts(keys: &[VerifierKey]) -> Vec<String> {
    keys.iter().map(VerifierKey::to_string).collect()
}
