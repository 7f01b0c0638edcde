//! The links of a plan that has been followed, kept open: what comes of them goes to memory later.

use deltachain::StateSums;
use deltachain::{FileSource, LinkReader, Replay, Result, StateTable};

use crate::following::selection::Selection;

/// The links of each shard that is taken.
#[derive(Debug)]
pub(crate) struct OpenLinks {
    shards: Vec<OpenShard>,
    /// The tensors that are taken.
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
    /// Its sums, if the links are taken in place. Following sums takes a reading of each link's,
    /// again for each replay.
    pub(crate) sums: Option<StateSums>,
}

impl OpenLinks {
    /// The links of each shard, as they were opened when the plan was followed, with what they
    /// start from.
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

    /// Works with the links of one shard, for the tensors that are taken.
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
