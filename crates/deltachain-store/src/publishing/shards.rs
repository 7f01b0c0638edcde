//! Versions of several shards: each process makes and stores the links of its shard, and one commits for all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use deltachain::chain::{FileReference, ObjectName, Parent, Route, check_folders, check_taken, union_of};
use deltachain::tensor::Digest;
use deltachain::{Error, Result};

use crate::access::documents::{self, usable_commit};
use crate::access::store::Store;
use crate::access::whole::check_there;
use crate::observer::Observer;
use crate::publishing::attempt::Attempt;
use crate::publishing::job::Job;
use crate::publishing::model::{End, Model};
use crate::publishing::options::{Base, PublishOptions};
use crate::publishing::part::ShardPart;
use crate::publishing::policy::{PATH_BYTES_KEY, PathBytes};
use crate::publishing::published::{Published, PublishedRoute};

/// Makes and stores the links of one shard of the version after the head: shard number `shard` of `of`, which consists of
/// the tensors of `model`. The base is the same shard of the head. If the head has another number of shards, the shard is
/// made from nothing. Nothing becomes visible before [`commit_shards`].
///
/// # Errors
/// As for [`Publisher::publish`](crate::Publisher::publish), but R-PUB-03.
pub fn publish_shard<'m>(
    store: &Store,
    model: impl Into<Model<'m>>,
    base: Base<'_>,
    shard: usize,
    of: usize,
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<ShardPart> {
    let parent = documents::head(store, store.get(ObjectName::Chain)?.as_deref(), None, &options.limits)?;
    let model = model.into();
    // All shards of a model that is like a checkpoint name the same other files: those are shard 0's, and none is left out.
    let files = model.files().filter(|_| shard == 0 || !matches!(model, Model::Like(..)));
    let (layout, lent) = (model.layout()?, model.lent());
    let target = End { state: &lent, layout: layout.as_deref(), digests: None };
    Ok(Job { store, parent: &parent, target, files, shard, of, options, observer }.run(base, None)?.part)
}

/// Makes a version of all its shards, in any order: all of them become visible, or none. To be called again with the same
/// parts if it is not known whether it succeeded.
///
/// # Errors
/// USAGE if parts lack, are there twice, or were made for different versions; R-CHN-12 (`STATE_MISMATCH`) if two have a
/// tensor of the same name; R-CHN-09 or R-CHN-15 (`CHAIN`) if a link or an asset is not in the store; R-PUB-01 (`CHAIN`) if the parts were made to
/// follow another commit than the head's; R-PUB-03 (`CHAIN`) if another writer was first; R-PUB-04 (`CHAIN`) if no route
/// has a link for each shard; R-PUB-10 (`CHAIN`) if files of tensors lie in a folder that an asset is called like; R-PUB-08 (`CHAIN`) if a link was stored 20 hours ago: publish the shards again; LIMIT; IO.
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
    let mut oldest = None;
    for part in &parts {
        for link in &part.links {
            let stored = check_there(store, &link.file)?;
            oldest = Some(oldest.map_or(stored, |oldest: SystemTime| oldest.min(stored)));
        }
        part.assets.iter().try_for_each(|asset| check_there(store, asset).map(drop))?;
    }
    // Other processes stored them, perhaps on other machines: only the store's clock is the same for all. From when it
    // is asked, our own clocks go on.
    let mut attempt = Attempt::begin();
    if let Some(oldest) = oldest {
        attempt = attempt.before(store.now()?.duration_since(oldest).unwrap_or_default());
    }
    let first = first_of(&parts)?;
    let parent = documents::parent(store, first.version.checked_sub(1), &options.limits)?;
    parent.check_follows(first.version, first.parent)?;
    commit(store, &parent, (parent.head().and_then(PathBytes::of), attempt), &parts, options)
}

fn first_of(parts: &[ShardPart]) -> Result<&ShardPart> {
    parts.first().ok_or_else(|| Error::usage("there is no shard to commit"))
}

/// One part for each shard, and all for one version after one parent.
fn check_complete(parts: &[ShardPart]) -> Result<()> {
    let first = first_of(parts)?;
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

/// Commits parts that were made to follow `parent` and whose files have been stored, one for each shard in order. `path` is
/// what the path to the head costs, if it is known; `attempt` is that which stored the files.
pub(crate) fn commit(
    store: &Store,
    parent: &Parent,
    (path, attempt): (Option<PathBytes>, Attempt),
    parts: &[ShardPart],
    options: &PublishOptions,
) -> Result<Published> {
    let state = union_of(parts.iter().map(|part| (part.table.tensors.as_slice(), &part.table.digests)))?;
    let shards = parts.iter().map(ShardPart::state).collect();
    let assets: Vec<_> = parts.iter().flat_map(|part| &part.assets).cloned().collect();
    check_folders(&assets, parts.iter().flat_map(|part| &part.folders).map(String::as_str))?;
    let routes = common_routes(parts);
    let head = parent.head().map(|head| head.version);
    let path = PathBytes::after(&routes, |from| {
        if Some(from) == head {
            return Ok(path);
        }
        Ok(usable_commit(store, from, &options.limits)?.as_ref().and_then(PathBytes::of))
    })?;
    let mut metadata = options.metadata.clone();
    metadata.extend(path.map(|path| (PATH_BYTES_KEY.to_owned(), path.to_string())));
    let mut commit = parent.next(state, shards, routes, assets, metadata)?;
    commit.mark_direct(|route| parts.iter().zip(&route.files).all(|(part, file)| part.is_direct(*file)));
    let bytes = commit.to_bytes()?;
    let name = ObjectName::Commit(commit.version);
    attempt.check()?;
    if !store.put_if_absent(name, &bytes)? {
        check_taken(commit.version, &bytes, store.get(name)?.as_deref())?;
    }
    Ok(Published {
        version: commit.version,
        state,
        commit: Digest::of_bytes(&bytes),
        shards: parts.iter().map(|part| part.table.digests.clone()).collect(),
        routes: commit.routes.iter().map(PublishedRoute::of).collect(),
        assets: commit.assets,
        changed: parts.iter().map(|part| part.changed).fold(0, u64::saturating_add),
        elements: parts.iter().map(|part| part.elements).fold(0, u64::saturating_add),
        is_new: true,
        unchanged_state: parent.head().is_some_and(|head| head.state == state),
    })
}

/// The routes for which every shard has a link.
fn common_routes(parts: &[ShardPart]) -> Vec<Route> {
    let mut files: BTreeMap<Option<u64>, Vec<FileReference>> = BTreeMap::new();
    for link in parts.iter().flat_map(|part| &part.links) {
        files.entry(link.from).or_default().push(link.file);
    }
    let complete = files.into_iter().filter(|(_, files)| files.len() == parts.len());
    complete.map(|(from, files)| Route { from, files }).collect()
}
