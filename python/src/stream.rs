//! Whole tensors of a version, for a function of the caller's that loads them: built in one pass,
//! in a thread beside it.

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
    /// Its bytes.
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

/// Bytes of tensors that are handed over together, and how often that is done ahead.
const TOGETHER: usize = 8 << 20;
const AHEAD: usize = 1;

/// A message of the thread: some tensors, or none at the end. Without an end, it has panicked.
type Message = Result<Option<Vec<(TensorInfo, Vec<u8>)>>>;

/// The tensors of a version, some at a time.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Stream(Mutex<Option<(Receiver<Message>, JoinHandle<()>)>>);

impl Stream {
    pub(crate) fn of(
        py: Python<'_>,
        version: Arc<LentVersion>,
        threads: Option<Threads>,
    ) -> PyResult<Self> {
        // A pool of its own: shared threads would be blocked as long as the caller keeps this and
        // takes nothing.
        let pool = new_pool(py, threads)?;
        let (sender, receiver) = sync_channel(AHEAD);
        let thread = thread::Builder::new()
            .name("deltachain-tensors".to_owned())
            .spawn(move || {
                let sent = pool.install(|| send_tensors(&version, &sender));
                drop(version);
                // A receiver that is gone does not need the end.
                let _ = sender.send(sent.map(|()| None));
            });
        let thread = thread.map_err(|error| usage(py, format!("threads: {error}"), None))?;
        Ok(Self(Mutex::new(Some((receiver, thread)))))
    }
}

/// Ends the build: the rest is not wanted.
impl Drop for Stream {
    fn drop(&mut self) {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((receiver, thread)) = taken {
            drop(receiver);
            // It does not need the interpreter's lock. Nothing of the version is in use any more
            // then.
            let _ = thread.join();
        }
    }
}

#[pymethods]
impl Stream {
    /// The next ones; None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Vec<TensorData>>> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((receiver, thread)) = taken else {
            return Ok(None);
        };
        let receiver = Mutex::new(receiver);
        // Not in the pool, whose only thread may be the one that is waited for.
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
                // Nothing of the version is in use any more then.
                py.detach(|| thread.join()).map_err(|_| internal(py))?;
                end.map(|_| None).map_err(|error| raised(py, &error))
            }
            None => Err(internal(py)),
        }
    }
}

/// Builds a version, and sends its tensors.
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

    /// Waits until the last one has been taken.
    fn send(&mut self) -> Result<()> {
        self.bytes = 0;
        let tensors = std::mem::take(&mut self.tensors);
        self.sender
            .send(Ok(Some(tensors)))
            .map_err(|_| Error::usage("stopped"))
    }
}
