//! The version that a directory or memory has, and `held.json`, its record in a follower's
//! directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use deltachain::chain::VersionId;
use deltachain::memory::Proof;
use deltachain::tensor::Digest;
use deltachain::{Error, Result, StateSums, StateTable};
use serde::{Deserialize, Serialize};

/// Advice about a version in a directory that has been changed or damaged.
pub(crate) const BUILD_AGAIN: &str = "run `pull` or `follow`, which build the version again";

/// The version that a directory or memory has. For a directory, it is stored in `held.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HeldVersion<D = PathBuf> {
    /// The version.
    pub version: u64,
    /// Digest of the commit's bytes.
    pub commit: Digest,
    /// Digest of the chain document's bytes, which identifies the chain.
    pub chain: Digest,
    /// State digest of the whole version, even if only some shards or tensors are held.
    pub state: Digest,
    /// The commit's metadata: the entries of its publisher, and hints of the format
    /// (`deltachain.*`).
    pub metadata: BTreeMap<String, String>,
    /// Number of shards of the version.
    pub(crate) of: usize,
    /// Patterns of the selected tensors; all if `None`.
    pub(crate) taken: Option<Vec<String>>,
    /// Whether the version's assets are included.
    pub(crate) assets: bool,
    /// Commits to which the user allowed a rollback and which have been reached. They allow no
    /// further rollback.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) accepted: BTreeSet<Digest>,
    /// The files of the model in the directory, with their lengths; empty for memory.
    pub(crate) files: BTreeMap<String, u64>,
    /// The held shards, ascending by number.
    pub(crate) shards: Vec<ShardRecord>,
    /// The directory of its files; `()` for a version in memory.
    #[serde(skip)]
    pub directory: D,
    /// Level of proof that this is the version. A directory and the follower's own memory are
    /// hashed.
    #[serde(skip, default = "hashed")]
    pub proof: Proof,
    /// The sums of each shard, as far as they are known; empty unless memory is changed in place.
    #[serde(skip)]
    pub(crate) sums: Vec<StateSums>,
}

fn hashed() -> Proof {
    Proof::Hashed
}

/// The record of a held shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardRecord {
    pub(crate) number: usize,
    /// All tensors of the shard, selected or not.
    #[serde(with = "crate::access::table")]
    pub(crate) table: StateTable,
    /// The layout of the shard, which may differ from the directory's: a link's layout follows from
    /// the layout of its base.
    pub(crate) layout: String,
    /// Whether the layout was proven when the shard was built (SPEC section 25.2).
    #[serde(default)]
    pub(crate) proven: bool,
}

impl<D> HeldVersion<D> {
    /// Returns the ID of the version, for the planner.
    pub(crate) fn held(&self) -> VersionId {
        VersionId {
            version: self.version,
            commit: self.commit,
            chain: self.chain,
        }
    }

    /// Whether exactly these shards are held, with exactly the tensors of these patterns; `None`
    /// stands for all.
    pub(crate) fn has_just(&self, shards: Option<&[usize]>, taken: Option<&[String]>) -> bool {
        let here = self.shards.iter().map(|shard| shard.number);
        self.taken.as_deref() == taken
            && shards.map_or_else(
                || here.clone().eq(0..self.of),
                |shards| here.clone().eq(shards.iter().copied()),
            )
    }
}

impl HeldVersion {
    /// The name of the version's directory.
    pub(crate) fn directory_name(&self) -> String {
        let commit = self.commit.to_string();
        format!("{:020}-{}", self.version, &commit[..16])
    }

    /// Parses the content of `held.json`.
    ///
    /// # Errors
    /// IO if it is damaged, or not the output of [`to_bytes`](Self::to_bytes).
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let unreadable = |error: serde_json::Error| {
            Error::unusable(format!("the record cannot be read: {error}"), BUILD_AGAIN)
        };
        let SealedRecord { digest, record } =
            serde_json::from_slice::<SealedRecord<Self>>(bytes).map_err(unreadable)?;
        if digest == record.digest()? {
            Ok(record)
        } else {
            Err(Error::unusable("the record is damaged", BUILD_AGAIN))
        }
    }

    /// Returns the content of `held.json`.
    ///
    /// # Errors
    /// USAGE if it cannot be written as JSON.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let sealed = SealedRecord {
            digest: self.digest()?,
            record: self,
        };
        serde_json::to_vec(&sealed).map_err(|error| Error::usage(error.to_string()))
    }

    fn digest(&self) -> Result<Digest> {
        let text = serde_json::to_vec(self).map_err(|error| Error::usage(error.to_string()))?;
        Ok(Digest::of_bytes(&text))
    }
}

/// Content of the file: a record with the digest of its text, so that damage is noticed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SealedRecord<R> {
    digest: Digest,
    record: R,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> HeldVersion {
        let digest = Digest::of_bytes(b"");
        let shard = |number| ShardRecord {
            number,
            table: StateTable::new(Vec::new(), Vec::new()),
            layout: "{}".to_owned(),
            proven: true,
        };
        HeldVersion {
            version: 7,
            commit: digest,
            chain: Digest::of_bytes(b"chain"),
            state: Digest::of_bytes(b"state"),
            metadata: BTreeMap::from([("step \"\u{0}\u{1F600}".to_owned(), "7\n".to_owned())]),
            of: 3,
            taken: Some(vec!["a*".to_owned(), "b".to_owned()]),
            assets: true,
            accepted: BTreeSet::from([Digest::of_bytes(b"back")]),
            files: BTreeMap::from([("model.safetensors".to_owned(), 8)]),
            shards: vec![shard(0), shard(2)],
            directory: PathBuf::new(),
            proof: Proof::Hashed,
            sums: Vec::new(),
        }
    }

    #[test]
    fn a_record_comes_back() {
        let record = record();
        assert_eq!(
            HeldVersion::parse(&record.to_bytes().unwrap()).unwrap(),
            record
        );
        assert_eq!(
            record.directory_name(),
            "00000000000000000007-af1349b9f5f9a1a6"
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let record = record();
        let bytes = record.to_bytes().unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A flipped bit may lead to another spelling of the same record.
            assert!(
                HeldVersion::parse(&damaged).map_or(true, |read| read == record),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let bytes = record().to_bytes().unwrap();
        let text = String::from_utf8(bytes.clone()).unwrap();
        let digest = Digest::of_bytes(b"").to_string();
        for other in [
            String::new(),
            text[..text.len() - 1].to_owned(),
            text.replace("\"of\"", "\"off\""),
            text.replace("\"chain\"", "\"train\""),
            text.replace("\"assets\":true,", ""),
            text.replace("\"metadata\"", "\"meta\""),
            text.replace("\"7\\n\"", "7"),
            text.replace("\"files\":{\"model.safetensors\":8},", ""),
            text.replace(&digest, &digest[1..]),
            text.replace("\"version\":7", "\"version\":-7"),
        ] {
            assert!(HeldVersion::parse(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn a_selection_is_compared() {
        let mut record = record();
        let taken = record.taken.take();
        assert!(record.has_just(Some(&[0, 2]), None));
        assert!(
            [Some(&[0][..]), Some(&[0, 1]), None]
                .iter()
                .all(|shards| !record.has_just(*shards, None))
        );
        assert!(!record.has_just(Some(&[0, 2]), taken.as_deref()));
        record.of = 2;
        record.shards[1].number = 1;
        assert!(record.has_just(None, None) && record.has_just(Some(&[0, 1]), None));
        record.taken = taken;
        assert!(!record.has_just(None, None) && !record.has_just(None, Some(&["b".to_owned()])));
        assert!(record.has_just(None, Some(&["a*".to_owned(), "b".to_owned()])));
    }
}
