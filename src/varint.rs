//! Writes varints (SPEC section 1), which are in links and in the digests of states. A cursor reads
//! them.

/// Appends a number in its only legal form.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7F) as u8);
}
