//! Element types: the table of SPEC section 2.1.

use std::fmt;

/// Element type of a tensor; the codes and names of SPEC section 2.1, which are those of safetensors 0.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[allow(non_camel_case_types, missing_docs, reason = "the names are the standard ones of safetensors")]
pub enum Dtype {
    BOOL,
    F4,
    F6_E2M3,
    F6_E3M2,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    F8_E4M3FNUZ,
    F8_E5M2FNUZ,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

/// One row of the table of SPEC section 2.1.
struct Row {
    dtype: Dtype,
    code: u8,
    name: &'static str,
    bits: u8,
    lane_bytes: u8,
    sign_magnitude: bool,
    exponent_bits: u8,
}

const fn row(dtype: Dtype, code: u8, name: &'static str, bits: u8, lane_bytes: u8, exponent: Option<u8>) -> Row {
    let (sign_magnitude, exponent_bits) = match exponent {
        Some(bits) => (true, bits),
        None => (false, 0),
    };
    Row { dtype, code, name, bits, lane_bytes, sign_magnitude, exponent_bits }
}

const TABLE: [Row; 22] = [
    row(Dtype::BOOL, 1, "BOOL", 8, 1, None),
    row(Dtype::F4, 2, "F4", 4, 1, None),
    row(Dtype::F6_E2M3, 3, "F6_E2M3", 6, 1, None),
    row(Dtype::F6_E3M2, 4, "F6_E3M2", 6, 1, None),
    row(Dtype::U8, 5, "U8", 8, 1, None),
    row(Dtype::I8, 6, "I8", 8, 1, None),
    row(Dtype::F8_E5M2, 7, "F8_E5M2", 8, 1, Some(5)),
    row(Dtype::F8_E4M3, 8, "F8_E4M3", 8, 1, Some(4)),
    row(Dtype::F8_E8M0, 9, "F8_E8M0", 8, 1, None),
    row(Dtype::F8_E4M3FNUZ, 10, "F8_E4M3FNUZ", 8, 1, Some(4)),
    row(Dtype::F8_E5M2FNUZ, 11, "F8_E5M2FNUZ", 8, 1, Some(5)),
    row(Dtype::I16, 12, "I16", 16, 2, None),
    row(Dtype::U16, 13, "U16", 16, 2, None),
    row(Dtype::F16, 14, "F16", 16, 2, Some(5)),
    row(Dtype::BF16, 15, "BF16", 16, 2, Some(8)),
    row(Dtype::I32, 16, "I32", 32, 4, None),
    row(Dtype::U32, 17, "U32", 32, 4, None),
    row(Dtype::F32, 18, "F32", 32, 4, Some(8)),
    row(Dtype::C64, 19, "C64", 64, 8, None),
    row(Dtype::F64, 20, "F64", 64, 8, Some(11)),
    row(Dtype::I64, 21, "I64", 64, 8, None),
    row(Dtype::U64, 22, "U64", 64, 8, None),
];

impl Dtype {
    fn row(self) -> &'static Row {
        // The table is in the order of the variants; `the_table_is_in_variant_order` holds it to that.
        &TABLE[self as usize]
    }

    /// All dtypes, by ascending code.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        TABLE.iter().map(|row| row.dtype)
    }

    /// The dtype with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        TABLE.iter().find(|row| row.code == code).map(|row| row.dtype)
    }

    /// The dtype with this safetensors name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.dtype)
    }

    /// Code in links and digests.
    pub fn code(self) -> u8 {
        self.row().code
    }

    /// Name as in safetensors.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Bits per element.
    pub fn bits(self) -> u64 {
        u64::from(self.row().bits)
    }

    /// Bytes per lane: the element's, or 1 for packed types of less than a byte.
    pub fn lane_bytes(self) -> usize {
        usize::from(self.row().lane_bytes)
    }

    /// Whether the lanes are a sign bit, an exponent field and a mantissa.
    pub fn is_sign_magnitude(self) -> bool {
        self.row().sign_magnitude
    }

    /// Width of the exponent field; 0 if there is none.
    pub fn exponent_bits(self) -> u32 {
        u32::from(self.row().exponent_bits)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_variant_order() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.dtype as usize, index);
            assert_eq!(Dtype::from_code(row.code), Some(row.dtype));
            assert_eq!(Dtype::from_name(row.name), Some(row.dtype));
            assert_eq!(format!("{:?}", row.dtype), row.name);
        }
        assert_eq!(Dtype::from_code(0), None);
        assert_eq!(Dtype::from_code(23), None);
    }
}
