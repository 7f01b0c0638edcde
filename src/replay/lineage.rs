//! The life of each tensor while links are pushed: where it starts, and which entries of which
//! links write it.

use std::ops::Range;

use crate::error::Result;
use crate::link::LinkReader;
use crate::source::Source;
use crate::table::{Origin, StateTable, target_table};
use crate::tensor::TensorInfo;

/// An entry of a link that writes a tensor: the number of the link, and of the entry in its index.
pub(super) type EntryPlace = (usize, usize);

/// The lineages of all tensors, taken or not. A lineage is the life of a tensor: from where it
/// starts until a link removes it or sets it again, or until the end. Its dtype and length never
/// change.
#[derive(Debug)]
pub(super) struct Lineages {
    /// The lineages of the state that the links pushed so far lead to, in the order of its table.
    alive: Vec<PackedLineage>,
    /// The lineages that have ended, and were written by a link.
    ended: Vec<PackedLineage>,
    /// The entries that write them: each place with the number of the place before it in its
    /// lineage.
    places: Vec<(EntryPlace, Option<usize>)>,
}

/// A lineage as it is kept, few bytes for many tensors.
#[derive(Debug, Clone, Copy, Default)]
struct PackedLineage {
    /// The base's tensor that it starts from, by its number in the base's table; `None`: from
    /// zeros.
    start: Option<usize>,
    /// The number of the last place that writes it, if any does.
    last: Option<usize>,
}

/// A lineage that is built.
#[derive(Debug)]
pub(super) struct Lineage<'a> {
    /// The tensor as the last entry describes it.
    pub(super) info: &'a TensorInfo,
    /// The base's tensor that it starts from, by its number in the base's table; `None`: from
    /// zeros.
    pub(super) start: Option<usize>,
    /// Its number among the tensors that are built; `None` if it has ended.
    pub(super) target: Option<usize>,
    /// The range of the entries that write it, in the order of the links, among those of all.
    pub(super) places: Range<usize>,
}

impl Lineages {
    /// The tensors of a base that has as many as this.
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
            places: Vec::new(),
        }
    }

    /// Follows the next link, which has this number; returns the table of the state that it leads
    /// to.
    ///
    /// `check` is given that table, and where its tensors come from, when it is known to be the
    /// target's, and before anything changes.
    ///
    /// # Errors
    /// Step 7 of SPEC section 10; those of `check`. Nothing has changed then.
    pub(super) fn push<S: Source, T>(
        &mut self,
        table: &StateTable,
        number: usize,
        link: &LinkReader<S>,
        check: impl FnOnce(&StateTable, &[Origin]) -> Result<T>,
    ) -> Result<(StateTable, T)> {
        let (reached, origins) = target_table(&table.tensors, &table.digests, link)?;
        let checked = check(&reached, &origins)?;
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
                self.places.push(((number, entry), line.last));
                line.last = Some(self.places.len() - 1);
            }
            self.alive.push(line);
        }
        self.ended.extend(
            before
                .into_iter()
                .flatten()
                .filter(|line| line.last.is_some()),
        );
        Ok((reached, checked))
    }

    /// All that a link has written or the last state has, which has this table, as far as it is
    /// taken: ascending by name, with the entries that write them. Entries of one link come in the
    /// order of its index.
    pub(super) fn taken<'a, S: Source>(
        &self,
        table: &'a [TensorInfo],
        links: &[&'a LinkReader<S>],
        takes: impl Fn(&str) -> bool,
    ) -> (Vec<Lineage<'a>>, Vec<EntryPlace>) {
        let (mut taken, mut all_places) = (
            Vec::with_capacity(table.len()),
            Vec::with_capacity(self.places.len()),
        );
        let mut targets = 0..;
        for (line, info) in self
            .alive
            .iter()
            .zip(table)
            .filter(|(_, info)| takes(info.name()))
        {
            let places = self.append_places(*line, &mut all_places);
            taken.push(Lineage {
                info,
                start: line.start,
                target: targets.next(),
                places,
            });
        }
        for line in &self.ended {
            let Some(((link, entry), _)) = line.last.map(|last| self.places[last]) else {
                continue;
            };
            let Some(written) = links[link].index().tensors[entry].written() else {
                continue;
            };
            if takes(written.info.name()) {
                let places = self.append_places(*line, &mut all_places);
                taken.push(Lineage {
                    info: &written.info,
                    start: line.start,
                    target: None,
                    places,
                });
            }
        }
        if !self.ended.is_empty() {
            taken.sort_by(|left, right| left.info.name().cmp(right.info.name()));
        }
        (taken, all_places)
    }

    /// Appends what writes a lineage, in the order of the links; where that is.
    fn append_places(&self, line: PackedLineage, places: &mut Vec<EntryPlace>) -> Range<usize> {
        let begin = places.len();
        let mut next = line.last;
        while let Some((place, before)) = next.map(|number| self.places[number]) {
            places.push(place);
            next = before;
        }
        places[begin..].reverse();
        begin..places.len()
    }
}
