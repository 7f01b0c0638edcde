//! The body of an answer. The server is not trusted: a body is no longer than what was asked for,
//! and bytes must keep coming.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use object_store::client::{HttpError, HttpErrorKind, HttpResponseBody};
use tokio::time::{sleep_until, timeout};

use crate::access::rate::Rate;

/// A body that fails when it becomes longer than `most` bytes, or when no byte arrives within
/// `limit` while the reader waits; the rate bounds its speed.
///
/// The body states no length, because code that collects it would allocate that length at once.
pub(crate) fn bounded(
    body: HttpResponseBody,
    most: u64,
    limit: Duration,
    rate: Option<Arc<Rate>>,
) -> HttpResponseBody {
    let frames = stream::try_unfold(
        (body, most, rate, None),
        move |(mut body, left, rate, paid)| async move {
            // Bytes have come faster than they may.
            if let Some(paid) = paid {
                sleep_until(paid).await;
            }
            let frame = timeout(limit, body.frame())
                .await
                .map_err(|_| too_late(limit))?;
            let Some(frame) = frame.transpose()? else {
                return Ok(None);
            };
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            let left = left.checked_sub(length).ok_or_else(|| {
                let text = format!("the answer has more than {most} bytes");
                HttpError::new(HttpErrorKind::Decode, io::Error::other(text))
            })?;
            let paid = match &rate {
                Some(rate) if length > 0 => Some(rate.reserve(length).end),
                _ => None,
            };
            Ok(Some((frame, (body, left, rate, paid))))
        },
    );
    HttpResponseBody::new(StreamBody::new(frames))
}

/// The error of a request that was silent for too long.
pub(crate) fn too_late(limit: Duration) -> HttpError {
    let text = format!("timeout: no progress for {} s", limit.as_secs_f64());
    HttpError::new(
        HttpErrorKind::Timeout,
        io::Error::new(io::ErrorKind::TimedOut, text),
    )
}
