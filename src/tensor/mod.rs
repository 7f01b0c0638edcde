//! Tensors and states: dtypes, shapes, digests, and states in memory.

mod digest;
mod dtype;
mod info;
mod lanes;
mod state;

pub use digest::{Digest, StateDigests};
pub(crate) use digest::{PieceDigests, digests_of, each_piece, read_piece};
pub use dtype::{DescribedDtype, Dtype};
pub(crate) use info::PIECE_LENGTH;
pub use info::{PIECE_BYTES, TensorInfo, total_bytes};
pub use lanes::Lanes;
pub(crate) use lanes::scatter;
pub use state::{MemoryState, MemoryWriter, ReadOnce, State, StateWriter};
pub(crate) use state::{read_bytes, stretch_of};
