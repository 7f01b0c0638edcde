//! What is prepared for tensors that Python writes: plans of lanes, made in a thread beside their execution, and whole
//! tensors.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use deltachain::sums::Sums;
use deltachain::tensor::TensorInfo;
use deltachain::{Error, PiecePlan, Result};
use deltachain_store::PreparedRoute;
use pyo3::prelude::*;

use crate::errors::{internal, no_pickle, usage};
use crate::memory::{Buffer, Kept};
use crate::work::{How, Threads, pool, run_apart};

/// Name, dtype, shape and digest.
pub(crate) type TableRow = (String, String, Vec<u64>, String);

/// Name, dtype, shape and bytes of some tensors, and the number to go on with.
pub(crate) type Tensors = (Vec<(String, String, Vec<u64>, Buffer)>, Option<usize>);

/// A piece: tensor, number, first lane, count of lanes, those that change unless all do, and what each link does.
type PlanRow = (String, u64, u64, u64, Option<Buffer>, Vec<StepRow>);

/// A link, which of the lanes it codes unless all, whether values are differences, values, and the sums of the piece
/// before, of the coded lanes, and of the piece after.
type StepRow = (usize, Option<Buffer>, bool, Buffer, [u32; 2], [u32; 2], [u32; 2]);

/// Lanes of plans that are handed over at once, and how often that is done ahead.
const LANES_AT_ONCE: usize = 1 << 16;
const AHEAD: usize = 1;

/// How long the thread sleeps that hands them over, if nobody takes them and there is nothing else to do.
const LOOK: Duration = Duration::from_millis(1);

/// Bytes of whole tensors that are built at once.
pub(crate) const BYTES_AT_ONCE: u64 = 32 << 20;

/// The tensor of a plan, and the count of lanes of its piece.
type Planned = (TensorInfo, u64, PiecePlan);

/// What the thread hands over. Without an end, it has panicked.
enum Message {
    Some(Vec<Planned>),
    End(Result<()>),
}

/// The plans of a version, some at a time.
#[pyclass(frozen, module = "deltachain._native")]
pub(crate) struct Plans(Mutex<Option<(Receiver<Message>, JoinHandle<()>)>>);

impl Plans {
    pub(crate) fn of(py: Python<'_>, route: Arc<PreparedRoute>, threads: Option<Threads>) -> PyResult<Self> {
        let pool = pool(py, threads)?;
        let (sender, receiver) = sync_channel(AHEAD);
        let make = move || {
            let made = pool.install(|| hand_over(&route, &sender));
            drop(route);
            // Whoever does not listen any more wants no end.
            let _ = sender.send(Message::End(made));
        };
        let thread = thread::Builder::new().name("deltachain-plans".to_owned()).spawn(make);
        let thread = thread.map_err(|error| usage(py, format!("threads: {error}"), None))?;
        Ok(Self(Mutex::new(Some((receiver, thread)))))
    }
}

#[pymethods]
impl Plans {
    /// Some more; none at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Vec<PlanRow>> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((receiver, thread)) = taken else { return Ok(Vec::new()) };
        let receiver = Mutex::new(receiver);
        // Not in the pool, whose only thread may be the one that is waited for.
        let message = run_apart(py, &How::default(), |_| {
            Ok(receiver.lock().unwrap_or_else(PoisonError::into_inner).recv().ok())
        })?;
        match message.flatten() {
            Some(Message::Some(plans)) => {
                let receiver = receiver.into_inner().unwrap_or_else(PoisonError::into_inner);
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((receiver, thread));
                Ok(plans.into_iter().map(row).collect())
            }
            Some(Message::End(made)) => {
                // Nothing of the version is in use any more then.
                py.detach(|| thread.join()).map_err(|_| internal(py))?;
                made.map(|()| Vec::new()).map_err(|error| crate::errors::raised(py, &error))
            }
            None => Err(internal(py)),
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("plans"))
    }
}

fn hand_over(route: &PreparedRoute, sender: &SyncSender<Message>) -> Result<()> {
    let tables: Vec<_> = route.base_tables().collect();
    let (mut plans, mut lanes) = (Vec::new(), 0);
    let send = |plans| send(sender, Message::Some(plans));
    route.plans(&mut |shard, plan| {
        let info = tables.get(shard).and_then(|table| table.tensors.get(plan.tensor));
        let info = info.ok_or_else(|| Error::usage("a plan of no tensor"))?;
        let range = info.piece(plan.piece);
        let count = (range.end - range.start) / info.dtype().lane_bytes() as u64;
        lanes += plan.steps.iter().map(|step| step.values.len()).sum::<usize>() / info.dtype().lane_bytes();
        plans.push((info.clone(), count, plan));
        if lanes >= LANES_AT_ONCE {
            lanes = 0;
            send(std::mem::take(&mut plans))?;
        }
        Ok(())
    })?;
    if plans.is_empty() { Ok(()) } else { send(plans) }
}

/// Sends from a thread of a pool, which does other work of the pool as long as nobody takes it: whoever is to take it may
/// wait for that.
fn send(sender: &SyncSender<Message>, mut message: Message) -> Result<()> {
    loop {
        message = match sender.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(_)) => return Err(Error::usage("stopped")),
            Err(TrySendError::Full(message)) => message,
        };
        if rayon::yield_now() != Some(rayon::Yield::Executed) {
            thread::sleep(LOOK);
        }
    }
}

fn row((info, count, plan): Planned) -> PlanRow {
    // Numbers within a piece are below 2^24.
    let numbers = |numbers: Vec<u32>| Buffer::new(Kept::Int32(numbers.into_iter().map(u32::cast_signed).collect()));
    let steps = plan.steps.into_iter().map(|step| {
        let values = Buffer::new(Kept::Bytes(step.values.into()));
        let [before, coded, piece] = [step.before, step.coded, step.piece].map(Sums::numbers);
        (step.link, step.places.map(numbers), step.is_relative, values, before, coded, piece)
    });
    let (name, lanes) = (info.name().to_owned(), plan.lanes.map(numbers));
    (name, plan.piece, plan.first_lane, count, lanes, steps.collect())
}

/// The tensors of a version, as far as they are selected.
pub(crate) fn table_rows(route: &PreparedRoute) -> Vec<TableRow> {
    let all = route.tables().flat_map(|table| table.tensors.iter().zip(&table.digests.tensors));
    let all = all.filter(|(info, _)| route.takes(info.name()));
    let rows: BTreeMap<&str, TableRow> = all
        .map(|(info, digest)| {
            let (name, dtype) = (info.name().to_owned(), info.dtype().name().to_owned());
            (info.name(), (name, dtype, info.shape().to_vec(), digest.to_string()))
        })
        .collect();
    rows.into_values().collect()
}

/// As [`PreparedRoute::tensors`].
pub(crate) fn tensors_from(route: &PreparedRoute, begin: usize) -> Result<Tensors> {
    if route.count() == 0 {
        return Ok((Vec::new(), None));
    }
    let (built, next) = route.tensors(begin, BYTES_AT_ONCE)?;
    let rows = built.into_iter().map(|(info, data)| {
        let (name, dtype) = (info.name().to_owned(), info.dtype().name().to_owned());
        (name, dtype, info.shape().to_vec(), Buffer::new(Kept::Bytes(data.into())))
    });
    Ok((rows.collect(), next))
}
