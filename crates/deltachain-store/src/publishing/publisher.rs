//! Publishing versions (SPEC section 20): links are made and stored, and a commit makes them a version.

use deltachain::Result;
use deltachain::chain::{ObjectName, Parent};
use deltachain::files::SafetensorsState;

use crate::access::documents;
use crate::access::store::Store;
use crate::observer::Observer;
use crate::publishing::job::{Job, Made};
use crate::publishing::options::{Base, PublishOptions};
use crate::publishing::published::Published;
use crate::publishing::shards::commit;

/// Adds versions to a chain. What it remembers from one to the next saves requests and decides nothing, so it does not matter
/// whether it has been restarted.
#[derive(Debug)]
pub struct Publisher {
    store: Store,
    options: PublishOptions,
    /// The content of the chain document, which never changes.
    chain: Vec<u8>,
    /// The head as it was last seen.
    head: Option<u64>,
}

impl Publisher {
    /// A publisher for the chain in this store. The head is not read before something is published.
    ///
    /// # Errors
    /// R-CHN-01 (`CHAIN`) and those of documents, if there is no chain; IO.
    pub fn open(store: Store, options: PublishOptions) -> Result<Self> {
        let chain = store.get(ObjectName::Chain)?;
        Parent::read(chain.as_deref(), None, &options.limits)?;
        Ok(Self { store, options, chain: chain.unwrap_or_default(), head: None })
    }

    /// Publishes a state as the version after the head. It becomes visible at once and completely; whatever fails before
    /// leaves the chain as it was. A state that equals the head's becomes a version too.
    ///
    /// # Errors
    /// R-PUB-01 (`CHAIN`) if the base is not the head's state; R-PUB-03 (`CHAIN`) if another writer was first; R-CHN and
    /// R-DOC rules if the head cannot be read; USAGE if the files change while they are read, or if there are more other files
    /// than assets can be; those of reading the states; LIMIT; IO; what the observer wants it to end with.
    pub fn publish(&mut self, state: &SafetensorsState, base: Base<'_>, observer: &dyn Observer) -> Result<Published> {
        let Self { store, options, chain, head } = self;
        let parent = documents::head(store, Some(chain), *head, &options.limits)?;
        *head = parent.head().map(|head| head.version);
        let job = Job { store, parent: &parent, state, shard: 0, of: 1, options, observer };
        let Made { part, path, work } = job.run(base)?;
        let published = commit(store, &parent, path, &[part], options)?;
        *head = Some(published.version);
        if let Some(mut work) = work {
            // The version has been published, whatever becomes of the directory.
            if let Err(error) = work.bring_to(published.version, None, observer) {
                observer.remark(&format!("the work directory stays at the version before for now: {error}"));
            }
        }
        Ok(published)
    }
}
