//! Element types: the table of SPEC section 2.1, and types that a link describes itself.

use std::fmt;

use crate::varint::put_varint;

/// The properties of a dtype, as in a row of the table of SPEC section 2.1.
struct DtypeRow<'a> {
    code: u8,
    name: &'a str,
    bits: u32,
    lane_bytes: u8,
    /// Width of the exponent field of a sign-magnitude dtype.
    exponent_bits: Option<u8>,
}

macro_rules! dtypes {
    ($($dtype:ident $code:literal $bits:literal $lane_bytes:literal $exponent_bits:expr;)*) => {
        /// Element type of a tensor: one of the table of SPEC section 2.1, with the names of
        /// safetensors 0.8, or one that is described wherever it occurs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[allow(non_camel_case_types, missing_docs, reason = "the names are the standard ones of safetensors")]
        pub enum Dtype {
            $($dtype,)*
            /// Any other dtype. Safetensors files cannot hold it.
            Described(DescribedDtype),
        }

        /// The dtypes of the table, by ascending code.
        const TABLE: &[Dtype] = &[$(Dtype::$dtype),*];

        impl Dtype {
            fn row(&self) -> DtypeRow<'_> {
                match self {
                    $(Self::$dtype => DtypeRow {
                        code: $code,
                        name: stringify!($dtype),
                        bits: $bits,
                        lane_bytes: $lane_bytes,
                        exponent_bits: $exponent_bits,
                    },)*
                    Self::Described(own) => own.row(),
                }
            }
        }
    };
}

dtypes! {
    BOOL 1 8 1 None;
    F4 2 4 1 None;
    F6_E2M3 3 6 1 None;
    F6_E3M2 4 6 1 None;
    U8 5 8 1 None;
    I8 6 8 1 None;
    F8_E5M2 7 8 1 Some(5);
    F8_E4M3 8 8 1 Some(4);
    F8_E8M0 9 8 1 None;
    F8_E4M3FNUZ 10 8 1 Some(4);
    F8_E5M2FNUZ 11 8 1 Some(5);
    I16 12 16 2 None;
    U16 13 16 2 None;
    F16 14 16 2 Some(5);
    BF16 15 16 2 Some(8);
    I32 16 32 4 None;
    U32 17 32 4 None;
    F32 18 32 4 Some(8);
    C64 19 64 8 None;
    F64 20 64 8 Some(11);
    I64 21 64 8 None;
    U64 22 64 8 None;
}

impl Dtype {
    /// Code of every described dtype.
    pub(crate) const DESCRIBED: u8 = 255;

    /// The dtypes of the table, by ascending code.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        TABLE.iter().copied()
    }

    /// The dtype of the table with this code, if there is one.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::all().find(|dtype| dtype.code() == code)
    }

    /// The dtype of the table with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|dtype| dtype.name() == name)
    }

    /// Code in links and digests.
    pub fn code(self) -> u8 {
        self.row().code
    }

    /// Name; for a dtype of the table, the one in safetensors.
    pub fn name(&self) -> &str {
        self.row().name
    }

    /// Bits per element.
    pub fn bits(self) -> u64 {
        u64::from(self.row().bits)
    }

    /// Bytes per lane. For dtypes of the table: the bytes of an element, or 1 for packed types of
    /// less than a byte.
    pub fn lane_bytes(self) -> usize {
        usize::from(self.row().lane_bytes)
    }

    /// Width of the exponent field, if the lanes are a sign bit, such a field and a mantissa.
    pub fn exponent_bits(self) -> Option<u32> {
        self.row().exponent_bits.map(u32::from)
    }

    /// Appends the code and, for a described dtype, the description that follows it in links and
    /// digests.
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.push(self.code());
        if let Self::Described(own) = self {
            put_varint(out, own.name_length.into());
            out.extend_from_slice(own.name().as_bytes());
            let DtypeRow {
                bits,
                lane_bytes,
                exponent_bits,
                ..
            } = own.row();
            put_varint(out, u64::from(bits));
            // SPEC section 2.1: the width is 0 if there is no exponent field.
            out.extend([
                lane_bytes,
                exponent_bits.is_some().into(),
                exponent_bits.unwrap_or(0),
            ]);
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dtype that is not in the table of SPEC section 2.1. Two are equal if all of their fields are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DescribedDtype {
    /// The bytes after the name are 0.
    name: [u8; Self::MAX_NAME],
    name_length: u8,
    bits: u32,
    lane_bytes: u8,
    exponent_bits: Option<u8>,
}

impl DescribedDtype {
    const MAX_NAME: usize = 32;
    /// Maximum bits of an element, which may be a whole block of numbers.
    const MAX_BITS: u32 = 1 << 16;
    /// Maximum width of an exponent field: that of F64.
    const MAX_EXPONENT_BITS: u8 = 11;

    /// Creates a dtype from its name, bits per element (1 to 65536), bytes per lane and, for lanes
    /// of sign and magnitude, the width of the exponent field. `None` if SPEC section 2.1 does not
    /// allow it (R-IDX-20).
    pub fn new(name: &str, bits: u32, lane_bytes: u8, exponent_bits: Option<u8>) -> Option<Self> {
        let name_length = u8::try_from(name.len()).ok()?;
        let mut bytes = [0; Self::MAX_NAME];
        bytes
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        let is_word = name.starts_with(|first: char| first.is_ascii_uppercase())
            && name
                .bytes()
                .all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'))
            && Dtype::from_name(name).is_none();
        let is_size = (1..=Self::MAX_BITS).contains(&bits) && matches!(lane_bytes, 1 | 2 | 4 | 8);
        let fits = |exponent: u8| exponent <= Self::MAX_EXPONENT_BITS && exponent < 8 * lane_bytes;
        let is_legal = is_word && is_size && exponent_bits.is_none_or(fits);
        is_legal.then_some(Self {
            name: bytes,
            name_length,
            bits,
            lane_bytes,
            exponent_bits,
        })
    }

    fn name(&self) -> &str {
        // The bytes come from a string, in which no character is longer than a byte.
        std::str::from_utf8(&self.name[..usize::from(self.name_length)]).unwrap_or_default()
    }

    fn row(&self) -> DtypeRow<'_> {
        let Self {
            bits,
            lane_bytes,
            exponent_bits,
            ..
        } = *self;
        DtypeRow {
            code: Dtype::DESCRIBED,
            name: self.name(),
            bits,
            lane_bytes,
            exponent_bits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_tell_dtypes_apart() {
        for dtype in Dtype::all() {
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
            assert_eq!(format!("{dtype:?}"), dtype.name());
        }
        assert!(Dtype::all().map(Dtype::code).eq(1..=22));
        assert_eq!(Dtype::from_code(0), None);
        assert_eq!(Dtype::from_code(23), None);
        assert_eq!(Dtype::from_code(255), None);
    }

    #[test]
    fn descriptions_are_bounded() {
        let name = |name: &str| DescribedDtype::new(name, 8, 1, None).map(|own| own.name() == name);
        let longest = "X".repeat(32);
        for legal in ["X", "F8_E3M4", "A_", &longest] {
            assert_eq!(name(legal), Some(true), "{legal}");
        }
        for illegal in [
            "",
            "x",
            "8F",
            "_F",
            "F 8",
            "F\0",
            "FÄ",
            "BF16",
            &format!("{longest}X"),
        ] {
            assert_eq!(name(illegal), None, "{illegal}");
        }
        let is_legal =
            |bits, lane, exponent| DescribedDtype::new("X", bits, lane, exponent).is_some();
        assert!(is_legal(1, 8, None) && is_legal(65536, 1, None));
        assert!(!is_legal(0, 1, None) && !is_legal(65537, 1, None));
        let widths = (0..=u8::MAX).filter(|&lane_bytes| is_legal(8, lane_bytes, None));
        assert!(widths.eq([1, 2, 4, 8]));
        for (lane_bytes, most) in [(1, 7), (2, 11), (4, 11), (8, 11)] {
            assert!(
                (0..=u8::MAX)
                    .filter(|&bits| is_legal(8, lane_bytes, Some(bits)))
                    .eq(0..=most),
                "{lane_bytes}"
            );
        }
    }

    #[test]
    fn descriptions_follow_the_code() {
        let put = |dtype: Dtype| {
            let mut out = Vec::new();
            dtype.put(&mut out);
            out
        };
        assert_eq!(put(Dtype::BF16), [15]);
        let described = |bits, exponent| {
            Dtype::Described(DescribedDtype::new("AB", bits, 4, exponent).unwrap())
        };
        assert_eq!(put(described(12, None)), [255, 2, b'A', b'B', 12, 4, 0, 0]);
        assert_eq!(
            put(described(12, Some(0))),
            [255, 2, b'A', b'B', 12, 4, 1, 0]
        );
        assert_eq!(
            put(described(12, Some(5))),
            [255, 2, b'A', b'B', 12, 4, 1, 5]
        );
        // The bits are a varint.
        assert_eq!(
            put(described(127, None)),
            [255, 2, b'A', b'B', 127, 4, 0, 0]
        );
        assert_eq!(
            put(described(128, None)),
            [255, 2, b'A', b'B', 0x80, 0x01, 4, 0, 0]
        );
        assert_eq!(
            put(described(65536, None)),
            [255, 2, b'A', b'B', 0x80, 0x80, 0x04, 4, 0, 0]
        );
    }
}
