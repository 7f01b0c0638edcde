//! `index.json`: the vectors and the expected answers, as `conformance/index.schema.json` defines
//! them.
//!
//! No member is ignored: one that this program does not know might change the meaning of a vector.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The only version of the index that this program reads.
pub(crate) const FORMAT: u64 = 3;

/// Features that a vector may need, and that a reader may lack.
pub(crate) const FEATURES: [&str; 33] = [
    "dense",
    "sparse",
    "absolute",
    "relative-planes",
    "relative-small",
    "gaps",
    "gap-escape",
    "bitmap",
    "magnitude-escape",
    "contexts",
    "zstd",
    "set",
    "patch",
    "remove",
    "metadata",
    "layout",
    "pieces",
    "sequence",
    "set-limit",
    "coded-limit",
    "shards",
    "skip-routes",
    "routes-documents",
    "held-version",
    "assets",
    "partial",
    "accept",
    "direct-path",
    "symbolic-links",
    "signatures",
    IN_PLACE,
    "signatures-1.2",
    LAYOUTS,
];

/// The feature of spec/in-place.md.
pub(crate) const IN_PLACE: &str = "in-place";

/// The feature of spec/layouts.md.
pub(crate) const LAYOUTS: &str = "layouts";

/// Features of additions to version 1.0 of the format. A vector with one of these is only for
/// testees that name the addition.
pub(crate) const ADDITIONS: [&str; 4] = ["signatures", IN_PLACE, "signatures-1.2", LAYOUTS];

/// Features that a minimal chain reader (SPEC section 14) may lack. It does not get vectors with
/// one of these.
pub(crate) const NOT_MINIMAL: [&str; 3] = ["accept", "partial", "routes-documents"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    pub(crate) format: u64,
    pub(crate) spec: String,
    #[serde(rename = "licence")]
    _licence: String,
    /// SHA-256 of each state's file, by path.
    pub(crate) states: BTreeMap<String, String>,
    pub(crate) vectors: Vec<Vector>,
    /// Additional refusals that a minimal chain reader may give, by the id of the vector.
    pub(crate) minimal: BTreeMap<String, Minimal>,
    /// The files of each route of the plan, by the id of the vector.
    #[serde(default)]
    pub(crate) routes: BTreeMap<String, Vec<Vec<String>>>,
    /// Ids of vectors that belong to an addition although their features do not name it, by the
    /// addition.
    #[serde(default)]
    pub(crate) belongs: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Minimal {
    pub(crate) plan: Option<Refusal>,
    pub(crate) replay: Option<Refusal>,
}

/// Makes a long file from a short one: the byte at this offset is repeated until the file has this
/// length.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grown {
    pub(crate) at: u64,
    pub(crate) length: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vector {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) file: String,
    pub(crate) sha256: String,
    pub(crate) section: String,
    pub(crate) rules: Vec<String>,
    pub(crate) features: Vec<String>,
    #[serde(rename = "since")]
    _since: String,
    pub(crate) generator: String,
    pub(crate) reason: String,
    #[serde(deserialize_with = "present")]
    pub(crate) twin: Option<String>,
    pub(crate) document: Option<String>,
    #[serde(default)]
    pub(crate) base: Base,
    #[serde(default)]
    pub(crate) then: Vec<String>,
    pub(crate) set_bytes: Option<u64>,
    pub(crate) coded_bytes: Option<u64>,
    pub(crate) held: Option<Held>,
    pub(crate) version: Option<u64>,
    pub(crate) accept: Option<String>,
    pub(crate) trust: Option<Trust>,
    pub(crate) take: Option<Take>,
    /// True if the cheapest direct path is wanted.
    #[serde(default)]
    pub(crate) direct: bool,
    pub(crate) grown: Option<Grown>,
    #[serde(rename = "allocation_ceiling")]
    _allocation_ceiling: Option<u64>,
    pub(crate) expect: Expect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Link,
    Document,
    Chain,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Document => "document",
            Self::Chain => "chain",
        }
    }
}

/// The base to which a link is applied.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Option<String>")]
pub(crate) enum Base {
    /// No base: the vector does not name one.
    #[default]
    Absent,
    /// The empty state: null.
    Empty,
    State(String),
}

impl From<Option<String>> for Base {
    fn from(member: Option<String>) -> Self {
        member.map_or(Self::Empty, Self::State)
    }
}

impl Base {
    /// Returns the state, unless it is the empty one.
    pub(crate) fn state(&self) -> Option<&str> {
        match self {
            Self::State(state) => Some(state),
            Self::Absent | Self::Empty => None,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Held {
    pub(crate) version: u64,
    pub(crate) commit: String,
    /// Digest of `chain.json`.
    pub(crate) chain: String,
    /// One whole state per shard.
    pub(crate) shards: Vec<String>,
    /// The layout of each shard, if layouts are checked.
    pub(crate) layouts: Option<Vec<HeldLayout>>,
}

/// A layout that a reader has recorded.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeldLayout {
    layout: String,
    proven: bool,
}

/// The keys that the reader trusts.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trust {
    /// Verifier keys, as text.
    keys: Vec<String>,
    quorum: u64,
    #[serde(deserialize_with = "present")]
    seen: Option<Seen>,
}

/// The newest signed head that the reader has seen.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    version: u64,
    commit: String,
}

/// The part of a version that `replay` builds; by default everything.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Take {
    #[serde(deserialize_with = "present")]
    pub(crate) shards: Option<Vec<u64>>,
    #[serde(deserialize_with = "present")]
    pub(crate) tensors: Option<Vec<String>>,
}

/// The expected answer of each operation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    pub(crate) check: Option<Expected<HeaderDigests>>,
    pub(crate) apply: Option<Expected<StateResult>>,
    pub(crate) patches: Option<Expected<PatchesResult>>,
    pub(crate) sums: Option<Expected<SumsResult>>,
    #[serde(rename = "in-place")]
    pub(crate) in_place: Option<Expected<StateResult>>,
    pub(crate) document: Option<Expected<Nothing>>,
    pub(crate) plan: Option<Expected<PlanResult>>,
    pub(crate) replay: Option<Expected<ReplayResult>>,
    #[serde(rename = "replay-in-place")]
    pub(crate) replay_in_place: Option<Expected<ReplayResult>>,
}

/// A refusal, or the members of a valid answer.
#[derive(Debug)]
pub(crate) enum Expected<T> {
    Refusal(Refusal),
    Valid(T),
}

/// Implemented by hand, so that errors name the wrong member.
impl<'de, T: DeserializeOwned> Deserialize<'de> for Expected<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.get("class").is_some() {
            serde_json::from_value(value).map(Self::Refusal)
        } else {
            serde_json::from_value(value).map(Self::Valid)
        }
        .map_err(D::Error::custom)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refusal {
    pub(crate) class: String,
    /// `None` if the specification gives a class and no rule.
    #[serde(deserialize_with = "present")]
    pub(crate) rule: Option<String>,
}

/// Result of `check`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderDigests {
    pub(crate) base: String,
    pub(crate) target: String,
}

/// A resulting state.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateResult {
    pub(crate) digest: String,
    pub(crate) tensors: Option<Vec<Tensor>>,
    pub(crate) state: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) digest: String,
}

/// Result of `patches`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchesResult {
    pub(crate) patches: Vec<PatchResult>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PatchResult {
    pub(crate) name: String,
    pub(crate) lanes: u64,
    pub(crate) digest: String,
}

/// Result of `sums`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SumsResult {
    /// Sums of each entry that is not a removal; `None` if the link has no sums.
    #[serde(deserialize_with = "present")]
    pub(crate) sums: Option<Vec<TensorSums>>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorSums {
    pub(crate) name: String,
    pub(crate) pieces: Vec<PieceSums>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PieceSums {
    piece: [u32; 2],
    /// `None` if the piece has no part.
    #[serde(deserialize_with = "present")]
    coded: Option<[u32; 2]>,
}

/// Result of `document` and `encode`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// Result of `plan`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanResult {
    pub(crate) version: u64,
    pub(crate) bytes: u64,
    pub(crate) path: Vec<u64>,
    /// Digests of the files of each route on the path. In the index they are not part of the
    /// vectors.
    pub(crate) routes: Option<Vec<Vec<String>>>,
}

/// Result of `replay`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayResult {
    pub(crate) version: u64,
    pub(crate) digest: String,
    /// The state of each selected shard, with only the selected tensors.
    pub(crate) shards: BTreeMap<u64, StateResult>,
    /// BLAKE3-256 of each asset, by name.
    #[serde(default)]
    pub(crate) assets: BTreeMap<String, String>,
    /// BLAKE3-256 of the layout of each selected shard, if layouts are checked.
    pub(crate) layouts: Option<Vec<String>>,
}

/// Deserializes a member that may be null but must exist.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer)
}
