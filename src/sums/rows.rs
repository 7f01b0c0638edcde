//! Sums of consecutive bytes, from blocks of several rows at once.

use crate::codec::blocks::{BLOCK, Block, products};
use crate::codec::lane::Lane;
use crate::sums::number::{Sums, Total};
use crate::sums::tables::{ROW_BYTES, TABLES};

/// Number of rows that share the reads of the tables. Memory is also read faster from several
/// places at once.
const TOGETHER: usize = 8;

impl Sums {
    /// The sums of consecutive bytes, which begin at byte `begin` of the piece; `begin` must be
    /// even.
    pub fn of_bytes(begin: u64, bytes: &[u8]) -> Self {
        let mut total = Total::ZERO;
        let mut number = begin / ROW_BYTES as u64;
        let place = usize::try_from(begin % ROW_BYTES as u64).unwrap_or(0);
        let (head, whole) = bytes.split_at(bytes.len().min((ROW_BYTES - place) % ROW_BYTES));
        if !head.is_empty() {
            add_part(&mut total, number, place, head);
            number += 1;
        }
        let (rows, tail) = whole.as_chunks::<ROW_BYTES>();
        let (together, rows) = rows.as_chunks::<TOGETHER>();
        let (pairs, rows) = rows.as_chunks::<2>();
        together
            .iter()
            .for_each(|rows| add_rows(&mut total, &mut number, rows));
        pairs
            .iter()
            .for_each(|rows| add_rows(&mut total, &mut number, rows));
        rows.as_chunks::<1>()
            .0
            .iter()
            .for_each(|rows| add_rows(&mut total, &mut number, rows));
        add_part(&mut total, number, 0, tail);
        total.sums()
    }
}

/// Adds the next rows.
fn add_rows<const ROWS: usize>(
    total: &mut Total,
    number: &mut u64,
    rows: &[[u8; ROW_BYTES]; ROWS],
) {
    for products in products(rows.each_ref().map(|row| blocks(row)), &TABLES.factors) {
        total.add(*number, products);
        *number += 1;
    }
}

/// Adds bytes of one row, which begin at `place` in it. All other bytes of their blocks count as
/// zeros.
fn add_part(total: &mut Total, number: u64, place: usize, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min((BLOCK - place % BLOCK) % BLOCK));
    let (whole, tail) = rest.split_at(rest.len() / BLOCK * BLOCK);
    let mut add = |begin: usize, part: &[u8]| {
        let blocks = blocks(part);
        let [products] = products([blocks], &TABLES.factors[begin / BLOCK..][..blocks.len()]);
        total.add(number, products);
    };
    add(place + head.len(), whole);
    for (begin, part) in [(place, head), (place + head.len() + whole.len(), tail)] {
        if !part.is_empty() {
            let mut block = [0; BLOCK];
            block[begin % BLOCK..][..part.len()].copy_from_slice(part);
            add(begin, &block);
        }
    }
}

fn blocks(bytes: &[u8]) -> &[Block<u8>] {
    u8::chunks(bytes).as_chunks().0
}
