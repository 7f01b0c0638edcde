//! Tensor and state digests (SPEC section 3), computed piece by piece so that pieces can be hashed in any order.

use std::fmt;

use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use rayon::prelude::*;

use crate::error::Result;
use crate::limits::address;
use crate::progress::Progress;
use crate::tensor::{State, TensorInfo};

/// Context string of the state digest.
pub(crate) const STATE_DIGEST_CONTEXT: &str = "deltachain 2026-11-21 state digest v1";

/// Bytes of the table of tensors that are enough to be hashed.
const HASHED_AT_ONCE: usize = 1 << 16;

/// A BLAKE3-256 digest; displayed as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Digest of a tensor's data.
    pub fn of_bytes(data: &[u8]) -> Self {
        Self(*blake3::hash(data).as_bytes())
    }

    /// Digest of the state that consists of `tensors`, which ascend by name, given each tensor's digest.
    pub fn of_state<'a>(tensors: impl ExactSizeIterator<Item = (&'a TensorInfo, Digest)>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(STATE_DIGEST_CONTEXT);
        // Many lines are hashed at once, which is several times faster than number by number.
        let mut lines = Vec::new();
        let number = |value: u64, lines: &mut Vec<u8>| lines.extend_from_slice(&value.to_le_bytes());
        number(tensors.len() as u64, &mut lines);
        for (info, digest) in tensors {
            number(info.name().len() as u64, &mut lines);
            lines.extend_from_slice(info.name().as_bytes());
            lines.push(info.dtype().code());
            number(info.shape().len() as u64, &mut lines);
            for &dimension in info.shape() {
                number(dimension, &mut lines);
            }
            number(info.bytes(), &mut lines);
            lines.extend_from_slice(&digest.0);
            if lines.len() >= HASHED_AT_ONCE {
                hasher.update(&lines);
                lines.clear();
            }
        }
        hasher.update(&lines);
        Self(*hasher.finalize().as_bytes())
    }

    /// Digest of the state without tensors.
    pub fn of_empty_state() -> Self {
        Self::of_state([].into_iter())
    }

    /// Digest of a tensor from those of all its pieces, in order.
    pub(crate) fn of_pieces(pieces: &[PieceDigest]) -> Self {
        match pieces {
            [] => Self::of_bytes(&[]),
            [PieceDigest(whole)] => Self(*whole),
            _ => {
                let (left, right) = pieces.split_at(left_pieces(pieces.len()));
                Self(*merge_subtrees_root(&chaining_value(left), &chaining_value(right), Mode::Hash).as_bytes())
            }
        }
    }

    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        blake3::Hash::from_hex(text).ok().map(|hash| Self(*hash.as_bytes()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What one piece contributes to its tensor's digest: a subtree's chaining value, or the digest itself if the tensor
/// has only this piece.
#[derive(Clone, Copy)]
pub(crate) struct PieceDigest([u8; 32]);

impl PieceDigest {
    /// Hashes the bytes of piece number `piece`.
    pub(crate) fn of(info: &TensorInfo, piece: u64, bytes: &[u8]) -> Self {
        let mut hasher = PieceHasher::new(info, piece);
        hasher.update(bytes);
        hasher.finish()
    }
}

/// The digests of the pieces of some tensors, as they become known.
pub(crate) struct PieceDigests {
    /// Where the pieces of each tensor begin, and where those of the last one end.
    begins: Vec<usize>,
    digests: Vec<PieceDigest>,
}

impl PieceDigests {
    /// None is known yet.
    pub(crate) fn new<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> Result<Self> {
        let mut begins = vec![0];
        let mut end = 0;
        for info in tensors {
            end += address(info.pieces())?;
            begins.push(end);
        }
        Ok(Self { begins, digests: vec![PieceDigest([0; 32]); end] })
    }

    /// Piece number `piece` of the tensor with this number has this digest.
    pub(crate) fn set(&mut self, tensor: usize, piece: u64, digest: PieceDigest) -> Result<()> {
        self.digests[self.begins[tensor] + address(piece)?] = digest;
        Ok(())
    }

    /// Digest of a tensor, all of whose pieces are known.
    pub(crate) fn of_tensor(&self, tensor: usize) -> Digest {
        Digest::of_pieces(&self.digests[self.begins[tensor]..self.begins[tensor + 1]])
    }
}

/// Hashes a piece whose bytes come one stretch after another.
pub(crate) struct PieceHasher {
    hasher: blake3::Hasher,
    is_whole: bool,
}

impl PieceHasher {
    pub(crate) fn new(info: &TensorInfo, piece: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(info.piece(piece).start);
        Self { hasher, is_whole: info.pieces() <= 1 }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    pub(crate) fn finish(&self) -> PieceDigest {
        PieceDigest(if self.is_whole { *self.hasher.finalize().as_bytes() } else { self.hasher.finalize_non_root() })
    }
}

/// Pieces in the left subtree of a BLAKE3 tree over `pieces` >= 2 pieces: the greatest power of two below.
fn left_pieces(pieces: usize) -> usize {
    pieces.next_power_of_two() / 2
}

fn chaining_value(pieces: &[PieceDigest]) -> [u8; 32] {
    match pieces {
        [PieceDigest(value)] => *value,
        _ => {
            let (left, right) = pieces.split_at(left_pieces(pieces.len()));
            merge_subtrees_non_root(&chaining_value(left), &chaining_value(right), Mode::Hash)
        }
    }
}

/// The digest of each tensor of a state, and of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDigests {
    /// One per tensor, in the order of [`State::tensors`].
    pub tensors: Vec<Digest>,
    /// Of the whole state.
    pub state: Digest,
}

impl StateDigests {
    /// Reads and hashes a whole state, in parallel. Memory: one piece per thread. Reports bytes read to `progress`.
    ///
    /// # Errors
    /// Those of reading the state, and of `progress`.
    pub fn of(state: &(impl State + ?Sized), progress: &dyn Progress) -> Result<Self> {
        let all: Vec<usize> = (0..state.tensors().len()).collect();
        Ok(Self::from_tensors(state.tensors(), digests_of(state, &all, progress)?))
    }

    /// From tensor digests that are known already, one per tensor of `infos`.
    pub fn from_tensors(infos: &[TensorInfo], tensors: Vec<Digest>) -> Self {
        let state = Digest::of_state(infos.iter().zip(tensors.iter().copied()));
        Self { tensors, state }
    }
}

/// Reads and hashes the tensors with these numbers, in parallel.
pub(crate) fn digests_of(
    state: &(impl State + ?Sized),
    numbers: &[usize],
    progress: &dyn Progress,
) -> Result<Vec<Digest>> {
    let infos = state.tensors();
    let pieces: Vec<(usize, u64)> =
        numbers.iter().flat_map(|&number| (0..infos[number].pieces()).map(move |piece| (number, piece))).collect();
    let hashed: Vec<PieceDigest> = pieces
        .into_par_iter()
        .map_init(Vec::new, |buffer, (number, piece)| {
            let bytes = match state.bytes(number, infos[number].piece(piece)) {
                Some(bytes) => bytes,
                None => read_piece(state, number, piece, buffer)?,
            };
            progress.advance(bytes.len() as u64)?;
            Ok(PieceDigest::of(&infos[number], piece, bytes))
        })
        .collect::<Result<_>>()?;
    let digests = PieceDigests { digests: hashed, ..PieceDigests::new(numbers.iter().map(|&number| &infos[number]))? };
    Ok((0..numbers.len()).map(|tensor| digests.of_tensor(tensor)).collect())
}

/// Reads one piece of a state into `buffer`, which grows to at most a piece.
pub(crate) fn read_piece<'a>(
    state: &(impl State + ?Sized),
    tensor: usize,
    piece: u64,
    buffer: &'a mut Vec<u8>,
) -> Result<&'a mut [u8]> {
    let range = state.tensors()[tensor].piece(piece);
    buffer.resize(address(range.end - range.start)?, 0);
    state.read(tensor, range.start, buffer)?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Dtype, MemoryState, PIECE_BYTES};

    #[test]
    fn digests_by_pieces_equal_digests_in_one_go() {
        let piece = usize::try_from(PIECE_BYTES).unwrap();
        for length in [0, 1, piece - 1, piece, piece + 1, 2 * piece, 2 * piece + 1, 3 * piece, 5 * piece + 7] {
            let data: Vec<u8> = (0..length).map(|i| u8::try_from(i % 251).unwrap()).collect();
            let expected = Digest::of_bytes(&data);
            let mut state = MemoryState::new();
            state.insert("t", Dtype::U8, &[length as u64], data).unwrap();
            assert_eq!(StateDigests::of(&state, &()).unwrap().tensors, [expected], "{length} bytes");
        }
    }

    #[test]
    fn everything_enters_the_state_digest() {
        let state = |name: &str, dtype, shape: &[u64], data: &[u8]| {
            let mut state = MemoryState::new();
            state.insert(name, dtype, shape, data.to_vec()).unwrap();
            StateDigests::of(&state, &()).unwrap().state
        };
        let digests = [
            state("a", Dtype::U8, &[2], &[1, 2]),
            state("b", Dtype::U8, &[2], &[1, 2]),
            state("a", Dtype::I8, &[2], &[1, 2]),
            state("a", Dtype::U8, &[2, 1], &[1, 2]),
            state("a", Dtype::U8, &[2], &[2, 1]),
            Digest::of_empty_state(),
        ];
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[..i].contains(digest));
            assert_eq!(Digest::from_hex(&digest.to_string()), Some(*digest));
        }
    }
}
