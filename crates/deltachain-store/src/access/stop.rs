//! Cancels the requests of a store from another thread.

use std::future::Future;
use std::pin::pin;

use futures_util::future::{Either, select};
use object_store::Error as StoreError;
use tokio::sync::watch;

/// Cancels the requests of [stores](crate::Store::with_stop), from any thread: requests under way
/// are given up, and no new one is sent until [`reset`](Self::reset), except that an upload in
/// parts is aborted at the server, for up to 5 seconds. Clones share their state.
///
/// A request that is given up ends as if the connection had been lost: the server may have stored
/// the object all the same.
#[derive(Debug, Clone, Default)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// Cancels the requests.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Allows requests again.
    pub fn reset(&self) {
        self.0.send_replace(false);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs the operation until it ends or is cancelled.
    pub(super) async fn unless<T>(
        &self,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut receiver = self.0.subscribe();
        // The sender lives as long as `self`.
        let stopped = receiver.wait_for(|is_stopped| *is_stopped);
        match select(pin!(stopped), pin!(operation)).await {
            Either::Left(_) => Err(StoreError::Generic {
                store: "stop",
                source: "it was stopped".into(),
            }),
            Either::Right((result, _)) => result,
        }
    }
}
