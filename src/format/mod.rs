//! Wire structures, one file per section of SPEC.md: pure functions over bytes, without IO.

pub(crate) mod coding;
pub(crate) mod cursor;
mod frame;
pub(crate) mod header;
pub(crate) mod index;
pub(crate) mod segment;
pub(crate) mod stream;

pub use coding::{Coding, Positions, Values};
pub use header::{HEADER_BYTES, Header, MAGIC, VERSION};
pub use index::{Index, Part, SegmentEntry, Start, TensorEntry, WrittenTensor};
pub use segment::{PositionCoding, Table};
