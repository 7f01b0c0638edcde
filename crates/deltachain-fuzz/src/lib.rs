//! Properties of every input, as functions that panic on bytes that break them. Fuzzers search for
//! such bytes, and a test runs all that were ever found.
//!
//! The programs for the fuzzer, one per function, are in `fuzz/` at the root of the repository;
//! `fuzz/README.md` says how to run them. They are not in this crate because they need a nightly
//! toolchain and libFuzzer.

mod archive;
mod chain;
mod exchange;
mod in_place;
mod memory;
mod note;
mod raw;
mod reseal;
mod seal;
pub mod seeds;
mod sequence;
mod states;
mod store;
mod structured;

pub use archive::mutate as mutate_chain;
pub use chain::{chain, document};
pub use exchange::{arc2, pulsept1, slime, trl};
pub use in_place::in_place;
pub use memory::peak_of;
pub use note::note;
pub use raw::{header_index, layout, link, reserialise, safetensors, segment};
pub use reseal::{mutate, reseal};
pub use sequence::sequence;
pub use store::{Played, play, store};
pub use structured::{apply, roundtrip};

/// A function to fuzz.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the fuzzer's program, and of the folders with its inputs.
    pub name: &'static str,
    /// Panics if the property does not hold for these bytes.
    pub run: fn(&[u8]),
}

/// All targets, each with a program in `fuzz/fuzz_targets/`.
pub const TARGETS: &[Target] = &[
    Target {
        name: "apply",
        run: apply,
    },
    Target {
        name: "arc2",
        run: arc2,
    },
    Target {
        name: "chain",
        run: chain,
    },
    Target {
        name: "document",
        run: document,
    },
    Target {
        name: "header_index",
        run: header_index,
    },
    Target {
        name: "in_place",
        run: in_place,
    },
    Target {
        name: "layout",
        run: layout,
    },
    Target {
        name: "link",
        run: link,
    },
    Target {
        name: "note",
        run: note,
    },
    Target {
        name: "pulsept1",
        run: pulsept1,
    },
    Target {
        name: "reseal",
        run: reseal,
    },
    Target {
        name: "reserialise",
        run: reserialise,
    },
    Target {
        name: "roundtrip",
        run: roundtrip,
    },
    Target {
        name: "safetensors",
        run: safetensors,
    },
    Target {
        name: "segment",
        run: segment,
    },
    Target {
        name: "sequence",
        run: sequence,
    },
    Target {
        name: "slime",
        run: slime,
    },
    Target {
        name: "store",
        run: store,
    },
    Target {
        name: "trl",
        run: trl,
    },
];
