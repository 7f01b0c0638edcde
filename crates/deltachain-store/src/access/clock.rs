//! The store's clock, by which the age of its objects is reckoned (SPEC section 21): objects that
//! are stored for a moment tell its time.

use std::time::SystemTime;

use deltachain::Result;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutPayload};

use crate::access::store::Store;

/// Below this, objects are stored for a moment to learn the time.
pub(super) const PROBES: &str = "probes";

/// An object that was stored to learn the time, and when.
pub(crate) type Probe = ObjectMeta;

impl Store {
    /// The time by the store's clock, of an object that is stored for this and removed again (SPEC
    /// section 21).
    ///
    /// # Errors
    /// IO.
    pub(crate) fn now(&self) -> Result<SystemTime> {
        let probe = self.probe()?;
        self.remove_probes([&probe])?;
        Ok(probe.last_modified.into())
    }

    /// The same, with the object: it stays until it is removed.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn probe(&self) -> Result<Probe> {
        self.check_is_written()?;
        let path = self
            .opened
            .prefix
            .clone()
            .join(PROBES)
            .join(format!("{:032x}", rand::random::<u128>()));
        let stored = self.block_on(async {
            self.retry(async || self.opened.objects.put(&path, PutPayload::default()).await)
                .await?;
            self.retry(async || self.opened.objects.head(&path).await)
                .await
        });
        let stored = stored.map_err(|error| self.failed("asking for the time", &error, None))?;
        Ok(Probe {
            location: path,
            ..stored
        })
    }

    /// Removes probes.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn remove_probes<'a>(
        &self,
        probes: impl IntoIterator<Item = &'a Probe>,
    ) -> Result<()> {
        let removed = |probe: &Probe| self.block_on(self.remove(&probe.location));
        let mut removed = probes.into_iter().map(removed);
        removed.try_for_each(|removed| {
            removed.map_err(|error| self.failed("removing probes", &error, None))
        })
    }

    /// Whether an object that was listed is a probe, perhaps of a process that was killed.
    pub(super) fn is_probe(&self, location: &Path) -> bool {
        let below = location.prefix_match(&self.opened.prefix.clone().join(PROBES));
        below.is_some_and(|mut below| {
            below.next().is_some_and(|name| is_probe(name.as_ref())) && below.next().is_none()
        })
    }
}

/// Whether a probe can have this name.
pub(super) fn is_probe(name: &str) -> bool {
    name.len() == 32 && u128::from_str_radix(name, 16).is_ok()
}
