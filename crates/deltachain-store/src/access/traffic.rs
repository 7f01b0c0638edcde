//! Traffic of a store: bytes received, failures, and progress.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::{Either, select};
use object_store::Error as StoreError;
use tokio::time::sleep;

use crate::access::options::StoreOptions;

/// A copy is given up if no byte comes for this long.
const SILENCE: Duration = Duration::from_secs(10);

/// A copy is given up if all requests to it together get less than this in a window.
const LEAST_BYTES_PER_SECOND: u64 = 64 << 10;
const WINDOW: Duration = Duration::from_secs(30);

/// Length of a piece of a body, at most: the buffer of the `hyper` crate grows to 400 KiB. A rate
/// limit makes a pause after each.
const PIECE: u64 = 512 << 10;

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
    /// Bytes of objects that have come, including requests that failed later.
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
        options: &StoreOptions,
    ) -> Result<T, StoreError> {
        match select(pin!(request), pin!(self.stalls(came, options))).await {
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
    async fn stalls(&self, came: &AtomicU64, options: &StoreOptions) -> String {
        // A limit that the user has set is no reason to give up: half of it is fast enough, and a
        // request may have to wait until one piece of each other request is paid for.
        let (least_rate, turn) = match options.max_rate {
            None => (LEAST_BYTES_PER_SECOND, Duration::ZERO),
            Some(rate) => {
                let turn = PIECE.saturating_mul(options.parallel as u64) / rate.max(1);
                let least_rate = LEAST_BYTES_PER_SECOND.min(rate / 2);
                (least_rate, Duration::from_secs(turn))
            }
        };
        let silence_limit = SILENCE.max(turn);
        let window_length = WINDOW.max(turn);
        let least = least_rate.saturating_mul(window_length.as_secs());
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
            if silent >= silence_limit {
                return format!("timeout: no progress for {} s", silence_limit.as_secs());
            }
            if window >= window_length {
                let bytes = self.bytes();
                if bytes - before < least {
                    return format!(
                        "too slow: {} bytes in {} s",
                        bytes - before,
                        window_length.as_secs()
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

    /// Gets pieces of this many bytes, one each period, for 120 periods. Returns the time that the
    /// request is watched, and whether to its end.
    fn watch_pieces(bytes: u64, period: Duration, options: &StoreOptions) -> (u64, bool) {
        let (traffic, came) = (Traffic::default(), AtomicU64::new(0));
        let request = async {
            for _ in 0..120 {
                sleep(period).await;
                traffic.bytes.fetch_add(bytes, Ordering::Relaxed);
                came.fetch_add(bytes, Ordering::Relaxed);
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
            let result = traffic.watch(request, &came, options).await;
            (began.elapsed().as_secs(), result.is_ok())
        })
    }

    fn watch(bytes_per_second: u64, max_rate: Option<u64>) -> (u64, bool) {
        let options = StoreOptions::default().parallel(1).max_rate(max_rate);
        watch_pieces(bytes_per_second, TICK, &options)
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

    /// At 10 kB/s, one of eight requests gets a piece of 400 KiB every 328 seconds.
    #[test]
    fn a_low_rate_of_the_user_is_not_taken_for_silence() {
        let rate = 10_000;
        let options = StoreOptions::default().max_rate(Some(rate));
        let bytes = 400 << 10;
        let period = Duration::from_secs(8 * bytes / rate);
        let expected = (120 * period.as_secs(), true);
        let alone = StoreOptions::default().parallel(1).max_rate(Some(rate));
        assert_eq!(watch_pieces(8 * bytes, period, &options), expected);
        let (time, is_whole) = watch_pieces(bytes, Duration::from_secs(bytes / rate), &alone);
        assert!(is_whole, "{time}");
        // A request to which nothing comes is given up all the same.
        assert!(!watch_pieces(0, period, &options).1);
    }
}
