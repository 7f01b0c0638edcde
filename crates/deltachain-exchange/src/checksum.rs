//! The checksums that foreign layouts use for the bytes of a tensor.

use twox_hash::XxHash3_128;

/// Computes the Adler-32.
pub(crate) fn adler32(bytes: &[u8]) -> u32 {
    simd_adler32::adler32(&bytes)
}

/// Computes the XXH3-128 with seed 0. Layouts write its most significant byte first.
pub(crate) fn xxh3_128(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_known_ones() {
        // Values from Python's `zlib.adler32` and `xxhash.xxh3_128_hexdigest`.
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(
            format!("{:032x}", xxh3_128(b"")),
            "99aa06d3014798d86001c324468d497f"
        );
    }
}
