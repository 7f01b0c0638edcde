//! Checks that the documents of a chain fit each other, and that links and shards fit the commit
//! (SPEC section 19, steps 3 to 6).

use crate::chain::{Commit, ObjectName, Route, RoutesDocument};
use crate::error::{Error, Result};
use crate::format::Header;
use crate::rules::{self, ensure};
use crate::tensor::{Digest, StateDigests, TensorInfo};

/// Checks R-CHN-02 for the commit of a version.
pub(super) fn check_version(version: u64, commit: &Commit) -> Result<()> {
    ensure(commit.version == version, &rules::CHN_02, || {
        format!("the document says that it is of version {}", commit.version)
    })
    .map_err(|error| error.in_file(ObjectName::Commit(version).to_string()))
}

/// The error for a version without a commit (R-CHN-03).
pub(super) fn no_commit(version: u64) -> Error {
    let message = format!("there is no commit of version {version}");
    Error::broken(&rules::CHN_03, message).in_file(ObjectName::Commit(version).to_string())
}

/// Checks R-CHN-04. `before` is the digest of the previous document.
pub(super) fn check_parent(version: u64, commit: &Commit, before: Digest) -> Result<()> {
    ensure(commit.parent == before, &rules::CHN_04, || {
        format!(
            "the parent is {}, but the document before has the digest {before}",
            commit.parent
        )
    })
    .map_err(|error| error.in_file(ObjectName::Commit(version).to_string()))
}

/// Checks R-CHN-02 and R-CHN-06 for the routes document under this name. `commit` is the digest of
/// the version's commit.
pub(super) fn check_routes(
    name: ObjectName,
    document: &RoutesDocument,
    commit: Option<Digest>,
) -> Result<()> {
    let stated = document.name();
    ensure(stated == name, &rules::CHN_02, || {
        format!("the content of the document is that of {stated}")
    })?;
    ensure(commit == Some(document.commit), &rules::CHN_06, || {
        format!("the document is for another commit, {}", document.commit)
    })
}

/// Checks R-CHN-07 for a route to this version. Versions with an unknown number of shards are
/// skipped.
pub(super) fn check_files(
    version: u64,
    route: &Route,
    shards_of: impl Fn(u64) -> Option<usize>,
) -> Result<()> {
    let ends = [Some(version), route.from].into_iter().flatten();
    let misfit = ends
        .filter_map(shards_of)
        .find(|&shards| shards != route.files.len());
    ensure(misfit.is_none(), &rules::CHN_07, || {
        let files = route.files.len();
        format!(
            "a route to version {version} has {files} files for {} shards",
            misfit.unwrap_or_default()
        )
    })
}

/// Checks that the held shards are the ones that the commit of the held version names. `of` is the
/// number of shards of the held version; `held` has the number and the state digest of each held
/// shard.
///
/// # Errors
/// R-APP-01 (`WRONG_BASE`).
pub fn check_held(
    shards: &[Digest],
    of: usize,
    held: impl IntoIterator<Item = (usize, Digest)>,
) -> Result<()> {
    ensure(of == shards.len(), &rules::APP_01, || {
        format!(
            "the held version has {of} shards, but its commit has {}",
            shards.len()
        )
    })?;
    held.into_iter().try_for_each(|(number, digest)| {
        let named = shards.get(number);
        ensure(named == Some(&digest), &rules::APP_01, || {
            let named = named.map_or_else(|| "none".to_owned(), Digest::to_string);
            format!("shard {number} of the held version is {digest}, but its commit names {named}")
        })
    })
}

/// Checks that the base of a link is `shard`: the shard of the version that its route starts from,
/// or the empty state. Applying the link makes the same check.
///
/// # Errors
/// R-APP-01 (`WRONG_BASE`).
pub fn check_base(header: &Header, shard: Digest) -> Result<()> {
    ensure(header.base == shard, &rules::APP_01, || {
        format!(
            "the link is for the base {}, but its route starts from {shard}",
            header.base
        )
    })
}

/// Checks that a link leads to `shard`, a shard of the version that its route leads to. The check
/// belongs between steps 6 and 7 of SPEC section 10.
///
/// # Errors
/// R-CHN-11 (`STATE_MISMATCH`).
pub fn check_target(header: &Header, shard: Digest) -> Result<()> {
    ensure(header.target == shard, &rules::CHN_11, || {
        format!(
            "the link leads to {}, but the commit names the shard {shard}",
            header.target
        )
    })
}

/// Computes the state digest of the union of shards, each given by its tensors and their digests.
///
/// # Errors
/// R-CHN-12 (`STATE_MISMATCH`) if two shards have a tensor of the same name.
pub fn union_of<'a>(
    shards: impl IntoIterator<Item = (&'a [TensorInfo], &'a StateDigests)>,
) -> Result<Digest> {
    let shards = shards.into_iter();
    let mut tensors: Vec<(&TensorInfo, Digest)> = shards
        .flat_map(|(infos, digests)| infos.iter().zip(digests.tensors.iter().copied()))
        .collect();
    tensors.sort_unstable_by_key(|(info, _)| info.name());
    for pair in tensors.windows(2) {
        let name = pair[0].0.name();
        ensure(name != pair[1].0.name(), &rules::CHN_12, || {
            "duplicate tensor: two shards have one of this name".into()
        })
        .map_err(|error| error.of_tensor(name))?;
    }
    Ok(Digest::of_state(tensors.into_iter()))
}

/// Checks that the union of the shards, each given by its tensors and their digests, is the
/// commit's state.
///
/// # Errors
/// R-CHN-12 (`STATE_MISMATCH`).
pub fn check_union<'a>(
    state: Digest,
    shards: impl IntoIterator<Item = (&'a [TensorInfo], &'a StateDigests)>,
) -> Result<()> {
    let union = union_of(shards)?;
    ensure(union == state, &rules::CHN_12, || {
        format!("the shards together are the state {union}, but the commit names {state}")
    })
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
    fn a_link_leads_from_shard_to_shard() {
        let target = state(&[("a", 1)]);
        let mut file = Vec::new();
        diff(
            &MemoryState::new(),
            &target,
            &DiffOptions::default(),
            &mut file,
        )
        .unwrap();
        let link = LinkReader::open(file, &Limits::default()).unwrap();
        check_target(link.header(), digests(&target).state).unwrap();
        let error = check_target(link.header(), digests(&state(&[("a", 2)])).state).unwrap_err();
        assert_eq!(
            (error.rule(), error.class().name()),
            (Some("R-CHN-11"), "STATE_MISMATCH")
        );
        check_base(link.header(), Digest::of_empty_state()).unwrap();
        let error = check_base(link.header(), digests(&target).state).unwrap_err();
        assert_eq!(
            (error.rule(), error.class().name()),
            (Some("R-APP-01"), "WRONG_BASE")
        );
    }

    #[test]
    fn what_is_held_is_what_the_commit_names() {
        let digest = |text: &str| Digest::of_bytes(text.as_bytes());
        let shards = [digest("0"), digest("1")];
        let check = |of: usize, held: &[(usize, &str)]| {
            let held = held.iter().map(|&(number, text)| (number, digest(text)));
            check_held(&shards, of, held).map_err(|error| (error.rule(), error.class().name()))
        };
        for held in [&[(0, "0"), (1, "1")][..], &[(1, "1")], &[]] {
            assert_eq!(check(2, held), Ok(()));
        }
        for (of, held) in [
            (1, &[(0, "0")][..]),
            (3, &[(0, "0"), (1, "1")]),
            (2, &[(1, "0")]),
            (2, &[(2, "1")]),
        ] {
            assert_eq!(check(of, held), Err((Some("R-APP-01"), "WRONG_BASE")));
        }
    }

    #[test]
    fn shards_are_together_the_state() {
        let check = |whole: &[(&str, u8)], shards: &[&[(&str, u8)]]| {
            let shards: Vec<MemoryState> = shards.iter().map(|shard| state(shard)).collect();
            let digests_of: Vec<StateDigests> = shards.iter().map(digests).collect();
            check_union(
                digests(&state(whole)).state,
                shards.iter().map(State::tensors).zip(&digests_of),
            )
        };
        check(&[], &[]).unwrap();
        check(
            &[("a", 1), ("b", 2), ("c", 3)],
            &[&[("b", 2)], &[("a", 1), ("c", 3)], &[]],
        )
        .unwrap();
        for (whole, shards) in [
            (&[("a", 1), ("b", 2)], &[&[("a", 1)][..], &[("b", 3)]]),
            (&[("a", 1), ("b", 2)], &[&[("a", 1)], &[]]),
            (&[("a", 1), ("b", 2)], &[&[("a", 1), ("b", 2)], &[("c", 0)]]),
        ] {
            assert_eq!(check(whole, shards).unwrap_err().rule(), Some("R-CHN-12"));
        }
        let error =
            check(&[("a", 1), ("b", 2)], &[&[("a", 1), ("b", 2)], &[("b", 2)]]).unwrap_err();
        assert_eq!(
            (error.rule(), error.tensor()),
            (Some("R-CHN-12"), Some("b"))
        );
    }
}
