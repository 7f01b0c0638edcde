//! What tests of several crates share. Nothing that is published uses it.

#![forbid(unsafe_code)]

pub mod faulty;
mod random;
pub mod verify;

pub use random::Random;
