//! Tensor and state digests (SPEC section 3), computed piece by piece so that pieces can be hashed
//! in any order.

use std::fmt;
use std::str::FromStr;

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::json::text_in_json;
use crate::limits::address;
use crate::progress::Progress;
use crate::tensor::{PIECE_LENGTH, State, TensorInfo};

/// Context string of the state digest.
pub(crate) const STATE_DIGEST_CONTEXT: &str = "deltachain 2026-11-21 state digest v1";

/// Bytes of the table of tensors that are collected before they are hashed.
const HASHED_AT_ONCE: usize = 1 << 16;

/// A BLAKE3-256 digest; displayed as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// BLAKE3-256 of bytes, such as an object of a chain or a piece of a tensor.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self::of_hashed(blake3::Hasher::new().update(bytes))
    }

    /// BLAKE3-256 of the input of a hasher in hash mode.
    pub(crate) fn of_hashed(hasher: &blake3::Hasher) -> Self {
        Self(*hasher.finalize().as_bytes())
    }

    /// Digest of a tensor with this data.
    pub fn of_tensor(data: &[u8]) -> Self {
        let pieces = data.chunks(PIECE_LENGTH);
        Self::of_pieces(&pieces.map(Self::of_bytes).collect::<Vec<_>>())
    }

    /// Digest of a tensor from those of all its pieces, in order.
    pub(crate) fn of_pieces(pieces: &[Self]) -> Self {
        match pieces {
            [] => Self::of_bytes(&[]),
            [whole] => *whole,
            _ => {
                let mut hasher = blake3::Hasher::new();
                for piece in pieces {
                    hasher.update(&piece.0);
                }
                Self::of_hashed(&hasher)
            }
        }
    }

    /// Digest of the state that consists of `tensors`, which ascend by name, given each tensor's
    /// digest.
    pub(crate) fn of_state<'a>(
        tensors: impl ExactSizeIterator<Item = (&'a TensorInfo, Digest)>,
    ) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(STATE_DIGEST_CONTEXT);
        // Many lines are hashed at once, which is several times faster than hashing each number.
        let mut lines = Vec::new();
        let number =
            |value: u64, lines: &mut Vec<u8>| lines.extend_from_slice(&value.to_le_bytes());
        number(tensors.len() as u64, &mut lines);
        for (info, digest) in tensors {
            number(info.name().len() as u64, &mut lines);
            lines.extend_from_slice(info.name().as_bytes());
            info.dtype().put(&mut lines);
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

    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        blake3::Hash::from_hex(text)
            .ok()
            .map(|hash| Self(*hash.as_bytes()))
    }
}

/// Parses like [`from_hex`](Digest::from_hex); USAGE if the text is not a digest.
impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::from_hex(text).ok_or_else(|| Error::usage("a digest has 64 hexadecimal digits"))
    }
}

text_in_json!(Digest);

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

/// The digest of each tensor of a state, and of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDigests {
    /// One per tensor, in the order of [`State::tensors`].
    pub tensors: Vec<Digest>,
    /// The digest of the whole state.
    pub state: Digest,
}

impl StateDigests {
    /// Reads and hashes a whole state, in parallel. Memory: one piece per thread. Reports bytes
    /// read to `progress`.
    ///
    /// # Errors
    /// The errors of reading the state, and of `progress`.
    pub fn of(state: &dyn State, progress: &dyn Progress) -> Result<Self> {
        Ok(Self::from_tensors(
            state.tensors(),
            digests_of(state, 0..state.tensors().len(), progress)?,
        ))
    }

    /// Computes the digest of a state from known digests, one per tensor of `infos`.
    pub fn from_tensors(infos: &[TensorInfo], tensors: Vec<Digest>) -> Self {
        let state = Digest::of_state(infos.iter().zip(tensors.iter().copied()));
        Self { tensors, state }
    }
}

/// Reads and hashes the tensors with these numbers, in parallel.
pub(crate) fn digests_of(
    state: &dyn State,
    numbers: impl Iterator<Item = usize>,
    progress: &dyn Progress,
) -> Result<Vec<Digest>> {
    let pieces = each_piece(state, numbers, progress, Digest::of_bytes)?;
    Ok(pieces
        .iter()
        .map(|pieces| Digest::of_pieces(pieces))
        .collect())
}

/// Calls `look` with each piece of the tensors with these numbers, which are read in parallel.
/// Returns the results of each tensor, in the order of its pieces.
pub(crate) fn each_piece<T: Send>(
    state: &dyn State,
    numbers: impl Iterator<Item = usize>,
    progress: &dyn Progress,
    look: impl Fn(&[u8]) -> T + Sync,
) -> Result<Vec<Vec<T>>> {
    let (infos, numbers) = (state.tensors(), numbers.collect::<Vec<usize>>());
    let of_tensor = |(place, &number): (usize, &usize)| {
        (0..infos[number].pieces()).map(move |piece| (place, piece))
    };
    let pieces: Vec<(usize, u64)> = numbers.iter().enumerate().flat_map(of_tensor).collect();
    let seen: Vec<(usize, T)> = pieces
        .into_par_iter()
        .map_init(Vec::new, |buffer, (place, piece)| {
            let number = numbers[place];
            let bytes = match state.bytes(number, infos[number].piece(piece)) {
                Some(bytes) => bytes,
                None => read_piece(state, number, piece, buffer)?,
            };
            progress.advance(bytes.len() as u64)?;
            Ok((place, look(bytes)))
        })
        .collect::<Result<_>>()?;
    state.check_unchanged()?;
    let mut all: Vec<Vec<T>> = numbers.iter().map(|_| Vec::new()).collect();
    seen.into_iter()
        .for_each(|(place, one)| all[place].push(one));
    Ok(all)
}

/// Reads one piece of a state into `buffer`, which grows to at most a piece.
pub(crate) fn read_piece<'a>(
    state: &dyn State,
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
    use crate::tensor::{DescribedDtype, Dtype, MemoryState};

    #[test]
    fn several_pieces_are_hashed_again() {
        let piece = PIECE_LENGTH;
        for length in [0, 1, piece - 1, piece, piece + 1, 2 * piece, 2 * piece + 1] {
            let data: Vec<u8> = (0..length)
                .map(|i| u8::try_from(i % 251).unwrap())
                .collect();
            let pieces: Vec<u8> = data
                .chunks(piece)
                .flat_map(|piece| *blake3::hash(piece).as_bytes())
                .collect();
            let expected = blake3::hash(if length > piece { &pieces } else { &data });
            let expected = Digest(*expected.as_bytes());
            assert_eq!(Digest::of_tensor(&data), expected, "{length} bytes");
            let mut state = MemoryState::new();
            state
                .insert("t", Dtype::U8, &[length as u64], data)
                .unwrap();
            assert_eq!(
                StateDigests::of(&state, &()).unwrap().tensors,
                [expected],
                "{length} bytes"
            );
        }
    }

    #[test]
    fn everything_enters_the_state_digest() {
        let state = |name: &str, dtype, shape: &[u64], data: &[u8]| {
            let mut state = MemoryState::new();
            state.insert(name, dtype, shape, data.to_vec()).unwrap();
            StateDigests::of(&state, &()).unwrap().state
        };
        let described = |name: &str, exponent| {
            Dtype::Described(DescribedDtype::new(name, 8, 1, exponent).unwrap())
        };
        let digests = [
            state("a", Dtype::U8, &[2], &[1, 2]),
            state("a", described("A", None), &[2], &[1, 2]),
            state("a", described("B", None), &[2], &[1, 2]),
            state("a", described("A", Some(0)), &[2], &[1, 2]),
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
