//! Runs long work in other threads, while the caller's thread waits without the interpreter's lock,
//! shows progress and handles Ctrl-C.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use deltachain::{Error, Progress, Result};
use deltachain_store::{Observer, Phase, Stop, Store, Trouble};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use pyo3::{Borrowed, FromPyObject};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::errors;
use crate::gate;

/// Interval at which the waiting thread checks for signals, progress and remarks.
const LOOK: Duration = Duration::from_millis(50);

/// Maximum number of threads. More threads would only cost memory.
const MOST_THREADS: usize = 1024;

/// Names of the phases for progress callbacks.
const PHASES: [(Phase, &str); 7] = [
    (Phase::Hash, "hash"),
    (Phase::Compare, "compare"),
    (Phase::Upload, "upload"),
    (Phase::Download, "download"),
    (Phase::Build, "build"),
    (Phase::Check, "check"),
    (Phase::Wait, "wait"),
];

fn row(phase: Phase) -> usize {
    PHASES
        .iter()
        .position(|(other, _)| *other == phase)
        .unwrap_or(0)
}

/// A number of threads from the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Threads(usize);

impl<'a, 'py> FromPyObject<'a, 'py> for Threads {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let number = if object.is_instance_of::<PyBool>() {
            None
        } else {
            object.extract::<usize>().ok()
        };
        let number = number.filter(|number| (1..=MOST_THREADS).contains(number));
        let wanted = format!("threads= must be a whole number from 1 to {MOST_THREADS}");
        number
            .map(Self)
            .ok_or_else(|| errors::refused(&object, &wanted))
    }
}

/// Settings of a call's work: number of threads, progress function, time limit.
#[derive(Default)]
pub(crate) struct How {
    /// Number of threads that compute; `None` for one per processor, and at least two.
    pub(crate) threads: Option<Threads>,
    /// Called as `progress(phase, done, total)` from the caller's thread, in bytes.
    pub(crate) progress: Option<Py<PyAny>>,
    /// The time at which the work is given up.
    pub(crate) deadline: Option<Instant>,
    /// Reason for the wait, which is appended to the error of a timeout.
    pub(crate) waits_for: Option<String>,
    /// True if the reason is a version that the trusted keys have not signed.
    pub(crate) is_unsigned: bool,
    /// Ends the work's waits for the store.
    pub(crate) stop: Option<Stop>,
    /// The store that the work uses, which knows why it does not answer.
    pub(crate) asked: Option<Arc<AskedStore>>,
    /// Called often from the caller's thread. The work ends when this returns something true.
    pub(crate) until: Option<Py<PyAny>>,
    /// The caller's thread, if the work may ask it to do something.
    pub(crate) caller: Option<Arc<Caller>>,
    /// The threads for work that waits for other processes; `None` for the threads that all work
    /// shares.
    pub(crate) pool: Option<Arc<ThreadPool>>,
}

/// A store, and the last trouble with it that was logged.
pub(crate) struct AskedStore {
    trouble: Trouble,
    said: Mutex<Option<String>>,
}

impl AskedStore {
    pub(crate) fn new(store: &Store) -> Self {
        Self {
            trouble: store.trouble(),
            said: Mutex::default(),
        }
    }

    /// The reason why the last request failed.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.now()
    }

    /// Same as [`trouble`](Self::trouble), but `None` if the reason has not changed since the last
    /// call.
    fn news(&self) -> Option<String> {
        let trouble = self.trouble.now();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said == trouble {
            return None;
        }
        said.clone_from(&trouble);
        trouble
    }
}

/// Work for the caller's thread, which a thread of this library waits for.
type Request = Box<dyn FnOnce(Python<'_>) + Send>;

/// The thread that waits for work. torch's streams, devices and modes belong to it, and it handles
/// Ctrl-C.
#[derive(Default)]
pub(crate) struct Caller {
    asks: Mutex<Option<mpsc::Sender<Request>>>,
    /// The exception that was raised in the caller's thread, and that the call will raise.
    raised: Mutex<Option<PyErr>>,
}

impl Caller {
    /// Runs `work` in the caller's thread, and waits for the result.
    ///
    /// # Errors
    /// USAGE if no call waits; IO if the work raised an exception, which the call then
    /// [raises](Self::take).
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = mpsc::channel();
        let ask = Box::new(move |py: Python<'_>| drop(sender.send(work(py))));
        let asks = self
            .asks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let unheard = || Error::usage("no call waits for the result");
        let asks = asks.ok_or_else(unheard)?;
        asks.send(ask).map_err(|_| unheard())?;
        match receiver.recv() {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                self.raise(error);
                Err(other("the tensors could not be used"))
            }
            Err(_) => Err(unheard()),
        }
    }

    /// Makes the call raise this error, unless another error has been raised before.
    pub(crate) fn raise(&self, error: PyErr) {
        self.raised
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(error);
    }

    /// Makes the call raise this error, instead of an error that has been raised before.
    pub(crate) fn raise_instead(&self, error: PyErr) {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Returns the exception that has been raised, and keeps it.
    pub(crate) fn raised(&self, py: Python<'_>) -> Option<PyErr> {
        self.raised
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|error| error.clone_ref(py))
    }

    /// Takes the exception that has been raised.
    fn take(&self) -> Option<PyErr> {
        self.raised
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn listens(&self, asks: Option<mpsc::Sender<Request>>) {
        *self.asks.lock().unwrap_or_else(PoisonError::into_inner) = asks;
    }
}

impl How {
    fn is_over(&self, py: Python<'_>) -> PyResult<bool> {
        self.until
            .as_ref()
            .map_or(Ok(false), |until| until.bind(py).call0()?.is_truthy())
    }

    fn stop(&self, watch: &Watch) {
        watch.stopped.store(true, Ordering::Relaxed);
        if let Some(stop) = &self.stop {
            stop.stop();
        }
    }
}

/// Returns an error for work that failed because of an exception, which the call raises instead.
pub(crate) fn other(text: &str) -> Error {
    Error::io(text, std::io::Error::other("an exception"))
}

/// Progress, remarks and the end of work, shared between its threads and the caller's thread.
pub(crate) struct Watch {
    stopped: AtomicBool,
    deadline: Option<Instant>,
    /// True if something has been given up because the deadline had passed.
    was_late: AtomicBool,
    counts: [(AtomicU64, AtomicU64); PHASES.len()],
    remarks: Mutex<Vec<String>>,
}

impl Watch {
    fn new(deadline: Option<Instant>) -> Self {
        let counts = std::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(0)));
        let (stopped, was_late) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            stopped,
            deadline,
            was_late,
            counts,
            remarks: Mutex::default(),
        }
    }

    /// Returns an observer for functions that do one kind of work.
    pub(crate) fn of(&self, phase: Phase) -> WorkPhase<'_> {
        WorkPhase { watch: self, phase }
    }

    /// True if the deadline has passed, so that the work must be given up.
    fn is_late(&self) -> bool {
        let is_late = self
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline);
        self.was_late.fetch_or(is_late, Ordering::Relaxed) || is_late
    }

    /// Waits for this time. Returns an error if the work is stopped, or the deadline passes.
    pub(crate) fn wait(&self, time: Duration) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < time {
            self.advance(Phase::Wait, 0)?;
            thread::sleep(time.saturating_sub(began.elapsed()).min(LOOK));
        }
        Ok(())
    }

    /// Logs new remarks, and calls the caller's progress function.
    fn tell(&self, py: Python<'_>, how: &How) -> PyResult<()> {
        let mut remarks =
            std::mem::take(&mut *self.remarks.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(trouble) = how.asked.as_ref().and_then(|asked| asked.news()) {
            remarks.push(format!("the store does not answer; retrying: {trouble}"));
        }
        if !remarks.is_empty() {
            let logger = py
                .import("logging")?
                .call_method1("getLogger", ("deltachain",))?;
            for remark in remarks {
                logger.call_method1("warning", ("%s", remark))?;
            }
        }
        let Some(progress) = &how.progress else {
            return Ok(());
        };
        for ((_, name), (done, total)) in PHASES.iter().zip(&self.counts) {
            let (done, total) = (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
            if total > 0 {
                progress.call1(py, (*name, done.min(total), total))?;
            }
        }
        Ok(())
    }
}

impl Observer for Watch {
    fn begin(&self, phase: Phase, bytes: u64) {
        self.counts[row(phase)]
            .1
            .fetch_add(bytes, Ordering::Relaxed);
    }

    fn advance(&self, phase: Phase, bytes: u64) -> Result<()> {
        self.counts[row(phase)]
            .0
            .fetch_add(bytes, Ordering::Relaxed);
        if self.stopped.load(Ordering::Relaxed) || self.is_late() {
            return Err(Error::usage("stopped"));
        }
        Ok(())
    }

    fn remark(&self, text: &str) {
        self.remarks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text.to_owned());
    }
}

/// A watch for one kind of work.
pub(crate) struct WorkPhase<'a> {
    watch: &'a Watch,
    phase: Phase,
}

impl Progress for WorkPhase<'_> {
    fn advance(&self, bytes: u64) -> Result<()> {
        self.watch.advance(self.phase, bytes)
    }

    fn expect(&self, bytes: u64) {
        self.watch.begin(self.phase, bytes);
    }
}

/// Runs `work`, and returns `None` if it panics. Otherwise Python would get an exception that
/// `except Exception` does not catch.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Same as [`run_until`], but fails with CANCELLED if [`How::until`] has ended the work.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    how: &How,
    work: impl FnOnce(&Watch) -> Result<T> + Send,
) -> PyResult<T> {
    run_until(py, how, work)?.ok_or_else(|| errors::cancelled(py))
}

/// Runs `work` in threads of this package. Meanwhile the calling thread waits without the
/// interpreter's lock. It checks for signals, so that Ctrl-C ends the work, and calls the caller's
/// progress function, whose exceptions end the work, too. If the work panics, raises
/// `InternalError`; the caller must give up what the work was changing. Returns None if
/// [`How::until`] has ended the work.
pub(crate) fn run_until<T: Send>(
    py: Python<'_>,
    how: &How,
    work: impl FnOnce(&Watch) -> Result<T> + Send,
) -> PyResult<Option<T>> {
    let pool = how
        .pool
        .as_ref()
        .map_or_else(|| pool(py, how.threads), |pool| Ok(Arc::clone(pool)))?;
    run_apart(py, how, |watch| pool.install(|| work(watch)))
}

/// Same as [`run_until`], in a thread outside the pool: for work that mostly waits.
pub(crate) fn run_apart<T: Send>(
    py: Python<'_>,
    how: &How,
    work: impl FnOnce(&Watch) -> Result<T> + Send,
) -> PyResult<Option<T>> {
    if how.is_over(py)? {
        return Ok(None);
    }
    if gate::is_closed() {
        // The interpreter would not wait for the threads.
        return Err(errors::usage(py, "the interpreter is about to end", None));
    }
    let watch = Watch::new(how.deadline);
    let (asks, asked) = mpsc::channel::<Request>();
    let asked = Mutex::new(asked);
    if let Some(caller) = &how.caller {
        drop(caller.take());
        caller.listens(Some(asks.clone()));
    }
    let done = Mutex::new(None);
    let mut waiting = Waiting::new(how, &watch);
    let result = thread::scope(|scope| {
        let worker = thread::Builder::new().spawn_scoped(scope, || {
            *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(caught(|| work(&watch)));
            // The receiver lives as long as this thread.
            let _ = asks.send(Box::new(|_| {}));
        });
        if let Err(error) = worker {
            let error = Error::io("starting a thread", error);
            waiting.stopped = Some(errors::raised(py, &error));
            return None;
        }
        waiting.wait(py, &asked, &done)
    });
    let Waiting {
        stopped, is_over, ..
    } = waiting;
    let raised = how.caller.as_ref().and_then(|caller| {
        caller.listens(None);
        caller.take()
    });
    if let Some(error) = stopped {
        return Err(error);
    }
    let result = result.ok_or_else(|| errors::internal(py))?;
    watch.tell(py, how)?;
    match result {
        Ok(result) => Ok(Some(result)),
        Err(_) if raised.is_some() => raised.map_or(Ok(None), Err),
        Err(_) if is_over => Ok(None),
        Err(_) if watch.was_late.load(Ordering::Relaxed) => Err(late_error(py, how)),
        Err(error) => Err(errors::raised(py, &error)),
    }
}

/// Returns the error of work that a time limit has ended.
fn late_error(py: Python<'_>, how: &How) -> PyErr {
    let trouble = how.asked.as_ref().and_then(|asked| asked.trouble());
    let why = trouble
        .as_ref()
        .or(how.waits_for.as_ref())
        .map(|why| format!(": {why}"))
        .unwrap_or_default();
    let advice = if trouble.is_some() {
        "check the address, the network and the store; then call again, or allow more time"
    } else if how.is_unsigned {
        "compare the keys of trust= with those that sign the chain"
    } else {
        "call again, or allow more time"
    };
    let message = format!("the timeout has expired{why}");
    errors::advised(py, "TIMEOUT", &message, advice)
}

/// The result of work in another thread. The outer option is `None` until the work has ended, the
/// inner one if it has panicked.
type Done<T> = Mutex<Option<Option<Result<T>>>>;

/// The caller's thread while work runs in another one.
struct Waiting<'a> {
    how: &'a How,
    watch: &'a Watch,
    /// The exception that has ended the work, from a signal handler or the caller's functions.
    stopped: Option<PyErr>,
    /// True if [`How::until`] has ended the work.
    is_over: bool,
    /// Time of the last check for signals.
    looked: Instant,
}

impl<'a> Waiting<'a> {
    fn new(how: &'a How, watch: &'a Watch) -> Self {
        Self {
            how,
            watch,
            stopped: None,
            is_over: false,
            looked: Instant::now(),
        }
    }

    /// Waits for the result, and handles the work's requests meanwhile. Returns `None` if the work
    /// has panicked.
    fn wait<T: Send>(
        &mut self,
        py: Python<'_>,
        asked: &Mutex<mpsc::Receiver<Request>>,
        done: &Done<T>,
    ) -> Option<Result<T>> {
        loop {
            // Stays inside the gate until the next wait, because this thread takes the
            // interpreter's lock.
            let (ask, _inside) = py.detach(|| {
                let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
                (asked.recv_timeout(LOOK), gate::enter_or_wait())
            });
            if let Ok(ask) = ask {
                ask(py);
            }
            if let Some(result) = done.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return result;
            }
            if self.stopped.is_none() && self.looked.elapsed() >= LOOK {
                self.look(py);
            }
        }
    }

    /// Checks for signals, and shows news to the caller. Stops the work after an exception, when
    /// [`How::until`] returns something true, and after the deadline.
    fn look(&mut self, py: Python<'_>) {
        self.looked = Instant::now();
        let told = py
            .check_signals()
            .and_then(|()| self.watch.tell(py, self.how));
        match told.and_then(|()| self.how.is_over(py)) {
            Err(error) => self.stopped = Some(error),
            Ok(now) => self.is_over |= now,
        }
        if self.stopped.is_some() || self.is_over || self.watch.is_late() {
            self.how.stop(self.watch);
        }
    }
}

/// Pools, by their number of threads. They are kept, because the allocator keeps memory for each
/// thread that has ended.
type Pools = BTreeMap<Option<Threads>, Arc<ThreadPool>>;
static POOLS: Mutex<Option<(u32, Pools)>> = Mutex::new(None);

/// Returns the shared threads of this process. The parent's threads do not exist after a fork, so a
/// child starts new ones.
pub(crate) fn pool(py: Python<'_>, threads: Option<Threads>) -> PyResult<Arc<ThreadPool>> {
    let mut all = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let own = process::id();
    if all.as_ref().is_none_or(|(process, _)| *process != own) {
        // The parent's pools are not dropped, because this process does not have their threads, and
        // could not end them.
        std::mem::forget(all.replace((own, Pools::new())));
    }
    let pools = all.get_or_insert_with(|| (own, Pools::new()));
    if let Some(pool) = pools.1.get(&threads) {
        return Ok(Arc::clone(pool));
    }
    let pool = Arc::new(new_pool(py, threads)?);
    pools.1.insert(threads, Arc::clone(&pool));
    Ok(pool)
}

/// Starts threads for one piece of work. They end when the pool is dropped.
pub(crate) fn new_pool(py: Python<'_>, threads: Option<Threads>) -> PyResult<ThreadPool> {
    // At least two threads, even on one processor: a thread that downloads computes nothing.
    let own = || {
        thread::available_parallelism()
            .map_or(1, NonZeroUsize::get)
            .max(2)
    };
    let builder =
        ThreadPoolBuilder::new().num_threads(threads.map_or_else(own, |threads| threads.0));
    let built = builder
        .thread_name(|number| format!("deltachain-{number}"))
        .build();
    let failed = |error| Error::io("starting threads", io::Error::other(error));
    built.map_err(|error| errors::raised(py, &failed(error)))
}

/// Converts seconds. A time that is too long is the longest one.
pub(crate) fn seconds(pause: f64) -> Duration {
    Duration::try_from_secs_f64(pause.max(0.0)).unwrap_or(Duration::MAX)
}

/// A value that can be used only in the process that made it, because its threads and connections
/// do not exist in a forked child.
pub(crate) struct OfProcess<T> {
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Some(value),
            process: process::id(),
        }
    }

    /// The value.
    ///
    /// # Errors
    /// `ForkedError` in any process but the one that made the value; USAGE after it is closed.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        self.check(py)?;
        self.value.as_ref().ok_or_else(|| errors::closed(py))
    }

    /// Same as [`get`](Self::get).
    pub(crate) fn get_mut(&mut self, py: Python<'_>) -> PyResult<&mut T> {
        self.check(py)?;
        self.value.as_mut().ok_or_else(|| errors::closed(py))
    }

    /// Takes the value, or `None` if it has been taken before.
    pub(crate) fn close(&mut self, py: Python<'_>) -> PyResult<Option<T>> {
        self.check(py)?;
        Ok(self.value.take())
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.process == process::id() {
            return Ok(());
        }
        let message = "this was opened before a fork: open another one in the child, or start \
                       processes with spawn";
        Err(errors::own(py, "FORKED", message, None))
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            // Dropping the value would wait for threads that only the parent has.
            std::mem::forget(self.value.take());
        }
    }
}
