#![forbid(unsafe_code)]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]
#![doc = "deltachain"]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::panic, clippy::dbg_macro, clippy::print_stdout, clippy::print_stderr)
)]

mod apply;
mod codec;
mod diff;
mod error;
pub mod format;
pub mod limits;
mod link;
mod link_writer;
mod patches;
mod progress;
mod rules;
mod source;
mod squash;
pub mod tensor;

pub use apply::{Application, apply};
pub use codec::encode::Profile;
pub use diff::{DiffOptions, DiffReport, diff};
pub use error::{Error, ErrorClass, Result, Section};
pub use limits::Limits;
pub use link::{LinkReader, Segment};
pub use patches::{Patch, Patches};
pub use progress::Progress;
pub use rules::{RULES, Rule};
pub use source::{FileSource, Source};
pub use squash::{check_sequence, squash};
