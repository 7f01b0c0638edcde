//! The description of a tensor apart from its data: name, dtype, shape, and the pieces these imply
//! (SPEC sections 2.2 and 2.3).

use std::ops::Range;
use std::sync::Arc;

use crate::limits::MAX_SEGMENT_BYTES;
use crate::tensor::Dtype;

/// Bytes of a full piece: 2^24.
pub const PIECE_BYTES: u64 = 1 << 24;
/// [`PIECE_BYTES`] as the length of a slice.
pub(crate) const PIECE_LENGTH: usize = 1 << 24;
const _: () = assert!(PIECE_LENGTH as u64 == PIECE_BYTES && MAX_SEGMENT_BYTES == 2 * PIECE_BYTES);

/// Name, dtype and shape of a tensor, with its byte length computed and checked. Copies share name
/// and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    name: Arc<str>,
    dtype: Dtype,
    shape: Arc<[u64]>,
    elements: u64,
    bytes: u64,
}

impl TensorInfo {
    /// Describes a tensor. `None` if shape and dtype do not give a whole number of lanes and of
    /// bytes, below 2^63 (SPEC section 2.2).
    pub fn new(
        name: impl Into<Arc<str>>,
        dtype: Dtype,
        shape: impl Into<Arc<[u64]>>,
    ) -> Option<Self> {
        let shape = shape.into();
        let bits = Self::bits(dtype, &shape);
        if !bits.is_multiple_of(8) {
            return None;
        }
        let bytes = u64::try_from(bits / 8)
            .ok()
            .filter(|bytes| *bytes < 1 << 63)?;
        if !bytes.is_multiple_of(dtype.lane_bytes() as u64) {
            return None;
        }
        let elements = u64::try_from(bits / u128::from(dtype.bits())).ok()?;
        Some(Self {
            name: name.into(),
            dtype,
            shape,
            elements,
            bytes,
        })
    }

    /// Bits of a tensor of this dtype and shape; saturates.
    pub(crate) fn bits(dtype: Dtype, shape: &[u64]) -> u128 {
        if shape.contains(&0) {
            return 0;
        }
        let bits = u128::from(dtype.bits());
        shape.iter().fold(bits, |product, &dimension| {
            product.saturating_mul(u128::from(dimension))
        })
    }

    /// The same tensor under another name.
    pub(crate) fn renamed(&self, name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            ..self.clone()
        }
    }

    /// Name, any UTF-8 string.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Length of the data in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of lanes. With a dtype of the table: elements, or bytes for packed types of less than
    /// a byte.
    pub fn lanes(&self) -> u64 {
        self.bytes / self.dtype.lane_bytes() as u64
    }

    /// Whether this tensor can be a patch of `old`: same dtype and length; shapes may differ.
    pub(crate) fn can_patch(&self, old: &Self) -> bool {
        self.dtype == old.dtype && self.bytes == old.bytes
    }

    /// Number of pieces.
    pub fn pieces(&self) -> u64 {
        self.bytes.div_ceil(PIECE_BYTES)
    }

    /// The bytes of the tensor that piece number `piece` holds; empty past the last piece.
    pub fn piece(&self, piece: u64) -> Range<u64> {
        let start = piece.saturating_mul(PIECE_BYTES).min(self.bytes);
        start..start.saturating_add(PIECE_BYTES).min(self.bytes)
    }

    /// The lanes of the tensor that piece number `piece` holds: 2^24 at most.
    pub(crate) fn piece_lanes(&self, piece: u64) -> Range<u64> {
        let (bytes, lane_bytes) = (self.piece(piece), self.dtype.lane_bytes() as u64);
        bytes.start / lane_bytes..bytes.end / lane_bytes
    }
}

/// The number of the tensor with this name, in tensors that are ascending by name.
pub fn find(tensors: &[TensorInfo], name: &str) -> Option<usize> {
    tensors.binary_search_by(|info| info.name().cmp(name)).ok()
}

/// The number of the tensor of a base, ascending by name, that this one
/// [can patch](TensorInfo::can_patch).
pub(crate) fn find_patchable(base: &[TensorInfo], info: &TensorInfo) -> Option<usize> {
    find(base, info.name()).filter(|&number| info.can_patch(&base[number]))
}

/// Total bytes of these tensors.
pub fn total_bytes<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> u64 {
    tensors
        .into_iter()
        .map(TensorInfo::bytes)
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DescribedDtype;

    #[test]
    fn sizes_are_checked() {
        let info = |dtype, shape: &[u64]| TensorInfo::new("t", dtype, shape);
        assert_eq!(info(Dtype::F32, &[]).unwrap().bytes(), 4);
        assert_eq!(info(Dtype::F32, &[0, u64::MAX, 2]).unwrap().bytes(), 0);
        assert_eq!(info(Dtype::F32, &[u64::MAX, 2, 0]).unwrap().bytes(), 0);
        assert_eq!(info(Dtype::F4, &[2, 3]).unwrap().bytes(), 3);
        assert_eq!(info(Dtype::F4, &[3]), None);
        assert_eq!(info(Dtype::F6_E2M3, &[4]).unwrap().lanes(), 3);
        assert_eq!(info(Dtype::U8, &[1 << 32, 1 << 32]), None);
        assert_eq!(info(Dtype::U64, &[1 << 60]), None);
        assert_eq!(
            info(Dtype::U64, &[(1 << 60) - 1]).unwrap().lanes(),
            (1 << 60) - 1
        );
        // Elements of three bytes in lanes of two.
        let odd = Dtype::Described(DescribedDtype::new("ODD", 24, 2, None).unwrap());
        assert_eq!(info(odd, &[3]), None);
        let even = info(odd, &[2]).unwrap();
        assert_eq!((even.bytes(), even.lanes(), even.elements()), (6, 3, 2));
    }

    #[test]
    fn pieces_cover_the_tensor() {
        let info = TensorInfo::new("t", Dtype::U8, vec![(1 << 24) + 1]).unwrap();
        assert_eq!(info.pieces(), 2);
        assert_eq!(info.piece(0), 0..1 << 24);
        assert_eq!(info.piece(1), 1 << 24..(1 << 24) + 1);
        assert!(info.piece(2).is_empty());
        assert_eq!(
            TensorInfo::new("t", Dtype::U8, vec![0]).unwrap().pieces(),
            0
        );
    }
}
