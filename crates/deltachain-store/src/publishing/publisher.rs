//! Publishing versions (SPEC section 20): links are made and stored, and a commit makes them a version.

use deltachain::Result;
use deltachain::files::SafetensorsState;

use crate::access::documents;
use crate::access::store::Store;
use crate::observer::Observer;
use crate::publishing::job::{Job, Made};
use crate::publishing::options::{Base, PublishOptions};
use crate::publishing::published::Published;
use crate::publishing::shards::commit;

/// Adds versions to a chain. It remembers nothing from one to the next, so it does not matter whether it has been restarted.
#[derive(Debug)]
pub struct Publisher {
    store: Store,
    options: PublishOptions,
}

impl Publisher {
    /// A publisher for the chain in this store.
    ///
    /// # Errors
    /// R-CHN-01 to R-CHN-04 (`CHAIN`) and those of documents, if there is no chain or its head cannot be read; IO.
    pub fn open(store: Store, options: PublishOptions) -> Result<Self> {
        documents::head(&store, &options.limits)?;
        Ok(Self { store, options })
    }

    /// Publishes a state as the version after the head. It becomes visible at once and completely; whatever fails before
    /// leaves the chain as it was. A state that equals the head's becomes a version too.
    ///
    /// # Errors
    /// R-PUB-01 (`CHAIN`) if the base is not the head's state; R-PUB-03 (`CHAIN`) if another writer was first; R-CHN and
    /// R-DOC rules if the head cannot be read; USAGE if the files change while they are read, or if there are more other files
    /// than assets can be; those of reading the states; LIMIT; IO; what the observer wants it to end with.
    pub fn publish(&mut self, state: &SafetensorsState, base: Base<'_>, observer: &dyn Observer) -> Result<Published> {
        let Self { store, options } = self;
        let Made { part, work } = Job { store, state, shard: 0, of: 1, options, observer }.run(base)?;
        let published = commit(store, &[part], options)?;
        if let Some(mut work) = work {
            // The version has been published, whatever becomes of the directory.
            if let Err(error) = work.bring_to(published.version, observer) {
                observer.remark(&format!("the work directory stays at the version before for now: {error}"));
            }
        }
        Ok(published)
    }
}
