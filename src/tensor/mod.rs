//! Tensors and states: dtypes, shapes, digests, and states in memory and in safetensors files.

mod digest;
mod dtype;
mod info;
mod state;

pub(crate) use digest::PieceDigest;
pub use digest::{Digest, StateDigests};
pub use dtype::Dtype;
pub use info::{PIECE_BYTES, TensorInfo};
pub use state::{MemoryState, State};
