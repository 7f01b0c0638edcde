//! Lossless sparse deltas between versions of a model's weights: the reference library of the delta
//! chain format.
//!
//! A *state* is one version of a model: a set of named tensors. A *link* is a file that turns one
//! state, the base, into another, the target, bit for bit; a *snapshot* is a link from the empty
//! state. The format is defined by
//! [SPEC.md](https://docs.rs/crate/deltachain/latest/source/SPEC.md), whose sections and rule ids
//! the documentation cites.
//!
//! ```text
//! +--------+-------+-----------+-----------+-----+
//! | header | index | segment 0 | segment 1 | ... |     one .dcf file
//! +--------+-------+-----------+-----------+-----+
//!   digests  which tensors, which     coded pieces of tensors: up to 32 MiB each,
//!   of base  segments, digests of     decoded independently and in parallel
//!   and      the target's tensors
//!   target   and pieces
//! ```
//!
//! # Making and applying a link
//!
//! ```
//! use deltachain::tensor::{Dtype, MemoryState};
//! use deltachain::{DiffOptions, Limits, LinkReader, apply, diff};
//!
//! # fn main() -> deltachain::Result<()> {
//! let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
//! let (mut base, mut target) = (MemoryState::new(), MemoryState::new());
//! base.insert("layer.weight", Dtype::F32, &[2, 2], bytes(&[1.0, -0.0, 3.0, 4.0]))?;
//! target.insert("layer.weight", Dtype::F32, &[2, 2], bytes(&[1.0, 0.0, 3.0, 4.5]))?;
//!
//! let mut file = Vec::new();
//! let report = diff(&base, &target, &DiffOptions::default(), &mut file)?;
//! assert_eq!(report.changed, 2); // -0 and +0 are different bits
//!
//! let link = LinkReader::open(file, &Limits::default())?;
//! assert_eq!(apply(&base, &link)?, target);
//! // Any other base is refused before anything is written.
//! assert_eq!(apply(&target, &link).unwrap_err().rule(), Some("R-APP-01"));
//! # Ok(())
//! # }
//! ```
//!
//! States of any size are read and written piecewise. [`files::SafetensorsState`] reads a file or a
//! directory of shards. [`Replay`] applies any number of links in one pass and builds the target
//! into a [`tensor::StateWriter`]. One such writer is [`files::StagedSafetensors`]; its files
//! appear only when the result has been proven.
//!
//! # Files
//!
//! The functions of [`files`] do the same with safetensors files, or directories of them. They also
//! preserve how a model is spread over files, copy its other files, and never make an incomplete
//! file visible.
//!
//! ```
//! use std::fs;
//!
//! use deltachain::files::{self, FileOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let model = |name: &str, last| {
//! #     let header = br#"{"weight":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
//! #     let path = folder.path().join(name);
//! #     fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header, &[7, last]].concat()).map(|()| path)
//! # };
//! let (base, target) = (model("step 1", 1)?, model("step 2", 2)?); // two safetensors files
//! let (link, result) = (folder.path().join("1-2.dcf"), folder.path().join("result"));
//! let report = files::diff(&base, &target, &link, &FileOptions::default())?;
//! assert_eq!((report.changed, report.elements), (1, 2));
//!
//! let built = files::apply(Some(&base), &[link], &result, &FileOptions::default())?;
//! assert_eq!(built.target, report.target);
//! assert_eq!(fs::read(&result)?, fs::read(&target)?);
//! # Ok(())
//! # }
//! ```
//!
//! # Reading changes without building the target
//!
//! [`LinkReader::patches`] iterates over sorted lane numbers and new values, tensor by tensor, for
//! engines that patch memory; [`LinkReader::tensor_patches`] selects one tensor and a range, and
//! reads no more of the file than these need. Links of [`Profile::Direct`] need no base for that.
//!
//! # Chains
//!
//! [`chain`] defines the objects of a chain of versions in a bucket or a directory, and finds the
//! links that lead to a version. It does no IO: the caller has the store, and fetches the objects
//! that the planner asks for.
//!
//! # Guarantees
//!
//! No input makes the library panic, and no size that a file states is allocated before it has been
//! checked against [`Limits`]. Every refusal is an [`Error`] with class, rule id and place.
//! Decoding does no IO of its own: bytes come from a [`Source`].

#![forbid(unsafe_code)]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::panic,
        clippy::dbg_macro,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

pub mod chain;
mod codec;
mod diff;
mod error;
mod extension;
pub mod files;
pub mod format;
mod groups;
mod in_order;
mod json;
mod layout;
mod limits;
mod link;
mod link_writer;
pub mod memory;
mod options;
mod patches;
mod plain_name;
mod progress;
mod replay;
mod rules;
mod source;
mod state_sums;
pub mod sums;
mod table;
pub mod tensor;
mod unsigned;
mod varint;

#[cfg(feature = "kernels")]
#[doc(hidden)]
pub use codec::kernels;
pub use codec::piece::Profile;
pub use diff::{DiffOptions, DiffReport, diff};
pub use error::{Error, ErrorClass, Result, without_secrets};
pub use files::file_source::FileSource;
pub use limits::Limits;
pub use link::{LinkReader, Ranks, Segment, StreamLengths};
pub use patches::Patch;
pub use progress::Progress;
pub use replay::{Replay, apply};
#[cfg(deltachain_rule_switch)]
#[doc(hidden)]
pub use rules::switch_off;
pub use rules::{RULES, Rule};
pub use source::Source;
pub use state_sums::StateSums;
pub use table::{StateTable, check_sequence};
