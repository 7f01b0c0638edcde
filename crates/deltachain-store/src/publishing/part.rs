//! The part of a shard that is passed on to be committed, also between processes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deltachain::StateTable;
use deltachain::chain::{Asset, FileReference};
use deltachain::tensor::Digest;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The facts that a commit needs about one shard whose links have been stored. Serde reads and
/// writes this as a JSON document.
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
    /// The assets of the version that this part contributes.
    pub(crate) assets: Vec<Asset>,
    pub(crate) links: Vec<ShardLink>,
    /// A random number, which is the same in all parts that were prepared together.
    pub(crate) session: u64,
    /// The store's date before the first link of these parts was stored, in seconds since 1970;
    /// `None` if the store reports no dates.
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

    /// Returns a time by the store's clock before which none of its links was stored, nor any link
    /// of the parts that were prepared with it.
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
