//! The store of a chain, opened once for all that use it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use deltachain::{Error, Result};
use deltachain_store::{CredentialSource, Credentials, Stop as StoreStop, Store as ChainStore, StoreOptions};
use pyo3::prelude::*;

use crate::errors::{no_pickle, usage};
use crate::gate;
use crate::work::{How, OfProcess, run};

/// A directory or a bucket that holds a chain. It belongs to the process that opened it.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Store(OfProcess<ChainStore>, StoreOptions);

/// Ends the waiting of one piece of work, from another thread.
#[pyclass(frozen, module = "deltachain._native")]
#[derive(Default)]
pub(crate) struct Stop(StoreStop);

impl Stop {
    pub(crate) fn get(&self) -> StoreStop {
        self.0.clone()
    }
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn stop(&self) {
        self.0.stop();
    }
}

impl Store {
    /// Asks the store something, until Ctrl-C.
    pub(crate) fn ask<T: Send>(
        &self,
        py: Python<'_>,
        question: impl FnOnce(&ChainStore) -> Result<T> + Send,
    ) -> PyResult<T> {
        let stop = StoreStop::default();
        let store = self.get(py)?.with_stop(stop.clone());
        run(py, &How { stop: Some(stop), ..How::default() }, |_| question(&store))
    }

    /// How it was opened.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(crate) fn options(&self, py: Python<'_>) -> PyResult<StoreOptions> {
        self.0.get(py).map(|_| self.1.clone())
    }

    /// The store; clones share its connections.
    ///
    /// # Errors
    /// `ForkedError` in another process than the one that opened it.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<ChainStore> {
        self.0.get(py).cloned()
    }
}

#[pymethods]
impl Store {
    /// Opens it. If the URL names a directory that does not exist, it is made if `is_new` says so, awaited if that is
    /// None, and otherwise refused.
    #[new]
    #[pyo3(signature = (url, settings, credentials, is_new, timeout, attempts, max_rate))]
    fn new(
        py: Python<'_>,
        url: String,
        settings: Vec<(String, String)>,
        credentials: Option<Py<PyAny>>,
        is_new: Option<bool>,
        timeout: Option<f64>,
        attempts: Option<u32>,
        max_rate: Option<u64>,
    ) -> PyResult<Self> {
        let mut options = StoreOptions::default().settings(settings).max_rate(max_rate);
        options =
            options.credentials(credentials.map(|callable| Arc::new(Callable(callable)) as Arc<dyn CredentialSource>));
        if let Some(timeout) = timeout {
            let timeout = Duration::try_from_secs_f64(timeout);
            options = options.timeout(timeout.map_err(|error| usage(py, format!("timeout: {error}"), None))?);
        }
        if let Some(attempts) = attempts {
            options = options.attempts(attempts);
        }
        let given = options.clone();
        let store = run(py, &How::default(), |_| match is_new {
            Some(true) => ChainStore::create(&url, options),
            Some(false) => ChainStore::open(&url, options),
            None => ChainStore::open_awaited(&url, options),
        })?;
        Ok(Self(OfProcess::new(store), given))
    }

    /// The directory that it is, if that does not exist.
    fn missing_directory(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        Ok(self.get(py)?.missing_directory())
    }

    /// Begins a chain, unless there is one: whether it was begun now.
    fn init(&self, py: Python<'_>) -> PyResult<bool> {
        self.ask(py, |store| Ok(deltachain_store::init(store)?.is_some()))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("stores"))
    }
}

/// A function of Python's that returns credentials.
#[derive(Debug)]
struct Callable(Py<PyAny>);

impl CredentialSource for Callable {
    fn credentials(&self) -> Result<Credentials> {
        let asked = gate::attach(|py| {
            let given = self.0.call0(py)?.into_bound(py);
            let text = |name: &str| -> PyResult<String> { given.get_item(name)?.extract() };
            let optional = |name: &str| given.call_method1("get", (name,));
            let token = optional("token")?.extract()?;
            let expires: Option<SystemTime> = optional("expires_at")?.extract()?;
            PyResult::Ok(Credentials::new(text("access_key_id")?, text("secret_access_key")?, token, expires))
        });
        let asked = asked.ok_or_else(|| Error::usage("the interpreter is about to end"))?;
        asked.map_err(|error| Error::io("asking for credentials", std::io::Error::other(error.to_string())))
    }
}
