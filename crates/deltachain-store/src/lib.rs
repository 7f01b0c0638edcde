//! Chains of model versions in a bucket or a directory (SPEC part 2 of [`deltachain`]): publish, follow, compact, prune.

#![forbid(unsafe_code)]
#![deny(missing_docs, rustdoc::broken_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout))]

mod observer;
mod options;
mod store;
mod url;

pub use observer::{Observer, Phase};
pub use options::StoreOptions;
pub use store::{Store, StoredObject};
