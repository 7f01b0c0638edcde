//! Groups the pieces that share segments: consecutive pieces of one dtype, with the bytes of one
//! full piece in total. A segment may hold twice as much, but smaller segments take less memory and
//! their contexts fit better.

use std::collections::BTreeMap;

use crate::limits::MAX_SEGMENT_PARTS;
use crate::tensor::{Dtype, PIECE_BYTES, TensorInfo};

/// Puts items into groups, each of which becomes segments. An item stands for a piece, which is
/// given by its tensor and number. Only dtypes and lengths decide which items share a group. No
/// group is empty.
pub(crate) fn grouped<'a, T>(
    pieces: impl Iterator<Item = (&'a TensorInfo, u64, T)>,
) -> Vec<Vec<T>> {
    // The group of each dtype that still has room, and its bytes.
    let mut open: BTreeMap<Dtype, (Vec<T>, u64)> = BTreeMap::new();
    let mut done = Vec::new();
    for (info, piece, item) in pieces {
        let range = info.piece(piece);
        let (group, filled) = open.entry(info.dtype()).or_insert_with(|| (Vec::new(), 0));
        if *filled + (range.end - range.start) > PIECE_BYTES
            || group.len() as u64 >= MAX_SEGMENT_PARTS
        {
            done.push(std::mem::take(group));
            *filled = 0;
        }
        group.push(item);
        *filled += range.end - range.start;
    }
    done.extend(open.into_values().map(|(group, _)| group));
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::address;

    #[test]
    fn groups_have_the_bytes_of_a_piece() {
        let info = |dtype, bytes| TensorInfo::new("t", dtype, [bytes]).unwrap();
        let half = info(Dtype::U8, PIECE_BYTES / 2);
        let byte = info(Dtype::U8, 1);
        let other = info(Dtype::BF16, 1);
        let pieces = [(&half, 0, 1), (&other, 0, 2), (&half, 0, 3), (&byte, 0, 4)];
        assert_eq!(grouped(pieces.into_iter()), [vec![1, 3], vec![4], vec![2]]);

        let pieces = std::iter::repeat_n((&byte, 0, ()), address(MAX_SEGMENT_PARTS).unwrap() + 1);
        let lengths: Vec<u64> = grouped(pieces)
            .iter()
            .map(|group| group.len() as u64)
            .collect();
        assert_eq!(lengths, [MAX_SEGMENT_PARTS, 1]);
    }
}
