//! The store's clock, by which the age of its objects is reckoned (SPEC section 21).

use std::time::SystemTime;

use deltachain::Result;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutPayload};

use crate::access::store::Store;

/// Below this, objects are stored for a moment to learn the time.
pub(super) const PROBES: &str = "probes";

/// An object that was stored to learn the time.
#[derive(Debug)]
pub(crate) struct Probe {
    path: Path,
    /// The time.
    pub(crate) stored: SystemTime,
}

impl Probe {
    /// Whether it is one of these. A put that was tried again may have given it another time since.
    pub(crate) fn is_among(&self, listed: &[Self]) -> bool {
        listed.iter().any(|probe| probe.path == self.path)
    }
}

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
        let path = self.prefix.clone().join(PROBES).join(format!("{:032x}", rand::random::<u128>()));
        let stored = self.block_on(async {
            self.retry(async || self.objects.put(&path, PutPayload::default()).await).await?;
            Ok(self.retry(async || self.objects.head(&path).await).await?.last_modified.into())
        });
        let stored = stored.map_err(|error| self.failed("asking for the time", error, None))?;
        Ok(Probe { path, stored })
    }

    /// A listed object, if it is a probe, perhaps of a process that was killed.
    pub(super) fn stored_probe(&self, meta: &ObjectMeta) -> Option<Probe> {
        let mut below = meta.location.prefix_match(&self.prefix.clone().join(PROBES))?;
        let name = below.next()?;
        (below.next().is_none() && is_probe(name.as_ref()))
            .then(|| Probe { path: meta.location.clone(), stored: meta.last_modified.into() })
    }

    /// Removes probes.
    ///
    /// # Errors
    /// IO.
    pub(crate) fn remove_probes<'a>(&self, probes: impl IntoIterator<Item = &'a Probe>) -> Result<()> {
        let removed = |probe: &Probe| self.block_on(self.remove(&probe.path));
        let mut removed = probes.into_iter().map(removed);
        removed.try_for_each(|removed| removed.map_err(|error| self.failed("removing probes", error, None)))
    }
}

/// Whether a probe can have this name.
pub(super) fn is_probe(name: &str) -> bool {
    name.len() == 32 && u128::from_str_radix(name, 16).is_ok()
}
