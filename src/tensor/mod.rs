//! Tensors and states: dtypes, shapes, digests, and states in memory and in safetensors files.

mod digest;
mod dtype;
mod files;
mod header;
mod info;
mod layout;
mod safetensors;
mod scratch;
mod staged;
mod state;
mod weight_map;
mod write_back;

pub use digest::{Digest, StateDigests};
pub(crate) use digest::{PieceDigests, digests_of, read_piece};
pub use dtype::{DescribedDtype, Dtype};
pub(crate) use files::read_at;
pub use info::{PIECE_BYTES, TensorInfo};
pub use layout::{LAYOUT_KEY, Layout, LayoutFile};
pub use safetensors::SafetensorsState;
pub use scratch::ScratchState;
pub use staged::StagedSafetensors;
pub use state::{MemoryState, MemoryWriter, State, StateWriter};
