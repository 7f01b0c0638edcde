//! The report of a version that has been published.

use std::collections::BTreeMap;

use deltachain::chain::{Asset, Commit, Route};
use deltachain::tensor::{Digest, StateDigests};
use serde::Serialize;

use crate::observer::Observer;
use crate::publishing::once::SkippedStep;

/// A version that has been published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PublishReport {
    /// The version.
    pub version: u64,
    /// Its state digest.
    pub state: Digest,
    /// Digest of its commit's bytes.
    pub commit: Digest,
    /// Metadata of its commit.
    #[serde(skip)]
    pub(crate) metadata: BTreeMap<String, String>,
    /// Digests of each shard and of its tensors; empty if the step was skipped because of
    /// [`PublishOptions::once`](crate::PublishOptions::once), before anything was hashed.
    #[serde(skip)]
    pub shards: Vec<StateDigests>,
    /// Its routes, those from nothing first.
    pub routes: Vec<PublishedRoute>,
    /// Its assets, ascending by name.
    pub assets: Vec<Asset>,
    /// Bytes of its assets.
    pub asset_bytes: u64,
    /// Bytes of the assets that the previous head does not have.
    pub new_asset_bytes: u64,
    /// Lanes that differ from the previous head, or are new.
    pub changed: u64,
    /// Lanes of the version; 0 if the step was skipped.
    pub elements: u64,
    /// Whether the state is that of the previous head.
    pub unchanged_state: bool,
    /// False if this is the previous head, because nothing has changed
    /// ([`PublishOptions::if_changed`](crate::PublishOptions::if_changed)) or the chain has the
    /// step already ([`PublishOptions::once`](crate::PublishOptions::once)).
    #[serde(rename = "new")]
    pub is_new: bool,
    /// The step, if it was skipped because of
    /// [`PublishOptions::once`](crate::PublishOptions::once).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<SkippedStep>,
}

impl PublishReport {
    /// Warns of a step that was skipped and is lower than the newest one.
    pub fn remark_skipped(&self, observer: &dyn Observer) {
        if let Some(warning) = self.skipped.as_ref().and_then(SkippedStep::warning) {
            observer.remark(&warning);
        }
    }

    /// Creates the report of the previous head, whose state has not been hashed.
    pub(crate) fn head(commit: &Commit, digest: Digest) -> Self {
        Self {
            version: commit.version,
            state: commit.state,
            commit: digest,
            metadata: commit.metadata.clone(),
            shards: Vec::new(),
            routes: PublishedRoute::all(commit),
            assets: commit.assets.clone(),
            asset_bytes: bytes_of(&commit.assets),
            new_asset_bytes: 0,
            changed: 0,
            elements: 0,
            unchanged_state: true,
            is_new: false,
            skipped: None,
        }
    }
}

/// Bytes of these assets.
pub(crate) fn bytes_of<'a>(assets: impl IntoIterator<Item = &'a Asset>) -> u64 {
    let sizes = assets.into_iter().map(|asset| asset.file.size);
    sizes.fold(0, u64::saturating_add)
}

/// The newest version of a chain, as a publisher needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Head {
    /// The version.
    pub version: u64,
    /// State digest of each shard.
    pub shards: Vec<Digest>,
}

/// A route to a version that has been published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PublishedRoute {
    /// The version that it comes from; `None` for nothing.
    pub from: Option<u64>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether all values in its files are absolute, as those of a snapshot are.
    #[serde(rename = "direct")]
    pub is_direct: bool,
    /// Whether it can be taken in place.
    #[serde(rename = "in_place")]
    pub is_in_place: bool,
}

impl PublishedRoute {
    /// The routes of a commit, in its order.
    pub(crate) fn all(commit: &Commit) -> Vec<Self> {
        let known = commit
            .direct_routes()
            .into_iter()
            .zip(commit.in_place_routes());
        commit
            .routes
            .iter()
            .zip(known)
            .map(|(route, (direct, in_place))| Self::of(route, direct, in_place))
            .collect()
    }

    pub(crate) fn of(route: &Route, is_direct: bool, is_in_place: bool) -> Self {
        let bytes = u64::try_from(route.bytes()).unwrap_or(u64::MAX);
        Self {
            from: route.from,
            bytes,
            is_direct,
            is_in_place,
        }
    }
}
