//! The part that a shard hands over to be committed, also from process to process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deltachain::StateTable;
use deltachain::chain::{Asset, FileReference};
use deltachain::tensor::Digest;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The facts that a commit needs to know of one shard whose links have been stored. A JSON document
/// for serde.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ShardPart {
    /// [`Self::FORM`].
    #[serde(rename = "deltachain_part")]
    pub(crate) form: u64,
    /// The version that the links lead to.
    pub(crate) version: u64,
    /// Digest of the document that the commit is to follow.
    pub(crate) parent: Digest,
    pub(crate) shard: usize,
    /// Number of all shards.
    pub(crate) of: usize,
    pub(crate) state: Digest,
    #[serde(rename = "tensors", with = "crate::access::table")]
    pub(crate) table: StateTable,
    /// Digest of its layout.
    pub(crate) layout: Digest,
    /// The folders that its files lie in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) folders: Vec<String>,
    /// The version's assets that it brings.
    pub(crate) assets: Vec<Asset>,
    pub(crate) links: Vec<ShardLink>,
    /// The same in the parts that were prepared together, a random number.
    pub(crate) session: u64,
    /// The store's date before the first link of these parts was stored, in seconds since 1970, if
    /// it has told one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) began: Option<u64>,
    pub(crate) changed: u64,
    pub(crate) elements: u64,
}

/// A link of a shard that has been stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardLink {
    /// The version that it comes from; `None` for nothing.
    pub(crate) from: Option<u64>,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Whether all of its values are absolute.
    #[serde(rename = "direct")]
    pub(crate) is_direct: bool,
    /// Whether it can be taken in place.
    #[serde(rename = "in_place")]
    pub(crate) is_in_place: bool,
}

impl ShardLink {
    pub(crate) fn file(&self) -> FileReference {
        FileReference {
            digest: self.digest,
            size: self.size,
        }
    }
}

impl ShardPart {
    /// The version of the JSON document.
    pub(crate) const FORM: u64 = 3;

    /// Its link with this file.
    pub(crate) fn link(&self, file: FileReference) -> Option<&ShardLink> {
        self.links.iter().find(|link| link.file() == file)
    }

    /// By the store's clock, its links were not stored before this, nor those of the parts that
    /// were prepared with it.
    pub(crate) fn began(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.began?))
    }
}

impl Serialize for ShardPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for ShardPart {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let part = Self::deserialize(from)?;
        if part.form != Self::FORM {
            return Err(D::Error::custom(
                "this part was made by another version of this program",
            ));
        }
        if part.state != part.table.digests.state {
            return Err(D::Error::custom(
                "the part is damaged: its tensors do not have its state digest",
            ));
        }
        Ok(part)
    }
}
