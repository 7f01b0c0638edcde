//! The shards that a plan starts from: the shards of the held version, or nothing.

use std::collections::BTreeMap;

use deltachain::StateSums;
use deltachain::chain::LayoutProof;
use deltachain::files::{Layout, SafetensorsState};
use deltachain::tensor::{Digest, MemoryState, State, StateDigests, TensorInfo, find, total_bytes};
use deltachain::{Error, Result, StateTable};

use crate::directory::held::{BUILD_AGAIN, HeldVersion, ShardRecord};
use crate::directory::versions::open_model;
use crate::following::selection::Selection;
use crate::following::view::{View, ViewTensor};
use crate::observer::{InPhase, Observer, Phase};

/// A shard that a plan starts from.
pub(crate) struct BaseShard<'a> {
    pub(crate) number: usize,
    /// The tensors that are held.
    pub(crate) state: Box<dyn State + 'a>,
    /// The table of all of its tensors, selected or not.
    pub(crate) table: StateTable,
    /// Its layout; `None` if it starts from nothing.
    pub(crate) layout: Option<Layout>,
    /// Level of proof of that layout.
    pub(crate) proof: LayoutProof,
    /// The sums of all of its tensors, as far as they are known, if sums are followed.
    pub(crate) sums: Option<StateSums>,
}

impl<'a> BaseShard<'a> {
    /// Creates a shard that starts from nothing.
    pub(crate) fn nothing(number: usize, sums: Option<StateSums>) -> Self {
        let table = StateTable::new(Vec::new(), Vec::new());
        Self {
            number,
            state: Box::new(MemoryState::new()),
            table,
            layout: None,
            proof: LayoutProof::default(),
            sums,
        }
    }

    /// Creates a shard that starts from a held one.
    pub(crate) fn held(
        record: &ShardRecord,
        state: Box<dyn State + 'a>,
        sums: Option<StateSums>,
    ) -> Result<Self> {
        let layout = Some(Layout::parse(&record.layout, &record.table.tensors)?);
        let proof = LayoutProof::held(record.proven);
        Ok(Self {
            number: record.number,
            state,
            table: record.table.clone(),
            layout,
            proof,
            sums,
        })
    }
}

/// Opens the files of a version. Unless they are trusted, they are read and compared with its
/// digests. Names, dtypes and shapes of tensors are always compared.
///
/// # Errors
/// IO, also if they have changed; the observer's error.
pub(crate) fn open_unchanged(
    version: &HeldVersion,
    selection: &Selection,
    trust: bool,
    observer: &dyn Observer,
) -> Result<SafetensorsState> {
    let files = open_model(version)?;
    let bytes = if trust {
        0
    } else {
        total_bytes(files.tensors())
    };
    let hashing = InPhase::begin(observer, Phase::Hash, bytes);
    for shard in &version.shards {
        let part = part(&files, &shard.table, selection)?;
        if trust {
            continue;
        }
        let was: BTreeMap<&str, &Digest> = shard
            .table
            .tensors
            .iter()
            .map(TensorInfo::name)
            .zip(&shard.table.digests.tensors)
            .collect();
        for (info, now) in part
            .tensors()
            .iter()
            .zip(StateDigests::of(&part, &hashing)?.tensors)
        {
            if was.get(info.name()) != Some(&&now) {
                return Err(has_changed(&files, info));
            }
        }
    }
    drop(hashing);
    Ok(files)
}

/// Returns the selected tensors of the table of one shard, as a view of the files of all shards.
pub(crate) fn part<'a>(
    whole: &'a SafetensorsState,
    table: &StateTable,
    selection: &Selection,
) -> Result<View<'a, SafetensorsState>> {
    let taken = table
        .tensors
        .iter()
        .filter(|info| selection.takes(info.name()));
    let rows = taken.map(|info| {
        let number =
            find(whole.tensors(), info.name()).filter(|&number| whole.tensors()[number] == *info);
        let number = number.ok_or_else(|| has_changed(whole, info))?;
        Ok(ViewTensor {
            info: info.clone(),
            state: whole,
            number,
        })
    });
    Ok(View::of(rows.collect::<Result<Vec<_>>>()?))
}

pub(crate) fn has_changed(whole: &SafetensorsState, info: &TensorInfo) -> Error {
    let text = format!(
        "the tensor {:?} has changed since the version was put here",
        info.name()
    );
    Error::unusable(text, BUILD_AGAIN).in_file(whole.path())
}
