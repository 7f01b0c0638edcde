//! Patches for Python: one for each tensor, with the numbers and values of its changed lanes, or
//! with all its values.

use deltachain::memory::{PatchSet, Run, RunKind, changes_between};
use deltachain::tensor::{PIECE_BYTES, State, TensorInfo, find};
use deltachain::{Error, Result};
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::forms::TensorForm;
use crate::given::GivenState;
use crate::memory::{Buffer, BufferOwner};
use crate::work::{How, Threads, run};

/// A patch of one tensor.
#[pyclass(frozen, get_all, module = "deltachain._native")]
pub(crate) struct TensorPatch {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    /// The numbers of the lanes that change; `None` for all lanes.
    indices: Option<Py<Buffer>>,
    /// The new values of these lanes.
    values: Py<Buffer>,
}

/// A patch before it is converted for Python.
struct PatchRow {
    info: TensorInfo,
    indices: Option<Buffer>,
    values: Buffer,
}

/// Number of bytes copied or compared at once.
const BYTES_AT_ONCE: usize = 64 << 20;
const ROWS_AT_ONCE: usize = 4096;

/// Patches that are ready to be converted for Python.
#[derive(Default)]
pub(crate) struct PatchRows {
    rows: Vec<PatchRow>,
    /// Bytes of all values.
    bytes: usize,
}

impl PatchRow {
    fn shown(self, py: Python<'_>) -> PyResult<TensorPatch> {
        let TensorForm { name, dtype, shape } = TensorForm::of(&self.info);
        let indices = self.indices.map(|indices| Py::new(py, indices));
        Ok(TensorPatch {
            name,
            dtype,
            shape,
            indices: indices.transpose()?,
            values: Py::new(py, self.values)?,
        })
    }
}

/// Lane numbers. They have 32 bits with a sign where that suffices, which is the type that engines
/// index with.
enum LaneNumbers {
    Short(Vec<i32>),
    Long(Vec<i64>),
}

/// The changes in one tensor, collected stretch by stretch.
pub(crate) struct TensorChanges {
    info: TensorInfo,
    lanes: LaneNumbers,
    values: Vec<u8>,
    /// True if `values` holds the whole tensor, in which lanes that are never added are zero.
    is_whole: bool,
}

fn too_long(info: &TensorInfo) -> Error {
    Error::usage(format!(
        "the tensor {:?} is too long for this machine",
        info.name()
    ))
}

fn length(info: &TensorInfo) -> Result<usize> {
    usize::try_from(info.bytes()).map_err(|_| too_long(info))
}

impl TensorChanges {
    /// Makes a tensor's changes without any lanes; with `is_whole`, a tensor of zeros.
    pub(crate) fn new(info: &TensorInfo, is_whole: bool) -> Result<Self> {
        let lanes = if info.lanes() <= 1 << 31 {
            LaneNumbers::Short(Vec::new())
        } else {
            LaneNumbers::Long(Vec::new())
        };
        let values = if is_whole {
            vec![0; length(info)?]
        } else {
            Vec::new()
        };
        Ok(Self {
            info: info.clone(),
            lanes,
            values,
            is_whole,
        })
    }

    /// Adds lanes and their values. The lanes ascend, and are above all lanes added before.
    pub(crate) fn add(&mut self, lanes: impl Iterator<Item = u64>, values: &[u8]) -> Result<()> {
        let width = self.info.dtype().lane_bytes();
        let wrong = || too_long(&self.info);
        if self.is_whole {
            for (lane, value) in lanes.zip(values.chunks_exact(width)) {
                let place = usize::try_from(lane)
                    .ok()
                    .and_then(|lane| lane.checked_mul(width))
                    .ok_or_else(wrong)?;
                self.values
                    .get_mut(place..place + width)
                    .ok_or_else(wrong)?
                    .copy_from_slice(value);
            }
            return Ok(());
        }
        match &mut self.lanes {
            LaneNumbers::Short(numbers) => {
                for lane in lanes {
                    numbers.push(i32::try_from(lane).map_err(|_| wrong())?);
                }
            }
            LaneNumbers::Long(numbers) => {
                for lane in lanes {
                    numbers.push(i64::try_from(lane).map_err(|_| wrong())?);
                }
            }
        }
        self.values.extend_from_slice(values);
        Ok(())
    }
}

impl PatchRows {
    /// Adds a patch, unless nothing changes.
    pub(crate) fn add(&mut self, changes: TensorChanges) {
        let TensorChanges {
            info,
            lanes,
            values,
            is_whole,
        } = changes;
        if values.is_empty() && !is_whole {
            return;
        }
        let is_whole = is_whole || values.len() as u64 == info.bytes();
        let lanes = (!is_whole).then(|| match lanes {
            LaneNumbers::Short(numbers) => BufferOwner::Int32(numbers.into()),
            LaneNumbers::Long(numbers) => BufferOwner::Int64(numbers.into()),
        });
        self.push(&info, lanes, values.into());
    }

    /// Adds patches of a set until there are [enough](Self::is_full): first for tensors with
    /// changed lanes, then for whole tensors. Skips the first `passed` patches, and subtracts the
    /// number of skipped ones from `passed`.
    pub(crate) fn add_set(&mut self, set: &PatchSet, passed: &mut usize) -> Result<()> {
        let mut is_next = |rows: &Self| {
            let is_next = *passed == 0 && !rows.is_full();
            *passed = passed.saturating_sub(1);
            is_next
        };
        for runs in set
            .runs()
            .chunk_by(|left, right| left.tensor == right.tensor)
        {
            if is_next(self) {
                let info = &set.table().tensors[runs[0].tensor];
                match runs {
                    // One run from lane 0 has the numbers in the form that engines use.
                    [
                        Run {
                            first_lane: 0,
                            kind: RunKind::Lanes(numbers),
                            values,
                            ..
                        },
                    ] if info.lanes() <= 1 << 31 => {
                        let numbers = set.numbers()[numbers.clone()]
                            .iter()
                            .map(|number| number.cast_signed());
                        let values = &set.values()[values.clone()];
                        self.push(
                            info,
                            Some(BufferOwner::Int32(numbers.collect())),
                            values.into(),
                        );
                    }
                    [
                        Run {
                            kind: RunKind::Whole,
                            values,
                            ..
                        },
                    ] if values.len() as u64 == info.bytes() => {
                        self.push(info, None, set.values()[values.clone()].into());
                    }
                    _ => self.add(joined(set, info, runs)?),
                }
            }
        }
        for (info, data) in set.whole_tensors() {
            if is_next(self) {
                self.push(info, None, data.into());
            }
        }
        Ok(())
    }

    fn push(&mut self, info: &TensorInfo, lanes: Option<BufferOwner>, values: Box<[u8]>) {
        self.bytes += values.len();
        self.rows.push(PatchRow {
            info: info.clone(),
            indices: lanes.map(Buffer::new),
            values: Buffer::new(BufferOwner::Bytes(values)),
        });
    }

    /// True if there are as many patches as one call returns.
    fn is_full(&self) -> bool {
        self.bytes >= BYTES_AT_ONCE || self.rows.len() >= ROWS_AT_ONCE
    }

    pub(crate) fn finish(self, py: Python<'_>) -> PyResult<Vec<TensorPatch>> {
        self.rows.into_iter().map(|row| row.shown(py)).collect()
    }
}

/// Joins the runs of a tensor to one patch.
fn joined(set: &PatchSet, info: &TensorInfo, runs: &[Run]) -> Result<TensorChanges> {
    let mut changes = TensorChanges::new(info, false)?;
    for run in runs {
        let values = &set.values()[run.values.clone()];
        match &run.kind {
            RunKind::Lanes(numbers) => {
                let numbers = &set.numbers()[numbers.clone()];
                changes.add(
                    numbers
                        .iter()
                        .map(|&number| run.first_lane + u64::from(number)),
                    values,
                )?;
            }
            RunKind::Whole => {
                let count = (values.len() / info.dtype().lane_bytes()) as u64;
                changes.add(run.first_lane..run.first_lane + count, values)?;
            }
        }
    }
    Ok(changes)
}

/// Some of the differences between two states.
#[derive(IntoPyObject)]
pub(crate) struct Differences {
    patches: Vec<TensorPatch>,
    /// The number of the tensor to continue with; `None` at the end.
    next: Option<usize>,
}

/// Compares two states, in some tensors of the new one from number `begin` on. Computes no digests,
/// so it is for verified states, such as two versions in a directory. A tensor that the old state
/// does not have, or has with another dtype or length, is returned whole.
#[pyfunction]
pub(crate) fn compare(
    py: Python<'_>,
    old: &Bound<'_, PyAny>,
    new: &Bound<'_, PyAny>,
    begin: usize,
    threads: Option<Threads>,
) -> PyResult<Differences> {
    let (old, new) = (GivenState::of(old)?, GivenState::of(new)?);
    let (rows, next) = run(
        py,
        &How {
            threads,
            ..How::default()
        },
        |_| {
            let (old, new) = (old.open()?, new.open()?);
            let all = new.state().tensors();
            let (mut end, mut bytes) = (begin, 0_u64);
            while end < all.len() && end - begin < ROWS_AT_ONCE && bytes < BYTES_AT_ONCE as u64 {
                bytes = bytes.saturating_add(all[end].bytes());
                end += 1;
            }
            let found = (begin..end)
                .into_par_iter()
                .map(|number| between(old.state(), new.state(), number));
            let mut rows = PatchRows::default();
            for changes in found.collect::<Result<Vec<_>>>()? {
                rows.add(changes);
            }
            Ok((rows, (end < all.len()).then_some(end)))
        },
    )?;
    Ok(Differences {
        patches: rows.finish(py)?,
        next,
    })
}

fn between(old: &dyn State, new: &dyn State, number: usize) -> Result<TensorChanges> {
    let info = new
        .tensors()
        .get(number)
        .ok_or_else(|| Error::usage("no such tensor"))?;
    let (width, total) = (info.dtype().lane_bytes(), info.bytes());
    let is_same = |other: &TensorInfo| (info.dtype(), total) == (other.dtype(), other.bytes());
    let base = find(old.tensors(), info.name()).filter(|&base| is_same(&old.tensors()[base]));
    let mut changes = TensorChanges::new(info, base.is_none())?;
    let Some(base) = base else {
        new.read(number, 0, &mut changes.values)?;
        return Ok(changes);
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for begin in (0..total).step_by(usize::try_from(PIECE_BYTES).unwrap_or(usize::MAX)) {
        // At most a piece.
        let length = usize::try_from(PIECE_BYTES.min(total - begin)).map_err(|_| too_long(info))?;
        before.resize(length, 0);
        after.resize(length, 0);
        old.read(base, begin, &mut before)?;
        new.read(number, begin, &mut after)?;
        let (mut numbers, mut values) = (Vec::new(), Vec::new());
        changes_between(width, 0, (&before, &after), &mut numbers, &mut values)?;
        let first = begin / width as u64;
        changes.add(
            numbers.iter().map(|&number| first + u64::from(number)),
            &values,
        )?;
    }
    Ok(changes)
}
