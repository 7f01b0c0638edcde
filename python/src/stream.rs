//! The whole tensors of a version, for a caller that loads them itself. A separate thread builds
//! them in one pass.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use deltachain::tensor::TensorInfo;
use deltachain::{Error, Result};
use pyo3::prelude::*;

use crate::errors::{internal, raised, usage};
use crate::forms::TensorForm;
use crate::lent::LentVersion;
use crate::memory::{Buffer, BufferOwner};
use crate::work::{How, Threads, new_pool, run_apart};

/// A whole tensor.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct TensorData {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    /// The tensor's bytes.
    data: Py<Buffer>,
}

impl TensorData {
    fn of(py: Python<'_>, info: &TensorInfo, data: Vec<u8>) -> PyResult<Self> {
        let TensorForm { name, dtype, shape } = TensorForm::of(info);
        Ok(Self {
            name,
            dtype,
            shape,
            data: Py::new(py, Buffer::new(BufferOwner::Bytes(data.into())))?,
        })
    }
}

/// Minimum bytes of a batch of tensors, and number of batches that the thread builds ahead.
const TOGETHER: usize = 8 << 20;
const AHEAD: usize = 1;

/// A message of the thread: a batch of tensors, or `None` at the end. If the thread ends without
/// either `None` or an error, it has panicked.
type Message = Result<Option<Vec<(TensorInfo, Vec<u8>)>>>;

/// The tensors of a version, in batches.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Stream(Mutex<Option<(Receiver<Message>, JoinHandle<()>)>>);

impl Stream {
    pub(crate) fn of(
        py: Python<'_>,
        version: Arc<LentVersion>,
        threads: Option<Threads>,
    ) -> PyResult<Self> {
        // The stream has a pool of its own, because it would block shared threads for as long as
        // the caller takes no tensors.
        let pool = new_pool(py, threads)?;
        let (sender, receiver) = sync_channel(AHEAD);
        let thread = thread::Builder::new()
            .name("deltachain-tensors".to_owned())
            .spawn(move || {
                let sent = pool.install(|| send_tensors(&version, &sender));
                drop(version);
                // Nothing waits for the end if the receiver has been dropped.
                let _ = sender.send(sent.map(|()| None));
            });
        let thread = thread.map_err(|error| usage(py, format!("threads: {error}"), None))?;
        Ok(Self(Mutex::new(Some((receiver, thread)))))
    }
}

/// Stops the build, because the caller takes no more tensors.
impl Drop for Stream {
    fn drop(&mut self) {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((receiver, thread)) = taken {
            drop(receiver);
            // The thread does not need the interpreter's lock. Once it has ended, the version is no
            // longer in use.
            let _ = thread.join();
        }
    }
}

#[pymethods]
impl Stream {
    /// Returns the next tensors; None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Vec<TensorData>>> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((receiver, thread)) = taken else {
            return Ok(None);
        };
        let receiver = Mutex::new(receiver);
        // The wait is not in the pool, because it may have only one thread, which this waits for.
        let message = run_apart(py, &How::default(), |_| {
            Ok(receiver
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv()
                .ok())
        })?;
        match message.flatten() {
            Some(Ok(Some(tensors))) => {
                let receiver = receiver
                    .into_inner()
                    .unwrap_or_else(PoisonError::into_inner);
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((receiver, thread));
                let tensors = tensors.into_iter();
                let shown = tensors.map(|(info, data)| TensorData::of(py, &info, data));
                shown.collect::<PyResult<_>>().map(Some)
            }
            Some(end) => {
                // Once the thread has ended, the version is no longer in use.
                py.detach(|| thread.join()).map_err(|_| internal(py))?;
                end.map(|_| None).map_err(|error| raised(py, &error))
            }
            None => Err(internal(py)),
        }
    }
}

/// Builds a version, and sends its tensors in batches.
fn send_tensors(version: &LentVersion, sender: &SyncSender<Message>) -> Result<()> {
    let mut batch = Batch {
        sender,
        tensors: Vec::new(),
        bytes: 0,
    };
    version.each_tensor(&mut |info, data| batch.add(info, data), &())?;
    batch.send()
}

/// Tensors that are sent together.
struct Batch<'a> {
    sender: &'a SyncSender<Message>,
    tensors: Vec<(TensorInfo, Vec<u8>)>,
    bytes: usize,
}

impl Batch<'_> {
    /// Adds a tensor. Sends the batch when it is large enough.
    fn add(&mut self, info: &TensorInfo, data: Vec<u8>) -> Result<()> {
        self.bytes += data.len();
        self.tensors.push((info.clone(), data));
        if self.bytes < TOGETHER {
            return Ok(());
        }
        self.send()
    }

    /// Sends the batch. Waits until there is room for it in the channel.
    fn send(&mut self) -> Result<()> {
        self.bytes = 0;
        let tensors = std::mem::take(&mut self.tensors);
        self.sender
            .send(Ok(Some(tensors)))
            .map_err(|_| Error::usage("stopped"))
    }
}
