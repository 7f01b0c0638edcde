//! A version that the trusted keys have not signed.

use std::fmt;

/// A version that the store has, and that not as many of the trusted keys have signed as the quorum
/// says: a stranger's, or one that somebody has still to sign. Or the trust is not the one that the
/// chain needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnsignedVersion {
    /// The version.
    pub version: u64,
    /// How many of the trusted keys have signed it.
    pub(crate) signed_by: usize,
    /// How many have to.
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
                "version {version} exists, but {signed_by} of the trusted keys signed it, not {quorum}"
            ),
        }
    }
}
