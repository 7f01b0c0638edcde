//! A piece to encode, and the methods to encode it.

use crate::codec::blocks::{BLOCK, BLOCKS, Block, Compare, padded};
use crate::codec::lane::Lane;
use crate::format::coding::Positions;

/// Profile of a link: how it may code values, and so what readers need to apply it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// The smallest file: differences, in contexts. Applying it needs all of the base.
    #[default]
    Compact,
    /// For readers that change memory in place (SPEC section 24.5): differences of the lanes that
    /// change, or new values of all lanes of a piece where these are shorter. Applying it needs the
    /// old values of the lanes that change and nothing else. About 1.4 times the size of compact
    /// and half that of direct. The values of tensors that are new, or have another dtype or length
    /// than in the base, are coded as in any other link; a reader in place refuses them.
    Local,
    /// New values only: every part decodes to (index, value) pairs without the base.
    Direct,
}

impl Profile {
    /// The name: `compact`, `local` or `direct`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Local => "local",
            Self::Direct => "direct",
        }
    }
}

/// A piece to encode: its bytes in base and target, of equal length.
pub(crate) struct PieceInput<'a> {
    /// `None` if the tensor starts from zeros.
    pub(crate) base: Option<&'a [u8]>,
    pub(crate) target: &'a [u8],
    /// Only the changed lanes are known; the others must not be coded.
    pub(crate) sparse: bool,
}

/// An observer of a piece while it is compared: it sees each stretch while that is in the cache.
pub(crate) trait PieceSink {
    /// The facts about the piece that the sink has gathered in the end.
    type Seen;

    /// Called with the lanes that change in the next stretch of the piece, by their places in it.
    /// Not called if no lane of the piece changes.
    fn changed(&mut self, target: &[u8], lanes: &[u16]);

    /// Called with the next stretches of the piece: whole lanes of the base, if there is one, and
    /// of the target.
    fn passed(&mut self, base: Option<&[u8]>, target: &[u8]);

    /// Called after all stretches, with the number of lanes of the piece that change.
    fn end(self, changed: u64) -> Self::Seen;
}

/// Counts the lanes that change, and nothing else.
impl PieceSink for () {
    type Seen = u64;

    fn changed(&mut self, _target: &[u8], _lanes: &[u16]) {}

    fn passed(&mut self, _base: Option<&[u8]>, _target: &[u8]) {}

    fn end(self, changed: u64) -> u64 {
        changed
    }
}

/// The coding of a piece: its positions, and true if its values are relative.
pub(super) type Method = (Positions, bool);

/// Whether the small coding is the shorter one for `all` differences, of which `long` do not fit in
/// a byte, its widest symbol.
pub(super) fn are_small(long: u64, all: u64) -> bool {
    long * 16 <= all
}

/// The lanes that change in each block of a stretch. Without a base they start from zeros.
#[inline(always)]
pub(super) fn differing<L: Lane>(
    compare: impl Compare,
    base: Option<&[L::Bytes]>,
    target: &[L::Bytes],
) -> [u64; BLOCKS] {
    let mut changes = [0; BLOCKS];
    let (blocks, rest) = target.as_chunks::<BLOCK>();
    // Whole blocks are compared where they are.
    if let Some(base) = base {
        for (set, (old, new)) in changes
            .iter_mut()
            .zip(base.as_chunks::<BLOCK>().0.iter().zip(blocks))
        {
            *set = compare.differing::<L>(old, new);
        }
    } else {
        for (set, new) in changes.iter_mut().zip(blocks) {
            *set = compare.differing::<L>(&padded::<L>(&[]), new);
        }
    }
    if !rest.is_empty() {
        let number = blocks.len();
        changes[number] = compare.differing::<L>(
            &old_block::<L>(base, number, rest.len()),
            &padded::<L>(rest),
        );
    }
    changes
}

/// The block with this number of a stretch's base.
#[inline(always)]
pub(super) fn old_block<L: Lane>(
    base: Option<&[L::Bytes]>,
    number: usize,
    lanes: usize,
) -> Block<L> {
    padded::<L>(base.map_or(&[], |base| &base[number * BLOCK..][..lanes]))
}
