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
    /// For each tensor, the sums of its pieces; `None` if they are unknown.
    pub tensors: Vec<Option<Vec<Sums>>>,
}

impl StateSums {
    /// Computes the table and the sums of a state, both from reading all of it once: the bytes that
    /// are summed are the ones that are hashed (R-SUM-02). The caller compares the table with the
    /// one that it expects. Reports bytes read to `progress`.
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

    /// The sums of a target, given the origin of each of its tensors. `link_sums` are the sums of
    /// the link ([`LinkReader::sums`](crate::LinkReader::sums)); without them, the sums of the
    /// tensors that it lists are unknown.
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

    /// Reads all of a state and compares its sums. If they match, nothing has changed by accident
    /// since they were known to be right. Such a state is *memory proven*, which is less than
    /// *hashed*. Tensors whose sums are unknown are refused, too. Reports bytes read to `progress`.
    ///
    /// # Errors
    /// R-SUM-04, with the first tensor that differs, or if the number of tensors differs; errors of
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
