//! The store of a chain, opened once for all that use it.

use std::fs;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use deltachain::{Error, Result};
use deltachain_store::{
    CompactOptions, CredentialSource, Credentials, FsckOptions, Keep, Mirror, MirrorOptions,
    Scratch, Stop, Store as ChainStore, StoreOptions, check_directory, followed_directory,
    plan_prune,
};
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::raised;
use crate::gate;
use crate::operations::ProfileName;
use crate::signing::{TrustRow, trust as trusted};
use crate::work::{How, OfProcess, Threads, Watch, run, seconds};

/// A directory or a bucket that holds a chain. It belongs to the process that opened it.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Store(Mutex<OfProcess<ChainStore>>);

impl Store {
    /// Does work on the store, until Ctrl-C.
    pub(crate) fn work<T: Send>(
        &self,
        py: Python<'_>,
        how: How,
        work: impl FnOnce(&ChainStore, &Watch) -> Result<T> + Send,
    ) -> PyResult<T> {
        let stop = Stop::default();
        let store = self.get(py)?.with_stop(stop.clone());
        run(
            py,
            &How {
                stop: Some(stop),
                ..how
            },
            |watch| work(&store, watch),
        )
    }

    /// The store; clones share its connections.
    ///
    /// # Errors
    /// `ForkedError` in another process than the one that opened it; USAGE once it is closed.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<ChainStore> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(py)
            .cloned()
    }
}

#[pymethods]
impl Store {
    /// Opens it. A directory need not exist: what that means is for those who use it.
    #[new]
    fn new(
        py: Python<'_>,
        url: String,
        settings: Vec<(String, String)>,
        credentials: Option<Py<PyAny>>,
        timeout: Option<f64>,
        attempts: Option<u32>,
        max_rate: Option<u64>,
        copies: Vec<PyRef<'_, Self>>,
    ) -> PyResult<Self> {
        let copies = copies
            .iter()
            .map(|copy| copy.get(py))
            .collect::<PyResult<Vec<_>>>()?;
        let credentials = credentials
            .map(|callable| Arc::new(CredentialsFunction(callable)) as Arc<dyn CredentialSource>);
        let mut options = StoreOptions::default()
            .settings(settings)
            .credentials(credentials)
            .max_rate(max_rate);
        if let Some(timeout) = timeout {
            options = options.timeout(seconds(timeout));
        }
        if let Some(attempts) = attempts {
            options = options.attempts(attempts);
        }
        let store = run(py, &How::default(), |_| {
            ChainStore::open_awaited(&url, options)
        })?;
        let store = OfProcess::new(store.with_copies(copies));
        Ok(Self(Mutex::new(store)))
    }

    /// Gives up its connections.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .close(py)?;
        // The last one of the process waits for threads.
        py.detach(|| drop(closed));
        Ok(())
    }

    /// The directory that it is, if that does not exist.
    fn missing_directory(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        Ok(self.get(py)?.missing_directory())
    }

    /// Begins a chain, and makes its directory, unless there is one: whether it was begun now.
    fn init(&self, py: Python<'_>) -> PyResult<bool> {
        self.work(py, How::default(), |store, _| {
            make_directory(store)?;
            Ok(deltachain_store::init(store)?.is_some())
        })
    }

    /// At most `last` versions, the newest first.
    fn log(&self, py: Python<'_>, last: Option<u64>) -> PyResult<String> {
        self.work(py, How::default(), |store, _| {
            report(&deltachain_store::log(store, last, None)?)
        })
    }

    /// One version; the newest if `version` is None.
    fn show(&self, py: Python<'_>, version: Option<u64>) -> PyResult<String> {
        self.work(py, How::default(), |store, _| {
            report(&deltachain_store::show(store, version, None)?)
        })
    }

    /// The abilities of the store, as `doctor` finds them.
    fn doctor(&self, py: Python<'_>) -> PyResult<String> {
        self.work(py, How::default(), |store, _| {
            report(&deltachain_store::doctor(store)?)
        })
    }

    /// Checks the chain, or the directory of a follower that it is: what is wrong, and the whole
    /// report.
    fn fsck(
        &self,
        py: Python<'_>,
        deep: bool,
        scratch: Option<PathBuf>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Vec<Py<PyBaseException>>, String)> {
        let (report, problems) = self.work(
            py,
            How {
                threads,
                progress,
                ..How::default()
            },
            |store, watch| {
                let Some(directory) = followed_directory(store) else {
                    let place = if deep {
                        Some(Scratch::new(scratch.as_deref(), watch)?)
                    } else {
                        None
                    };
                    let options = FsckOptions::default()
                        .deep(place.as_ref().map(|place| place.path().to_owned()));
                    let found = deltachain_store::fsck(store, &options, watch)?;
                    return Ok((report(&found)?, found.problems));
                };
                if deep {
                    let text = "deep= is for chains; of this directory all files are read anyway";
                    return Err(Error::usage(text).in_file(directory));
                }
                let found = check_directory(&directory, watch)?;
                Ok((report(&found)?, found.problems))
            },
        )?;
        Ok((raised_all(py, &problems), report))
    }

    /// Removes old versions, or says what would be removed.
    fn prune(
        &self,
        py: Python<'_>,
        keep_last: Option<NonZeroU64>,
        keep_every: Option<NonZeroU64>,
        keep: Vec<u64>,
        abandoned: bool,
        accept_loss: bool,
        dry_run: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let last = keep_last.map_or(u64::MAX, NonZeroU64::get);
        let keep = Keep {
            last,
            every: keep_every.map(NonZeroU64::get),
            versions: keep,
            abandoned,
            accept_loss,
        };
        self.work(
            py,
            How {
                progress,
                ..How::default()
            },
            |store, watch| {
                let plan = plan_prune(store, &keep)?;
                report(&if dry_run {
                    plan.expected
                } else {
                    deltachain_store::prune(store, &plan, watch)?
                })
            },
        )
    }

    /// Copies what is new of the chain to another store, and makes its directory.
    fn mirror(
        &self,
        py: Python<'_>,
        destination: &Self,
        trust: Option<TrustRow>,
        verify: bool,
        restore: bool,
        scratch: Option<PathBuf>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Vec<Py<PyBaseException>>, String)> {
        let destination = destination.get(py)?;
        let options = MirrorOptions::default()
            .trust(trusted(py, trust)?)
            .verify(verify)
            .restore(restore);
        let how = How {
            progress,
            ..How::default()
        };
        let (report, problems) = self.work(py, how, |store, watch| {
            let place = Scratch::new(scratch.as_deref(), watch)?;
            let mut mirror = Mirror::new(store.clone(), &destination, options);
            let copied = mirror.round(place.path(), watch)?;
            Ok((report(&copied)?, copied.problems))
        })?;
        Ok((raised_all(py, &problems), report))
    }

    /// Takes back what was pruned: the versions that can be built again.
    fn undo_prune(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.work(py, How::default(), |store, watch| {
            deltachain_store::undo_prune(store, watch)
        })
    }

    /// Adds a snapshot, or links from older versions, to a version.
    fn compact(
        &self,
        py: Python<'_>,
        version: Option<u64>,
        snapshot: bool,
        bases: Vec<u64>,
        profile: ProfileName,
        scratch: Option<PathBuf>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        self.work(
            py,
            How {
                threads,
                progress,
                ..How::default()
            },
            |store, watch| {
                let place = Scratch::new(scratch.as_deref(), watch)?;
                let options = CompactOptions::new(place.path())
                    .version(version)
                    .snapshot(snapshot)
                    .from(bases);
                report(&deltachain_store::compact(
                    store,
                    &options.profiles(vec![profile.0]),
                    watch,
                )?)
            },
        )
    }
}

/// Problems as the exceptions that name them.
fn raised_all(py: Python<'_>, problems: &[Error]) -> Vec<Py<PyBaseException>> {
    problems
        .iter()
        .map(|problem| raised(py, problem).into_value(py))
        .collect()
}

/// Makes the directory that a store is, if it is missing.
fn make_directory(store: &ChainStore) -> Result<()> {
    let Some(directory) = store.missing_directory() else {
        return Ok(());
    };
    fs::create_dir_all(&directory).map_err(|error| Error::io("creating", error).in_file(&directory))
}

/// A report as JSON: `deltachain/_chain.py` gives it types.
pub(crate) fn report(report: &impl Serialize) -> Result<String> {
    serde_json::to_string(report).map_err(|error| Error::usage(error.to_string()))
}

/// A function of Python's that returns credentials.
#[derive(Debug)]
struct CredentialsFunction(Py<PyAny>);

impl CredentialSource for CredentialsFunction {
    fn credentials(&self) -> Result<Credentials> {
        let asked = gate::attach(|py| {
            let given = self.0.call0(py)?.into_bound(py);
            let text = |name: &str| -> PyResult<String> { given.get_item(name)?.extract() };
            let optional = |name: &str| given.call_method1("get", (name,));
            let token = optional("token")?.extract()?;
            let expires: Option<SystemTime> = optional("expires_at")?.extract()?;
            PyResult::Ok(Credentials::new(
                text("access_key_id")?,
                text("secret_access_key")?,
                token,
                expires,
            ))
        })?;
        asked.map_err(|error| {
            Error::io(
                "asking for credentials",
                std::io::Error::other(error.to_string()),
            )
        })
    }
}
