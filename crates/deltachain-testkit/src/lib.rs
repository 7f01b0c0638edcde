//! Test helpers of several crates. No published crate uses them.

#![forbid(unsafe_code)]

pub mod faulty;
mod random;
pub mod verify;

pub use random::Random;
