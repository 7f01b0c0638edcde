//! Sums of single lanes.

use crate::codec::lane::Lane;
use crate::sums::tables::TABLES;
use crate::sums::{ROW, Sums, Total};

/// Of lanes by their numbers in the piece, ascending.
pub(super) fn of_lanes<L: Lane>(lanes: impl Iterator<Item = (u32, L::Bytes)>) -> Sums {
    let mut lanes = lanes.peekable();
    let mut total = Total::default();
    while let Some(&(number, _)) = lanes.peek() {
        let row = u64::from(number) * size_of::<L>() as u64 / (2 * ROW as u64);
        let end = (row + 1) * 2 * ROW as u64 / size_of::<L>() as u64;
        let mut products = [0_u64; 2];
        while let Some((number, lane)) = lanes.next_if(|&(number, _)| u64::from(number) < end) {
            add::<L>(number, lane, &mut products);
        }
        total.add(row, products);
    }
    total.sums()
}

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
