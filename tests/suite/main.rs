//! The library through its public interface only; one file per contract.

mod corruption;
mod roundtrip;
mod specification;
mod states;
