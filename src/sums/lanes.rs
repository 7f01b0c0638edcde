//! Sums of single lanes.

use crate::codec::lane::{Lane, with_lane};
use crate::sums::number::{Sums, Total};
use crate::sums::tables::{ROW, TABLES};

impl Sums {
    /// The sums of lanes of `lane_bytes` bytes, given by their numbers in the piece, each once, and
    /// their values, little-endian. Ascending numbers are the fastest.
    pub fn of_lanes(lane_bytes: usize, numbers: &[u32], values: &[u8]) -> Self {
        with_lane!(lane_bytes, L => {
            let lanes = numbers.iter().zip(L::chunks(values)).map(|(&number, &value)| (number, [value]));
            let [sums] = of_lanes::<L, 1>(lanes);
            sums
        })
    }

    /// The sums of some lanes of a stretch of a piece, given by their places in the stretch,
    /// ascending. The stretch begins with the lane of number `first`.
    pub(crate) fn of_places(lane_bytes: usize, first: u32, places: &[u16], stretch: &[u8]) -> Self {
        with_lane!(lane_bytes, L => {
            let lanes = L::chunks(stretch);
            let lanes = places.iter().map(|&place| (first + u32::from(place), [lanes[usize::from(place)]]));
            let [sums] = of_lanes::<L, 1>(lanes);
            sums
        })
    }
}

/// The sums of the same lanes with several sets of values. Each lane appears once, with its number
/// in the piece and its values.
pub(crate) fn of_lanes<L: Lane, const N: usize>(
    lanes: impl Iterator<Item = (u32, [L::Bytes; N])>,
) -> [Sums; N] {
    let in_row = 2 * ROW as u64 / size_of::<L>() as u64;
    let mut totals = [const { Total::ZERO }; N];
    let (mut row, mut begin) = (0, 0);
    let mut products = [[0; 2]; N];
    for (number, lanes) in lanes {
        if u64::from(number).wrapping_sub(begin) >= in_row {
            totals
                .iter_mut()
                .zip(products)
                .for_each(|(total, products)| total.add(row, products));
            row = u64::from(number) / in_row;
            (begin, products) = (row * in_row, [[0; 2]; N]);
        }
        let (place, shift) = place::<L>(number);
        for (products, &lane) in products.iter_mut().zip(&lanes) {
            add::<L>(place, L::load(lane).to_u64() << shift, products);
        }
    }
    totals
        .iter_mut()
        .zip(products)
        .for_each(|(total, products)| total.add(row, products));
    totals.map(Total::sums)
}

/// The place in its row of a lane's first unit, and the number of bits of that unit before the
/// lane.
#[inline]
fn place<L: Lane>(number: u32) -> (usize, u64) {
    let byte = u64::from(number) * size_of::<L>() as u64;
    // Less than a row.
    (
        usize::try_from(byte / 2 % ROW as u64).unwrap_or(0),
        8 * (byte % 2),
    )
}

/// Adds the units of a value. Lanes do not reach beyond a row.
#[inline]
fn add<L: Lane>(place: usize, mut value: u64, [first, second]: &mut [u64; 2]) {
    for &[one, other] in &TABLES.low[place..][..size_of::<L>().div_ceil(2)] {
        let unit = value & 0xFFFF;
        *first = first.wrapping_add(unit * u64::from(one));
        *second = second.wrapping_add(unit * u64::from(other));
        value >>= 16;
    }
}
