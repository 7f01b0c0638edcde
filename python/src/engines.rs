//! vLLM inference servers that a trainer updates to each version.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use deltachain_engines::{
    Address, Awaited, Failure, Pause, Servers as EngineServers, Shapes, find_version, survey,
    wait_for,
};
use deltachain_store::Observer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::errors::{own, raised, usage};
use crate::settings::Named;
use crate::store::{Store, report};
use crate::work::{How, OfProcess, Watch, run_apart, seconds};

/// Returns the name that servers report for a version, from its number and state digest.
#[pyfunction]
pub(crate) fn version_name(version: u64, digest: &str) -> String {
    deltachain::chain::version_name(version, digest)
}

/// Describes the first tensor that only one of two models has, or that has another shape in them.
/// None if there is none.
#[pyfunction]
pub(crate) fn difference(model: Shapes, version: Shapes) -> Option<String> {
    deltachain_engines::difference(&model, &version)
}

/// Compares the names and shapes of a version's tensors with the model in this directory. Returns
/// the reason if the version does not fit; None if it fits, or if that is unknown.
#[pyfunction]
pub(crate) fn misfit(model: PathBuf, version: Shapes) -> Option<String> {
    deltachain_engines::misfit(&model, &version)
}

/// The settings of `fleet`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct FleetSettings {
    members: Vec<String>,
    /// Seconds in which a member must answer.
    member_timeout: f64,
    /// The version to wait for, `VERSION@COMMIT`, if there is one.
    wait: Option<String>,
    expect: usize,
    /// Seconds to wait.
    timeout: f64,
}

/// Asks the members of a fleet what they hold. Returns the report, and whether enough of them hold
/// the version to wait for.
#[pyfunction]
pub(crate) fn fleet<'py>(
    py: Python<'py>,
    chain: &Store,
    settings: Named<FleetSettings>,
) -> PyResult<(Bound<'py, PyAny>, bool)> {
    let settings = settings.0;
    let addresses = settings.members.iter().map(|member| {
        let parsed: Result<Address, String> = member.parse();
        parsed.map_err(|text| usage(py, format!("{member:?}: {text}"), None))
    });
    let addresses: Vec<Address> = addresses.collect::<PyResult<_>>()?;
    let patience = seconds(settings.member_timeout);
    let (found, is_there) = chain.work(py, How::default(), |store, watch| {
        let Some(wanted) = &settings.wait else {
            return Ok((survey(store, &addresses, patience)?, true));
        };
        let wanted = find_version(store, wanted)?;
        let awaited = Awaited {
            version: wanted,
            expected: settings.expect,
            timeout: seconds(settings.timeout),
        };
        wait_for(store, &addresses, patience, awaited, |_, _, pause| {
            watch.wait(pause)
        })
    })?;
    Ok((report(py, &found)?, is_there))
}

/// vLLM servers that a trainer updates to each version, all at the same time.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Servers(OfProcess<EngineServers>);

impl Servers {
    /// Runs a step on all servers. Raises the first failure, with the failures of the other servers
    /// as notes.
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
    /// Makes servers at these URLs. `backend` is a JSON object for their backend, `name` is the
    /// name of this process, and `pause` says what happens to running requests.
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

    /// Waits until all servers answer, and tells their backends where the chain is.
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

    /// Waits until the servers can load a version without delay.
    fn prepare(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        self.with_all(py, |servers, watch| {
            servers.prepare(version, &|time| watch.wait(time))
        })
    }

    /// Pauses all servers, and begins an update.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        self.with_all(py, |servers, _| servers.start())
    }

    /// Loads a version into the servers.
    fn update(&self, py: Python<'_>, version: u64, digest: String) -> PyResult<()> {
        self.with_all(py, |servers, _| servers.update(version, &digest))
    }

    /// Ends the update. The servers stay paused until `resume`; if one has failed, all servers that
    /// hold a whole version are resumed at once.
    fn finish(&self, py: Python<'_>, name: String) -> PyResult<()> {
        self.with_all(py, |servers, _| servers.finish(&name))
    }

    /// Resumes the servers that have a new version, and ends an update that was not finished.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.with_all(py, |servers, _| servers.resume())
    }

    /// Ends this process's claim, so that other processes may update the servers.
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
