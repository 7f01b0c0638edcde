//! The record of a link's sums in its extension area (SPEC section 24.3).

use crate::format::{Index, TensorEntry, WrittenTensor};
use crate::sums::number::Sums;
use crate::tensor::Digest;

/// The context of the key derivation that makes the binding.
const CONTEXT: &str = "deltachain 2026-11-25 sums of a link v1";

/// Bytes of the binding, and of one pair of sums.
const BINDING_BYTES: u64 = 32;
const SUMS_BYTES: u64 = 8;

/// The sums of one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PieceSums {
    /// Sums of all bytes of the piece in the target.
    pub piece: Sums,
    /// Sums of the coded lanes, with their values in the target; zero if the piece has no part.
    pub coded: Sums,
}

/// The sums that a link carries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkSums {
    /// For each tensor entry of the index, the sums of its pieces; empty for a removal.
    pub entries: Vec<Vec<PieceSums>>,
}

impl LinkSums {
    /// The digest that binds sums to a link: to its base and target, and to its raw index.
    pub(crate) fn binding(base: Digest, target: Digest, index: &[&[u8]]) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&base.0).update(&target.0);
        for part in index {
            hasher.update(part);
        }
        Digest(*hasher.finalize().as_bytes())
    }

    /// Length of the record for a link with this index; `None` if no file is that long.
    pub(crate) fn record_bytes(index: &Index) -> Option<u64> {
        let numbers = |written: &WrittenTensor| {
            let parts = written.pieces.iter().flatten().count();
            (written.pieces.len() + parts) as u64
        };
        let all = index
            .tensors
            .iter()
            .filter_map(TensorEntry::written)
            .map(numbers);
        let all = all.fold(0, u64::saturating_add);
        all.checked_mul(SUMS_BYTES)?.checked_add(BINDING_BYTES)
    }

    /// The record's data.
    pub(crate) fn to_record(&self, binding: Digest, index: &Index) -> Vec<u8> {
        let mut bytes = binding.0.to_vec();
        let mut put = |sums: Sums| {
            sums.numbers()
                .iter()
                .for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        };
        for (entry, sums) in index.tensors.iter().zip(&self.entries) {
            let pieces = entry.written().map_or(&[][..], |written| &written.pieces);
            for (segment, sums) in pieces.iter().zip(sums) {
                put(sums.piece);
                if segment.is_some() {
                    put(sums.coded);
                }
            }
        }
        bytes
    }

    /// Reads a record's data; `None` unless they are the sums of this link.
    pub(crate) fn parse(bytes: &[u8], binding: Digest, index: &Index) -> Option<Self> {
        let numbers = bytes.strip_prefix(&binding.0)?;
        if Self::record_bytes(index) != Some(bytes.len() as u64) {
            return None;
        }
        let (pairs, _) = numbers.as_chunks::<8>();
        let mut pairs = pairs.iter().map(|&[a, b, c, d, e, f, g, h]| {
            Sums::new([
                u32::from_le_bytes([a, b, c, d]),
                u32::from_le_bytes([e, f, g, h]),
            ])
        });
        let mut next = || pairs.next().flatten();
        let mut of_piece = |segment: &Option<usize>| {
            let piece = next()?;
            let coded = if segment.is_some() {
                next()?
            } else {
                Sums::ZERO
            };
            Some(PieceSums { piece, coded })
        };
        let mut of_entry = |entry: &TensorEntry| {
            let pieces = entry.written().map_or(&[][..], |written| &written.pieces);
            pieces.iter().map(&mut of_piece).collect::<Option<Vec<_>>>()
        };
        let entries = index
            .tensors
            .iter()
            .map(&mut of_entry)
            .collect::<Option<Vec<_>>>()?;
        Some(Self { entries })
    }
}
