//! When a request may go on: how fast bytes may go, how long a busy server wants to be left alone, and whether the bytes
//! of an upload are still moving.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

/// A server cannot make anybody wait longer than this by one answer.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A limit for the bytes of all requests of a store together.
#[derive(Debug)]
pub(crate) struct Rate {
    bytes_per_second: u64,
    /// When all that has been taken so far is paid for.
    free: Mutex<Instant>,
}

impl Rate {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), free: Mutex::new(Instant::now()) }
    }

    /// Takes some bytes: when they may begin to move, and when they are paid for.
    pub(crate) fn take(&self, bytes: u64) -> (Instant, Instant) {
        // What has not been used is lost, so that there are no bursts after a pause.
        let mut free = lock(&self.free);
        let start = (*free).max(Instant::now());
        // Exact, but for less than a nanosecond each time.
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let needed = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        *free = start.checked_add(needed).unwrap_or(start);
        (start, *free)
    }
}

/// Until when a server that was too busy wants no requests.
#[derive(Debug)]
pub(crate) struct Welcome(Mutex<Instant>);

impl Welcome {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    /// Takes what the server says in `Retry-After`: seconds, or a date, which is compared with the server's own clock.
    /// That it has to tell.
    pub(crate) fn not_before(&self, retry_after: &str, date: Option<&str>) {
        let pause = match retry_after.trim().parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => httpdate::parse_http_date(retry_after.trim()).ok().and_then(|until| {
                let now = httpdate::parse_http_date(date?).ok()?;
                until.duration_since(now).ok()
            }),
        };
        if let Some(pause) = pause {
            let mut until = lock(&self.0);
            *until = (*until).max(Instant::now() + pause.min(LONGEST_WAIT));
        }
    }

    /// Waits as long as the server wants.
    pub(crate) async fn wait(&self) {
        let until = *lock(&self.0);
        if until > Instant::now() {
            sleep_until(until).await;
        }
    }
}

/// Whether the body of a request moves.
#[derive(Debug)]
pub(crate) struct Upload {
    began: Instant,
    state: Mutex<Moved>,
}

#[derive(Debug)]
struct Moved {
    /// When bytes went last.
    last: Instant,
    /// Bytes that have not gone yet.
    left: usize,
}

impl Upload {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let began = Instant::now();
        Arc::new(Self { began, state: Mutex::new(Moved { last: began, left: bytes }) })
    }

    /// When to give up if nothing moves from now on. What has gone last may still lie in buffers on this side of a slow
    /// line: nobody can see these becoming empty. So there is as much time more as all of it took to go.
    pub(crate) fn deadline(&self, limit: Duration) -> Instant {
        let moved = lock(&self.state);
        let rest = if moved.left == 0 { moved.last - self.began } else { Duration::ZERO };
        moved.last + limit + rest
    }

    /// Bytes that note it when they have gone.
    pub(crate) fn watch(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Chunk { bytes, upload: Arc::clone(self) })
    }
}

/// A piece of a body. Whoever sends it drops it when the connection has taken it.
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
