//! The store of a chain, which several objects share.

use std::fs;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use deltachain::{Error, Result};
use deltachain_store::{
    CompactOptions, CredentialSource, Credentials, DirectoryReport, FsckOptions, FsckReport, Keep,
    Mirror, MirrorOptions, PromotedVersion, Scratch, Stop, Store as ChainStore, StoreOptions,
    check_directory, followed_directory, plan_prune,
};
use pyo3::prelude::*;
use pythonize::pythonize;
use serde::Serialize;

use crate::errors::raised;
use crate::gate;
use crate::operations::{ProfileName, digest_of};
use crate::settings::Named;
use crate::signing::{TrustedKeys, trust as trusted};
use crate::work::{How, OfProcess, Threads, Watch, run, seconds};

/// A directory or a bucket that holds a chain. The object can be used only in the process that
/// opened it.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Store(Mutex<OfProcess<ChainStore>>);

impl Store {
    /// Runs work on the store. Ctrl-C ends it.
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
    /// `ForkedError` in any process but the one that opened the store; USAGE after it is closed.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<ChainStore> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(py)
            .cloned()
    }
}

/// The settings of a [`Store`].
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ConnectionSettings {
    storage_options: Vec<(String, String)>,
    /// A function that returns credentials.
    credentials: Option<Py<PyAny>>,
    /// Seconds without a byte after which a request is aborted.
    timeout: Option<f64>,
    attempts: Option<u32>,
    /// Bytes per second.
    max_rate: Option<u64>,
    copies: Vec<Py<Store>>,
}

impl ConnectionSettings {
    fn options(self) -> StoreOptions {
        let credentials = self
            .credentials
            .map(|callable| Arc::new(CredentialsFunction(callable)) as Arc<dyn CredentialSource>);
        let mut options = StoreOptions::default()
            .settings(self.storage_options)
            .credentials(credentials)
            .max_rate(self.max_rate);
        if let Some(timeout) = self.timeout {
            options = options.timeout(seconds(timeout));
        }
        if let Some(attempts) = self.attempts {
            options = options.attempts(attempts);
        }
        options
    }
}

/// The settings of `prune`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PruneSettings {
    /// `None` for all versions.
    keep_last: Option<NonZeroU64>,
    keep_every: Option<NonZeroU64>,
    keep: Vec<u64>,
    abandoned: bool,
    accept_loss: bool,
}

/// The settings of `mirror`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct MirrorSettings {
    trust: Option<TrustedKeys>,
    /// The number and the commit of the version to promote.
    up_to: Option<(u64, String)>,
    verify: bool,
    restore: bool,
    scratch: Option<PathBuf>,
}

/// Returns the version to promote, from its number and the digest of its commit.
fn promoted(py: Python<'_>, up_to: Option<(u64, String)>) -> PyResult<Option<PromotedVersion>> {
    let Some((version, commit)) = up_to else {
        return Ok(None);
    };
    let commit = digest_of(py, Some(&commit))?;
    Ok(commit.map(|commit| PromotedVersion { version, commit }))
}

/// The settings of `compact`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct CompactSettings {
    /// `None` for the newest version.
    version: Option<u64>,
    snapshot: bool,
    bases: Vec<u64>,
    profile: ProfileName,
    scratch: Option<PathBuf>,
}

#[pymethods]
impl Store {
    /// Opens a store. A directory need not exist; callers decide whether that is an error.
    #[new]
    fn new(py: Python<'_>, url: String, settings: Named<ConnectionSettings>) -> PyResult<Self> {
        let settings = settings.0;
        let copies = settings
            .copies
            .iter()
            .map(|copy| copy.get().get(py))
            .collect::<PyResult<Vec<_>>>()?;
        let options = settings.options();
        let store = run(py, &How::default(), |_| {
            ChainStore::open_awaited(&url, options)
        })?;
        let store = OfProcess::new(store.with_copies(copies));
        Ok(Self(Mutex::new(store)))
    }

    /// Closes the store's connections.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .close(py)?;
        // Dropping the last store of the process waits for threads.
        py.detach(|| drop(closed));
        Ok(())
    }

    /// Returns the store's directory if it is a directory that does not exist.
    fn missing_directory(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        Ok(self.get(py)?.missing_directory())
    }

    /// Begins a chain, and creates its directory if it is missing. Returns false if the chain
    /// exists already.
    fn init(&self, py: Python<'_>) -> PyResult<bool> {
        self.work(py, How::default(), |store, _| {
            make_directory(store)?;
            Ok(deltachain_store::init(store)?.is_some())
        })
    }

    /// Lists at most `last` versions, the newest first.
    fn log<'py>(&self, py: Python<'py>, last: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.work(py, How::default(), |store, _| {
            deltachain_store::log(store, last, None)
        })?;
        report(py, &found)
    }

    /// Returns the digest of `chain.json`, which identifies the chain.
    fn chain_digest(&self, py: Python<'_>) -> PyResult<String> {
        let found = self.work(py, How::default(), |store, _| {
            deltachain_store::chain_digest(store)
        })?;
        Ok(found.to_string())
    }

    /// Shows a version; the newest if `version` is None.
    fn show<'py>(&self, py: Python<'py>, version: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.work(py, How::default(), |store, _| {
            deltachain_store::show(store, version, None)
        })?;
        report(py, &found)
    }

    /// Tests what the store supports, as the command `doctor` does.
    fn doctor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.work(py, How::default(), |store, _| {
            deltachain_store::doctor(store)
        })?;
        report(py, &found)
    }

    /// Checks the chain, or the follower's directory if the store is one. The problems in the
    /// report are exceptions.
    fn fsck<'py>(
        &self,
        py: Python<'py>,
        deep: bool,
        scratch: Option<PathBuf>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let how = How {
            threads,
            progress,
            ..How::default()
        };
        let found = self.work(py, how, |store, watch| {
            let Some(directory) = followed_directory(store) else {
                let place = if deep {
                    Some(Scratch::new(scratch.as_deref(), watch)?)
                } else {
                    None
                };
                let options = FsckOptions::default()
                    .deep(place.as_ref().map(|place| place.path().to_owned()));
                let found = deltachain_store::fsck(store, &options, watch)?;
                return Ok(Checked::Chain(Box::new(found)));
            };
            if deep {
                let text = "deep= is for chains; of the directory of a follower, all files are \
                            read anyway: leave it out";
                return Err(Error::usage(text).in_file(directory));
            }
            let found = check_directory(&directory, watch)?;
            Ok(Checked::Directory(Box::new(found)))
        })?;
        match found {
            Checked::Chain(found) => report_problems(py, &*found, &found.problems),
            Checked::Directory(found) => report_problems(py, &*found, &found.problems),
        }
    }

    /// Removes old versions, or with `dry_run` reports what would be removed.
    fn prune<'py>(
        &self,
        py: Python<'py>,
        settings: Named<PruneSettings>,
        dry_run: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let settings = settings.0;
        let keep = Keep {
            last: settings.keep_last.map_or(u64::MAX, NonZeroU64::get),
            every: settings.keep_every.map(NonZeroU64::get),
            versions: settings.keep,
            abandoned: settings.abandoned,
            accept_loss: settings.accept_loss,
        };
        let how = How {
            progress,
            ..How::default()
        };
        let found = self.work(py, how, |store, watch| {
            let plan = plan_prune(store, &keep)?;
            if dry_run {
                Ok(plan.expected)
            } else {
                deltachain_store::prune(store, &plan, watch)
            }
        })?;
        report(py, &found)
    }

    /// Copies what is new in the chain to another store, and creates its directory. The problems in
    /// the report are exceptions.
    fn mirror<'py>(
        &self,
        py: Python<'py>,
        destination: &Self,
        settings: Named<MirrorSettings>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let MirrorSettings {
            trust,
            up_to,
            verify,
            restore,
            scratch,
        } = settings.0;
        let destination = destination.get(py)?;
        let options = MirrorOptions::default()
            .trust(trusted(py, trust)?)
            .up_to(promoted(py, up_to)?)
            .verify(verify)
            .restore(restore);
        let how = How {
            progress,
            ..How::default()
        };
        let copied = self.work(py, how, |store, watch| {
            let place = Scratch::new(scratch.as_deref(), watch)?;
            let mut mirror = Mirror::new(store.clone(), &destination, options);
            mirror.round(place.path(), watch)
        })?;
        report_problems(py, &copied, &copied.problems)
    }

    /// Undoes what was pruned recently. Returns the versions that can be built again.
    fn undo_prune(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.work(py, How::default(), |store, watch| {
            deltachain_store::undo_prune(store, watch)
        })
    }

    /// Adds a snapshot, or links from older versions, to a version.
    fn compact<'py>(
        &self,
        py: Python<'py>,
        settings: Named<CompactSettings>,
        threads: Option<Threads>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let settings = settings.0;
        let how = How {
            threads,
            progress,
            ..How::default()
        };
        let found = self.work(py, how, |store, watch| {
            let place = Scratch::new(settings.scratch.as_deref(), watch)?;
            let options = CompactOptions::new(place.path())
                .version(settings.version)
                .snapshot(settings.snapshot)
                .from(settings.bases)
                .profiles(vec![settings.profile.0]);
            deltachain_store::compact(store, &options, watch)
        })?;
        report(py, &found)
    }
}

/// The findings of `fsck`.
enum Checked {
    Chain(Box<FsckReport>),
    Directory(Box<DirectoryReport>),
}

/// Converts a report, with its problems as exceptions.
fn report_problems<'py>(
    py: Python<'py>,
    found: &impl Serialize,
    problems: &[Error],
) -> PyResult<Bound<'py, PyAny>> {
    let made = report(py, found)?;
    let problems: Vec<_> = problems
        .iter()
        .map(|problem| raised(py, problem).into_value(py))
        .collect();
    made.set_item("problems", problems)?;
    Ok(made)
}

/// Creates a store's directory if it is missing.
fn make_directory(store: &ChainStore) -> Result<()> {
    let Some(directory) = store.missing_directory() else {
        return Ok(());
    };
    fs::create_dir_all(&directory).map_err(|error| Error::io("creating", error).in_file(&directory))
}

/// Converts a report to dictionaries with the names of its fields, which `deltachain/_chain.py`
/// converts to typed reports.
pub(crate) fn report<'py>(py: Python<'py>, found: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    Ok(pythonize(py, found)?)
}

/// A Python function that returns credentials.
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
