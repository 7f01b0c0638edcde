//! The life of each tensor while links are pushed: where it starts, and which entries of which
//! links write it.

use std::ops::Range;

use crate::error::Result;
use crate::link::LinkReader;
use crate::source::Source;
use crate::table::{Origin, StateTable, target_table};
use crate::tensor::TensorInfo;

/// An entry of a link that writes a tensor: the number of the link, and of the entry in its index.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryId {
    pub(super) link: usize,
    pub(super) entry: usize,
}

/// The lineages of all tensors, selected or not. A lineage is the life of a tensor: from where it
/// starts until a link removes it or sets it again, or until the end. Its dtype and length never
/// change.
#[derive(Debug)]
pub(super) struct Lineages {
    /// The lineages of the state that the links pushed so far lead to, in the order of its table.
    alive: Vec<PackedLineage>,
    /// The lineages that have ended, and were written by a link.
    ended: Vec<PackedLineage>,
    /// The entries that write them: each with the index here of the entry before it in its lineage.
    entries: Vec<(EntryId, Option<usize>)>,
}

/// A lineage as it is kept, few bytes for many tensors.
#[derive(Debug, Clone, Copy, Default)]
struct PackedLineage {
    /// The base's tensor that it starts from, by its number in the base's table; `None`: from
    /// zeros.
    start: Option<usize>,
    /// The index in [`Lineages::entries`] of the last entry that writes it, if any does.
    last: Option<usize>,
}

/// A lineage that is built.
#[derive(Debug)]
pub(super) struct Lineage<'a> {
    /// The tensor as the last entry describes it, or the base, if there is no entry.
    pub(super) info: &'a TensorInfo,
    /// The base's tensor that it starts from, by its number in the base's table; `None`: from
    /// zeros.
    pub(super) start: Option<usize>,
    /// Its number among the tensors that are built; `None` if it has ended.
    pub(super) target: Option<usize>,
    /// The range of the entries that write it, in the order of the links, among those of all
    /// lineages.
    pub(super) entries: Range<usize>,
}

impl Lineages {
    /// Creates the lineages of a base with this number of tensors.
    pub(super) fn of_base(tensors: usize) -> Self {
        let alive = (0..tensors)
            .map(|number| PackedLineage {
                start: Some(number),
                last: None,
            })
            .collect();
        Self {
            alive,
            ended: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Follows the next link, which has this number; returns the table of the state that it leads
    /// to, and the result of `follow`, which is called with that table and the origin of each
    /// tensor. The table is the target's then.
    ///
    /// # Errors
    /// Step 7 of SPEC section 10; the errors of `follow`. Nothing has changed then.
    pub(super) fn push<S: Source, T>(
        &mut self,
        table: &StateTable,
        number: usize,
        link: &LinkReader<S>,
        follow: impl FnOnce(&StateTable, &[Origin]) -> Result<T>,
    ) -> Result<(StateTable, T)> {
        let (reached, origins) = target_table(&table.tensors, &table.digests, link)?;
        let followed = follow(&reached, &origins)?;
        let mut before: Vec<Option<PackedLineage>> = std::mem::take(&mut self.alive)
            .into_iter()
            .map(Some)
            .collect();
        self.alive.reserve_exact(origins.len());
        for Origin { base, entry } in origins {
            let mut line = base
                .and_then(|base| before[base].take())
                .unwrap_or_default();
            if let Some(entry) = entry {
                let id = EntryId {
                    link: number,
                    entry,
                };
                self.entries.push((id, line.last));
                line.last = Some(self.entries.len() - 1);
            }
            self.alive.push(line);
        }
        self.ended.extend(
            before
                .into_iter()
                .flatten()
                .filter(|line| line.last.is_some()),
        );
        Ok((reached, followed))
    }

    /// Returns the selected lineages, ascending by name: those of the last state, which `table`
    /// describes, and those that have ended. Also returns the entries that write them. The order by
    /// name is that of each link's index, so segments are needed nearly in file order (R-IDX-19).
    pub(super) fn selected<'a, S: Source>(
        &self,
        table: &'a [TensorInfo],
        links: &[&'a LinkReader<S>],
        selects: impl Fn(&str) -> bool,
    ) -> (Vec<Lineage<'a>>, Vec<EntryId>) {
        let mut selected = Vec::with_capacity(table.len());
        let mut all_entries = Vec::with_capacity(self.entries.len());
        let mut targets = 0..;
        for (line, info) in self
            .alive
            .iter()
            .zip(table)
            .filter(|(_, info)| selects(info.name()))
        {
            let entries = self.append_entries(*line, &mut all_entries);
            selected.push(Lineage {
                info,
                start: line.start,
                target: targets.next(),
                entries,
            });
        }
        for line in &self.ended {
            let Some((id, _)) = line.last.map(|last| self.entries[last]) else {
                continue;
            };
            let Some(written) = links[id.link].index().tensors[id.entry].written() else {
                continue;
            };
            if selects(written.info.name()) {
                let entries = self.append_entries(*line, &mut all_entries);
                selected.push(Lineage {
                    info: &written.info,
                    start: line.start,
                    target: None,
                    entries,
                });
            }
        }
        if !self.ended.is_empty() {
            selected.sort_by(|left, right| left.info.name().cmp(right.info.name()));
        }
        (selected, all_entries)
    }

    /// Appends the entries of a lineage in the order of the links; returns their range.
    fn append_entries(&self, line: PackedLineage, entries: &mut Vec<EntryId>) -> Range<usize> {
        let begin = entries.len();
        let mut next = line.last;
        while let Some((id, before)) = next.map(|last| self.entries[last]) {
            entries.push(id);
            next = before;
        }
        entries[begin..].reverse();
        begin..entries.len()
    }
}
