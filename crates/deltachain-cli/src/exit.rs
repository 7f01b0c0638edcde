//! How the program ends.

/// Good.
pub(crate) const SUCCESS: u8 = 0;
/// Refused or failed.
pub(crate) const FAILURE: u8 = 1;
