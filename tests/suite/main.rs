//! Tests the library through its public interface only; one file per contract.

mod corruption;
mod examples;
mod local;
mod memory;
mod roundtrip;
mod specification;
mod states;
mod tables;
