//! An opened store, and its abilities.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use object_store::ObjectStore;
use object_store::path::Path;

use crate::access::refusal::{PLAIN, StoreWords};

/// A store that has been opened.
#[derive(Clone)]
pub(crate) struct OpenStore {
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    /// False for a web server, which is also read-only.
    pub(crate) can_list: bool,
    /// Path of the store, if it is a directory.
    pub(crate) directory: Option<PathBuf>,
    /// True if requests go to a server by [`crate::access::http`], which gives up what does not
    /// move, and limits the rate.
    pub(crate) is_watched: bool,
    /// Words of this kind of store, for people.
    pub(crate) words: &'static StoreWords,
    pub(crate) date: LastDate,
    /// `None` if the store's credentials cannot be renewed.
    pub(crate) renewal: Option<Renewal>,
    /// Set once a web server has answered 404 for a name that cannot exist.
    pub(crate) knows_missing: Arc<AtomicBool>,
}

/// Requests for new credentials of the caller's own. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Renewal(Arc<AtomicU64>);

impl Renewal {
    /// Number of the credentials that requests have to use: it rises with each renewal.
    pub(crate) fn wanted(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Makes the next request ask for new credentials, unless those with this number have been
    /// renewed already: requests side by side fail together, and need one renewal.
    pub(crate) fn renew(&self, refused: u64) {
        let _ = self
            .0
            .compare_exchange(refused, refused + 1, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl OpenStore {
    /// A store that the caller made.
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self {
            objects,
            prefix,
            can_list: true,
            directory: None,
            is_watched: false,
            words: &PLAIN,
            date: Arc::default(),
            renewal: None,
            knows_missing: Arc::default(),
        }
    }
}

/// The `Date` of the last successful answer. `None` for directories and stores that the caller
/// made.
pub(crate) type LastDate = Arc<Mutex<Option<SystemTime>>>;
