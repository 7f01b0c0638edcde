//! The links of a plan, kept open after the plan was followed, to write their results to memory
//! later.

use deltachain::StateSums;
use deltachain::{FileSource, LinkReader, Replay, Result, StateTable};

use crate::following::selection::Selection;

/// The links of each selected shard.
#[derive(Debug)]
pub(crate) struct OpenLinks {
    shards: Vec<OpenShard>,
    /// The selected tensors.
    pub(crate) selection: Selection,
}

#[derive(Debug)]
struct OpenShard {
    base: LinkBase,
    links: Vec<LinkReader<FileSource>>,
}

/// The base of the links of a shard.
#[derive(Debug)]
pub(crate) struct LinkBase {
    pub(crate) table: StateTable,
    /// Its sums, if the links are taken in place. To follow sums, each replay must read those of
    /// each link again.
    pub(crate) sums: Option<StateSums>,
}

impl OpenLinks {
    /// Joins the links of each shard, as they were opened when the plan was followed, with their
    /// bases.
    pub(crate) fn new(
        bases: Vec<LinkBase>,
        links: Vec<Vec<LinkReader<FileSource>>>,
        selection: &Selection,
    ) -> Self {
        let shards = bases
            .into_iter()
            .zip(links)
            .map(|(base, links)| OpenShard { base, links })
            .collect();
        Self {
            shards,
            selection: selection.clone(),
        }
    }

    /// The base of the links of each shard.
    pub(crate) fn bases(&self) -> impl Iterator<Item = &LinkBase> {
        self.shards.iter().map(|shard| &shard.base)
    }

    /// Runs `work` with a replay of the links of one shard, for the selected tensors.
    pub(crate) fn replay<T>(
        &self,
        shard: usize,
        work: impl FnOnce(&Replay<'_, FileSource>) -> Result<T>,
    ) -> Result<T> {
        let OpenShard { base, links } = &self.shards[shard];
        let is_taken = |name: &str| self.selection.takes(name);
        let mut replay = Replay::of_part(base.table.clone(), &is_taken);
        if let Some(sums) = &base.sums {
            replay = replay.with_sums(sums.clone());
        }
        links.iter().try_for_each(|link| replay.push(link))?;
        work(&replay)
    }
}
