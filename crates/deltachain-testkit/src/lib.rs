//! Shared by tests of several crates, and used by no published crate.

#![forbid(unsafe_code)]

pub mod faulty;
mod random;
pub mod verify;

pub use random::Random;
