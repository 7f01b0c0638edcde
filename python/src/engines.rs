//! Inference servers of vLLM that a trainer brings to each version.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use deltachain_engines::{Failure, Pause, Servers as EngineServers, Shapes};
use deltachain_store::Observer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::errors::{own, raised, usage};
use crate::work::{How, OfProcess, Watch, run_apart};

/// The name that servers give a version, by its number and state digest.
#[pyfunction]
pub(crate) fn version_name(version: u64, digest: &str) -> String {
    deltachain::chain::version_name(version, digest)
}

/// The reason why a version does not fit the model in this directory, by names and shapes; None if
/// it fits, or if that is unknown.
#[pyfunction]
pub(crate) fn misfit(model: PathBuf, version: Shapes) -> Option<String> {
    deltachain_engines::misfit(&model, &version)
}

/// Servers of vLLM that a trainer brings to each version, all at the same time.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Servers(OfProcess<EngineServers>);

impl Servers {
    /// Does something with all servers. The first failure is raised, with those of the others as
    /// notes.
    fn with_all(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&EngineServers, &Watch) -> Result<(), Vec<Failure>> + Send,
    ) -> PyResult<()> {
        let servers = self.0.get(py)?;
        let done = run_apart(py, &How::default(), |watch| Ok(act(servers, watch)))?;
        let Some(Err(failures)) = done else {
            return Ok(());
        };
        let Some(first) = failures.first() else {
            return Ok(());
        };
        let error = exception(py, first);
        let note = |text: String| error.value(py).call_method1("add_note", (text,)).map(drop);
        for (at, failure) in failures.iter().enumerate() {
            if at > 0 {
                note(format!("{:#}", failure.error))?;
            }
            if failure.stays_paused() {
                let url = failure.error.file().unwrap_or_default();
                note(format!("{url} stays paused until an update succeeds"))?;
            }
        }
        Err(error)
    }
}

#[pymethods]
impl Servers {
    /// Servers at these URLs; the settings for their backend are JSON, `name` is what this process
    /// calls itself, `pause` says what becomes of running requests.
    #[new]
    fn new(
        py: Python<'_>,
        urls: Vec<String>,
        backend: String,
        name: String,
        timeout: f64,
        pause: &str,
    ) -> PyResult<Self> {
        let timeout = Duration::try_from_secs_f64(timeout);
        let timeout = timeout.map_err(|error| usage(py, format!("timeout: {error}"), None))?;
        let pause: Pause = pause
            .parse()
            .map_err(|text| usage(py, format!("pause: {text}"), None))?;
        let servers = EngineServers::new(&urls, &backend, name, timeout, pause);
        Ok(Self(OfProcess::new(
            servers.map_err(|error| raised(py, &error))?,
        )))
    }

    /// Waits until they answer, and tells their backends where the chain is.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        self.with_all(py, |servers, watch| {
            servers.begin(&|time, reason| {
                reason
                    .iter()
                    .for_each(|error| watch.remark(&format!("{error:#}; waiting")));
                watch.wait(time)
            })
        })
    }

    /// Waits until they can load a version without waiting for it.
    fn prepare(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        self.with_all(py, |servers, watch| {
            servers.prepare(version, &|time| watch.wait(time))
        })
    }

    /// Pauses them, and begins an update.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        self.with_all(py, |servers, _| servers.start())
    }

    /// Makes them load a version.
    fn update(&self, py: Python<'_>, version: u64, digest: String) -> PyResult<()> {
        self.with_all(py, |servers, _| servers.update(version, &digest))
    }

    /// Ends the update; they are paused afterwards. If any has failed, all go on that hold a whole
    /// version.
    fn finish(&self, py: Python<'_>, name: String) -> PyResult<()> {
        self.with_all(py, |servers, _| servers.finish(&name))
    }

    /// Lets those go on that have been brought to a version, and ends an update that was not
    /// finished.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.with_all(py, |servers, _| servers.resume())
    }

    /// Other processes may bring them versions.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.with_all(py, |servers, _| {
            servers.end();
            Ok(())
        })
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "servers of deltachain cannot be pickled: open them in the process that uses them",
        ))
    }
}

fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    let error = &failure.error;
    match (failure.is_late, error.source(), error.file()) {
        (true, Some(source), Some(url)) => own(
            py,
            "TIMEOUT",
            &format!("{url} does not answer: {source}"),
            Some(url),
        ),
        _ => raised(py, error),
    }
}
