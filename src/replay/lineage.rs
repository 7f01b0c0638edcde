//! What becomes of each tensor while links are pushed: where it starts, and which entries of which links write it.

use crate::error::Result;
use crate::link::LinkReader;
use crate::source::Source;
use crate::table::{Origin, StateTable, target_table};
use crate::tensor::TensorInfo;

/// An entry of a link that writes a tensor: the number of the link, and of the entry in its index.
pub(super) type Place = (usize, usize);

/// A tensor from where it starts to where a link removes it or sets it anew, or to the end. Its dtype and length never change.
#[derive(Debug, Clone)]
pub(super) struct Lineage {
    /// As the last entry describes it.
    pub(super) info: TensorInfo,
    /// The base's tensor that it starts from, by its number in the base's table; `None`: from zeros.
    pub(super) start: Option<usize>,
    /// What writes it, in the order of the links.
    pub(super) entries: Vec<Place>,
    /// Whether the last state has it.
    pub(super) is_alive: bool,
}

/// The lineages of all tensors, taken or not.
#[derive(Debug)]
pub(super) struct Lineages {
    /// Those of the state that the links pushed so far lead to, ascending by name, as its table.
    alive: Vec<Lineage>,
    /// Those that have ended, and were written by a link.
    ended: Vec<Lineage>,
}

impl Lineages {
    /// The tensors of the base.
    pub(super) fn of_base(tensors: &[TensorInfo]) -> Self {
        let start = |(number, info): (usize, &TensorInfo)| Lineage {
            info: info.clone(),
            start: Some(number),
            entries: Vec::new(),
            is_alive: true,
        };
        Self { alive: tensors.iter().enumerate().map(start).collect(), ended: Vec::new() }
    }

    /// Follows the next link, which has this number; returns the table of the state that it leads to.
    ///
    /// # Errors
    /// Step 7 of SPEC section 10. Nothing has changed then.
    pub(super) fn push<S: Source>(
        &mut self,
        table: &StateTable,
        number: usize,
        link: &LinkReader<S>,
    ) -> Result<StateTable> {
        let (reached, origins) = target_table(&table.tensors, &table.digests, link)?;
        let mut before: Vec<Option<Lineage>> = std::mem::take(&mut self.alive).into_iter().map(Some).collect();
        for (origin, info) in origins.into_iter().zip(&reached.tensors) {
            let (old, entry) = match origin {
                Origin::Base(old) => (Some(old), None),
                Origin::Link(entry, old) => (old, Some(entry)),
            };
            let started = Lineage { info: info.clone(), start: None, entries: Vec::new(), is_alive: true };
            let mut lineage = old.and_then(|old| before[old].take()).unwrap_or(started);
            lineage.info = info.clone();
            lineage.entries.extend(entry.map(|entry| (number, entry)));
            self.alive.push(lineage);
        }
        let ended = before.into_iter().flatten().filter(|lineage| !lineage.entries.is_empty());
        self.ended.extend(ended.map(|lineage| Lineage { is_alive: false, ..lineage }));
        Ok(reached)
    }

    /// All that a link has written or the last state has, by name. Entries of one link come in the order of its index.
    pub(super) fn by_name(&self) -> Vec<&Lineage> {
        let mut all: Vec<&Lineage> = self.ended.iter().chain(&self.alive).collect();
        all.sort_by(|left, right| left.info.name().cmp(right.info.name()));
        all
    }
}
