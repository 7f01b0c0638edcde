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
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    let length = digits.len() * 6 / 8;
    if text.len() != length.div_ceil(3) * 4 {
        return None;
    }
    // Secrets are decoded, too: a vector that grows would leave copies.
    let mut bytes = Vec::with_capacity(length);
    for digits in digits.chunks(4) {
        let mut bits = 0_u32;
        for place in 0..4 {
            let sextet = digits.get(place).map_or(Some(0), |digit| ALPHABET.iter().position(|known| known == digit))?;
            bits = bits << 6 | u32::try_from(sextet).ok()?;
        }
        let found = [16, 8, 0].map(|shift| u8::try_from(bits >> shift & 255).unwrap_or_default());
        let (group, rest) = found.split_at(digits.len() - 1);
        if rest.iter().any(|rest| *rest != 0) {
            return None;
        }
        bytes.extend_from_slice(group);
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
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        assert!(encode(&all).contains('/') && encode(&all).contains('+'));
    }

    #[test]
    fn there_is_one_form() {
        // Bits that mean nothing, padding that is missing or too much, other alphabets, white space.
        for text in [
            "Zh==", "Zg=", "Zg", "Zg===", "Zg==\n", " Zg==", "Z===", "Z-==", "Zé=", "=", "====", "Zg==Zg==", "Zm9=",
            "Zm-_", "Zm9v====", "Zm9vZ", "Zm9vZ===",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
