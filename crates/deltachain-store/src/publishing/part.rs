//! What a shard hands over to be committed, also from process to process.

use deltachain::StateTable;
use deltachain::chain::{Asset, FileReference};
use deltachain::tensor::{Digest, StateDigests};
use serde::{Deserialize, Serialize};

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

    /// Digests of the shard and of its tensors: with [`Base::Trusted`](crate::Base::Trusted), the next version need not compute
    /// them again.
    pub fn digests(&self) -> &StateDigests {
        &self.table.digests
    }
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
