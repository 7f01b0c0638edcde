//! Limit of the rate at which bytes are sent to a store and received from it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time in which bytes are sent or received at the limited rate.
pub(crate) struct Slot {
    #[cfg_attr(
        not(feature = "servers"),
        expect(dead_code, reason = "only uploads to servers wait for it")
    )]
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// A limit for the bytes of all requests of a store together.
#[derive(Debug)]
pub(crate) struct Rate {
    bytes_per_second: u64,
    /// Time at which all bytes so far are paid for.
    free: Mutex<Instant>,
}

impl Rate {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second: bytes_per_second.max(1),
            free: Mutex::new(Instant::now()),
        }
    }

    /// Reserves the next time slot for some bytes.
    pub(crate) fn reserve(&self, bytes: u64) -> Slot {
        // Unused time is lost, so that there are no bursts after a pause.
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (*free).max(Instant::now());
        // Exact to less than a nanosecond each time.
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let needed = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        *free = start.checked_add(needed).unwrap_or(start);
        Slot { start, end: *free }
    }
}
