//! Publishing versions (SPEC section 20): links are made and stored, and a commit makes them a version.

use std::borrow::Cow;
use std::slice;

use deltachain::chain::{ObjectName, Parent};
use deltachain::tensor::{Digest, MemoryState, State, TensorInfo};
use deltachain::{Error, Result};

use crate::access::documents::{self, Documents};
use crate::access::store::Store;
use crate::observer::Observer;
use crate::publishing::head_copy::HeadCopy;
use crate::publishing::job::{Job, Made};
use crate::publishing::model::{End, Model};
use crate::publishing::options::{Base, PublishOptions};
use crate::publishing::published::Published;
use crate::publishing::shards::commit;
use crate::retention::{Keep, plan_again, prune};

/// Adds versions to a chain. What it remembers from one to the next saves requests and work and decides nothing, so it does
/// not matter whether it has been restarted.
#[derive(Debug)]
pub struct Publisher {
    store: Store,
    options: PublishOptions,
    /// The content of the chain document, which never changes.
    chain: Vec<u8>,
    /// The head as it was last seen.
    head: Option<u64>,
    /// What was published last.
    copy: Option<HeadCopy>,
    /// What has been read to prune.
    documents: Documents,
}

impl Publisher {
    /// A publisher for the chain in this store. The head is not read before something is published.
    ///
    /// # Errors
    /// R-CHN-01 (`CHAIN`) and the rules of documents, if there is no chain; IO.
    pub fn open(store: Store, options: PublishOptions) -> Result<Self> {
        let chain = store.get(ObjectName::Chain)?;
        Parent::read(chain.as_deref(), None, &options.limits)?;
        Ok(Self {
            store,
            options,
            chain: chain.unwrap_or_default(),
            head: None,
            copy: None,
            documents: Documents::new(),
        })
    }

    /// Publishes a model as the version after the head. It becomes visible at once and completely. A failure before
    /// that leaves the chain unchanged. A state that equals the head's becomes a version too.
    ///
    /// Somebody may write to a state in memory meanwhile: some version of each piece is published, or nothing if several
    /// links are needed and the publisher has no copy to make them from. With [`PublishOptions::keep_head`] each byte is
    /// read once, and link, digests and copy agree.
    ///
    /// # Errors
    /// R-PUB-01 (`CHAIN`) if the base is not the head's state; R-PUB-03 (`CHAIN`) if another writer was first;
    /// R-PUB-08 (`CHAIN`) if it took 20 hours; R-PUB-10 (`CHAIN`) if files of tensors lie in a folder that an asset is
    /// called like, regarding case or not; R-CHN and R-DOC rules if the head cannot be read; USAGE if the model changes
    /// while it is read, or if there are more other files than assets can be; those of reading the states; LIMIT; IO; what the observer wants it to end with.
    pub fn publish<'m>(
        &mut self,
        model: impl Into<Model<'m>>,
        base: Base<'_>,
        observer: &dyn Observer,
    ) -> Result<Published> {
        self.publish_next(Target::Lent(model.into()), base, observer)
    }

    /// As [`publish`](Self::publish), for tensors that come one after another, in any order: gathered from other
    /// processes, or converted. Each is copied once, or moved here if it is a `Vec`. So there are two copies of the
    /// model meanwhile: this one and, if it is kept, the head.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish); USAGE if a tensor is there twice or has another length than dtype and shape give.
    pub fn publish_tensors<B: Into<Vec<u8>>>(
        &mut self,
        tensors: impl IntoIterator<Item = (TensorInfo, B)>,
        base: Base<'_>,
        observer: &dyn Observer,
    ) -> Result<Published> {
        let mut own = MemoryState::new();
        for (info, bytes) in tensors {
            if own.find(info.name()).is_some() {
                return Err(Error::usage(format!("the tensor {:?} is there twice", info.name())));
            }
            own.insert(info.name(), info.dtype(), info.shape(), bytes.into())?;
        }
        self.publish_next(Target::Own(own), base, observer)
    }

    fn publish_next(&mut self, mut target: Target<'_>, base: Base<'_>, observer: &dyn Observer) -> Result<Published> {
        let Self { store, options, chain, .. } = self;
        let parent = documents::head(store, Some(chain), self.head, &options.limits)?;
        self.head = parent.head().map(|head| head.version);
        // Whatever ends this early from here on, a panic even, leaves no copy that might not be the head.
        let copy = self.copy.take();
        let mut copy = copy.filter(|copy| copy.commit == parent.digest() && matches!(base, Base::Chain));
        let (files, layout) =
            if let Target::Lent(model) = target { (model.files(), model.layout()?) } else { (None, None) };
        if let (Target::Lent(model), None, true) = (&target, &copy, options.keep_head) {
            target = Target::Own(MemoryState::copy_of(&model.lent())?);
        }
        let lent;
        let state: &dyn State = match &target {
            Target::Lent(model) => {
                lent = model.lent();
                &lent
            }
            Target::Own(state) => state,
        };
        let end = End { state, layout: layout.as_deref(), digests: None };
        let job = Job { store, parent: &parent, target: end, files, shard: 0, of: 1, options, observer };
        let published = job.run(base, copy.as_mut()).and_then(|Made { part, attempt, path, work, is_head }| {
            if let (true, Some(head)) = (is_head, parent.head()) {
                let digests = part.table.digests;
                let published = Published::head(head, parent.digest(), vec![digests.clone()], part.elements);
                return Ok((published, digests, None));
            }
            let published = commit(store, &parent, (path, attempt), slice::from_ref(&part), options)?;
            Ok((published, part.table.digests, work))
        });
        let (published, digests, work) = match published {
            Ok(published) => published,
            Err(error) => {
                // After a lost race the head is another one.
                let copy = copy.filter(|_| error.rule() != Some("R-PUB-03"));
                self.copy = copy.and_then(|copy| copy.go_back().ok());
                return Err(error);
            }
        };
        self.head = Some(published.version);
        if options.keep_head {
            // The version has been published, even if the copy fails.
            self.copy = match (copy, target) {
                (Some(copy), _) => copy.publish(published.commit, digests, layout.map(Cow::into_owned)).ok(),
                (None, Target::Own(state)) => Some(HeadCopy {
                    commit: published.commit,
                    state,
                    digests,
                    layout: layout.map(Cow::into_owned),
                    patches: None,
                }),
                (None, Target::Lent(_)) => None,
            };
        }
        if let Some(mut work) = work {
            // The same holds for the directory.
            if let Err(error) = work.bring_to(published.version, None, observer) {
                observer.remark(&format!("the work directory stays at the version before for now: {error}"));
            }
        }
        if published.state == Digest::of_empty_state() {
            observer.remark("the version has no tensors at all");
        }
        if published.is_new {
            self.keep_last(published.version, observer);
        }
        Ok(published)
    }

    /// Prunes now and then. The version has been published, even if this fails.
    fn keep_last(&mut self, version: u64, observer: &dyn Observer) {
        let Some(last) = self.options.keep_last.filter(|last| version.is_multiple_of((last / 10).max(1))) else {
            return;
        };
        let keep = Keep { last, ..Keep::default() };
        let pruned = plan_again(&self.store, &keep, std::mem::take(&mut self.documents)).and_then(|plan| {
            prune(&self.store, &plan, observer)?;
            Ok(plan.into_documents())
        });
        match pruned {
            Ok(documents) => self.documents = documents,
            Err(error) => observer.remark(&format!("old versions stay for now: {error}")),
        }
    }
}

/// A model on its way into the chain.
enum Target<'a> {
    /// Somebody else's, who may be writing to it.
    Lent(Model<'a>),
    /// Made for this, and kept afterwards if wanted.
    Own(MemoryState),
}
