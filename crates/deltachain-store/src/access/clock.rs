//! The store's clock, by which the age of its objects is reckoned (SPEC section 21).

use std::time::SystemTime;

use deltachain::Result;
use object_store::{ObjectStoreExt, PutPayload};

use crate::access::probe::{PROBES, Probe};
use crate::access::store::Store;

impl Store {
    /// The time by the store's clock, of an object that is stored for this and removed again (SPEC section 21).
    ///
    /// # Errors
    /// IO.
    pub(crate) fn now(&self) -> Result<SystemTime> {
        let probe = self.probe()?;
        self.remove_probes([&probe])?;
        Ok(probe.stored)
    }

    /// The same, with the object: it stays until it is removed.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn probe(&self) -> Result<Probe> {
        self.check_is_written()?;
        let name = format!("{:032x}", rand::random::<u128>());
        let path = self.opened.prefix.clone().join(PROBES).join(name);
        let stored = self.block_on(async {
            self.retry(async || self.opened.objects.put(&path, PutPayload::default()).await).await?;
            Ok(self.retry(async || self.opened.objects.head(&path).await).await?.last_modified.into())
        });
        let stored = stored.map_err(|error| self.failed("asking for the time", &error, None))?;
        Ok(Probe { path, stored })
    }

    /// Removes probes.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn remove_probes<'a>(&self, probes: impl IntoIterator<Item = &'a Probe>) -> Result<()> {
        let removed = |probe: &Probe| self.block_on(self.remove(&probe.path));
        let mut removed = probes.into_iter().map(removed);
        removed.try_for_each(|removed| removed.map_err(|error| self.failed("removing probes", &error, None)))
    }
}
