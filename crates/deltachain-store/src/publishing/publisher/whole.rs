//! Publishing a whole model after a head with several shards: the version has as many, and each
//! tensor stays in its shard.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use deltachain::Result;
use deltachain::chain::Parent;
use deltachain::tensor::TensorInfo;

use super::{NewShard, Publisher, bring_work};
use crate::access::attempt::Attempt;
use crate::directory::scratch::Scratch;
use crate::observer::Observer;
use crate::publishing::division::Division;
use crate::publishing::job::{JobBase, check_changed, is_built, lanes, remark_other_names};
use crate::publishing::kept::{KeptPlace, KeptVersion, tensors_of_shards};
use crate::publishing::known_head::OwnParts;
use crate::publishing::model::Model;
use crate::publishing::options::Base;
use crate::publishing::part::ShardPart;
use crate::publishing::policy::PathBytes;
use crate::publishing::published::PublishReport;

/// The head of a chain with several shards, to make links from.
struct DividedHead<'a> {
    /// The tensors of each shard; none if they are not known.
    shards: Vec<Vec<TensorInfo>>,
    state: HeadState<'a>,
    /// The directory in which links are made.
    place: &'a Path,
}

/// The state of the head.
enum HeadState<'a> {
    /// No state: no link is made from the head.
    Nothing,
    /// A directory with all shards, which may have another version if the head cannot be built.
    Kept {
        kept: Box<KeptVersion>,
        is_built: bool,
    },
    /// A model of the caller.
    Given(Model<'a>),
    /// A model that this publisher has published.
    Last(Model<'a>),
}

impl HeadState<'_> {
    fn is_there(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Kept { is_built, .. } => *is_built,
            Self::Given(_) | Self::Last(_) => true,
        }
    }
}

/// The shards of a version, as far as they have been made.
#[derive(Default)]
struct MadeShards {
    attempt: Option<Attempt>,
    parts: Vec<ShardPart>,
    /// Shards that equal the head's. They need no links unless another one has changed.
    unchanged: Vec<ShardPart>,
}

impl<'a> DividedHead<'a> {
    fn new(shards: Vec<Vec<TensorInfo>>, state: HeadState<'a>, place: &'a Path) -> Self {
        Self {
            shards,
            state,
            place,
        }
    }
}

impl Publisher {
    /// Publishes a model after a head with several shards.
    pub(super) fn publish_shards(
        &mut self,
        (parent, path): (Parent, Option<PathBytes>),
        model: Model<'_>,
        base: Base<'_>,
        observer: &dyn Observer,
    ) -> Result<PublishReport> {
        let is_empty = model.state().tensors().is_empty();
        self.options.check_empty(is_empty)?;
        let scratch = Scratch::new(self.options.scratch.as_deref(), observer)?;
        let mut head = self.divided_head(&parent, base, scratch.path(), observer)?;
        let mut made = self.make_shards((&parent, path), model, &mut head, observer)?;
        if let (true, Some(commit)) = (made.parts.is_empty(), parent.head()) {
            self.known
                .set_own(parent.digest(), OwnParts::of(&made.unchanged));
            return Ok(PublishReport {
                elements: made.unchanged.iter().map(|part| part.elements).sum(),
                shards: made
                    .unchanged
                    .into_iter()
                    .map(|part| part.table.digests)
                    .collect(),
                ..PublishReport::head(commit, parent.digest())
            });
        }
        let attempt = made.attempt.unwrap_or_else(|| Attempt::begin(&self.store));
        self.keep_prepared((parent, path), attempt, &mut made.parts);
        let published = self.commit(made.parts, BTreeMap::new(), observer)?;
        if let HeadState::Kept { kept, .. } = head.state {
            bring_work(*kept, published.version, observer);
        }
        Ok(published)
    }

    /// Finds the head's state and its division.
    fn divided_head<'a>(
        &self,
        parent: &Parent,
        base: Base<'a>,
        scratch: &'a Path,
        observer: &dyn Observer,
    ) -> Result<DividedHead<'a>> {
        let head = parent.head_for_base()?;
        let own = self
            .known
            .own(parent)
            .filter(|own| own.shards.len() == head.shards.len())
            .map(OwnParts::tensors);
        let (kept, place) = match (base, own) {
            (Base::Work(directory), _) => (KeptPlace::Lasting(directory), directory),
            (Base::Chain, _) | (Base::Last(_), None) => (KeptPlace::Passing(scratch), scratch),
            (Base::Nothing, own) => {
                let shards = own.unwrap_or_default();
                return Ok(DividedHead::new(shards, HeadState::Nothing, scratch));
            }
            (Base::Last(model), Some(own)) => {
                return Ok(DividedHead::new(own, HeadState::Last(model), scratch));
            }
            (Base::State(model), Some(own)) => {
                return Ok(DividedHead::new(own, HeadState::Given(model), scratch));
            }
            (Base::State(model), None) => {
                return self.given_head(parent, model, scratch, observer);
            }
        };
        let mut kept = KeptVersion::open_whole(&self.store, kept, &self.options.limits)?;
        let built = kept.bring_to(head.version, Some(parent.digest()), observer);
        let is_built = is_built(
            built.map(drop),
            head.version,
            self.known.is_cut_off(),
            observer,
        )?;
        let shards = if is_built { kept.tensors() } else { Vec::new() };
        let kept = Box::new(kept);
        let state = HeadState::Kept { kept, is_built };
        Ok(DividedHead::new(shards, state, place))
    }

    /// The head whose state the caller has. The chain says which shard has which tensor.
    fn given_head<'a>(
        &self,
        parent: &Parent,
        model: Model<'a>,
        scratch: &'a Path,
        observer: &dyn Observer,
    ) -> Result<DividedHead<'a>> {
        let version = parent.head_for_base()?.version;
        let limits = &self.options.limits;
        match tensors_of_shards(&self.store, version, scratch, limits, observer) {
            Err(error) if error.rule().is_some() => {
                observer.remark(&format!(
                    "cannot read which tensors the shards of version {version} have, so no link is \
                     made from it: {error}"
                ));
                Ok(DividedHead::new(Vec::new(), HeadState::Nothing, scratch))
            }
            shards => Ok(DividedHead::new(shards?, HeadState::Given(model), scratch)),
        }
    }

    /// Makes and stores the links of all shards. If nothing has changed and
    /// [`PublishOptions::if_changed`](crate::PublishOptions::if_changed) is set, none is stored.
    fn make_shards(
        &self,
        (parent, path): (&Parent, Option<PathBytes>),
        model: Model<'_>,
        head: &mut DividedHead<'_>,
        observer: &dyn Observer,
    ) -> Result<MadeShards> {
        let of = parent.head_for_base()?.shards.len();
        let division = Division::new(of, &head.shards);
        let new = division.split(model.state());
        let base = match head.state {
            HeadState::Given(base) | HeadState::Last(base) => division.split(base.state()),
            _ => Vec::new(),
        };
        let before: Vec<TensorInfo> = head.shards.concat();
        remark_other_names(model.state().tensors(), &before, observer);

        let mut made = MadeShards::default();
        let mut if_changed = self.options.if_changed;
        let mut changed = 0_u64;
        let mut next: VecDeque<usize> = (0..of).collect();
        while let Some(number) = next.pop_front() {
            let shard = NewShard {
                number,
                of,
                model: model.shard(&new[number]),
                if_changed,
                // The guard is for the whole model.
                max_changed: None,
            };
            let base = match &mut head.state {
                HeadState::Kept {
                    kept,
                    is_built: true,
                } => JobBase::Whole {
                    kept,
                    place: head.place,
                },
                HeadState::Given(model) => {
                    self.given(parent, number, Base::State(model.shard(&base[number])))
                }
                HeadState::Last(model) => {
                    self.given(parent, number, Base::Last(model.shard(&base[number])))
                }
                _ => self.given(parent, number, Base::Nothing),
            };
            let stored = self.make((parent, path), shard, base, observer)?;
            if stored.is_head {
                made.unchanged.push(stored.part);
                continue;
            }
            if if_changed {
                // The version needs links of all shards.
                if_changed = false;
                next.extend(made.unchanged.drain(..).map(|part| part.shard));
            }
            changed = changed.saturating_add(stored.part.changed);
            if let Some(most) = self.options.max_changed
                && head.state.is_there()
            {
                let elements = lanes(model.state().tensors());
                check_changed(most, lanes(&before), elements, changed)?;
            }
            made.attempt.get_or_insert(stored.attempt);
            made.parts.push(stored.part);
        }
        Ok(made)
    }
}
