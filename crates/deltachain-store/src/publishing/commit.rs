//! Commits a version, from the parts of all its shards.

use std::collections::{BTreeMap, BTreeSet};

use deltachain::chain::{
    Commit, FileReference, ObjectName, Parent, Route, Trust, came_late, check_folders, check_taken,
    note_taken, time_unknown, union_of,
};
use deltachain::tensor::Digest;
use deltachain::{Error, Result};

use crate::access::attempt::{Attempt, put_last, was_in_time};
use crate::access::documents::usable_commit;
use crate::access::store::Store;
use crate::publishing::once::skipped_step;
use crate::publishing::options::PublishOptions;
use crate::publishing::part::{ShardLink, ShardPart};
use crate::publishing::policy::{PATH_BYTES_KEY, PathBytes};
use crate::publishing::published::{PublishReport, bytes_of};
use crate::publishing::signing::{check_head, store_note};

/// Checks that there is one part for each shard, and that all are for one version after one parent.
/// Returns the version and the digest of the parent.
pub(crate) fn check_complete(parts: &[ShardPart]) -> Result<(u64, Digest)> {
    let first = parts
        .first()
        .ok_or_else(|| Error::usage("there are no shards to commit"))?;
    let of = first.of;
    let aim = |part: &ShardPart| (part.version, part.parent, part.of);
    if let Some(other) = parts.iter().find(|part| aim(part) != aim(first)) {
        return Err(Error::usage(format!(
            "shard {} of {of} was made for version {} after {}, but shard {} of {} for version {} \
             after {}",
            first.shard,
            first.version,
            first.parent,
            other.shard,
            other.of,
            other.version,
            other.parent
        )));
    }
    let given: BTreeSet<usize> = parts.iter().map(|part| part.shard).collect();
    if let Some(missing) = (0..of).find(|shard| !given.contains(shard)) {
        return Err(Error::usage(format!("shard {missing} of {of} is missing")));
    }
    if parts.len() != of {
        return Err(Error::usage(format!(
            "{} parts were given for {of} shards",
            parts.len()
        )));
    }
    Ok((first.version, first.parent))
}

/// A version that is visible.
pub(crate) struct Committed {
    pub(crate) published: PublishReport,
    /// The reason why it may become unusable: it may have been committed too late after its files
    /// (R-PUB-08).
    pub(crate) doubt: Option<Error>,
}

/// Parts of a version whose files have been stored.
pub(crate) struct StoredParts<'a> {
    /// One part for each shard, in order.
    pub(crate) parts: &'a [ShardPart],
    /// Parent that the parts were made to follow.
    pub(crate) parent: &'a Parent,
    /// Cost of the path to the head, if it is known.
    pub(crate) path: Option<PathBytes>,
    /// Attempts that stored the files.
    pub(crate) attempts: &'a [Attempt],
}

/// Store and settings of a publisher.
pub(crate) struct CommitTo<'a> {
    pub(crate) store: &'a Store,
    /// Digest of the chain document.
    pub(crate) chain: Digest,
    pub(crate) options: &'a PublishOptions,
    pub(crate) trust: Option<&'a Trust>,
}

/// Makes stored parts visible as the version after their parent.
pub(crate) fn commit(to: &CommitTo<'_>, stored: &StoredParts<'_>) -> Result<Committed> {
    let commit = new_commit(to, stored)?;
    let bytes = commit.to_bytes()?;
    let name = ObjectName::Commit(commit.version);
    sign(to, (commit.version, Digest::of_bytes(&bytes)))?;
    if !put_last(to.store, stored.attempts, name, &bytes)?
        && let Some(published) = commit_of_rival(to, stored, &commit, &bytes)?
    {
        return Ok(Committed {
            published,
            doubt: None,
        });
    }
    // The version is visible from here on, whatever happens.
    let files = commit
        .routes
        .iter()
        .flat_map(|route| &route.files)
        .map(FileReference::name);
    let doubt = match was_in_time(to.store, stored.attempts, name, files) {
        Ok(true) => None,
        Ok(false) => Some(came_late(name)),
        Err(error) => Some(time_unknown(name, &error)),
    };
    let published = report(stored, &commit, &bytes);
    Ok(Committed { published, doubt })
}

/// Makes the commit of all parts.
fn new_commit(to: &CommitTo<'_>, stored: &StoredParts<'_>) -> Result<Commit> {
    let &CommitTo { store, options, .. } = to;
    let &StoredParts { parts, parent, .. } = stored;
    let state = union_of(
        parts
            .iter()
            .map(|part| (part.table.tensors.as_slice(), &part.table.digests)),
    )?;
    options.check_empty(parts.iter().all(|part| part.table.tensors.is_empty()))?;
    let shards = parts.iter().map(|part| part.state).collect();
    let assets: Vec<_> = parts
        .iter()
        .flat_map(|part| &part.assets)
        .cloned()
        .collect();
    check_folders(
        &assets,
        parts
            .iter()
            .flat_map(|part| &part.folders)
            .map(String::as_str),
    )?;
    let routes = common_routes(parts);
    let head = parent.head().map(|head| head.version);
    let path = PathBytes::after(&routes, |from| {
        if Some(from) == head {
            return Ok(stored.path);
        }
        Ok(usable_commit(store, from, &options.limits)?
            .as_ref()
            .and_then(PathBytes::of))
    })?;
    let mut metadata = options.metadata.clone();
    metadata.extend(path.map(|path| (PATH_BYTES_KEY.to_owned(), path.noted())));
    let mut commit = parent.next(state, shards, routes, assets, metadata)?;
    commit.mark_direct(|route| all_links(parts, route, |link| link.is_direct));
    commit.name_layouts(&parts.iter().map(|part| part.layout).collect::<Vec<_>>());
    commit.mark_in_place(|route| all_links(parts, route, |link| link.is_in_place));
    Ok(commit)
}

/// True if the links of all shards on a route have this property.
fn all_links(parts: &[ShardPart], route: &Route, is: impl Fn(&ShardLink) -> bool) -> bool {
    parts
        .iter()
        .zip(&route.files)
        .all(|(part, file)| part.link(*file).is_some_and(&is))
}

/// Stores the notes of the publisher's keys, if it has any.
fn sign(to: &CommitTo<'_>, commit: (u64, Digest)) -> Result<()> {
    if to.options.sign.is_empty() {
        return Ok(());
    }
    let (_, taken) = store_note(to.store, to.chain, commit, &to.options.sign)?;
    match taken.first() {
        Some(own) => Err(note_taken(*own)),
        None => Ok(()),
    }
}

/// Reads the commit that another writer stored first. Returns `None` if it is the same as the new
/// one, and a report if it repeats the step that was to be published.
///
/// # Errors
/// R-PUB-03 if it is another version; errors of the store.
fn commit_of_rival(
    to: &CommitTo<'_>,
    stored: &StoredParts<'_>,
    commit: &Commit,
    bytes: &[u8],
) -> Result<Option<PublishReport>> {
    let found = to.store.get(ObjectName::Commit(commit.version))?;
    if found.is_none() {
        stored.attempts.iter().try_for_each(Attempt::check)?;
    }
    let Err(error) = check_taken(commit.version, bytes, found.as_deref()) else {
        return Ok(None);
    };
    let published = repeated(found.as_deref(), commit, to.options)?.ok_or(error)?;
    if let Some(trust) = to.trust {
        let commit = (published.version, published.commit);
        check_head(to.store, to.chain, commit, trust)?;
    }
    Ok(Some(published))
}

/// Returns the report on a version that was made from these parts.
fn report(stored: &StoredParts<'_>, commit: &Commit, bytes: &[u8]) -> PublishReport {
    let &StoredParts { parts, parent, .. } = stored;
    let known: BTreeSet<FileReference> = match parent.head() {
        Some(head) => head.assets.iter().map(|asset| asset.file).collect(),
        None => BTreeSet::new(),
    };
    let new_assets = commit
        .assets
        .iter()
        .filter(|asset| !known.contains(&asset.file));
    PublishReport {
        new_asset_bytes: bytes_of(new_assets),
        shards: parts
            .iter()
            .map(|part| part.table.digests.clone())
            .collect(),
        changed: parts
            .iter()
            .map(|part| part.changed)
            .fold(0, u64::saturating_add),
        elements: parts
            .iter()
            .map(|part| part.elements)
            .fold(0, u64::saturating_add),
        is_new: true,
        unchanged_state: parent.head().is_some_and(|head| head.state == commit.state),
        ..PublishReport::head(commit, Digest::of_bytes(bytes))
    }
}

/// Returns the report on the commit with the bytes `found`, if our `own` commit would repeat its
/// step ([`PublishOptions::once`]).
fn repeated(
    found: Option<&[u8]>,
    own: &Commit,
    options: &PublishOptions,
) -> Result<Option<PublishReport>> {
    let Some(bytes) = found else { return Ok(None) };
    let Ok(found) = Commit::parse(bytes, &options.limits) else {
        return Ok(None);
    };
    let skipped = skipped_step(
        options.once.as_deref(),
        &own.metadata,
        Some(&found.metadata),
    )?;
    if skipped.is_none() || found.version != own.version {
        return Ok(None);
    }
    Ok(Some(PublishReport {
        skipped,
        ..PublishReport::head(&found, Digest::of_bytes(bytes))
    }))
}

/// The routes for which every shard has a link. If there are several links from one version, which
/// differ in their profiles, the first ones of all shards form a route, the second ones another,
/// and so on.
fn common_routes(parts: &[ShardPart]) -> Vec<Route> {
    let mut files: BTreeMap<(Option<u64>, usize), Vec<FileReference>> = BTreeMap::new();
    for part in parts {
        let mut counts: BTreeMap<Option<u64>, usize> = BTreeMap::new();
        for link in &part.links {
            let count = counts.entry(link.from).or_default();
            files
                .entry((link.from, *count))
                .or_default()
                .push(link.file());
            *count += 1;
        }
    }
    let complete = files
        .into_iter()
        .filter(|(_, files)| files.len() == parts.len());
    complete
        .map(|((from, _), files)| Route { from, files })
        .collect()
}
