//! What a shard hands over to be committed, also from process to process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deltachain::StateTable;
use deltachain::chain::{Asset, FileReference};
use deltachain::tensor::Digest;
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
    /// The folders that its files lie in.
    pub(crate) folders: Vec<String>,
    /// What it brings of the version's assets.
    pub(crate) assets: Vec<Asset>,
    pub(crate) links: Vec<ShardLink>,
    /// The same in the parts that were prepared together, a random number.
    pub(crate) session: u128,
    /// The store's date before the first link of these parts was stored, in seconds since 1970, if it has told one.
    pub(crate) began: Option<u64>,
    pub(crate) changed: u64,
    pub(crate) elements: u64,
}

/// A link of a shard that has been stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardLink {
    /// The version that it comes from; `None` for nothing.
    pub(crate) from: Option<u64>,
    pub(crate) file: FileReference,
    /// Whether all of its values are absolute.
    pub(crate) is_direct: bool,
    /// Whether it can be taken in place.
    pub(crate) is_in_place: bool,
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

    /// Its link with this file.
    pub(crate) fn link(&self, file: FileReference) -> Option<&ShardLink> {
        self.links.iter().find(|link| link.file == file)
    }

    /// State digest of the shard.
    pub fn state(&self) -> Digest {
        self.table.digests.state
    }

    /// By the store's clock, its links were not stored before this, nor those of the parts that were prepared with it.
    pub(crate) fn began(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.began?))
    }
}

/// A part as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// 2, the version of this document.
    deltachain_part: u64,
    version: u64,
    parent: String,
    shard: usize,
    of: usize,
    state: String,
    #[serde(with = "crate::access::table")]
    tensors: StateTable,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    folders: Vec<String>,
    assets: Vec<AssetDocument>,
    links: Vec<LinkDocument>,
    session: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    began: Option<u64>,
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
struct LinkDocument {
    from: Option<u64>,
    digest: String,
    size: u64,
    direct: bool,
    in_place: bool,
}

impl From<ShardPart> for Document {
    fn from(part: ShardPart) -> Self {
        let assets = part.assets.into_iter().map(|asset| AssetDocument {
            name: asset.name,
            digest: asset.digest.to_string(),
            size: asset.size,
        });
        let links = part.links.iter().map(|link| LinkDocument {
            from: link.from,
            digest: link.file.digest.to_string(),
            size: link.file.size,
            direct: link.is_direct,
            in_place: link.is_in_place,
        });
        Self {
            deltachain_part: 2,
            version: part.version,
            parent: part.parent.to_string(),
            shard: part.shard,
            of: part.of,
            state: part.table.digests.state.to_string(),
            tensors: part.table,
            folders: part.folders,
            assets: assets.collect(),
            links: links.collect(),
            session: format!("{:032x}", part.session),
            began: part.began,
            changed: part.changed,
            elements: part.elements,
        }
    }
}

impl TryFrom<Document> for ShardPart {
    type Error = &'static str;

    fn try_from(document: Document) -> Result<Self, Self::Error> {
        if document.deltachain_part != 2 {
            return Err("this part was made by another version of this program");
        }
        let digest = |text: &str| Digest::from_hex(text).ok_or("invalid digest");
        if digest(&document.state)? != document.tensors.digests.state {
            return Err("the part is damaged: its tensors do not have its state digest");
        }
        let assets = document
            .assets
            .into_iter()
            .map(|asset| Ok(Asset { name: asset.name, digest: digest(&asset.digest)?, size: asset.size }));
        let links = document.links.iter().map(|link| {
            let file = FileReference { digest: digest(&link.digest)?, size: link.size };
            Ok(ShardLink { from: link.from, file, is_direct: link.direct, is_in_place: link.in_place })
        });
        Ok(Self {
            version: document.version,
            parent: digest(&document.parent)?,
            shard: document.shard,
            of: document.of,
            table: document.tensors,
            folders: document.folders,
            assets: assets.collect::<Result<_, Self::Error>>()?,
            links: links.collect::<Result<_, Self::Error>>()?,
            session: u128::from_str_radix(&document.session, 16).map_err(|_| "invalid session")?,
            began: document.began,
            changed: document.changed,
            elements: document.elements,
        })
    }
}
