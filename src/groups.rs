//! Which pieces share a segment: consecutive ones of one dtype, with as many bytes as a full piece. A segment may hold twice as
//! much, but smaller ones take less memory and their contexts fit better.

use std::collections::BTreeMap;

use crate::limits::MAX_SEGMENT_PARTS;
use crate::tensor::{Dtype, PIECE_BYTES};

/// Collects items that stand for pieces into groups. Each group becomes segments. Which items share a group depends on
/// dtypes and lengths only.
pub(crate) struct Groups<T> {
    /// The group of each dtype that still has room, and its bytes.
    open: BTreeMap<Dtype, (Vec<T>, u64)>,
}

impl<T> Groups<T> {
    pub(crate) fn new() -> Self {
        Self { open: BTreeMap::new() }
    }

    /// Adds an item for a piece of `bytes` bytes. If the dtype's group had no room for it, that group is returned.
    pub(crate) fn push(&mut self, dtype: Dtype, bytes: u64, item: T) -> Option<Vec<T>> {
        let (group, filled) = self.open.entry(dtype).or_insert_with(|| (Vec::new(), 0));
        let full = *filled + bytes > PIECE_BYTES || group.len() as u64 >= MAX_SEGMENT_PARTS;
        let done = full.then(|| {
            *filled = 0;
            std::mem::take(group)
        });
        group.push(item);
        *filled += bytes;
        done
    }

    /// The groups that still had room, by dtype.
    pub(crate) fn finish(self) -> impl Iterator<Item = (Dtype, Vec<T>)> {
        self.open.into_iter().map(|(dtype, (group, _))| (dtype, group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_bytes_of_a_piece() {
        let mut groups = Groups::new();
        assert_eq!(groups.push(Dtype::U8, PIECE_BYTES / 2, 1), None);
        assert_eq!(groups.push(Dtype::BF16, 1, 2), None);
        assert_eq!(groups.push(Dtype::U8, PIECE_BYTES / 2, 3), None);
        assert_eq!(groups.push(Dtype::U8, 1, 4), Some(vec![1, 3]));
        let rest: Vec<_> = groups.finish().collect();
        assert_eq!(rest, [(Dtype::U8, vec![4]), (Dtype::BF16, vec![2])]);

        let mut groups = Groups::new();
        assert!((0..MAX_SEGMENT_PARTS).all(|_| groups.push(Dtype::U8, 1, ()).is_none()));
        assert!(groups.push(Dtype::U8, 1, ()).is_some());
    }
}
