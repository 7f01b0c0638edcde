//! Tensors of the caller's that become the copy: which they must be, and how the first version comes into them.

use std::collections::BTreeMap;

use deltachain::memory::LentState;
use deltachain::tensor::TensorInfo;
use deltachain::{Error, Result};
use deltachain_store::{
    Follower as ChainFollower, FollowerOptions, Memory, Observer, Phase, PreparedRoute, Store, Weights,
};
use pyo3::prelude::*;

use crate::errors::usage;
use crate::memory::Borrowed;
use crate::plans::BYTES_AT_ONCE;
use crate::tensors::Lent;

/// What keeps such tensors at a version. What keeps their memory is dropped after it.
type Kept = (ChainFollower<Memory<LentState<'static>>>, Vec<Borrowed>);

/// Tensors of the caller's, and how the chain is followed with them.
pub(crate) struct Provided {
    pub(crate) tensors: Py<PyAny>,
    pub(crate) options: FollowerOptions,
}

impl Provided {
    /// The tensors' memory, if they are those of the version.
    pub(crate) fn lent(&self, py: Python<'_>, route: &PreparedRoute) -> PyResult<Lent> {
        let lent = Lent::of(self.tensors.bind(py))?;
        check_same(py, &wanted(route), &lent)?;
        Ok(lent)
    }

    /// Writes a version to them, and begins to follow the chain with them.
    pub(crate) fn load(&self, lent: Lent, route: &PreparedRoute, store: Store, watch: &dyn Observer) -> Result<Kept> {
        let (tensors, owners) = lent.into_parts();
        let mut tensors: BTreeMap<String, (TensorInfo, &'static mut [u8])> =
            tensors.into_iter().map(|(info, bytes)| (info.name().to_owned(), (info, bytes))).collect();
        let missing = || Error::usage("a tensor is missing");
        let mut begin = (!tensors.is_empty()).then_some(0);
        while let Some(number) = begin {
            let (built, next) = route.tensors(number, BYTES_AT_ONCE)?;
            for (info, data) in built {
                tensors.get_mut(info.name()).ok_or_else(missing)?.1.copy_from_slice(&data);
                watch.advance(Phase::Build, 0)?;
            }
            begin = next;
        }
        let mut weights = Vec::new();
        for table in route.tables() {
            let own = table.tensors.iter().filter(|info| route.takes(info.name()));
            let taken: Result<Vec<_>> = own.map(|info| tensors.remove(info.name()).ok_or_else(missing)).collect();
            let lent = LentState::new(taken?)?;
            let selected = self.options.tensors.is_some();
            weights.push(if selected { Weights::part(lent, table.clone()) } else { Weights::whole(lent) });
        }
        // They are hashed, so that nothing becomes a base but what has been written completely.
        let follower = ChainFollower::with_weights(store, route.version(), weights, self.options.clone(), watch)?;
        Ok((follower, owners))
    }
}

/// The tensors of a version that the caller must have, by name.
fn wanted(route: &PreparedRoute) -> Vec<TensorInfo> {
    let all = route.tables().flat_map(|table| &table.tensors).filter(|info| route.takes(info.name()));
    let mut all: Vec<TensorInfo> = all.cloned().collect();
    all.sort_by(|left, right| left.name().cmp(right.name()));
    all
}

/// The lent tensors must be the tensors of the version: the error lists the ones that are not.
fn check_same(py: Python<'_>, wanted: &[TensorInfo], lent: &Lent) -> PyResult<()> {
    let given: Vec<&TensorInfo> = lent.infos().collect();
    let find = |name: &str| given.binary_search_by(|info| info.name().cmp(name)).ok().map(|number| given[number]);
    let is_wanted = |name: &str| wanted.binary_search_by(|info| info.name().cmp(name)).is_ok();
    let mut wrong: Vec<String> = Vec::new();
    for info in wanted {
        match find(info.name()) {
            None => wrong.push(format!("{:?} is missing", info.name())),
            Some(own) if own != info => wrong.push(format!(
                "{:?} is {} {:?}, not {} {:?}",
                info.name(),
                own.dtype(),
                own.shape(),
                info.dtype(),
                info.shape()
            )),
            Some(_) => {}
        }
    }
    let extra = given.iter().filter(|info| !is_wanted(info.name()));
    wrong.extend(extra.map(|info| format!("{:?} is not in the chain", info.name())));
    if wrong.is_empty() {
        return Ok(());
    }
    let more = if wrong.len() > 10 { format!(", and {} more", wrong.len() - 10) } else { String::new() };
    wrong.truncate(10);
    Err(usage(py, format!("the tensors are not those of the chain: {}{more}", wrong.join(", ")), None))
}
