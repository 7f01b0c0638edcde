//! A store as it comes from opening it, and what there is to know about it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use object_store::ObjectStore;
use object_store::path::Path;

/// A store that has been opened.
pub(crate) struct Opened {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    pub(crate) kind: Kind,
    pub(crate) dates: Arc<Dates>,
}

/// When the store says that it gave its last answer. One that is not a server, or is of the caller's own making, does not
/// say.
#[derive(Debug, Default)]
pub(crate) struct Dates(Mutex<Option<SystemTime>>);

impl Dates {
    #[cfg(feature = "servers")]
    pub(crate) fn note(&self, date: SystemTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(date);
    }

    pub(crate) fn last(&self) -> Option<SystemTime> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What there is to know about a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// A plain web server cannot list, nor is anything written to it.
    pub(crate) can_list: bool,
    /// The store is a directory, named by its URL.
    pub(crate) is_directory: bool,
    /// Requests go to a server by [`crate::access::http`], which gives up what does not move, and repeats parts of uploads.
    pub(crate) is_watched: bool,
    /// Where the credentials come from, for people.
    pub(crate) credentials: Option<&'static str>,
}

impl Kind {
    /// A store of the caller's own making.
    pub(crate) const OTHER: Self = Self { can_list: true, is_directory: false, is_watched: false, credentials: None };
}
