//! What several test programs share: stores of all kinds on this machine, and stores that fail.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod child;
pub(crate) mod counting;
pub(crate) mod faulty;
pub(crate) mod models;
pub(crate) mod s3;
pub(crate) mod throttled;
pub(crate) mod verify;
pub(crate) mod web;

use std::time::Duration;

use deltachain_store::StoreOptions;

/// Options that lose no time: short pauses, parts of a few bytes.
pub(crate) fn quick() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.attempts = 4;
    options.pause = Duration::from_millis(1);
    options.timeout = Duration::from_secs(20);
    options.part_bytes = 1000;
    options
}

/// The `SplitMix64` generator: the same numbers everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below a bound, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

/// A number that the environment sets, for longer runs.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}
