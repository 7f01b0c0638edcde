//! The store's clock, by which the age of its objects is reckoned (SPEC section 21).

use std::time::SystemTime;

use deltachain::Result;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutPayload};

use crate::access::store::Store;

/// Below this, objects are stored for a moment to learn the time.
const PROBES: &str = "probes";

/// Probes that are looked at in one go.
const BATCH: usize = 1000;

impl Store {
    /// The time by the store's clock, of an object that is stored for this and removed again (SPEC section 21).
    ///
    /// # Errors
    /// IO.
    pub(crate) fn now(&self) -> Result<SystemTime> {
        self.check_is_written()?;
        let probe = self.prefix.clone().join(PROBES).join(format!("{:032x}", rand::random::<u128>()));
        let probed = async {
            self.retry(async || self.objects.put(&probe, PutPayload::default()).await).await?;
            let stored = self.retry(async || self.objects.head(&probe).await).await?.last_modified;
            self.remove(&probe).await?;
            Ok(stored.into())
        };
        self.block_on(probed).map_err(|error| self.failed("asking for the time", error, None))
    }

    /// Removes what [`now`](Self::now) left behind when it was interrupted, if it was stored before this time.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn remove_probes(&self, before: SystemTime) -> Result<()> {
        let probes = self.prefix.clone().join(PROBES);
        let is_probe = |path: &Path| {
            let mut below = path.prefix_match(&probes).into_iter().flatten();
            let name = below.next().filter(|name| name.as_ref().len() == 32 && below.next().is_none());
            name.is_some_and(|name| u128::from_str_radix(name.as_ref(), 16).is_ok())
        };
        let removed = async {
            let listed: Vec<ObjectMeta> =
                self.retry(async || self.objects.list(Some(&probes)).take(BATCH).try_collect().await).await?;
            for meta in listed {
                if is_probe(&meta.location) && SystemTime::from(meta.last_modified) < before {
                    self.remove(&meta.location).await?;
                }
            }
            Ok(())
        };
        self.block_on(removed).map_err(|error| self.failed("removing probes", error, None))
    }
}
