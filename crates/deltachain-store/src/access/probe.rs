//! Objects that are stored for a moment to learn the store's time (SPEC section 21).

use std::time::SystemTime;

use object_store::ObjectMeta;
use object_store::path::Path;

/// Below this, objects are stored for a moment to learn the time.
pub(super) const PROBES: &str = "probes";

/// An object that was stored to learn the time.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) path: Path,
    /// The time.
    pub(crate) stored: SystemTime,
}

impl Probe {
    /// An object that was listed below this prefix, if it is a probe, perhaps of a process that was killed.
    pub(super) fn of(meta: &ObjectMeta, prefix: &Path) -> Option<Self> {
        let mut below = meta.location.prefix_match(&prefix.clone().join(PROBES))?;
        let name = below.next()?;
        (below.next().is_none() && is_probe(name.as_ref()))
            .then(|| Self { path: meta.location.clone(), stored: meta.last_modified.into() })
    }
}

/// Whether a probe can have this name.
pub(super) fn is_probe(name: &str) -> bool {
    name.len() == 32 && u128::from_str_radix(name, 16).is_ok()
}
