//! Versions built from the chain itself, to make links from them: in a directory kept as a subscriber keeps it.

use std::path::Path;

use deltachain::files::SafetensorsState;
use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};
use tempfile::TempDir;

use crate::access::store::Store;
use crate::following::model_directory::temporary_directory;
use crate::following::other_files::OtherFiles;
use crate::following::subscriber::{Subscriber, SubscriberOptions};
use crate::observer::Observer;
use crate::publishing::new_link::NewLink;

/// A directory that holds a version, or one shard of it.
#[derive(Debug)]
pub(crate) struct Kept {
    subscriber: Subscriber,
    state: Option<SafetensorsState>,
    /// Removed with everything in it when this is dropped.
    _temporary: Option<TempDir>,
}

impl Kept {
    /// Opens the directory, or a temporary one. `shard` is its number, and how many there are.
    pub(crate) fn open(
        store: &Store,
        directory: Option<&Path>,
        (shard, of): (usize, usize),
        limits: &Limits,
    ) -> Result<Self> {
        let temporary = if directory.is_none() { Some(temporary_directory()?) } else { None };
        let directory = directory.or(temporary.as_ref().map(TempDir::path)).unwrap_or(Path::new("."));
        let shards = (of > 1).then(|| vec![shard]);
        // Links are made from tensors alone.
        let other_files = OtherFiles::None;
        let options = SubscriberOptions { limits: *limits, shards, other_files, ..SubscriberOptions::default() };
        let subscriber = Subscriber::open(store.clone(), directory, options)?;
        Ok(Self { subscriber, state: None, _temporary: temporary })
    }

    /// Brings the directory to a version. If the digest of its commit is known, a directory that is at the version already
    /// costs no request.
    pub(crate) fn bring_to(
        &mut self,
        version: u64,
        commit: Option<Digest>,
        observer: &dyn Observer,
    ) -> Result<&SafetensorsState> {
        let is_there = self.subscriber.held().is_some_and(|held| Some(held.commit) == commit);
        if !is_there && let Some(prepared) = self.subscriber.prepare(Some(version), observer)? {
            self.subscriber.apply(prepared)?;
        }
        let held = self.subscriber.held().filter(|held| held.version == version);
        let held = held.ok_or_else(|| Error::usage(format!("the directory does not hold version {version}")))?;
        Ok(self.state.insert(SafetensorsState::open(&held.directory)?))
    }

    /// The version that the directory was brought to last.
    pub(crate) fn state(&self) -> Option<&SafetensorsState> {
        self.state.as_ref()
    }

    /// Keeps a link, so that it need not be fetched to bring the directory to the version that it leads to.
    pub(crate) fn remember(&mut self, link: &NewLink) -> Result<()> {
        self.subscriber.remember(link.file.path(), &link.reference)
    }
}
