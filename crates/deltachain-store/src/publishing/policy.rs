//! Which routes a new version gets besides that from the version before.

use deltachain::chain::{Hop, Parent, Planner};
use deltachain::{Limits, Result};

use crate::access::read;
use crate::access::store::Store;
use crate::observer::Observer;

/// When a version gets a snapshot. Version 0 always has one, and so has a version that no link from its parent leads to.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Snapshots {
    /// Each time after this many versions.
    Every(u64),
    /// When a late joiner would have to read more than this many times the last snapshot.
    Cost(f64),
    /// Not otherwise.
    Never,
}

impl Default for Snapshots {
    fn default() -> Self {
        Self::Cost(2.0)
    }
}

impl Snapshots {
    /// Whether the version after `parent` gets a snapshot, whose link from the version before has `link` bytes.
    pub(crate) fn want(
        self,
        store: &Store,
        parent: &Parent,
        link: u64,
        limits: &Limits,
        observer: &dyn Observer,
    ) -> Result<bool> {
        let times = match self {
            Self::Never => return Ok(false),
            Self::Every(every) => return Ok(every > 0 && parent.next_version().is_multiple_of(every)),
            Self::Cost(times) => times,
        };
        let mut planner = Planner::new(parent.head().map(|head| head.version), None, None, limits);
        match read::plan(store, &mut planner) {
            Ok(plan) => Ok(costs_more(&plan.hops, link, times)),
            // A chain that late joiners cannot read is mended by a snapshot.
            Err(error) if error.rule().is_some() => {
                observer.remark(&format!("there is no way to the head from nothing, so a snapshot is added: {error}"));
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether this path and a link after it cost more than `times` the snapshot that the path begins with.
#[expect(clippy::cast_precision_loss, reason = "a few bytes more or less decide nothing")]
fn costs_more(path: &[Hop], link: u64, times: f64) -> bool {
    let bytes = |hop: &Hop| hop.files.iter().map(|file| u128::from(file.size)).sum::<u128>();
    let snapshot = path.first().map_or(0, bytes);
    let whole: u128 = path.iter().map(bytes).sum();
    (whole + u128::from(link)) as f64 > times * snapshot as f64
}

/// The versions from which this one gets a link, given how far apart links of each kind are; the one before is none of
/// them.
pub(crate) fn skipped_from(version: u64, skips: &[u64]) -> Vec<u64> {
    let due = skips.iter().filter(|&&skip| skip > 1 && skip <= version && version.is_multiple_of(skip));
    let mut from: Vec<u64> = due.map(|skip| version - skip).collect();
    from.sort_unstable();
    from.dedup();
    from
}

#[cfg(test)]
mod tests {
    use deltachain::chain::FileReference;
    use deltachain::tensor::Digest;

    use super::*;

    #[test]
    fn skips_are_due_at_their_multiples() {
        assert_eq!(skipped_from(0, &[4, 16]), [0; 0]);
        assert_eq!(skipped_from(4, &[4, 16]), [0]);
        assert_eq!(skipped_from(5, &[4, 16]), [0; 0]);
        assert_eq!(skipped_from(16, &[4, 16, 4]), [0, 12]);
        assert_eq!(skipped_from(6, &[0, 1, 2, 3, 12]), [3, 4]);
    }

    #[test]
    fn a_path_costs_more_than_so_many_snapshots() {
        let digest = Digest::of_bytes(b"");
        let hop = |version, from, sizes: &[u64]| Hop {
            version,
            from,
            files: sizes.iter().map(|&size| FileReference { digest, size }).collect(),
            shards: vec![digest; sizes.len()],
        };
        let path = [hop(3, None, &[60, 40]), hop(4, Some(3), &[30, 20])];
        assert!(!costs_more(&path, 50, 2.0));
        assert!(costs_more(&path, 51, 2.0));
        assert!(!costs_more(&path, 149, 3.0));
        assert!(costs_more(&path, 0, 1.0));
    }
}
