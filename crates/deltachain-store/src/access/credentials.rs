//! Credentials that the caller gives.

use std::fmt;
use std::time::SystemTime;

use deltachain::Result;

/// The credentials of a caller, as S3 wants to know them.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// The access key's id.
    pub(crate) key_id: String,
    /// The secret access key.
    pub(crate) secret_key: String,
    /// The session token, if they are temporary.
    pub(crate) token: Option<String>,
    /// Time at which they expire. `None` if it is unknown, or they do not expire.
    pub(crate) expires: Option<SystemTime>,
}

impl Credentials {
    /// Credentials, which never expire if no time is given.
    pub fn new(
        key_id: String,
        secret_key: String,
        token: Option<String>,
        expires: Option<SystemTime>,
    ) -> Self {
        Self {
            key_id,
            secret_key,
            token,
            expires,
        }
    }
}

/// Secrets are not shown.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("key_id", &self.key_id)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Gives credentials when they are needed: before the first request, and a minute before they
/// expire.
pub trait CredentialSource: fmt::Debug + Send + Sync {
    /// Credentials that are valid now. May block.
    ///
    /// # Errors
    /// The request that needs the credentials ends with the text of this error, as an IO error.
    fn credentials(&self) -> Result<Credentials>;
}
