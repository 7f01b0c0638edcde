//! The documents of a chain (SPEC section 18): values on one side, the one legal form of their
//! bytes on the other.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::chain::ObjectName;
use crate::error::{Error, Result};
use crate::json::{self, MAX_INTEGER};
use crate::limits::{Limits, MAX_ASSET_BYTES, MAX_ASSETS, MAX_DOCUMENT_BYTES};
use crate::plain_name::{flaw_of_path_name, fold_case, is_of_tensors};
use crate::rules::{self, Rule, ensure};
use crate::tensor::Digest;

/// The version of documents that this library reads and writes.
const VERSION: u64 = 1;
/// The first bytes of every document.
const OPENING: &str = "{\"deltachain\":";
/// The highest generation that a name can hold.
const MAX_GENERATION: u64 = 9_999_999_999;
/// Prefix of the metadata keys that readers must understand; no such key is defined. Readers may
/// ignore keys that begin with `deltachain.`.
const MUST_KNOW: &str = "deltachain!";

/// The chain document, `chain.json`: the beginning of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainDocument {
    /// Identifier of the chain, chosen at random.
    #[serde(with = "hexadecimal")]
    pub chain: u128,
    /// Entries for people and tools.
    pub metadata: BTreeMap<String, String>,
}

/// A commit: makes a version visible and says which state it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The version.
    #[serde(deserialize_with = "json::integer::<_, 0, MAX_INTEGER>")]
    pub version: u64,
    /// Digest of the bytes of the commit before, or of the chain document for version 0.
    pub parent: Digest,
    /// State digest of the version.
    pub state: Digest,
    /// State digest of each shard.
    #[serde(deserialize_with = "json::some")]
    pub shards: Vec<Digest>,
    /// The routes to the version as long as it has no routes document.
    #[serde(deserialize_with = "json::some")]
    pub routes: Vec<Route>,
    /// Other files of the version, such as configuration and tokenizer.
    pub assets: Vec<Asset>,
    /// Entries for people and tools.
    pub metadata: BTreeMap<String, String>,
}

/// A routes document: new routes to a version, which replace all earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutesDocument {
    /// The version that the routes lead to.
    #[serde(deserialize_with = "json::integer::<_, 0, MAX_INTEGER>")]
    pub version: u64,
    /// Sequence number of this document among the routes documents of the version, from 1.
    #[serde(deserialize_with = "json::integer::<_, 1, MAX_GENERATION>")]
    pub generation: u64,
    /// Digest of the bytes of the version's commit.
    pub commit: Digest,
    /// All routes to the version; none if it has been pruned.
    pub routes: Vec<Route>,
    /// Entries for people and tools.
    pub metadata: BTreeMap<String, String>,
}

/// One link per shard; together they lead to a version. Several routes may start from the same
/// version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The version that the route starts from; `None` if it starts from nothing.
    #[serde(deserialize_with = "json::integer_or_null")]
    pub from: Option<u64>,
    /// The links, one per shard, in the order of the shards.
    #[serde(deserialize_with = "links")]
    pub files: Vec<FileReference>,
}

/// A file of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileReference {
    /// Digest of the file's bytes.
    pub digest: Digest,
    /// Length of the file in bytes.
    #[serde(deserialize_with = "json::integer::<_, 0, MAX_INTEGER>")]
    pub size: u64,
}

/// A file of a version besides its tensors. Assets are not part of the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asset {
    /// Name in the directory of a model.
    pub name: String,
    /// The file.
    #[serde(flatten)]
    pub file: FileReference,
}

/// Checks that an object of a store is the one that a document names, by its size and the digest of
/// its bytes.
fn check_object(
    (name, file): (ObjectName, FileReference),
    (size, digest): (u64, Digest),
    rule: &'static Rule,
    what: &str,
) -> Result<()> {
    ensure(size == file.size, rule, || {
        format!("the {what} has {size} bytes instead of {}", file.size)
    })
    .and_then(|()| {
        ensure(digest == file.digest, rule, || {
            format!("the digest of the {what}'s bytes is {digest}")
        })
    })
    .map_err(|error| error.in_file(name.to_string()))
}

/// Reads a document and checks R-LIM-05 and R-DOC-01 to R-DOC-03.
fn read<T: Serialize + DeserializeOwned>(bytes: &[u8], limits: &Limits) -> Result<T> {
    let (length, limit) = (
        bytes.len() as u64,
        limits.document_bytes.min(MAX_DOCUMENT_BYTES),
    );
    ensure(length <= limit, &rules::LIM_05, || {
        format!("the document has {length} bytes, the limit is {limit}")
    })?;
    let opening = bytes.strip_prefix(OPENING.as_bytes()).and_then(|rest| {
        let digits = str::from_utf8(rest.split(|byte| *byte == b',').next()?).ok()?;
        let version: u64 = digits
            .parse()
            .ok()
            .filter(|version| *version <= MAX_INTEGER)?;
        (version.to_string() == digits).then_some((version, rest.get(digits.len() + 1..)?))
    });
    let Some((version, rest)) = opening else {
        let message = match foreign_form(bytes) {
            Some(form) => format!(
                "this is {form}, not a document of a chain: the address may be that of a web site \
                 or of a proxy's login page, or such a page was copied here"
            ),
            None if bytes.is_empty() => "the document is empty".to_owned(),
            None => format!("the document does not begin with {OPENING}, an integer and a comma"),
        };
        return Err(Error::broken(&rules::DOC_01, message).at(0));
    };
    ensure(version == VERSION, &rules::DOC_02, || {
        format!("the document has version {version} of the format, but this reader knows {VERSION}")
    })
    .map_err(|error| error.at(OPENING.len() as u64))?;
    let begin = bytes.len() - rest.len();
    let rest = str::from_utf8(rest).map_err(|error| {
        Error::broken(&rules::DOC_03, "the document is not UTF-8")
            .at((begin + error.valid_up_to()) as u64)
    })?;
    // The remaining members, as an object of their own.
    json::read(&format!("{{{rest}"), begin - 1, &rules::DOC_03)
}

/// Recognizes bytes that are not a document but, for example, a web page or a compressed file.
/// Returns `None` for any other bytes.
pub fn foreign_form(bytes: &[u8]) -> Option<&'static str> {
    let forms: [(&[u8], &str); 4] = [
        (b"<", "an HTML or XML page"),
        (b"\x1f\x8b", "a file compressed with gzip"),
        (b"\x28\xb5\x2f\xfd", "a file compressed with zstd"),
        (b"version https://git-lfs", "a pointer of Git LFS"),
    ];
    // Pages may begin with a byte order mark.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let bytes = bytes.trim_ascii_start();
    let found = forms
        .into_iter()
        .find(|(begin, _)| bytes.starts_with(begin));
    found.map(|(_, form)| form)
}

/// Writes a document.
fn write<T: Serialize>(document: &T) -> Vec<u8> {
    json::write(document)
        .replacen('{', &format!("{OPENING}{VERSION},"), 1)
        .into_bytes()
}

/// Reads the files of a route. Unlike assets, none of them may be empty.
fn links<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<FileReference>, D::Error> {
    let files: Vec<FileReference> = json::some(from)?;
    files
        .iter()
        .try_for_each(|file| json::bounded(file.size, &(1..=MAX_INTEGER)).map(drop))?;
    Ok(files)
}

/// The identifier of a chain: 32 hexadecimal digits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        number: &u128,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        u128::from_str_radix(&String::deserialize(from)?, 16).map_err(D::Error::custom)
    }
}

impl ChainDocument {
    /// A chain document without metadata.
    pub fn new(chain: u128) -> Self {
        Self {
            chain,
            metadata: BTreeMap::new(),
        }
    }

    /// Reads and checks a chain document.
    ///
    /// # Errors
    /// R-LIM-05, R-DOC-01 to R-DOC-03, R-DOC-07.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self> {
        let document: Self = read(bytes, limits)?;
        check_metadata(&document.metadata)?;
        Ok(document)
    }

    /// The document's bytes.
    ///
    /// # Errors
    /// Same errors as [`parse`](Self::parse) with the limits that every reader supports: a document
    /// that some reader could not parse is not written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let bytes = write(self);
        Self::parse(&bytes, &Limits::default())?;
        Ok(bytes)
    }
}

impl Commit {
    /// Reads and checks a commit on its own; whether it fits its chain is not checked.
    ///
    /// # Errors
    /// R-LIM-05, R-DOC-01 to R-DOC-08, R-LIM-07.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self> {
        let commit: Self = read(bytes, limits)?;
        commit.check(limits)?;
        Ok(commit)
    }

    fn check(&self, limits: &Limits) -> Result<()> {
        check_order(self.version, &self.routes)?;
        for Route { files, .. } in &self.routes {
            ensure(files.len() == self.shards.len(), &rules::DOC_05, || {
                format!(
                    "a route has {} files, but the commit has {} shards",
                    files.len(),
                    self.shards.len()
                )
            })?;
        }
        ensure(
            self.shards.len() != 1 || self.shards[0] == self.state,
            &rules::DOC_06,
            || {
                format!(
                    "the only shard is {}, but the state is {}",
                    self.shards[0], self.state
                )
            },
        )?;
        check_metadata(&self.metadata)?;
        check_assets(&self.assets)?;
        check_size_of_assets(&self.assets, limits)
    }

    /// The document's bytes.
    ///
    /// # Errors
    /// Same errors as [`parse`](Self::parse) with the limits that every reader supports: a document
    /// that some reader could not parse is not written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let bytes = write(self);
        Self::parse(&bytes, &Limits::default())?;
        Ok(bytes)
    }
}

impl RoutesDocument {
    /// The document's name in the store.
    pub fn name(&self) -> ObjectName {
        ObjectName::Routes {
            version: self.version,
            generation: self.generation,
        }
    }

    /// Reads and checks a routes document on its own; whether it fits its chain is not checked.
    ///
    /// # Errors
    /// R-LIM-05, R-DOC-01 to R-DOC-04, R-DOC-07.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self> {
        let document: Self = read(bytes, limits)?;
        check_order(document.version, &document.routes)?;
        check_metadata(&document.metadata)?;
        Ok(document)
    }

    /// The document's bytes.
    ///
    /// # Errors
    /// Same errors as [`parse`](Self::parse) with the limits that every reader supports: a document
    /// that some reader could not parse is not written.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let bytes = write(self);
        Self::parse(&bytes, &Limits::default())?;
        Ok(bytes)
    }
}

/// R-DOC-04.
fn check_order(version: u64, routes: &[Route]) -> Result<()> {
    ensure(
        routes.is_sorted_by(|left, right| left.order(right).is_lt()),
        &rules::DOC_04,
        || {
            "the routes are not in ascending order of their starting versions, bytes and digests"
                .into()
        },
    )?;
    let last = routes.last().and_then(|route| route.from);
    ensure(last < Some(version), &rules::DOC_04, || {
        format!(
            "a route to version {version} starts from version {}",
            last.unwrap_or_default()
        )
    })
}

/// R-DOC-07.
fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<()> {
    let unknown = metadata.keys().find(|key| key.starts_with(MUST_KNOW));
    ensure(unknown.is_none(), &rules::DOC_07, || {
        format!(
            "unknown metadata key {:?}, which readers must understand",
            unknown.map_or("", String::as_str)
        )
    })
}

/// R-DOC-08.
fn check_assets(assets: &[Asset]) -> Result<()> {
    ensure(
        assets.is_sorted_by(|left, right| left.name < right.name),
        &rules::DOC_08,
        || "the assets are not in ascending order of their names".into(),
    )?;
    let mut folded = BTreeSet::new();
    for Asset { name, .. } in assets {
        let flaw = Asset::flaw_of_name(name);
        ensure(flaw.is_none(), &rules::DOC_08, || {
            format!("the asset name {name:?} {}", flaw.unwrap_or_default())
        })?;
        ensure(folded.insert(fold_case(name)), &rules::DOC_08, || {
            format!("duplicate asset name {name:?} (compared with and without case)")
        })?;
    }
    for Asset { name, .. } in assets {
        let inner = name
            .match_indices('/')
            .find(|(end, _)| folded.contains(&fold_case(&name[..*end])));
        ensure(inner.is_none(), &rules::DOC_08, || {
            format!(
                "the asset {name:?} is below the name of another asset, as if that were a folder"
            )
        })?;
    }
    Ok(())
}

/// R-LIM-07.
fn check_size_of_assets(assets: &[Asset], limits: &Limits) -> Result<()> {
    let (count, most) = (assets.len() as u64, limits.assets.min(MAX_ASSETS));
    ensure(count <= most, &rules::LIM_07, || {
        format!("the commit has {count} assets, the limit is {most}")
    })?;
    let most = limits.asset_bytes.min(MAX_ASSET_BYTES);
    let longest = assets.iter().find(|asset| asset.file.size > most);
    ensure(longest.is_none(), &rules::LIM_07, || {
        let (name, size) = longest.map_or(("", 0), |asset| (&asset.name, asset.file.size));
        format!("the asset {name:?} has {size} bytes, the limit is {most}")
    })
}

impl Route {
    /// The order of the routes in a document (R-DOC-04): by the version they start from, the empty
    /// state first; then by their bytes; then by the digests of their files. No two routes of a
    /// document are equal in all of these.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let digests = |route: &Self| {
            route
                .files
                .iter()
                .map(|file| file.digest)
                .collect::<Vec<_>>()
        };
        (self.from.cmp(&other.from))
            .then_with(|| self.bytes().cmp(&other.bytes()))
            .then_with(|| digests(self).cmp(&digests(other)))
    }

    /// Sorts routes in the order of a document and removes duplicates.
    pub(super) fn in_order(mut routes: Vec<Self>) -> Vec<Self> {
        routes.sort_by(Self::order);
        routes.dedup();
        routes
    }

    /// Total size of its files in bytes, which always fits in the type.
    pub fn bytes(&self) -> u128 {
        self.files.iter().map(|file| u128::from(file.size)).sum()
    }
}

impl FileReference {
    /// The name of a link's object in the store.
    pub fn name(&self) -> ObjectName {
        ObjectName::File(self.digest)
    }

    /// R-CHN-09: the failure to report if the store has no such link.
    pub fn missing(&self) -> Error {
        Error::broken(&rules::CHN_09, "missing file: a route needs it")
            .in_file(self.name().to_string())
    }

    /// Checks that a link has the size and the digest of this reference.
    ///
    /// # Errors
    /// R-CHN-10 (`CORRUPT`).
    pub fn check(&self, size: u64, digest: Digest) -> Result<()> {
        check_object((self.name(), *self), (size, digest), &rules::CHN_10, "file")
    }
}

impl Asset {
    /// Maximum number of assets of a version that every reader accepts; publishers store no more.
    pub const MOST: usize = 1024;
    /// Maximum size of an asset in bytes that every reader accepts; publishers store no larger one.
    pub const MOST_BYTES: u64 = 1 << 30;

    /// The reason why no asset can have this name (R-DOC-08), as the end of "the name ..."; `None`
    /// if the name is valid.
    pub fn flaw_of_name(name: &str) -> Option<&'static str> {
        if let Some(flaw) = flaw_of_path_name(name) {
            Some(flaw)
        } else if is_of_tensors(name) {
            Some("is that of a file of tensors or of their index")
        } else if fold_case(name).starts_with("deltachain.") {
            Some("is reserved for notes of tools")
        } else {
            None
        }
    }

    /// The name of its object in the store.
    pub fn object_name(&self) -> ObjectName {
        ObjectName::Asset(self.file.digest)
    }

    /// R-CHN-15: the failure to report if the store has no such object.
    pub fn missing(&self) -> Error {
        let message = format!("missing file of the asset {:?}", self.name);
        Error::broken(&rules::CHN_15, message).in_file(self.object_name().to_string())
    }

    /// Checks that an object has the size and the digest of this asset.
    ///
    /// # Errors
    /// R-CHN-16 (`CORRUPT`).
    pub fn check(&self, size: u64, digest: Digest) -> Result<()> {
        check_object(
            (self.object_name(), self.file),
            (size, digest),
            &rules::CHN_16,
            "asset",
        )
    }
}

#[cfg(test)]
mod tests;
