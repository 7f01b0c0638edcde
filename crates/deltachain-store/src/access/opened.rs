//! A store as it comes from opening it, and what there is to know about it.

use std::sync::atomic::AtomicBool;
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
    /// A plain web server cannot list, nor is anything written to it.
    pub(crate) can_list: bool,
    /// The store is a directory, named by its URL.
    pub(crate) is_directory: bool,
    /// Requests go to a server by [`crate::access::http`], which gives up what does not move, and
    /// repeats parts of uploads.
    pub(crate) is_watched: bool,
    /// Words of this kind of store, for people.
    pub(crate) words: &'static StoreWords,
    pub(crate) date: LastDate,
    pub(crate) renew: Option<Renew>,
    /// Set once a web server has answered 404 for a name that cannot exist.
    pub(crate) knows_missing: Arc<AtomicBool>,
}

/// Lets the next request ask for new credentials.
pub(crate) type Renew = Arc<dyn Fn() + Send + Sync>;

impl OpenStore {
    /// A store of the caller's own making.
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, prefix: Path) -> Self {
        Self {
            objects,
            prefix,
            can_list: true,
            is_directory: false,
            is_watched: false,
            words: &PLAIN,
            date: Arc::default(),
            renew: None,
            knows_missing: Arc::default(),
        }
    }
}

/// When the store says that it gave its last answer. One that is not a server, or is of the
/// caller's own making, does not say.
pub(crate) type LastDate = Arc<Mutex<Option<SystemTime>>>;
