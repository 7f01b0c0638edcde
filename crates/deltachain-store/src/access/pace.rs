//! When a request may go on: how long a busy server wants to be left alone, and whether the bytes
//! of an upload are still moving.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
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

/// Upload bytes that may sit in kernel and network buffers, which this process cannot observe.
const BUFFERS: usize = 4 << 20;

/// The slowest line, in bytes per second, on which buffers may become empty before the server is
/// taken for silent.
const SLOWEST_LINE: u64 = 20_000;

/// Whether the body of a request moves.
#[derive(Debug)]
pub(crate) struct Upload {
    began: Instant,
    state: Mutex<MovedBytes>,
    /// The number of bytes that may lie in buffers of all uploads of a store together, which share
    /// a line.
    buffered: Arc<AtomicU64>,
    /// This one's part of them.
    own: u64,
}

#[derive(Debug)]
struct MovedBytes {
    /// When bytes went last.
    last: Instant,
    /// Bytes that have not gone yet.
    left: usize,
}

impl Upload {
    pub(crate) fn new(bytes: usize, buffered: &Arc<AtomicU64>) -> Arc<Self> {
        let began = Instant::now();
        let own = bytes.min(BUFFERS) as u64;
        buffered.fetch_add(own, Ordering::Relaxed);
        Arc::new(Self {
            began,
            state: Mutex::new(MovedBytes {
                last: began,
                left: bytes,
            }),
            buffered: Arc::clone(buffered),
            own,
        })
    }

    /// Marks all bytes as sent, for a body whose pieces are not watched.
    pub(crate) fn has_gone(&self) {
        lock(&self.state).left = 0;
    }

    /// When to give up if nothing moves from now on. The bytes that have gone last may still lie in
    /// buffers of a slow line. So there is as much time more as all of it took to go, or as the
    /// slowest line needs for the buffers.
    pub(crate) fn deadline(&self, limit: Duration) -> Instant {
        let moved = lock(&self.state);
        let rest = if moved.left == 0 && self.own > 0 {
            let buffered = self.buffered.load(Ordering::Relaxed);
            (moved.last - self.began).max(Duration::from_millis(
                buffered.saturating_mul(1000) / SLOWEST_LINE,
            ))
        } else {
            Duration::ZERO
        };
        moved.last + limit + rest
    }

    /// Bytes that note it when they have gone.
    pub(crate) fn watch(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Chunk {
            bytes,
            upload: Arc::clone(self),
        })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.buffered.fetch_sub(self.own, Ordering::Relaxed);
    }
}

/// A piece of a body. It is dropped when the connection has taken it.
struct Chunk {
    bytes: Bytes,
    upload: Arc<Upload>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let mut moved = lock(&self.upload.state);
        moved.last = Instant::now();
        moved.left = moved.left.saturating_sub(self.bytes.len());
    }
}
