//! Safetensors files: reading states from them, writing states to them, and how a model is spread
//! over them.

mod beside;
mod disk;
pub(crate) mod file_source;
mod header;
mod listing;
mod operations;
mod options;
mod output_file;
mod safetensors;
mod scratch;
mod staged;
mod twin_folders;
mod weight_map;
mod write_back;

pub use crate::layout::{LAYOUT_KEY, Layout, LayoutFile};
pub use disk::{check_apart, is_same_file};
pub use listing::{MARKER, ModelListing};
pub use operations::{ApplyReport, apply, diff, diff_opened, snapshot};
pub use options::FileOptions;
pub use output_file::OutputFile;
pub use safetensors::SafetensorsState;
pub use scratch::scratch_state;
pub use staged::StagedSafetensors;
