//! The lanes of a stretch that change, as numbers and new values.

use crate::codec::blocks::{Compare, LanePlaces, STRETCH, Work, dispatch};
use crate::codec::lane::{Lane, with_lane};
use crate::codec::piece::differing;

/// Appends the lanes in which two stretches of equal length differ: their numbers, which count from
/// `first` on, and their new values, little-endian. The numbers of all lanes must be below 2^32.
pub(crate) fn append_changes(
    lane_bytes: usize,
    first: u32,
    (old, new): (&[u8], &[u8]),
    numbers: &mut Vec<u32>,
    values: &mut Vec<u8>,
) {
    with_lane!(lane_bytes, L => {
        let (old, new) = (L::chunks(old), L::chunks(new));
        dispatch(Append::<L> { first, old, new, numbers, values });
    });
}

struct Append<'a, L: Lane> {
    first: u32,
    old: &'a [L::Bytes],
    new: &'a [L::Bytes],
    numbers: &'a mut Vec<u32>,
    values: &'a mut Vec<u8>,
}

impl<L: Lane> Work for Append<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run(self, compare: impl Compare) {
        let Self {
            first,
            old,
            new,
            numbers,
            values,
        } = self;
        let mut places = LanePlaces::new();
        for (begin, (old, new)) in (first..)
            .step_by(STRETCH)
            .zip(old.chunks(STRETCH).zip(new.chunks(STRETCH)))
        {
            let lanes = places.of(&differing::<L>(compare, Some(old), new));
            numbers.extend(lanes.iter().map(|&lane| begin + u32::from(lane)));
            let filled = values.len();
            values.resize(filled + size_of::<L>() * lanes.len(), 0);
            for (value, &lane) in L::chunks_mut(&mut values[filled..]).iter_mut().zip(lanes) {
                *value = new[usize::from(lane)];
            }
        }
    }
}
