//! The shards that a plan starts from: the shards of the held version, or nothing.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::StateSums;
use deltachain::files::{Layout, SafetensorsState, StagedSafetensors};
use deltachain::tensor::{Digest, MemoryState, State, StateDigests, StateWriter, TensorInfo, total_bytes};
use deltachain::{Error, Result, StateTable};

use crate::directory::record::{Record, ShardRecord};
use crate::directory::versions::open_model;
use crate::following::selection::Selection;
use crate::observer::{InPhase, Observer, Phase};

/// One shard.
pub(crate) struct Shard<'a> {
    pub(crate) number: usize,
    /// The tensors that are here.
    pub(crate) state: Box<dyn State + 'a>,
    /// Of all of its tensors, taken or not.
    pub(crate) table: StateTable,
    /// `None` if it comes from nothing.
    pub(crate) layout: Option<Layout>,
    /// Of all of its tensors, as far as they are known, if sums are followed.
    pub(crate) sums: Option<StateSums>,
}

impl<'a> Shard<'a> {
    /// The empty state.
    pub(crate) fn nothing(number: usize, sums: Option<StateSums>) -> Self {
        let table = StateTable::new(Vec::new(), Vec::new());
        Self { number, state: Box::new(MemoryState::new()), table, layout: None, sums }
    }

    /// One that is held.
    pub(crate) fn held(record: &ShardRecord, state: Box<dyn State + 'a>, sums: Option<StateSums>) -> Result<Self> {
        let layout = Some(Layout::parse(&record.layout, &record.table.tensors)?);
        Ok(Self { number: record.number, state, table: record.table.clone(), layout, sums })
    }
}

/// The files of the held version, and their tables.
#[derive(Debug)]
pub(crate) struct HeldModel {
    pub(crate) files: SafetensorsState,
    record: Record,
    /// The tensors that are here; all if `None`.
    selection: Option<Selection>,
}

impl HeldModel {
    /// Opens the files at `model`; `record` describes them. They are read and compared with it, unless they are
    /// trusted; the shapes of their tensors are compared all the same.
    ///
    /// # Errors
    /// USAGE if they are something else; IO; the observer's.
    pub(crate) fn open(
        model: &Path,
        record: &Record,
        selection: Option<&Selection>,
        trust: bool,
        observer: &dyn Observer,
    ) -> Result<Self> {
        let files = open_model(model, record)?;
        let bytes = if trust { 0 } else { total_bytes(files.tensors()) };
        let hashing = InPhase::begin(observer, Phase::Hash, bytes);
        for shard in &record.shards {
            let part = Part::of(&files, &shard.table, selection)?;
            if trust {
                continue;
            }
            let was: BTreeMap<&str, &Digest> =
                shard.table.tensors.iter().map(TensorInfo::name).zip(&shard.table.digests.tensors).collect();
            for (info, now) in part.infos.iter().zip(StateDigests::of(&part, &hashing)?.tensors) {
                part.check(info, was.get(info.name()) == Some(&&now))?;
            }
        }
        drop(hashing);
        Ok(Self { files, record: record.clone(), selection: selection.cloned() })
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn shards(&self) -> Result<Vec<Shard<'_>>> {
        let shard = |record: &ShardRecord| {
            let part = Part::of(&self.files, &record.table, self.selection.as_ref())?;
            Shard::held(record, Box::new(part), None)
        };
        self.record.shards.iter().map(shard).collect()
    }
}

/// The tensors of one shard among the tensors of all shards.
pub(crate) struct Part<'a> {
    whole: &'a SafetensorsState,
    infos: Vec<TensorInfo>,
    /// Their numbers in the whole.
    numbers: Vec<usize>,
}

impl<'a> Part<'a> {
    /// Those tensors of a table that are taken.
    pub(crate) fn of(whole: &'a SafetensorsState, table: &StateTable, selection: Option<&Selection>) -> Result<Self> {
        let mut part = Self { whole, infos: Vec::new(), numbers: Vec::new() };
        for info in &table.tensors {
            if selection.is_none_or(|selection| selection.takes(info.name())) {
                let number = whole.find(info.name());
                part.check(info, number.is_some_and(|number| whole.tensors()[number] == *info))?;
                part.infos.push(info.clone());
                part.numbers.extend(number);
            }
        }
        Ok(part)
    }

    fn check(&self, info: &TensorInfo, is_same: bool) -> Result<()> {
        let text = || format!("the tensor {:?} has changed since the version was put here", info.name());
        if is_same { Ok(()) } else { Err(Error::usage(text()).in_file(self.whole.path())) }
    }
}

impl State for Part<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn read(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<()> {
        self.whole.read(number_in(&self.numbers, tensor)?, offset, out)
    }
}

/// Writes the tensors of one shard among the tensors of all shards.
pub(crate) struct PartWriter<'a> {
    whole: &'a StagedSafetensors,
    numbers: Vec<usize>,
}

impl<'a> PartWriter<'a> {
    /// For these tensors of the shard; the whole has all of them.
    pub(crate) fn new(whole: &'a StagedSafetensors, infos: &[TensorInfo]) -> Self {
        Self { whole, numbers: infos.iter().filter_map(|info| whole.find(info.name())).collect() }
    }
}

impl StateWriter for PartWriter<'_> {
    fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.whole.write(number_in(&self.numbers, tensor)?, offset, bytes)
    }
}

fn number_in(numbers: &[usize], tensor: usize) -> Result<usize> {
    numbers.get(tensor).copied().ok_or_else(|| Error::usage("no such tensor in the shard"))
}
