//! The body of an answer. The server is not trusted: a body is no longer than what was asked for, and bytes must keep
//! coming.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpErrorKind, HttpResponseBody};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::access::rate::Rate;

/// A body that is cut where it becomes longer than allowed, fails where nothing comes for too long, and comes no faster
/// than it may.
///
/// It never claims to be longer than allowed, because code that collects it allocates the length that it claims.
pub(crate) struct Answer {
    inner: HttpResponseBody,
    most: u64,
    left: u64,
    limit: Duration,
    rate: Option<Arc<Rate>>,
    clock: Pin<Box<Sleep>>,
    state: State,
}

/// What the clock is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing: nobody has asked for bytes since the last ones came.
    Resting,
    /// Bytes have been asked for, and it is late when it rings.
    Waiting,
    /// Bytes have come faster than they may, and when it rings they have been paid for.
    Paying,
}

impl Answer {
    /// The body of an answer, with at most `most` bytes. `limit` is how long nothing may come.
    pub(crate) fn new(inner: HttpResponseBody, most: u64, limit: Duration, rate: Option<Arc<Rate>>) -> Self {
        let clock = Box::pin(sleep_until(Instant::now()));
        Self { inner, most, left: most, limit, rate, clock, state: State::Resting }
    }
}

/// What a request fails with that was silent for too long.
pub(crate) fn too_late(limit: Duration) -> HttpError {
    let text = format!("timeout: no progress for {} s", limit.as_secs_f64());
    HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, text))
}

impl Body for Answer {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.get_mut();
        if this.state == State::Paying {
            ready!(this.clock.as_mut().poll(context));
            this.state = State::Resting;
        }
        let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(context) else {
            if this.state == State::Resting {
                this.clock.as_mut().reset(Instant::now() + this.limit);
                this.state = State::Waiting;
            }
            ready!(this.clock.as_mut().poll(context));
            return Poll::Ready(Some(Err(too_late(this.limit))));
        };
        this.state = State::Resting;
        let length = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => 0,
        };
        let Some(left) = this.left.checked_sub(length) else {
            let text = format!("the answer has more than {} bytes", this.most);
            return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Decode, io::Error::other(text)))));
        };
        this.left = left;
        if let Some(rate) = this.rate.as_ref().filter(|_| length > 0) {
            this.clock.as_mut().reset(rate.take(length).1);
            this.state = State::Paying;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.inner.size_hint().lower().min(self.left));
        hint
    }
}
