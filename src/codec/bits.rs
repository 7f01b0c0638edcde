//! Bits packed least significant first (SPEC section 1), in runs that begin on byte boundaries (section 8).

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

/// Bytes of a run of `items` items of `width` bits.
pub(crate) fn packed_bytes(items: u64, width: u8) -> u64 {
    (items * u64::from(width)).div_ceil(8)
}

/// Takes a run of `items` items of `width` bits, 0 to 32, off the front of `bytes`, which is long enough, and checks
/// that its padding is zero (R-STR-05). `T` holds `width` bits.
pub(crate) fn unpack<T: TryFrom<u64> + Default>(bytes: &mut &[u8], width: u32, items: usize) -> Result<Vec<T>> {
    let length = (items * width as usize).div_ceil(8);
    let (run, rest) = bytes.split_at(length);
    *bytes = rest;
    let mut unpacked = Vec::with_capacity(items);
    let mask = (1 << width) - 1;
    let mut pending = 0_u64;
    let mut bits = 0;
    let mut source = run;
    for _ in 0..items {
        if bits < width {
            if let Some((four, rest)) = source.split_first_chunk() {
                pending |= u64::from(u32::from_le_bytes(*four)) << bits;
                bits += 32;
                source = rest;
            } else {
                for byte in std::mem::take(&mut source) {
                    pending |= u64::from(*byte) << bits;
                    bits += 8;
                }
            }
        }
        unpacked.push(T::try_from(pending & mask).unwrap_or_default());
        pending >>= width;
        bits -= width;
    }
    ensure(pending == 0, &rules::STR_05, || "padding bits are not zero".into())?;
    Ok(unpacked)
}

/// The same for symbols of 1, 2, 4 or 8 bits, of which whole ones are in each byte.
pub(crate) fn unpack_symbols(bytes: &mut &[u8], width: u8, items: usize) -> Result<Vec<u8>> {
    match width {
        1 => unpack_bytes::<8>(bytes, items),
        2 => unpack_bytes::<4>(bytes, items),
        4 => unpack_bytes::<2>(bytes, items),
        _ => unpack_bytes::<1>(bytes, items),
    }
}

fn unpack_bytes<const PER_BYTE: usize>(bytes: &mut &[u8], items: usize) -> Result<Vec<u8>> {
    let (run, rest) = bytes.split_at(items.div_ceil(PER_BYTE));
    *bytes = rest;
    let width = 8 / PER_BYTE;
    let mut unpacked = vec![0; run.len() * PER_BYTE];
    for (symbols, byte) in unpacked.as_chunks_mut::<PER_BYTE>().0.iter_mut().zip(run) {
        for (number, symbol) in symbols.iter_mut().enumerate() {
            *symbol = (byte >> (number * width)) & (u8::MAX >> (8 - width));
        }
    }
    ensure(unpacked[items..].iter().all(|&symbol| symbol == 0), &rules::STR_05, || "padding bits are not zero".into())?;
    unpacked.truncate(items);
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_round_trip() {
        for width in [0, 1, 2, 4, 5, 8, 13, 31] {
            for count in [0_u32, 1, 3, 7, 8, 9, 100] {
                let mask = (1_u32 << width) - 1;
                let items: Vec<u32> = (0..count).map(|i| i.wrapping_mul(2_654_435_761) & mask).collect();
                let mut bytes = vec![0xAA];
                pack(&mut bytes, width, items.iter().copied());
                bytes.push(0xBB);
                assert_eq!(bytes.len() as u64, 2 + packed_bytes(u64::from(count), u8::try_from(width).unwrap()));
                let mut rest = &bytes[1..];
                assert_eq!(unpack::<u32>(&mut rest, width, items.len()).unwrap(), items);
                assert_eq!(rest, [0xBB]);
                if let 1 | 2 | 4 | 8 = width {
                    let mut rest = &bytes[1..];
                    let symbols = unpack_symbols(&mut rest, u8::try_from(width).unwrap(), items.len()).unwrap();
                    assert_eq!(symbols.into_iter().map(u32::from).collect::<Vec<_>>(), items);
                    assert_eq!(rest, [0xBB]);
                }
            }
        }
    }

    #[test]
    fn padding_must_be_zero() {
        assert_eq!(unpack::<u8>(&mut [0b0000_1111].as_slice(), 1, 4).unwrap(), [1, 1, 1, 1]);
        assert_eq!(unpack::<u8>(&mut [0b0001_1111].as_slice(), 1, 4).unwrap_err().rule(), Some("R-STR-05"));
        assert_eq!(unpack::<u8>(&mut [0b1000_0000].as_slice(), 3, 2).unwrap_err().rule(), Some("R-STR-05"));
        assert_eq!(unpack_symbols(&mut [0b0000_1111].as_slice(), 1, 4).unwrap(), [1, 1, 1, 1]);
        assert_eq!(unpack_symbols(&mut [0b0001_1111].as_slice(), 1, 4).unwrap_err().rule(), Some("R-STR-05"));
        assert_eq!(unpack_symbols(&mut [0b1000_0000].as_slice(), 4, 1).unwrap_err().rule(), Some("R-STR-05"));
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
