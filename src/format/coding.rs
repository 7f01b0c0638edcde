//! The coding byte of a segment (SPEC section 6.1), and the streams that it implies (section 7).

use crate::error::Result;
use crate::rules::{self, ensure};

/// Streams in the order of SPEC section 7: of positions, and of values.
const POSITIONS: [&str; 4] = ["bitmap", "gap low", "gap high", "gap escape"];
const PLANES: [&str; 8] = [
    "plane 0", "plane 1", "plane 2", "plane 3", "plane 4", "plane 5", "plane 6", "plane 7",
];
const SMALL: [&str; 3] = ["sign", "magnitude", "magnitude escape"];

/// The lanes of its parts that a segment codes: a bit of the coding byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Every lane.
    Dense = 0,
    /// The lanes whose positions are given.
    Sparse = 0b100,
}

/// Coding of the values of lanes: bits of a segment's coding byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// The new bits, in byte planes.
    Absolute = 0,
    /// Differences to the base, in byte planes.
    RelativePlanes = 0b0_1000,
    /// Differences to the base, as signs and small magnitudes.
    RelativeSmall = 0b1_0000,
}

/// The fields of a segment's coding byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coding {
    /// Bytes per lane: 1, 2, 4 or 8.
    pub lane_bytes: usize,
    /// The lanes that are coded.
    pub positions: Positions,
    /// Coding of the values.
    pub values: Values,
}

impl Coding {
    /// Parses a coding byte and checks R-IDX-05.
    pub(crate) fn from_byte(byte: u8) -> Result<Self> {
        let positions = if byte & 0b100 == 0 {
            Positions::Dense
        } else {
            Positions::Sparse
        };
        let values = match byte >> 3 {
            0 => Some(Values::Absolute),
            1 => Some(Values::RelativePlanes),
            2 if positions == Positions::Sparse => Some(Values::RelativeSmall),
            _ => None,
        };
        ensure(values.is_some(), &rules::IDX_05, || {
            format!("{byte:#04x} is not a coding")
        })?;
        Ok(Self {
            lane_bytes: 1 << (byte & 0b11),
            positions,
            values: values.unwrap_or(Values::Absolute),
        })
    }

    pub(crate) fn to_byte(self) -> u8 {
        let lane_bytes = match self.lane_bytes {
            1 => 0,
            2 => 1,
            4 => 2,
            _ => 3,
        };
        lane_bytes | self.positions as u8 | self.values as u8
    }

    /// Whether decoding needs the base.
    pub fn is_relative(self) -> bool {
        self.values != Values::Absolute
    }

    pub(crate) fn is_sparse(self) -> bool {
        self.positions == Positions::Sparse
    }

    /// Names of the streams that a segment has, in order (SPEC section 7).
    pub(crate) fn stream_names(self) -> impl Iterator<Item = &'static str> {
        let positions = if self.is_sparse() {
            &POSITIONS[..]
        } else {
            &[]
        };
        let values = if self.values == Values::RelativeSmall {
            &SMALL[..]
        } else {
            &PLANES[..self.lane_bytes]
        };
        std::iter::once("table").chain(positions.iter().chain(values).copied())
    }

    /// A few words for people: `sparse, relative small`.
    pub fn describe(self) -> &'static str {
        match (self.positions, self.values) {
            (Positions::Dense, Values::Absolute) => "dense absolute",
            (Positions::Dense, _) => "dense relative",
            (Positions::Sparse, Values::Absolute) => "sparse absolute",
            (Positions::Sparse, Values::RelativePlanes) => "sparse relative (planes)",
            (Positions::Sparse, Values::RelativeSmall) => "sparse relative",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_coding_or_refused() {
        let accepted = (0..=u8::MAX).filter(|&byte| match Coding::from_byte(byte) {
            Ok(coding) => {
                assert_eq!(coding.to_byte(), byte);
                true
            }
            Err(error) => {
                assert_eq!(error.rule(), Some("R-IDX-05"));
                false
            }
        });
        // Four lane widths of each legal pair of positions and values.
        assert_eq!(accepted.count(), 4 * 5);
    }
}
