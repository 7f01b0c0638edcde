//! Tensors and states: dtypes, shapes, digests, and states in memory.

mod digest;
mod dtype;
mod info;
mod state;

pub use digest::{Digest, StateDigests};
pub(crate) use digest::{digests_of, each_piece, read_piece};
pub use dtype::{DescribedDtype, Dtype};
pub use info::{PIECE_BYTES, TensorInfo, find, total_bytes};
pub(crate) use info::{PIECE_LENGTH, find_patchable};
pub(crate) use state::stretch_of;
pub use state::{MemoryState, MemoryWriter, State, StateWriter, read_once};
