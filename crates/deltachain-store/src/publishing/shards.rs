//! Versions of several shards: each process makes and stores the links of its shard, and one commits for all.

use std::collections::{BTreeMap, BTreeSet};

use deltachain::chain::{Asset, FileReference, ObjectName, Route, check_taken, union_of};
use deltachain::files::SafetensorsState;
use deltachain::tensor::Digest;
use deltachain::{Error, Result, StateTable};
use serde::{Deserialize, Serialize};

use crate::access::documents;
use crate::access::store::Store;
use crate::access::whole::check_there;
use crate::observer::Observer;
use crate::publishing::job::Job;
use crate::publishing::publisher::{Base, PublishOptions, Published, PublishedRoute};

/// What a commit needs to know of one shard whose links have been stored. A JSON document for serde.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct ShardPart {
    /// The version that the links lead to.
    pub(crate) version: u64,
    /// Digest of the document that the commit is to follow.
    pub(crate) parent: Digest,
    pub(crate) shard: usize,
    /// How many shards there are.
    pub(crate) of: usize,
    pub(crate) table: StateTable,
    /// What it brings of the version's assets.
    pub(crate) assets: Vec<Asset>,
    /// Where each link comes from.
    pub(crate) routes: Vec<(Option<u64>, FileReference)>,
    pub(crate) changed: u64,
    pub(crate) elements: u64,
}

impl ShardPart {
    /// The version that it is a part of, if it becomes one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Which shard it is, counted from 0, and of how many.
    pub fn shard(&self) -> (usize, usize) {
        (self.shard, self.of)
    }

    /// State digest of the shard.
    pub fn state(&self) -> Digest {
        self.table.digests.state
    }
}

/// Makes and stores the links of one shard of the version after the head: shard number `shard` of `of`, which consists of
/// the tensors of `state`. The base is the same shard of the head. If the head has another number of shards, the shard is
/// made from nothing. Nothing becomes visible before [`commit_shards`].
///
/// # Errors
/// As for [`Publisher::publish`](crate::Publisher::publish), but R-PUB-03.
pub fn publish_shard(
    store: &Store,
    state: &SafetensorsState,
    base: Base<'_>,
    shard: usize,
    of: usize,
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<ShardPart> {
    Ok(Job { store, state, shard, of, options, observer }.run(base)?.part)
}

/// Makes a version of all its shards, in any order: all of them become visible, or none. To be called again with the same
/// parts if it is not known whether it succeeded.
///
/// # Errors
/// USAGE if parts lack, are there twice, or were made for different versions; R-CHN-12 (`STATE_MISMATCH`) if two have a
/// tensor of the same name; R-CHN-09 or R-CHN-15 (`CHAIN`) if a link or an asset is not in the store; R-PUB-01 (`CHAIN`) if the parts were made to
/// follow another commit than the head's; R-PUB-03 (`CHAIN`) if another writer was first; R-PUB-04 (`CHAIN`) if no route
/// has a link for each shard; LIMIT; IO.
pub fn commit_shards(
    store: &Store,
    parts: &[ShardPart],
    options: &PublishOptions,
    _observer: &dyn Observer,
) -> Result<Published> {
    let mut parts = parts.to_vec();
    parts.sort_by_key(|part| part.shard);
    check_complete(&parts)?;
    // Their bytes are what their names say, or no reader will take them.
    for part in &parts {
        part.routes.iter().try_for_each(|(_, file)| check_there(store, file))?;
        part.assets.iter().try_for_each(|asset| check_there(store, asset))?;
    }
    commit(store, &parts, options)
}

/// One part for each shard, and all for one version after one parent.
fn check_complete(parts: &[ShardPart]) -> Result<()> {
    let Some(first) = parts.first() else { return Err(Error::usage("there is no shard to commit")) };
    let of = first.of;
    let aim = |part: &ShardPart| (part.version, part.parent, part.of);
    if let Some(other) = parts.iter().find(|part| aim(part) != aim(first)) {
        return Err(Error::usage(format!(
            "shard {} of {of} was made for version {} after {}, shard {} of {} for version {} after {}",
            first.shard, first.version, first.parent, other.shard, other.of, other.version, other.parent
        )));
    }
    let given: BTreeSet<usize> = parts.iter().map(|part| part.shard).collect();
    if let Some(missing) = (0..of).find(|shard| !given.contains(shard)) {
        return Err(Error::usage(format!("shard {missing} of {of} is missing")));
    }
    if parts.len() != of {
        return Err(Error::usage(format!("{} parts were given for {of} shards", parts.len())));
    }
    Ok(())
}

/// Commits parts whose files have been stored, one for each shard in order.
pub(crate) fn commit(store: &Store, parts: &[ShardPart], options: &PublishOptions) -> Result<Published> {
    let Some(first) = parts.first() else { return Err(Error::usage("there is no shard to commit")) };
    let parent = documents::parent(store, first.version.checked_sub(1), &options.limits)?;
    parent.check_follows(first.version, first.parent)?;
    let state = union_of(parts.iter().map(|part| (part.table.tensors.as_slice(), &part.table.digests)))?;
    let shards = parts.iter().map(ShardPart::state).collect();
    let assets = parts.iter().flat_map(|part| &part.assets).cloned().collect();
    let commit = parent.next(state, shards, common_routes(parts), assets, options.metadata.clone())?;
    let bytes = commit.to_bytes()?;
    let name = ObjectName::Commit(commit.version);
    if !store.put_if_absent(name, &bytes)? {
        check_taken(commit.version, &bytes, store.get(name)?.as_deref())?;
    }
    Ok(Published {
        version: commit.version,
        state,
        commit: Digest::of_bytes(&bytes),
        routes: commit.routes.iter().map(PublishedRoute::of).collect(),
        assets: commit.assets,
        changed: parts.iter().map(|part| part.changed).fold(0, u64::saturating_add),
        elements: parts.iter().map(|part| part.elements).fold(0, u64::saturating_add),
        unchanged_state: parent.head().is_some_and(|head| head.state == state),
    })
}

/// The routes for which every shard has a link.
fn common_routes(parts: &[ShardPart]) -> Vec<Route> {
    let mut files: BTreeMap<Option<u64>, Vec<FileReference>> = BTreeMap::new();
    for (from, file) in parts.iter().flat_map(|part| &part.routes) {
        files.entry(*from).or_default().push(*file);
    }
    let complete = files.into_iter().filter(|(_, files)| files.len() == parts.len());
    complete.map(|(from, files)| Route { from, files }).collect()
}

/// A part as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// 1, the version of this document.
    deltachain_part: u64,
    version: u64,
    parent: String,
    shard: usize,
    of: usize,
    state: String,
    #[serde(with = "crate::access::table")]
    tensors: StateTable,
    assets: Vec<AssetDocument>,
    routes: Vec<RouteDocument>,
    changed: u64,
    elements: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AssetDocument {
    name: String,
    digest: String,
    size: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteDocument {
    from: Option<u64>,
    digest: String,
    size: u64,
}

impl From<ShardPart> for Document {
    fn from(part: ShardPart) -> Self {
        let assets = part.assets.into_iter().map(|asset| AssetDocument {
            name: asset.name,
            digest: asset.digest.to_string(),
            size: asset.size,
        });
        let routes = part.routes.iter().map(|(from, file)| RouteDocument {
            from: *from,
            digest: file.digest.to_string(),
            size: file.size,
        });
        Self {
            deltachain_part: 1,
            version: part.version,
            parent: part.parent.to_string(),
            shard: part.shard,
            of: part.of,
            state: part.table.digests.state.to_string(),
            tensors: part.table,
            assets: assets.collect(),
            routes: routes.collect(),
            changed: part.changed,
            elements: part.elements,
        }
    }
}

impl TryFrom<Document> for ShardPart {
    type Error = &'static str;

    fn try_from(document: Document) -> Result<Self, Self::Error> {
        if document.deltachain_part != 1 {
            return Err("this part was made by another version of this program");
        }
        let digest = |text: &str| Digest::from_hex(text).ok_or("a digest is none");
        if digest(&document.state)? != document.tensors.digests.state {
            return Err("the part is damaged: its tensors do not have its state digest");
        }
        let assets = document
            .assets
            .into_iter()
            .map(|asset| Ok(Asset { name: asset.name, digest: digest(&asset.digest)?, size: asset.size }));
        let routes = document
            .routes
            .iter()
            .map(|route| Ok((route.from, FileReference { digest: digest(&route.digest)?, size: route.size })));
        Ok(Self {
            version: document.version,
            parent: digest(&document.parent)?,
            shard: document.shard,
            of: document.of,
            table: document.tensors,
            assets: assets.collect::<Result<_, Self::Error>>()?,
            routes: routes.collect::<Result<_, Self::Error>>()?,
            changed: document.changed,
            elements: document.elements,
        })
    }
}
