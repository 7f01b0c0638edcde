//! The sums of a state, beside its table (SPEC section 24.4).

use crate::error::Result;
use crate::progress::Progress;
use crate::rules::{self, ensure};
use crate::sums::{LinkSums, Sums};
use crate::table::{Origin, StateTable};
use crate::tensor::{Digest, State, each_piece};

/// The sums of each piece of each tensor of a state, in the order of its table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateSums {
    /// For each tensor those of its pieces; `None` if they are not known.
    pub tensors: Vec<Option<Vec<Sums>>>,
}

impl StateSums {
    /// The table and the sums of a state, both from one reading of all of it: bytes whose sums are
    /// taken are hashed (R-SUM-02). The caller compares the table with the one that it expects.
    /// Reports bytes read to `progress`.
    ///
    /// # Errors
    /// The errors of reading the state, and of `progress`.
    pub fn hashed(state: &dyn State, progress: &dyn Progress) -> Result<(StateTable, Self)> {
        let look = |bytes: &[u8]| (Digest::of_bytes(bytes), Sums::of_bytes(0, bytes));
        let pieces = each_piece(state, 0..state.tensors().len(), progress, look)?;
        let of_tensor = |pieces: Vec<(Digest, Sums)>| {
            let (digests, sums): (Vec<Digest>, Vec<Sums>) = pieces.into_iter().unzip();
            (Digest::of_pieces(&digests), Some(sums))
        };
        let (digests, tensors) = pieces.into_iter().map(of_tensor).unzip();
        Ok((
            StateTable::new(state.tensors().to_vec(), digests),
            Self { tensors },
        ))
    }

    /// The sums of a target, of which it is known what becomes of each tensor. `link_sums` are
    /// those of the link ([`LinkReader::sums`](crate::LinkReader::sums)); without them, those of
    /// the tensors that it lists are not known.
    pub(crate) fn follow(&self, origins: &[Origin], link_sums: Option<&LinkSums>) -> Self {
        let tensors = origins.iter().map(|origin| match origin.entry {
            None => self.tensors.get(origin.base?).cloned().flatten(),
            Some(entry) => {
                let pieces = link_sums?.entries.get(entry)?;
                Some(pieces.iter().map(|sums| sums.piece).collect())
            }
        });
        Self {
            tensors: tensors.collect(),
        }
    }

    /// Reads all of a state and compares its sums: nothing has changed by accident since they were
    /// known to be right. A state that passes is *memory proven*, which says less than hashing it.
    /// Tensors whose sums are not known are refused, too. Reports bytes read to `progress`.
    ///
    /// # Errors
    /// R-SUM-04, with the first tensor that differs, or if there are not as many tensors; those of
    /// reading the state, and of `progress`.
    pub fn check(&self, state: &dyn State, progress: &dyn Progress) -> Result<()> {
        let count = state.tensors().len();
        ensure(self.tensors.len() == count, &rules::SUM_04, || {
            format!("the memory has {count} tensors")
        })?;
        let found = each_piece(state, 0..count, progress, |bytes| Sums::of_bytes(0, bytes))?;
        for ((info, found), expected) in state.tensors().iter().zip(&found).zip(&self.tensors) {
            let is_same = expected.as_ref() == Some(found);
            ensure(is_same, &rules::SUM_04, || {
                "the memory does not have the sums of the version".into()
            })
            .map_err(|error| error.of_tensor(info.name()))?;
        }
        Ok(())
    }
}
