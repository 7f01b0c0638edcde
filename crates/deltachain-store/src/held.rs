//! `held.json`: what a version in a subscriber's directory is, for the subscriber itself.

use deltachain::chain::{Held, Plan};
use deltachain::tensor::{Digest, Layout, StateDigests, TensorInfo};
use deltachain::{Error, Result};
use serde::{Deserialize, Serialize};

/// What a version is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) version: u64,
    /// Digest of the commit's bytes.
    pub(crate) commit: Digest,
    /// State digest of the whole version, also if only some shards are here.
    pub(crate) state: Digest,
    /// How many shards the version has.
    pub(crate) of: usize,
    /// Patterns of the tensors that have been taken; all if `None`.
    pub(crate) taken: Option<Vec<String>>,
    /// Those that are here, ascending by number.
    pub(crate) shards: Vec<ShardRecord>,
}

/// What a shard is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardRecord {
    pub(crate) number: usize,
    /// State digest of the shard.
    pub(crate) state: Digest,
    /// State digest of the tensors that are here: the same if these are all.
    pub(crate) here: Digest,
    /// Names and digests of its tensors, ascending by name.
    pub(crate) tensors: Vec<(String, Digest)>,
    /// Its own layout, which need not be that of the directory: a link's layout follows from that of its base.
    pub(crate) layout: String,
}

impl Record {
    /// Of a version that a plan led to. Its shards are given by [`ShardRecord::new`].
    pub(crate) fn new(plan: &Plan, taken: Option<&[String]>, shards: Vec<ShardRecord>) -> Self {
        let &Plan { version, commit, state, .. } = plan;
        Self { version, commit, state, of: plan.shards.len(), taken: taken.map(<[String]>::to_vec), shards }
    }

    /// For the planner.
    pub(crate) fn held(&self) -> Held {
        Held { version: self.version, commit: self.commit }
    }

    /// Whether just these shards are here, and just the tensors that fit these patterns; all of them if `None`.
    pub(crate) fn has_just(&self, shards: Option<&[usize]>, taken: Option<&[String]>) -> bool {
        let here = self.shards.iter().map(|shard| shard.number);
        self.taken.as_deref() == taken
            && shards.map_or_else(|| here.clone().eq(0..self.of), |shards| here.clone().eq(shards.iter().copied()))
    }

    /// The name of the version's directory.
    pub(crate) fn directory_name(&self) -> String {
        let commit = self.commit.to_string();
        format!("{:020}-{}", self.version, &commit[..16])
    }

    /// Reads the file.
    ///
    /// # Errors
    /// USAGE if it is not as [`to_bytes`](Self::to_bytes) writes it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let unreadable = |error: serde_json::Error| Error::usage(format!("cannot be read: {error}"));
        let document: Document = serde_json::from_slice(bytes).map_err(unreadable)?;
        let shard = |shard: ShardDocument| {
            let tensors = shard.tensors.into_iter().map(|(name, digest)| Ok((name, digest_of(&digest)?)));
            let tensors = tensors.collect::<Result<_>>()?;
            let (state, here) = (digest_of(&shard.state)?, digest_of(&shard.here)?);
            Ok(ShardRecord { number: shard.number, state, here, tensors, layout: shard.layout })
        };
        Ok(Self {
            version: document.version,
            commit: digest_of(&document.commit)?,
            state: digest_of(&document.state)?,
            of: document.of,
            taken: document.taken,
            shards: document.shards.into_iter().map(shard).collect::<Result<_>>()?,
        })
    }

    /// The file's content.
    ///
    /// # Errors
    /// USAGE if it cannot be written as JSON.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let shard = |shard: &ShardRecord| ShardDocument {
            number: shard.number,
            state: shard.state.to_string(),
            here: shard.here.to_string(),
            tensors: shard.tensors.iter().map(|(name, digest)| (name.clone(), digest.to_string())).collect(),
            layout: shard.layout.clone(),
        };
        let document = Document {
            version: self.version,
            commit: self.commit.to_string(),
            state: self.state.to_string(),
            of: self.of,
            taken: self.taken.clone(),
            shards: self.shards.iter().map(shard).collect(),
        };
        serde_json::to_vec(&document).map_err(|error| Error::usage(error.to_string()))
    }
}

impl ShardRecord {
    pub(crate) fn new(number: usize, tensors: &[TensorInfo], digests: &StateDigests, layout: &Layout) -> Self {
        let names = tensors.iter().map(|info| info.name().to_owned());
        Self {
            number,
            state: digests.state,
            here: StateDigests::from_tensors(tensors, digests.tensors.clone()).state,
            tensors: names.zip(digests.tensors.iter().copied()).collect(),
            layout: layout.to_json(),
        }
    }
}

fn digest_of(text: &str) -> Result<Digest> {
    Digest::from_hex(text).ok_or_else(|| Error::usage("not a digest"))
}

/// The JSON text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u64,
    commit: String,
    state: String,
    of: usize,
    taken: Option<Vec<String>>,
    shards: Vec<ShardDocument>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShardDocument {
    number: usize,
    state: String,
    here: String,
    tensors: Vec<(String, String)>,
    layout: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let digest = Digest::of_bytes(b"");
        let shard = |number| ShardRecord {
            number,
            state: digest,
            here: Digest::of_bytes(b"here"),
            tensors: vec![("a\n\"".to_owned(), digest), ("b".to_owned(), Digest::of_bytes(b"b"))],
            layout: "{}".to_owned(),
        };
        Record {
            version: 7,
            commit: digest,
            state: Digest::of_bytes(b"state"),
            of: 3,
            taken: Some(vec!["a*".to_owned(), "b".to_owned()]),
            shards: vec![shard(0), shard(2)],
        }
    }

    #[test]
    fn a_record_comes_back() {
        let record = record();
        assert_eq!(Record::parse(&record.to_bytes().unwrap()).unwrap(), record);
        assert_eq!(record.directory_name(), "00000000000000000007-af1349b9f5f9a1a6");
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
            text.replace(&digest, &digest[1..]),
            text.replace("\"version\":7", "\"version\":-7"),
        ] {
            assert!(Record::parse(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn a_selection_is_compared() {
        let mut record = record();
        let taken = record.taken.take();
        assert!(record.has_just(Some(&[0, 2]), None));
        assert!([Some(&[0][..]), Some(&[0, 1]), None].iter().all(|shards| !record.has_just(*shards, None)));
        assert!(!record.has_just(Some(&[0, 2]), taken.as_deref()));
        record.of = 2;
        record.shards[1].number = 1;
        assert!(record.has_just(None, None) && record.has_just(Some(&[0, 1]), None));
        record.taken = taken;
        assert!(!record.has_just(None, None) && !record.has_just(None, Some(&["b".to_owned()])));
        assert!(record.has_just(None, Some(&["a*".to_owned(), "b".to_owned()])));
    }
}
