//! Waiting for servers: pauses that a busy server asks for, and time limits of uploads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A server cannot make anybody wait longer than this by one answer.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The earliest time for the next request, from a server's `Retry-After`.
#[derive(Debug, Default)]
pub(crate) struct RetryAfter(Mutex<Option<Instant>>);

impl RetryAfter {
    /// Takes what the server says in `Retry-After`: seconds, or a date, which is compared with the
    /// server's own clock. The server has to tell the time of that clock, as `date`.
    pub(crate) fn not_before(&self, retry_after: &str, date: Option<&str>) {
        let pause = match retry_after.trim().parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => httpdate::parse_http_date(retry_after.trim())
                .ok()
                .and_then(|until| {
                    let now = httpdate::parse_http_date(date?).ok()?;
                    until.duration_since(now).ok()
                }),
        };
        if let Some(pause) = pause {
            let mut until = lock(&self.0);
            *until = (*until).max(Some(Instant::now() + pause.min(LONGEST_WAIT)));
        }
    }

    /// Waits as long as the server wants.
    pub(crate) async fn wait(&self) {
        let until = *lock(&self.0);
        if let Some(until) = until.filter(|&until| until > Instant::now()) {
            sleep_until(until).await;
        }
    }
}

/// The slowest line, in bytes per second, that uploads may have. All uploads under way share it.
const SLOWEST_LINE: u64 = 20_000;

/// Factor by which an upload may be slower than the last one.
const SLOWER: u64 = 4;

/// Bodies shorter than this say nothing about a line, because most of their time is latency.
const SHORT: u64 = 1 << 20;

/// The time that uploads to a server take. A body is on its way until the answer to it comes: the
/// HTTP client does not show whether its bytes move. On Linux TCP itself ends a connection whose
/// peer takes no bytes for 30 seconds, which is the default of the `reqwest` crate.
#[derive(Debug, Default)]
pub(crate) struct UploadTimes(Mutex<UploadTimesState>);

#[derive(Debug, Default)]
struct UploadTimesState {
    /// Bytes of all uploads under way.
    under_way: u64,
    /// Length and duration of the last long upload that succeeded; `None` also after a timeout.
    last: Option<(u64, Duration)>,
}

impl UploadTimes {
    /// Begins an upload of this length.
    pub(crate) fn begin(&self, bytes: u64) -> Upload<'_> {
        lock(&self.0).under_way += bytes;
        Upload {
            times: self,
            began: Instant::now(),
            bytes,
        }
    }
}

/// An upload under way, or a request without a body.
#[derive(Debug)]
pub(crate) struct Upload<'a> {
    times: &'a UploadTimes,
    began: Instant,
    bytes: u64,
}

impl Upload<'_> {
    /// Time at which the server counts as silent, if answers may take `limit`. Other uploads change
    /// it, so it is computed again after each wait.
    pub(crate) fn deadline(&self, limit: Duration) -> Instant {
        let state = lock(&self.times.0);
        let (bytes, rate) = match state.last {
            None => (state.under_way, SLOWEST_LINE),
            Some((length, duration)) => {
                let milliseconds = duration.as_millis().max(1);
                let rate = u128::from(length) * 1000 / milliseconds;
                let rate = u64::try_from(rate).unwrap_or(u64::MAX);
                (self.bytes.saturating_mul(SLOWER), rate.max(1))
            }
        };
        let allowance = if self.bytes == 0 {
            Duration::ZERO
        } else {
            Duration::from_millis(bytes.saturating_mul(1000) / rate)
        };
        self.began + limit + allowance
    }

    /// The server has answered.
    pub(crate) fn succeeded(self) {
        if self.bytes >= SHORT {
            lock(&self.times.0).last = Some((self.bytes, self.began.elapsed()));
        }
    }

    /// The server did not answer in time. If it was sent a body, the line may have become slower.
    pub(crate) fn timed_out(self) {
        if self.bytes > 0 {
            lock(&self.times.0).last = None;
        }
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        lock(&self.times.0).under_way -= self.bytes;
    }
}
