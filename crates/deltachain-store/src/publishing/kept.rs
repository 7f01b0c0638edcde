//! Versions built from the chain itself, to make links from them: in a directory kept as a follower
//! keeps it.

use std::path::Path;

use deltachain::tensor::Digest;
use deltachain::{Error, Limits, Result};

use crate::access::store::Store;
use crate::assets::other_files::OtherFiles;
use crate::directory::unfinished::UnfinishedDirectory;
use crate::following::directory::{Directory, HeldShard};
use crate::following::follower::{Follower, FollowerOptions};
use crate::observer::Observer;
use crate::publishing::model::End;
use crate::publishing::new_link::NewLink;

/// Where versions are built.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeptPlace<'a> {
    /// In this directory, and they stay there.
    Lasting(&'a Path),
    /// Below this one, for as long as they are needed.
    Passing(&'a Path),
}

/// A directory that holds a version, or one shard of it.
#[derive(Debug)]
pub(crate) struct KeptVersion {
    follower: Follower<Directory>,
    /// The version that it was brought to last.
    state: Option<HeldShard>,
    /// If it is removed with everything in it when this is dropped.
    passing: Option<UnfinishedDirectory>,
}

impl KeptVersion {
    /// Opens the directory. `shard` is its number, and how many there are.
    pub(crate) fn open(
        store: &Store,
        place: KeptPlace<'_>,
        (shard, of): (usize, usize),
        limits: &Limits,
    ) -> Result<Self> {
        let (directory, passing) = match place {
            KeptPlace::Lasting(directory) => (directory.to_owned(), None),
            KeptPlace::Passing(below) => {
                let made = UnfinishedDirectory::new(below);
                let made =
                    made.map_err(|error| Error::io("creating a directory", error).in_file(below))?;
                (made.path().join("version"), Some(made))
            }
        };
        let shards = (of > 1).then(|| vec![shard]);
        // Links are made from tensors alone.
        let other_files = OtherFiles::None;
        let options = FollowerOptions {
            limits: *limits,
            shards,
            other_files,
            ..FollowerOptions::default()
        };
        let follower = Follower::in_directory(store.clone(), &directory, options)?;
        Ok(Self {
            follower,
            state: None,
            passing,
        })
    }

    /// Brings the directory to a version. If the digest of its commit is known, a directory that is
    /// at the version already costs no request, and is not read; otherwise what is damaged in it is
    /// built again. One that holds a version of another chain, or one that this chain does not
    /// have, stays as it is.
    pub(crate) fn bring_to(
        &mut self,
        version: u64,
        commit: Option<Digest>,
        observer: &dyn Observer,
    ) -> Result<End<'_>> {
        let held = self.follower.held();
        let is_there = held
            .as_ref()
            .is_some_and(|held| Some(held.commit) == commit);
        let mut opened = if is_there {
            self.follower.open_shard().ok()
        } else {
            None
        };
        if opened.is_none() {
            let (held, directory) = (
                held.map(|held| held.version),
                self.follower.path().to_owned(),
            );
            let prepared = self
                .follower
                .prepare(Some(version), observer)
                .inspect_err(|error| {
                    if let Some(held) = held
                        && error.breaks(&["R-CHN-03", "R-CHN-04", "R-CHN-05", "R-CHN-13"])
                    {
                        advise(&directory, held, observer);
                    }
                });
            if let Some(prepared) = prepared? {
                self.follower.apply(prepared)?;
            }
        }
        if self
            .follower
            .held()
            .is_none_or(|held| held.version != version)
        {
            return Err(Error::usage(format!(
                "the directory does not hold version {version}"
            )));
        }
        let opened = opened
            .take()
            .map_or_else(|| self.follower.open_shard(), Ok)?;
        Ok(end(self.state.insert(opened)))
    }

    /// The version that the directory was brought to last.
    pub(crate) fn end(&self) -> Option<End<'_>> {
        self.state.as_ref().map(end)
    }

    /// Makes a link from that version, whose shard this is. If it turns out that the files are
    /// something else, they are built again.
    pub(crate) fn link(
        &mut self,
        shard: Option<Digest>,
        observer: &dyn Observer,
        make: &dyn Fn(Option<End<'_>>) -> Result<NewLink>,
    ) -> Result<NewLink> {
        let mut link = make(self.end())?;
        if let Some(held) = self
            .follower
            .held()
            .filter(|_| self.state.is_some() && Some(link.report.base) != shard)
        {
            self.bring_to(held.version, None, observer)?;
            link = make(self.end())?;
        }
        if Some(link.report.base) == shard {
            return Ok(link);
        }
        Err(Error::changed(self.follower.path()))
    }

    /// Whether the directory stays when this is dropped.
    pub(crate) fn is_lasting(&self) -> bool {
        self.passing.is_none()
    }

    /// Keeps a link, so that it need not be fetched to bring the directory to the version that it
    /// leads to.
    pub(crate) fn remember(&mut self, link: &NewLink) -> Result<()> {
        self.follower.remember(link.file.path(), &link.reference)
    }
}

fn end(
    HeldShard {
        files,
        layout,
        named,
    }: &HeldShard,
) -> End<'_> {
    End {
        state: files,
        layout: Some(layout),
        named: *named,
        digests: None,
    }
}

/// Says what to do about a directory that does not go with the chain.
fn advise(directory: &Path, held: u64, observer: &dyn Observer) {
    observer.remark(&format!(
        "{:?} holds version {held} of another chain, or one that this chain no longer has. If the chain is right as \
         it is, use an empty directory in its place",
        directory.to_string_lossy()
    ));
}
