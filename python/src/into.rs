//! Tensors of the caller's that become the copy: which they must be, and how the first version comes into them.

use deltachain::Result;
use deltachain::tensor::{State, TensorInfo};
use deltachain_store::{
    Follower as ChainFollower, FollowerOptions, Memory, Observer, Phase, PreparedRoute, Store, Weights,
};
use pyo3::prelude::*;

use crate::errors::{raised, usage};
use crate::plans::BYTES_AT_ONCE;
use crate::tensors::Lent;

/// Tensors of the caller's, and how the chain is followed with them.
pub(crate) struct Provided {
    /// Gives the mapping that they are in now.
    pub(crate) tensors: Py<PyAny>,
    pub(crate) options: FollowerOptions,
}

impl Provided {
    /// The mapping.
    pub(crate) fn given<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.tensors.bind(py).call0()
    }

    /// The tensors' memory, if they are those of the version.
    pub(crate) fn lent(&self, py: Python<'_>, route: &PreparedRoute) -> PyResult<Lent> {
        let all = route.tables().flat_map(|table| &table.tensors).filter(|info| route.takes(info.name()));
        Self::checked(&self.given(py)?, all.cloned().collect())
    }

    /// The tensors' memory, if they are these.
    fn checked(given: &Bound<'_, PyAny>, mut wanted: Vec<TensorInfo>) -> PyResult<Lent> {
        let (py, lent) = (given.py(), Lent::of(given)?);
        wanted.sort_by(|left, right| left.name().cmp(right.name()));
        check_same(py, &wanted, lent.tensors())?;
        Ok(lent)
    }

    /// If a tensor does not lie where it did: its name, and all as they lie now.
    pub(crate) fn moved(&self, py: Python<'_>, memories: &[Lent]) -> PyResult<Option<(String, Vec<Lent>)>> {
        let given = self.given(py)?;
        let count: usize = memories.iter().map(|memory| memory.tensors().len()).sum();
        if given.len()? == count && memories.iter().all(|memory| memory.is_in(&given)) {
            return Ok(None);
        }
        let lent = Self::checked(&given, memories.iter().flat_map(Lent::given).cloned().collect())?;
        let names = memories.iter().map(|memory| memory.tensors().iter().map(TensorInfo::name).collect());
        let lent = lent.divided(names).map_err(|error| raised(py, &error))?;
        for (old, now) in memories.iter().zip(&lent) {
            if let Some(name) = old.elsewhere(py, now)? {
                return Ok(Some((name.to_owned(), lent)));
            }
        }
        Ok(None)
    }

    /// Writes a version to them, and begins to follow the chain with them.
    pub(crate) fn load(
        &self,
        mut lent: Lent,
        route: &PreparedRoute,
        store: Store,
        watch: &dyn Observer,
    ) -> Result<ChainFollower<Memory<Lent>>> {
        let mut begin = (!lent.tensors().is_empty()).then_some(0);
        while let Some(number) = begin {
            let (built, next) = route.tensors(number, BYTES_AT_ONCE)?;
            for (info, data) in built {
                lent.load(info.name(), &data)?;
                watch.advance(Phase::Build, 0)?;
            }
            begin = next;
        }
        let own = |name: &&str| route.takes(name);
        let names = route.tables().map(|table| table.tensors.iter().map(TensorInfo::name).filter(own).collect());
        let shards = lent.divided(names)?.into_iter().zip(route.tables());
        let is_selected = self.options.tensors.is_some();
        let weights = shards.map(
            |(lent, table)| {
                if is_selected { Weights::part(lent, table.clone()) } else { Weights::whole(lent) }
            },
        );
        // They are hashed, so that nothing becomes a base but what has been written completely.
        ChainFollower::with_weights(store, route.version(), weights.collect(), self.options.clone(), watch)
    }
}

/// The lent tensors must be the tensors of the version: the error lists the ones that are not.
fn check_same(py: Python<'_>, wanted: &[TensorInfo], given: &[TensorInfo]) -> PyResult<()> {
    let find = |name: &str| given.binary_search_by(|info| info.name().cmp(name)).ok().map(|number| &given[number]);
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
