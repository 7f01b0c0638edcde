//! The shards that a plan starts from: the shards of the held version, or nothing.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::StateSums;
use deltachain::chain::LayoutProof;
use deltachain::files::{Layout, SafetensorsState};
use deltachain::tensor::{Digest, MemoryState, State, StateDigests, TensorInfo, total_bytes};
use deltachain::{Error, Result, StateTable};

use crate::directory::record::{Record, ShardRecord};
use crate::directory::versions::open_model;
use crate::following::selection::Selection;
use crate::following::view::View;
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
    /// What is known of that.
    pub(crate) proof: LayoutProof,
    /// Of all of its tensors, as far as they are known, if sums are followed.
    pub(crate) sums: Option<StateSums>,
}

impl<'a> Shard<'a> {
    /// The empty state.
    pub(crate) fn nothing(number: usize, sums: Option<StateSums>) -> Self {
        let table = StateTable::new(Vec::new(), Vec::new());
        Self { number, state: Box::new(MemoryState::new()), table, layout: None, proof: LayoutProof::default(), sums }
    }

    /// One that is held.
    pub(crate) fn held(record: &ShardRecord, state: Box<dyn State + 'a>, sums: Option<StateSums>) -> Result<Self> {
        let layout = Some(Layout::parse(&record.layout, &record.table.tensors)?);
        let proof = LayoutProof::held(record.proven);
        Ok(Self { number: record.number, state, table: record.table.clone(), layout, proof, sums })
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
            let part = part(&files, &shard.table, selection)?;
            if trust {
                continue;
            }
            let was: BTreeMap<&str, &Digest> =
                shard.table.tensors.iter().map(TensorInfo::name).zip(&shard.table.digests.tensors).collect();
            for (info, now) in part.tensors().iter().zip(StateDigests::of(&part, &hashing)?.tensors) {
                if was.get(info.name()) != Some(&&now) {
                    return Err(has_changed(&files, info));
                }
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
            let part = part(&self.files, &record.table, self.selection.as_ref())?;
            Shard::held(record, Box::new(part), None)
        };
        self.record.shards.iter().map(shard).collect()
    }
}

/// Those tensors of the table of one shard that are taken, among the tensors of all shards.
pub(crate) fn part<'a>(
    whole: &'a SafetensorsState,
    table: &StateTable,
    selection: Option<&Selection>,
) -> Result<View<'a, SafetensorsState>> {
    let taken = table.tensors.iter().filter(|info| selection.is_none_or(|selection| selection.takes(info.name())));
    let rows = taken.map(|info| {
        let number = whole.find(info.name()).filter(|&number| whole.tensors()[number] == *info);
        let number = number.ok_or_else(|| has_changed(whole, info))?;
        Ok((info.clone(), whole, number))
    });
    Ok(View::of(rows.collect::<Result<Vec<_>>>()?))
}

pub(crate) fn has_changed(whole: &SafetensorsState, info: &TensorInfo) -> Error {
    Error::usage(format!("the tensor {:?} has changed since the version was put here", info.name()))
        .in_file(whole.path())
}
