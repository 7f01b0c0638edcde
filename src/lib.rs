#![forbid(unsafe_code)]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]
#![doc = "deltachain"]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::panic, clippy::dbg_macro, clippy::print_stdout, clippy::print_stderr))]

mod error;
mod progress;
mod rules;
pub mod tensor;

pub use error::{Error, ErrorClass, Result, Section};
pub use progress::Progress;
pub use rules::{RULES, Rule};
