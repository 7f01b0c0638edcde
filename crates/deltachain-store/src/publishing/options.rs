//! How versions are published, and from what links are made.

use std::collections::BTreeMap;
use std::path::Path;

use deltachain::files::SafetensorsState;
use deltachain::{Limits, Profile};

use crate::publishing::policy::Snapshots;

/// How versions are published.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PublishOptions {
    /// How values may be coded.
    pub profile: Profile,
    /// Metadata of the commit: step number, run name.
    pub metadata: BTreeMap<String, String>,
    /// When a version gets a snapshot.
    pub snapshots: Snapshots,
    /// For each of these distances, a version whose number is a multiple of it gets a link from the version so far before,
    /// for readers that are behind.
    pub skips: Vec<u64>,
    /// Whether the other files of the model's directory, such as configuration and tokenizer, are published as the version's
    /// assets. If there are several shards, they are those of shard 0.
    pub assets: bool,
    /// Limits for documents and links that are read.
    pub limits: Limits,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            metadata: BTreeMap::new(),
            snapshots: Snapshots::default(),
            skips: Vec::new(),
            assets: true,
            limits: Limits::default(),
        }
    }
}

impl PublishOptions {
    deltachain::setters! {
        profile: Profile,
        metadata: BTreeMap<String, String>,
        snapshots: Snapshots,
        skips: Vec<u64>,
        assets: bool,
        limits: Limits,
    }
}

/// Where a publisher finds the state of the head, to make links from.
#[derive(Debug, Clone, Copy)]
pub enum Base<'a> {
    /// Nowhere: the version gets a snapshot and no link from the head, of which there may be none.
    Nothing,
    /// In these files, wherever they are. What the link has been made from is compared with the head by digest.
    State(&'a SafetensorsState),
    /// In the chain, from which the head is built anew in a temporary directory.
    Chain,
    /// In a directory that the publisher keeps as a [`Subscriber`](crate::Subscriber) does, and brings to the head first.
    Work(&'a Path),
}
