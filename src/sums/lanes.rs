//! Sums of single lanes.

use crate::codec::lane::{Lane, with_lane};
use crate::sums::number::{Sums, Total};
use crate::sums::tables::{ROW, TABLES};

impl Sums {
    /// Of lanes of `lane_bytes` bytes, by their numbers in the piece, ascending, and their values, little-endian.
    pub fn of_lanes(lane_bytes: usize, numbers: &[u32], values: &[u8]) -> Self {
        with_lane!(lane_bytes, L => {
            let [sums] = of_lanes::<L, 1>(numbers.iter().zip(L::chunks(values)).map(|(&number, &value)| (number, [value])));
            sums
        })
    }

    /// Of some lanes of a stretch of a piece, by their places in it, ascending. It begins with the lane of number `first`.
    pub(crate) fn of_places(lane_bytes: usize, first: u32, places: &[u16], stretch: &[u8]) -> Self {
        with_lane!(lane_bytes, L => {
            let lanes = L::chunks(stretch);
            let lanes = places.iter().map(|&place| (first + u32::from(place), [lanes[usize::from(place)]]));
            let [sums] = of_lanes::<L, 1>(lanes);
            sums
        })
    }
}

/// Of several values of the same lanes, which come with their numbers in the piece, ascending.
pub(crate) fn of_lanes<L: Lane, const N: usize>(lanes: impl Iterator<Item = (u32, [L::Bytes; N])>) -> [Sums; N] {
    let in_row = 2 * ROW as u64 / size_of::<L>() as u64;
    let mut totals = [const { Total::ZERO }; N];
    let (mut row, mut end) = (0, in_row);
    let mut products = [[0; 2]; N];
    for (number, lanes) in lanes {
        if u64::from(number) >= end {
            totals.iter_mut().zip(products).for_each(|(total, products)| total.add(row, products));
            row = u64::from(number) / in_row;
            (end, products) = ((row + 1) * in_row, [[0; 2]; N]);
        }
        for (products, lane) in products.iter_mut().zip(lanes) {
            add::<L>(number, lane, products);
        }
    }
    totals.iter_mut().zip(products).for_each(|(total, products)| total.add(row, products));
    totals.map(Total::sums)
}

#[inline]
fn add<L: Lane>(number: u32, lane: L::Bytes, products: &mut [u64; 2]) {
    let byte = u64::from(number) * size_of::<L>() as u64;
    // Lanes do not reach beyond a row.
    let place = usize::try_from(byte / 2 % ROW as u64).unwrap_or(0);
    let mut value = L::load(lane).to_u64() << (8 * (byte % 2));
    for low in TABLES.low.iter().skip(place).take(size_of::<L>().div_ceil(2)) {
        for (products, &low) in products.iter_mut().zip(low) {
            *products = products.wrapping_add((value & 0xFFFF) * u64::from(low));
        }
        value >>= 16;
    }
}
