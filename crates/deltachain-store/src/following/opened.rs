//! The links of a plan that has been followed, kept open: what comes of them goes to memory later.

use deltachain::StateSums;
use deltachain::{FileSource, Limits, LinkReader, Replay, Result, StateTable};

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
    /// The table that the links start from, and its sums where they are followed.
    table: StateTable,
    sums: Option<StateSums>,
    links: Vec<LinkReader<FileSource>>,
}

impl OpenLinks {
    /// Opens the links in files whose digests were right. `bases` are the table that each shard
    /// starts from, and its sums if the links are taken in place: following sums takes a reading of
    /// each link's, again for each replay.
    ///
    /// # Errors
    /// The errors of opening links; but they have been opened before.
    pub(crate) fn new(
        bases: impl IntoIterator<Item = (StateTable, Option<StateSums>)>,
        files: Vec<Vec<FileSource>>,
        selection: &Selection,
        limits: &Limits,
    ) -> Result<Self> {
        let open = |((table, sums), files): ((StateTable, Option<StateSums>), Vec<FileSource>)| {
            let links = files
                .into_iter()
                .map(|file| LinkReader::open(file, limits))
                .collect::<Result<_>>()?;
            Ok(OpenShard { table, sums, links })
        };
        let shards = bases
            .into_iter()
            .zip(files)
            .map(open)
            .collect::<Result<_>>()?;
        Ok(Self {
            shards,
            selection: selection.clone(),
        })
    }

    /// The table that each shard starts from, and its sums where they are followed.
    pub(crate) fn bases(&self) -> impl Iterator<Item = (&StateTable, Option<&StateSums>)> {
        self.shards
            .iter()
            .map(|shard| (&shard.table, shard.sums.as_ref()))
    }

    /// Works with the links of one shard, for the tensors that are taken.
    pub(crate) fn replay<T>(
        &self,
        shard: usize,
        work: impl FnOnce(&Replay<'_, FileSource>) -> Result<T>,
    ) -> Result<T> {
        let OpenShard { table, sums, links } = &self.shards[shard];
        let is_taken = |name: &str| self.selection.takes(name);
        let mut replay = Replay::of_part(table.clone(), &is_taken);
        if let Some(sums) = sums {
            replay = replay.with_sums(sums.clone());
        }
        links.iter().try_for_each(|link| replay.push(link))?;
        work(&replay)
    }
}
