//! The sums of a state, beside its table (SPEC section 24.4).

use crate::error::Result;
use crate::link::LinkReader;
use crate::progress::Progress;
use crate::rules::{self, ensure};
use crate::source::Source;
use crate::sums::{LinkSums, Sums};
use crate::table::{Origin, StateTable, target_table};
use crate::tensor::{Digest, State, each_piece};

/// The sums of each piece of each tensor of a state, in the order of its table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateSums {
    /// For each tensor those of its pieces; `None` if they are not known.
    pub tensors: Vec<Option<Vec<Sums>>>,
}

impl StateSums {
    /// The table and the sums of a state, both from one reading of all of it: bytes whose sums are taken are hashed
    /// (R-SUM-02). The caller compares the table with the one that it expects. Reports bytes read to `progress`.
    ///
    /// # Errors
    /// Those of reading the state, and of `progress`.
    pub fn hashed(state: &dyn State, progress: &dyn Progress) -> Result<(StateTable, Self)> {
        let pieces = of_pieces(state, progress, |bytes| (Digest::of_bytes(bytes), Sums::of_bytes(0, bytes)))?;
        let digests = pieces.iter().map(|pieces| {
            let digests: Vec<Digest> = pieces.iter().map(|(digest, _)| *digest).collect();
            Digest::of_pieces(&digests)
        });
        let table = StateTable::new(state.tensors().to_vec(), digests.collect());
        let sums = pieces.iter().map(|pieces| Some(pieces.iter().map(|(_, sums)| *sums).collect()));
        Ok((table, Self { tensors: sums.collect() }))
    }

    /// The sums of the target of a link, whose base has this table and these sums. `link_sums` are those of the link
    /// ([`LinkReader::sums`]); without them, those of the tensors that the link lists are not known.
    ///
    /// # Errors
    /// As for [`StateTable::after`].
    pub fn after<S: Source>(
        &self,
        table: &StateTable,
        link: &LinkReader<S>,
        link_sums: Option<&LinkSums>,
    ) -> Result<Self> {
        let (_, origins) = target_table(&table.tensors, &table.digests, link)?;
        Ok(self.follow(&origins, link_sums))
    }

    /// The same, where it is known what becomes of each tensor.
    pub(crate) fn follow(&self, origins: &[Origin], link_sums: Option<&LinkSums>) -> Self {
        let tensors = origins.iter().map(|origin| match origin {
            Origin::Base(number) => self.tensors.get(*number).cloned().flatten(),
            Origin::Link(entry, _) => {
                let pieces = link_sums?.entries.get(*entry)?;
                Some(pieces.iter().map(|sums| sums.piece).collect())
            }
        });
        Self { tensors: tensors.collect() }
    }

    /// Reads all of a state and compares its sums: nothing has changed by accident since they were known to be right. That
    /// is *memory proven*; it is less than hashing. Tensors whose sums are not known are refused, too. Reports bytes read to
    /// `progress`.
    ///
    /// # Errors
    /// R-SUM-04, with the first tensor that differs, or if there are not as many tensors; those of reading the state, and of `progress`.
    pub fn check(&self, state: &dyn State, progress: &dyn Progress) -> Result<()> {
        let count = state.tensors().len();
        ensure(self.tensors.len() == count, &rules::SUM_04, || format!("the memory has {count} tensors"))?;
        let found = of_pieces(state, progress, |bytes| Sums::of_bytes(0, bytes))?;
        for ((info, found), expected) in state.tensors().iter().zip(&found).zip(&self.tensors) {
            let is_same = expected.as_ref() == Some(found);
            ensure(is_same, &rules::SUM_04, || "the memory has other sums than the version".into())
                .map_err(|error| error.of_tensor(info.name()))?;
        }
        Ok(())
    }
}

/// What `look` says of each piece of each tensor.
fn of_pieces<T: Send>(
    state: &dyn State,
    progress: &dyn Progress,
    look: impl Fn(&[u8]) -> T + Sync,
) -> Result<Vec<Vec<T>>> {
    let all: Vec<usize> = (0..state.tensors().len()).collect();
    each_piece(state, &all, progress, look)
}
