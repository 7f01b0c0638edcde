//! The store's clock, by which the age of its objects is computed (SPEC section 21): learned from
//! the timestamps of temporary objects, called probes.

use std::time::SystemTime;

use deltachain::Result;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutPayload};

use crate::access::store::Store;

/// Folder of the probes.
pub(super) const PROBES: &str = "probes";

/// A temporary object, with its timestamp.
pub(crate) type Probe = ObjectMeta;

impl Store {
    /// The time by the store's clock. Stores a probe and removes it (SPEC section 21).
    ///
    /// # Errors
    /// IO.
    pub(crate) fn now(&self) -> Result<SystemTime> {
        let probe = self.probe()?;
        self.remove_probes([&probe])?;
        Ok(probe.last_modified.into())
    }

    /// Stores a probe, which stays until it is removed.
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

    /// True if a listed object is a probe, perhaps of a process that was killed.
    pub(super) fn is_probe(&self, location: &Path) -> bool {
        let below = location.prefix_match(&self.opened.prefix.clone().join(PROBES));
        below.is_some_and(|mut below| {
            below
                .next()
                .is_some_and(|name| is_probe_name(name.as_ref()))
                && below.next().is_none()
        })
    }
}

/// True if a probe can have this name.
pub(super) fn is_probe_name(name: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.len() == 32 && name.bytes().all(is_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_are_no_probes() {
        assert!(is_probe_name("0123456789abcdef0123456789abcdef"));
        for name in [
            "+123456789abcdef0123456789abcdef",
            "0123456789ABCDEF0123456789ABCDEF",
            "0123456789abcdef",
            "notes",
        ] {
            assert!(!is_probe_name(name), "{name}");
        }
    }
}
