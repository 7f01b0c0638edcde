//! Shared code of the benchmarks and programs: pairs of states to work on, and output of results.

#![forbid(unsafe_code)]

pub mod output;
mod pairs;
pub mod simulation;
mod weights;

pub use pairs::{Pair, Repeated, Walk, many_tensors, real_pairs, save, synthetic};

/// Result of all fallible functions of this crate.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
