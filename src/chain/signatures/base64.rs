//! Base64 (RFC 4648 section 4) in its one form: with padding, and without bits that mean nothing.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of bytes.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |place: usize| usize::from(group.get(place).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let sextet = bits >> (18 - 6 * place) & 63;
            text.push(if place <= group.len() { char::from(ALPHABET[sextet]) } else { '=' });
        }
    }
    text
}

/// The bytes of a text; `None` if [`encode`] would not give this text.
pub(super) fn decode<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    let digits = text.trim_end_matches('=').as_bytes();
    if text.len() != LENGTH.div_ceil(3) * 4 || digits.len() != (LENGTH * 8).div_ceil(6) {
        return None;
    }
    for (digits, group) in digits.chunks(4).zip(bytes.chunks_mut(3)) {
        let mut bits = 0_u32;
        for place in 0..4 {
            let sextet = digits.get(place).map_or(Some(0), |digit| ALPHABET.iter().position(|known| known == digit))?;
            bits = bits << 6 | u32::try_from(sextet).ok()?;
        }
        let found = [16, 8, 0].map(|shift| u8::try_from(bits >> shift & 255).unwrap_or_default());
        group.copy_from_slice(&found[..group.len()]);
        if found[group.len()..].iter().any(|rest| *rest != 0) {
            return None;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_the_rfc() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
        assert_eq!((decode(""), decode("Zg=="), decode("Zm8=")), (Some([]), Some(*b"f"), Some(*b"fo")));
        assert_eq!((decode("Zm9v"), decode("Zm9vYmFy")), (Some(*b"foo"), Some(*b"foobar")));
        let all: [u8; 256] = std::array::from_fn(|byte| u8::try_from(byte).unwrap());
        assert_eq!(decode(&encode(&all)), Some(all));
        assert!(encode(&all).contains('/') && encode(&all).contains('+'));
    }

    #[test]
    fn there_is_one_form() {
        // Bits that mean nothing, padding that is missing or too much, other alphabets, white space, other lengths.
        for text in ["Zh==", "Zg=", "Zg", "Zg===", "Zg==\n", " Zg==", "Z===", "Z-==", "Zé=", "====", "Zm8=", "Zg==Zg=="]
        {
            assert_eq!(decode::<1>(text), None, "{text}");
        }
        assert_eq!((decode::<2>("Zm9="), decode::<3>("Zm-_"), decode::<0>("=")), (None, None, None));
    }
}
