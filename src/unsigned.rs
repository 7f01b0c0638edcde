//! A version that the trusted keys have not signed.

use std::fmt;

/// A version in the store that fewer trusted keys have signed than the quorum requires: a stranger
/// published it, or a signature is still to come, or the trusted keys are not the keys of this
/// chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnsignedVersion {
    /// The version.
    pub version: u64,
    /// Number of trusted keys that signed it.
    pub(crate) signed_by: usize,
    /// Number of trusted keys that must sign.
    pub(crate) quorum: usize,
}

impl fmt::Display for UnsignedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version,
            signed_by,
            quorum,
        } = self;
        match signed_by {
            0 => write!(
                f,
                "version {version} exists, but none of the trusted keys has signed it"
            ),
            _ => write!(
                f,
                "version {version} exists, but {signed_by} of the trusted keys signed it, and the \
                 quorum is {quorum}"
            ),
        }
    }
}
