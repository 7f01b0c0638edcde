//! Traffic of a store: bytes received, failures, and progress.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::{Either, select};
use object_store::Error as StoreError;
use tokio::time::sleep;

/// A copy is given up if nothing comes for this long.
const SILENCE: Duration = Duration::from_secs(10);

/// A copy is given up if all requests to it together get less than this in a window.
const LEAST_BYTES_PER_SECOND: u64 = 64 << 10;
const WINDOW: Duration = Duration::from_secs(30);

/// Interval at which requests to a copy are checked for progress.
const TICK: Duration = Duration::from_secs(1);

/// A failure, and when it happened.
#[derive(Debug, Clone)]
pub(crate) struct FailureNote {
    pub(crate) time: SystemTime,
    pub(crate) text: String,
}

impl FailureNote {
    /// A failure that has just happened.
    #[expect(
        clippy::disallowed_methods,
        reason = "people compare it with their own clock"
    )]
    pub(crate) fn now(text: String) -> Self {
        Self {
            time: SystemTime::now(),
            text,
        }
    }
}

/// Counts the bytes and the failures of a store.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes of objects that have come, also those of requests that failed later.
    bytes: AtomicU64,
    /// Operations that failed for good.
    failures: AtomicU64,
    last_failure: Mutex<Option<FailureNote>>,
}

impl Traffic {
    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add_failure(&self, text: String) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *self
            .last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(FailureNote::now(text));
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(crate) fn last_failure(&self) -> Option<FailureNote> {
        self.last_failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits for a request unless it hangs, or all requests to the store are too slow. `came`
    /// counts the bytes of the request. Requests share a line, so the speed of one alone says
    /// nothing.
    pub(crate) async fn watch<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
        came: &AtomicU64,
        max_rate: Option<u64>,
    ) -> Result<T, StoreError> {
        match select(pin!(request), pin!(self.stalls(came, max_rate))).await {
            Either::Left((result, _)) => result,
            Either::Right((text, _)) => {
                let source = io::Error::new(io::ErrorKind::TimedOut, text);
                Err(StoreError::Generic {
                    store: "time-out",
                    source: source.into(),
                })
            }
        }
    }

    /// Ends when a request is no longer worth waiting for, and says why.
    async fn stalls(&self, came: &AtomicU64, max_rate: Option<u64>) -> String {
        // A limit that the user has set is no reason to give up.
        let most = max_rate.map_or(LEAST_BYTES_PER_SECOND, |rate| rate / 2);
        let least = most.min(LEAST_BYTES_PER_SECOND) * WINDOW.as_secs();
        let mut seen = came.load(Ordering::Relaxed);
        let mut silent = Duration::ZERO;
        let mut before = self.bytes();
        let mut window = Duration::ZERO;
        loop {
            sleep(TICK).await;
            silent += TICK;
            window += TICK;
            let now = came.load(Ordering::Relaxed);
            if now > seen {
                (seen, silent) = (now, Duration::ZERO);
            }
            if silent >= SILENCE {
                return format!("timeout: no progress for {} s", SILENCE.as_secs());
            }
            if window >= WINDOW {
                let bytes = self.bytes();
                if bytes - before < least {
                    return format!(
                        "too slow: {} bytes in {} s",
                        bytes - before,
                        WINDOW.as_secs()
                    );
                }
                (before, window) = (bytes, Duration::ZERO);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;
    use tokio::time::Instant;

    use super::*;

    /// Gets bytes at this speed for two minutes: how long it is watched, and whether to its end.
    fn watch(bytes_per_second: usize, max_rate: Option<u64>) -> (u64, bool) {
        let (traffic, came) = (Traffic::default(), AtomicU64::new(0));
        let request = async {
            for _ in 0..120 {
                sleep(TICK).await;
                traffic.add_bytes(bytes_per_second);
                came.fetch_add(bytes_per_second as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let began = Instant::now();
            let result = traffic.watch(request, &came, max_rate).await;
            (began.elapsed().as_secs(), result.is_ok())
        })
    }

    #[test]
    fn a_store_that_trickles_is_given_up() {
        assert_eq!(watch(0, None), (10, false));
        assert_eq!(watch(1, None), (30, false));
        assert_eq!(watch(60 << 10, None), (30, false));
        assert_eq!(watch(70 << 10, None), (120, true));
        assert_eq!(watch(60 << 10, Some(60 << 10)), (120, true));
        assert_eq!(watch(10 << 10, Some(60 << 10)), (30, false));
    }
}
