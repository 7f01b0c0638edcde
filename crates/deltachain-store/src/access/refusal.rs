//! What [`crate::access::http`] knows of a refusal, and `object_store` tells only in a text: the status of a list that
//! was refused, and whose service for credentials it was that did not answer.

use std::error::Error as StdError;
use std::fmt;
use std::iter;

/// A cause in the chain of an error of `object_store`.
#[derive(Debug)]
#[cfg_attr(not(feature = "servers"), expect(dead_code, reason = "only servers refuse"))]
pub(crate) enum Refusal {
    /// The server wants other credentials, or more permissions.
    Credentials(String),
    /// S3 has been given no credentials, and the service of the machine that may have some could not be asked.
    NoService(String),
}

impl Refusal {
    /// The refusal among the causes of an error.
    pub(crate) fn of<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Self> {
        iter::successors(Some(error), |&error| error.source()).find_map(|cause| cause.downcast_ref())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials(text) | Self::NoService(text) => f.write_str(text),
        }
    }
}

impl StdError for Refusal {}
