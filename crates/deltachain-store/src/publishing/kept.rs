//! Versions that are built from the chain itself, to make links from them, in a directory that a
//! follower keeps.

use std::path::Path;
use std::sync::Arc;

use deltachain::chain::named_layouts;
use deltachain::files::{Layout, SafetensorsState};
use deltachain::tensor::{Digest, State, TensorInfo, find};
use deltachain::{Error, Limits, Result};

use crate::access::store::Store;
use crate::assets::other_files::OtherFiles;
use crate::directory::unfinished::UnfinishedDirectory;
use crate::following::directory::Directory;
use crate::following::follower::{Follower, FollowerOptions};
use crate::observer::Observer;
use crate::publishing::division::ShardState;
use crate::publishing::model::End;
use crate::publishing::new_link::NewLink;

/// Directory in which versions are built.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeptPlace<'a> {
    /// This directory, in which they stay.
    Lasting(&'a Path),
    /// A directory below this one, for as long as they are needed.
    Passing(&'a Path),
}

/// A directory that holds a version, or one shard of it.
#[derive(Debug)]
pub(crate) struct KeptVersion {
    follower: Follower<Directory>,
    /// The shards of the version that it was last brought to.
    shards: Vec<HeldShard>,
    /// The temporary directory, which is removed with everything in it when this is dropped; `None`
    /// for a lasting one.
    passing: Option<UnfinishedDirectory>,
}

/// A shard of a version in a directory.
#[derive(Debug)]
struct HeldShard {
    number: usize,
    /// Its tensors, by the record of the directory.
    tensors: Vec<TensorInfo>,
    /// Its tensors in the files, which may have been damaged.
    state: ShardState<Arc<SafetensorsState>>,
    /// The layout that the chain gives to it, which need not be that of the files.
    layout: Layout,
    /// Digest of the layout that its commit names.
    named: Option<Digest>,
}

impl KeptVersion {
    /// Opens the directory of a shard: its number, and how many there are.
    pub(crate) fn open(
        store: &Store,
        place: KeptPlace<'_>,
        (shard, of): (usize, usize),
        limits: &Limits,
    ) -> Result<Self> {
        let options = FollowerOptions {
            shards: (of > 1).then(|| vec![shard]),
            ..tensors_alone(limits)
        };
        Self::open_with(store, place, options)
    }

    /// Opens the directory of all shards.
    pub(crate) fn open_whole(store: &Store, place: KeptPlace<'_>, limits: &Limits) -> Result<Self> {
        Self::open_with(store, place, tensors_alone(limits))
    }

    fn open_with(store: &Store, place: KeptPlace<'_>, options: FollowerOptions) -> Result<Self> {
        let (directory, passing) = match place {
            KeptPlace::Lasting(directory) => (directory.to_owned(), None),
            KeptPlace::Passing(below) => {
                let made = UnfinishedDirectory::new(below);
                let made =
                    made.map_err(|error| Error::io("creating a directory", error).in_file(below))?;
                (made.path().join("version"), Some(made))
            }
        };
        let follower = Follower::in_directory(store.clone(), &directory, options)?;
        Ok(Self {
            follower,
            shards: Vec::new(),
            passing,
        })
    }

    /// Brings the directory to a version, and returns its first shard there. If the digest of the
    /// commit is given and the directory holds that commit already, this costs no request and reads
    /// no files; otherwise damaged files are built again. A directory that holds a version of
    /// another chain, or a version that this chain does not have, stays as it is.
    pub(crate) fn bring_to(
        &mut self,
        version: u64,
        commit: Option<Digest>,
        observer: &dyn Observer,
    ) -> Result<End<'_>> {
        let held = self.follower.held();
        let selection = &self.follower.reader.selection;
        let is_there = held.as_ref().is_some_and(|held| {
            Some(held.commit) == commit && held.has_just(selection.numbers.as_deref(), None)
        });
        let mut opened = if is_there {
            held_shards(&self.follower).ok()
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
        self.shards = opened
            .take()
            .map_or_else(|| held_shards(&self.follower), Ok)?;
        self.shards
            .first()
            .map(end)
            .ok_or_else(|| Error::usage("the directory holds no shard"))
    }

    /// A shard of the version that the directory was brought to last.
    pub(crate) fn end(&self, shard: usize) -> Option<End<'_>> {
        self.shards
            .iter()
            .find(|held| held.number == shard)
            .map(end)
    }

    /// The tensors of each shard of that version in the directory.
    pub(crate) fn tensors(&self) -> Vec<Vec<TensorInfo>> {
        self.shards
            .iter()
            .map(|held| held.tensors.clone())
            .collect()
    }

    /// Makes a link from a shard of that version; `digest` is the digest of the shard in the
    /// commit. If it turns out that the files differ, they are built again.
    pub(crate) fn link(
        &mut self,
        shard: usize,
        digest: Option<Digest>,
        observer: &dyn Observer,
        make: &dyn Fn(Option<End<'_>>) -> Result<NewLink>,
    ) -> Result<NewLink> {
        let mut link = make(self.end(shard))?;
        if Some(link.report.base) != digest
            && !self.shards.is_empty()
            && let Some(held) = self.follower.held()
        {
            self.bring_to(held.version, None, observer)?;
            link = make(self.end(shard))?;
        }
        if Some(link.report.base) == digest {
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

/// Options of a follower that takes no other files: links are made from tensors alone.
fn tensors_alone(limits: &Limits) -> FollowerOptions {
    FollowerOptions {
        limits: *limits,
        other_files: OtherFiles::None,
        ..FollowerOptions::default()
    }
}

fn end(held: &HeldShard) -> End<'_> {
    End {
        state: &held.state,
        layout: Some(&held.layout),
        named: held.named,
        digests: None,
    }
}

/// Opens the shards that a directory holds.
fn held_shards(follower: &Follower<Directory>) -> Result<Vec<HeldShard>> {
    let (held, files) = follower.open_files()?;
    let files = Arc::new(files);
    let named = named_layouts(&held.metadata, held.of);
    let mut shards = Vec::new();
    for record in &held.shards {
        let tensors = &record.table.tensors;
        // If a tensor is missing, the digest shows it when a link has been made.
        let numbers = tensors
            .iter()
            .filter_map(|info| find(files.tensors(), info.name()))
            .collect();
        shards.push(HeldShard {
            number: record.number,
            tensors: tensors.clone(),
            state: ShardState::new(Arc::clone(&files), numbers),
            layout: Layout::parse(&record.layout, tensors)?,
            named: named
                .as_ref()
                .and_then(|named| named.get(record.number).copied()),
        });
    }
    Ok(shards)
}

/// Returns the tensors of each shard of a version. Only the indexes of its links are read, unless
/// the links are short. Temporary files are made in `below`.
pub(crate) fn tensors_of_shards(
    store: &Store,
    version: u64,
    below: &Path,
    limits: &Limits,
    observer: &dyn Observer,
) -> Result<Vec<Vec<TensorInfo>>> {
    let options = FollowerOptions {
        tensors: Some(Vec::new()),
        ..tensors_alone(limits)
    };
    let mut kept = KeptVersion::open_with(store, KeptPlace::Passing(below), options)?;
    if let Some(prepared) = kept.follower.prepare(Some(version), observer)? {
        kept.follower.apply(prepared)?;
    }
    let held = kept.follower.held();
    let shards = held.map_or(&[][..], |held| &held.shards);
    Ok(shards
        .iter()
        .map(|shard| shard.table.tensors.clone())
        .collect())
}

/// Advises the user about a directory that does not fit the chain.
fn advise(directory: &Path, held: u64, observer: &dyn Observer) {
    observer.remark(&format!(
        "{:?} holds version {held} of another chain, or one that this chain no longer has. If the \
         chain is right, use an empty directory instead",
        directory.to_string_lossy()
    ));
}
