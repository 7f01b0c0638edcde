//! Bits packed least significant first (SPEC section 1), in runs that begin on byte boundaries
//! (section 8).

use std::ops::Range;

use crate::error::Result;
use crate::rules::{self, ensure};

/// Appends items of `width` bits, 0 to 32; pads the last byte with zero bits at the end of the run.
pub(crate) fn pack(out: &mut Vec<u8>, width: u32, items: impl Iterator<Item = u32>) {
    let mask = (1 << width) - 1;
    let mut pending = 0_u64;
    let mut bits = 0;
    for item in items {
        pending |= (u64::from(item) & mask) << bits;
        bits += width;
        if bits >= 32 {
            out.extend(&pending.to_le_bytes()[..4]);
            pending >>= 32;
            bits -= 32;
        }
    }
    out.extend(&pending.to_le_bytes()[..bits.div_ceil(8) as usize]);
}

/// Packs a run of symbols of 1, 2, 4 or 8 bits.
pub(crate) fn pack_symbols(symbols: &[u8], width: u8) -> Vec<u8> {
    match width {
        1 => pack_bytes::<8>(symbols),
        2 => pack_bytes::<4>(symbols),
        4 => pack_bytes::<2>(symbols),
        _ => symbols.to_vec(),
    }
}

fn pack_bytes<const PER_BYTE: usize>(symbols: &[u8]) -> Vec<u8> {
    let byte = |symbols: &[u8]| {
        symbols
            .iter()
            .enumerate()
            .fold(0, |byte, (number, symbol)| {
                byte | symbol << (number * (8 / PER_BYTE))
            })
    };
    let (whole, rest) = symbols.as_chunks::<PER_BYTE>();
    let mut run = Vec::with_capacity(whole.len() + 1);
    run.extend(whole.iter().map(|symbols| byte(symbols)));
    run.extend(Some(byte(rest)).filter(|_| !rest.is_empty()));
    run
}

/// Bytes of a run of `items` items of `width` bits.
pub(crate) fn packed_bytes(items: u64, width: u8) -> u64 {
    (items * u64::from(width)).div_ceil(8)
}

/// Takes a run of `items` items of `width` bits, 0 to 32, off the front of `bytes`, which is long
/// enough, and checks that its padding is zero (R-STR-05).
pub(crate) fn take<'a>(bytes: &mut &'a [u8], width: u32, items: usize) -> Result<&'a [u8]> {
    let bits = items * width as usize;
    let (run, rest) = bytes.split_at(bits.div_ceil(8));
    *bytes = rest;
    let padding = run
        .last()
        .filter(|_| !bits.is_multiple_of(8))
        .map_or(0, |last| last >> (bits % 8));
    ensure(padding == 0, &rules::STR_05, || {
        "padding bits are not zero".into()
    })?;
    Ok(run)
}

/// Adds to each number the item at the same place in a run of items of `width` bits, 0 to 25. These
/// low bits are zero in the numbers.
pub(crate) fn add_items(numbers: &mut [u32], run: &[u8], width: usize) {
    if width == 0 {
        return;
    }
    let mask = (1 << width) - 1;
    for (number, bit) in numbers.iter_mut().zip((0..).step_by(width)) {
        let rest = run.get(bit / 8..).unwrap_or(&[]);
        let four = rest.first_chunk().copied().unwrap_or_else(|| {
            let mut four = [0; 4];
            four[..rest.len()].copy_from_slice(rest);
            four
        });
        *number |= u32::from_le_bytes(four) >> (bit % 8) & mask;
    }
}

/// Calls `found` with the place of each bit that is set within a range of a run.
pub(crate) fn for_each_one(run: &[u8], range: Range<usize>, mut found: impl FnMut(usize)) {
    let begin = range.start / 64 * 8;
    for (bytes, at) in run[begin..range.end.div_ceil(8)]
        .chunks(8)
        .zip((begin * 8..).step_by(64))
    {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let mut word = u64::from_le_bytes(word) & u64::MAX << range.start.saturating_sub(at);
        while word != 0 {
            let place = at + word.trailing_zeros() as usize;
            if place >= range.end {
                return;
            }
            found(place);
            word &= word - 1;
        }
    }
}

/// Takes a run of symbols of 1, 2, 4 or 8 bits; no symbol crosses a byte boundary.
pub(crate) fn unpack_symbols(bytes: &mut &[u8], width: u8, items: usize) -> Result<Vec<u8>> {
    match width {
        1 => unpack_bytes::<8>(bytes, items),
        2 => unpack_bytes::<4>(bytes, items),
        4 => unpack_bytes::<2>(bytes, items),
        _ => unpack_bytes::<1>(bytes, items),
    }
}

fn unpack_bytes<const PER_BYTE: usize>(bytes: &mut &[u8], items: usize) -> Result<Vec<u8>> {
    let width = 8 / PER_BYTE;
    let run = take(bytes, u32::try_from(width).unwrap_or(8), items)?;
    let mut unpacked = vec![0; run.len() * PER_BYTE];
    for (symbols, byte) in unpacked.as_chunks_mut::<PER_BYTE>().0.iter_mut().zip(run) {
        for (number, symbol) in symbols.iter_mut().enumerate() {
            *symbol = (byte >> (number * width)) & (u8::MAX >> (8 - width));
        }
    }
    unpacked.truncate(items);
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_round_trip() {
        for width in [0, 1, 2, 4, 5, 8, 13, 23, 25] {
            for count in [0_u32, 1, 3, 7, 8, 9, 100] {
                let mask = (1_u32 << width) - 1;
                let items: Vec<u32> = (0..count)
                    .map(|i| i.wrapping_mul(2_654_435_761) & mask)
                    .collect();
                let mut bytes = vec![0xAA];
                pack(&mut bytes, width, items.iter().copied());
                bytes.push(0xBB);
                assert_eq!(
                    bytes.len() as u64,
                    2 + packed_bytes(u64::from(count), u8::try_from(width).unwrap())
                );
                let mut rest = &bytes[1..];
                let run = take(&mut rest, width, items.len()).unwrap();
                let mut numbers = vec![1 << 31; items.len()];
                add_items(&mut numbers, run, width as usize);
                assert!(
                    numbers
                        .iter()
                        .map(|number| number - (1 << 31))
                        .eq(items.iter().copied())
                );
                assert_eq!(rest, [0xBB]);
                if let Ok(width @ (1 | 2 | 4 | 8)) = u8::try_from(width) {
                    let mut rest = &bytes[1..];
                    let symbols = unpack_symbols(&mut rest, width, items.len()).unwrap();
                    assert_eq!(pack_symbols(&symbols, width), bytes[1..bytes.len() - 1]);
                    assert_eq!(
                        symbols.into_iter().map(u32::from).collect::<Vec<_>>(),
                        items
                    );
                    assert_eq!(rest, [0xBB]);
                }
            }
        }
    }

    #[test]
    fn padding_must_be_zero() {
        assert_eq!(
            take(&mut [0b0000_1111].as_slice(), 1, 4).unwrap(),
            [0b0000_1111]
        );
        assert_eq!(
            take(&mut [0b0001_1111].as_slice(), 1, 4)
                .unwrap_err()
                .rule(),
            Some("R-STR-05")
        );
        assert_eq!(
            take(&mut [0b1000_0000].as_slice(), 3, 2)
                .unwrap_err()
                .rule(),
            Some("R-STR-05")
        );
        assert_eq!(
            take(&mut [0b1000_0000].as_slice(), 2, 4).unwrap(),
            [0b1000_0000]
        );
        assert_eq!(
            unpack_symbols(&mut [0b0000_1111].as_slice(), 1, 4).unwrap(),
            [1, 1, 1, 1]
        );
        assert_eq!(
            unpack_symbols(&mut [0b0001_1111].as_slice(), 1, 4)
                .unwrap_err()
                .rule(),
            Some("R-STR-05")
        );
        assert_eq!(
            unpack_symbols(&mut [0b1000_0000].as_slice(), 4, 1)
                .unwrap_err()
                .rule(),
            Some("R-STR-05")
        );
    }

    #[test]
    fn set_bits_are_found_within_a_range() {
        let run: Vec<u8> = (0..40_u8).map(|i| i.wrapping_mul(151)).collect();
        for range in [
            0..0,
            0..1,
            3..64,
            64..65,
            63..129,
            100..101,
            0..320,
            257..320,
            320..320,
        ] {
            let expected: Vec<usize> = range
                .clone()
                .filter(|place| run[place / 8] >> (place % 8) & 1 == 1)
                .collect();
            let mut places = Vec::new();
            for_each_one(&run, range, |place| places.push(place));
            assert_eq!(places, expected);
        }
    }

    #[test]
    fn the_example_of_the_specification() {
        let mut low = Vec::new();
        pack(&mut low, 2, [1, 0, 1].into_iter());
        assert_eq!(low, [0x11]);
        let mut signs = Vec::new();
        pack(&mut signs, 1, [0, 1, 0, 1].into_iter());
        assert_eq!(signs, [0x0A]);
        let mut magnitudes = Vec::new();
        pack(&mut magnitudes, 2, [0, 0, 3, 2].into_iter());
        assert_eq!(magnitudes, [0xB0]);
    }
}
