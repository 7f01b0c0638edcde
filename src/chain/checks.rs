//! What a reader checks of links and shards against the commit (SPEC section 19, steps 5 and 6).

use crate::error::Result;
use crate::format::Header;
use crate::rules::{self, ensure};
use crate::tensor::{Digest, StateDigests, TensorInfo};

/// Checks that a link leads to this shard of the version that its route leads to. Its place is between steps 6 and 7 of
/// SPEC section 10.
///
/// # Errors
/// R-CHN-11 (`STATE_MISMATCH`).
pub fn check_target(header: &Header, shard: Digest) -> Result<()> {
    ensure(header.target == shard, &rules::CHN_11, || {
        format!("the link leads to {}, the commit has the shard {shard}", header.target)
    })
}

/// Checks that the shards, each given by its tensors and their digests, are together the commit's state.
///
/// # Errors
/// R-CHN-12 (`STATE_MISMATCH`).
pub fn check_union<'a>(
    state: Digest,
    shards: impl IntoIterator<Item = (&'a [TensorInfo], &'a StateDigests)>,
) -> Result<()> {
    let shards = shards.into_iter();
    let mut tensors: Vec<(&TensorInfo, Digest)> =
        shards.flat_map(|(infos, digests)| infos.iter().zip(digests.tensors.iter().copied())).collect();
    tensors.sort_unstable_by_key(|(info, _)| info.name());
    for pair in tensors.windows(2) {
        let name = pair[0].0.name();
        ensure(name != pair[1].0.name(), &rules::CHN_12, || "two shards have a tensor of this name".into())
            .map_err(|error| error.of_tensor(name))?;
    }
    let union = Digest::of_state(tensors.into_iter());
    ensure(union == state, &rules::CHN_12, || format!("the shards are together {union}, the commit says {state}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::{DiffOptions, diff};
    use crate::limits::Limits;
    use crate::link::LinkReader;
    use crate::tensor::{Dtype, MemoryState, State};

    fn state(tensors: &[(&str, u8)]) -> MemoryState {
        let mut state = MemoryState::new();
        for &(name, value) in tensors {
            state.insert(name, Dtype::U8, &[1], vec![value]).unwrap();
        }
        state
    }

    fn digests(state: &MemoryState) -> StateDigests {
        StateDigests::of(state, &()).unwrap()
    }

    #[test]
    fn a_link_leads_to_its_shard() {
        let target = state(&[("a", 1)]);
        let mut file = Vec::new();
        diff(&MemoryState::new(), &target, &DiffOptions::default(), &mut file).unwrap();
        let link = LinkReader::open(file, &Limits::default()).unwrap();
        check_target(link.header(), digests(&target).state).unwrap();
        let error = check_target(link.header(), digests(&state(&[("a", 2)])).state).unwrap_err();
        assert_eq!((error.rule(), error.class().name()), (Some("R-CHN-11"), "STATE_MISMATCH"));
    }

    #[test]
    fn shards_are_together_the_state() {
        let check = |whole: &[(&str, u8)], shards: &[&[(&str, u8)]]| {
            let shards: Vec<MemoryState> = shards.iter().map(|shard| state(shard)).collect();
            let digests_of: Vec<StateDigests> = shards.iter().map(digests).collect();
            check_union(digests(&state(whole)).state, shards.iter().map(State::tensors).zip(&digests_of))
        };
        check(&[], &[]).unwrap();
        check(&[("a", 1), ("b", 2), ("c", 3)], &[&[("b", 2)], &[("a", 1), ("c", 3)], &[]]).unwrap();
        for (whole, shards) in [
            (&[("a", 1), ("b", 2)], &[&[("a", 1)][..], &[("b", 3)]]),
            (&[("a", 1), ("b", 2)], &[&[("a", 1)], &[]]),
            (&[("a", 1), ("b", 2)], &[&[("a", 1), ("b", 2)], &[("c", 0)]]),
        ] {
            assert_eq!(check(whole, shards).unwrap_err().rule(), Some("R-CHN-12"));
        }
        let error = check(&[("a", 1), ("b", 2)], &[&[("a", 1), ("b", 2)], &[("b", 2)]]).unwrap_err();
        assert_eq!((error.rule(), error.tensor()), (Some("R-CHN-12"), Some("b")));
    }
}
