//! Kernels: lanes in, streams out, and back. They know nothing about files, names or states.

#![allow(
    clippy::inline_always,
    reason = "what compares blocks must be compiled with the loop around it: see `blocks`"
)]

pub(crate) mod bits;
pub(crate) mod blocks;
pub(crate) mod changes;
mod choose;
mod contexts;
pub(crate) mod decode;
pub(crate) mod encode;
mod escapes;
#[cfg(feature = "kernels")]
pub mod kernels;
pub(crate) mod lane;
pub(crate) mod piece;
mod sample;
mod sort;
mod statistics;
pub(crate) mod union;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod choices_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod twins_tests;
