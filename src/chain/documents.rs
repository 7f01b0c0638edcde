//! The documents of a chain (SPEC section 18): values on one side, the one legal form of their bytes on the other.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::chain::ObjectName;
use crate::error::{Error, Result};
use crate::json::{JsonReader, JsonWriter, MAX_INTEGER, integer};
use crate::limits::{Limits, MAX_ASSET_BYTES, MAX_ASSETS, MAX_DOCUMENT_BYTES};
use crate::plain_name::{flaw_of_path_name, fold_case, is_of_tensors};
use crate::rules::{self, Rule, ensure};
use crate::tensor::Digest;

/// The version of documents that this library reads and writes.
const VERSION: u64 = 1;
/// How every document of every version begins.
const OPENING: &str = "{\"deltachain\":";
/// The highest generation that a name can hold.
const MAX_GENERATION: u64 = 9_999_999_999;
/// Metadata keys that begin like this must be understood; none is defined. Those that begin with `deltachain.` need
/// not.
const MUST_KNOW: &str = "deltachain!";

/// The chain document, `chain.json`: the beginning of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainDocument {
    /// Identifier of the chain, chosen at random.
    pub chain: u128,
    /// For people and tools.
    pub metadata: BTreeMap<String, String>,
}

/// A commit: makes a version visible and says which state it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The version.
    pub version: u64,
    /// Digest of the bytes of the commit before, or of the chain document for version 0.
    pub parent: Digest,
    /// State digest of the version.
    pub state: Digest,
    /// State digest of each shard.
    pub shards: Vec<Digest>,
    /// The routes to the version as long as it has no routes document.
    pub routes: Vec<Route>,
    /// Other files of the version, such as configuration and tokenizer.
    pub assets: Vec<Asset>,
    /// For people and tools.
    pub metadata: BTreeMap<String, String>,
}

/// A routes document: the routes to a version from some time on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutesDocument {
    /// The version that the routes lead to.
    pub version: u64,
    /// Counts the routes documents of the version, from 1 on.
    pub generation: u64,
    /// Digest of the bytes of the version's commit.
    pub commit: Digest,
    /// All routes to the version; none if it has been pruned.
    pub routes: Vec<Route>,
    /// For people and tools.
    pub metadata: BTreeMap<String, String>,
}

/// One link per shard, which lead together to a version. Several routes may come from the same version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The version that the route comes from; `None` for nothing.
    pub from: Option<u64>,
    /// One per shard, in the order of the shards.
    pub files: Vec<FileReference>,
}

/// A file of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileReference {
    /// Digest of the file's bytes.
    pub digest: Digest,
    /// Length of the file in bytes.
    pub size: u64,
}

/// A file that belongs to a version beside its tensors. It is part of no state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asset {
    /// Its name in the directory of a model.
    pub name: String,
    /// The file.
    pub file: FileReference,
}

/// Checks that a store has the object that a document names, by its size and the digest of its bytes.
fn check_object(
    (name, file): (ObjectName, FileReference),
    (size, digest): (u64, Digest),
    rule: &'static Rule,
    what: &str,
) -> Result<()> {
    ensure(size == file.size, rule, || format!("the {what} has {size} bytes instead of {}", file.size))
        .and_then(|()| ensure(digest == file.digest, rule, || format!("the digest of the {what}'s bytes is {digest}")))
        .map_err(|error| error.in_file(name.to_string()))
}

/// Checks what comes before a document's own members: R-LIM-05, R-DOC-01, R-DOC-02. The reader breaks R-DOC-03.
fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<JsonReader<'a>> {
    let (length, limit) = (bytes.len() as u64, limits.document_bytes.min(MAX_DOCUMENT_BYTES));
    ensure(length <= limit, &rules::LIM_05, || format!("the document has {length} bytes, the limit is {limit}"))?;
    let opening = bytes.strip_prefix(OPENING.as_bytes()).and_then(|rest| {
        let digits = rest.iter().position(|byte| *byte == b',')?;
        Some((integer(str::from_utf8(&rest[..digits]).ok()?)?, &rest[digits + 1..]))
    });
    let Some((version, rest)) = opening else {
        let message = format!("the document does not begin with {OPENING}, an integer and a comma");
        return Err(Error::broken(&rules::DOC_01, message).at(0));
    };
    ensure(version == VERSION, &rules::DOC_02, || {
        format!("a document of version {version}, this reader knows {VERSION}")
    })
    .map_err(|error| error.at(OPENING.len() as u64))?;
    match str::from_utf8(rest) {
        Ok(rest) => Ok(JsonReader::new(rest, bytes.len(), &rules::DOC_03)),
        Err(error) => {
            let offset = bytes.len() - rest.len() + error.valid_up_to();
            Err(Error::broken(&rules::DOC_03, "the document is not UTF-8").at(offset as u64))
        }
    }
}

/// Reads the end of a document.
fn close(mut reader: JsonReader<'_>) -> Result<()> {
    reader.token("}")?;
    reader.end()
}

/// Begins a document.
fn begin() -> JsonWriter {
    let mut writer = JsonWriter::default();
    writer.token(OPENING).integer(VERSION).token(",");
    writer
}

/// Ends a document.
fn end(mut writer: JsonWriter) -> Vec<u8> {
    writer.token("}");
    writer.end().into_bytes()
}

impl ChainDocument {
    /// A chain document without metadata.
    pub fn new(chain: u128) -> Self {
        Self { chain, metadata: BTreeMap::new() }
    }

    /// Reads and checks a chain document.
    ///
    /// # Errors
    /// R-LIM-05, R-DOC-01 to R-DOC-03, R-DOC-07.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self> {
        let mut reader = open(bytes, limits)?;
        reader.token("\"chain\":")?;
        let digits = reader.hexadecimal(32)?;
        let chain = u128::from_str_radix(digits, 16).map_err(|_| reader.refuse("an identifier"))?;
        reader.token(",\"metadata\":")?;
        let metadata = reader.strings()?;
        close(reader)?;
        check_metadata(&metadata)?;
        Ok(Self { chain, metadata })
    }

    /// The document's bytes.
    ///
    /// # Errors
    /// As [`parse`](Self::parse) with the limits that every reader supports, so that no document is written that one
    /// cannot read.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut writer = begin();
        writer.token("\"chain\":").quoted(&format!("{:032x}", self.chain));
        writer.token(",\"metadata\":").strings(&self.metadata);
        let bytes = end(writer);
        Self::parse(&bytes, &Limits::default())?;
        Ok(bytes)
    }
}

impl Commit {
    /// Reads and checks a commit as a document; how it fits its chain is not checked.
    ///
    /// # Errors
    /// R-LIM-05, R-DOC-01 to R-DOC-08, R-LIM-07.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self> {
        let mut reader = open(bytes, limits)?;
        reader.token("\"version\":")?;
        let version = reader.integer(0..=MAX_INTEGER)?;
        reader.token(",\"parent\":")?;
        let parent = reader.digest()?;
        reader.token(",\"state\":")?;
        let state = reader.digest()?;
        reader.token(",\"shards\":")?;
        let shards = reader.array(1..=usize::MAX, JsonReader::digest)?;
        reader.token(",\"routes\":")?;
        let routes = reader.array(1..=usize::MAX, Route::read)?;
        reader.token(",\"assets\":")?;
        let assets = reader.array(0..=usize::MAX, Asset::read)?;
        reader.token(",\"metadata\":")?;
        let metadata = reader.strings()?;
        close(reader)?;
        let commit = Self { version, parent, state, shards, routes, assets, metadata };
        commit.check(limits)?;
        Ok(commit)
    }

    fn check(&self, limits: &Limits) -> Result<()> {
        check_order(self.version, &self.routes)?;
        for Route { files, .. } in &self.routes {
            ensure(files.len() == self.shards.len(), &rules::DOC_05, || {
                format!("a route has {} files, the commit has {} shards", files.len(), self.shards.len())
            })?;
        }
        ensure(self.shards.len() != 1 || self.shards[0] == self.state, &rules::DOC_06, || {
            format!("the only shard is {}, the state is {}", self.shards[0], self.state)
        })?;
        check_metadata(&self.metadata)?;
        check_assets(&self.assets)?;
        check_size_of_assets(&self.assets, limits)
    }

    /// The document's bytes.
    ///
    /// # Errors
    /// As [`parse`](Self::parse) with the limits that every reader supports, so that no document is written that one
    /// cannot read.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut writer = begin();
        writer.token("\"version\":").integer(self.version);
        writer.token(",\"parent\":").quoted(&self.parent.to_string());
        writer.token(",\"state\":").quoted(&self.state.to_string());
        writer.token(",\"shards\":").array(&self.shards, |writer, shard| {
            writer.quoted(&shard.to_string());
        });
        writer.token(",\"routes\":").array(&self.routes, Route::write);
        writer.token(",\"assets\":").array(&self.assets, Asset::write);
        writer.token(",\"metadata\":").strings(&self.metadata);
        let bytes = end(writer);
        Self::parse(&bytes, &Limits::default())?;
        Ok(bytes)
    }
}

impl RoutesDocument {
    /// The document's name in the store.
    pub fn name(&self) -> ObjectName {
        ObjectName::Routes { version: self.version, generation: self.generation }
    }

    /// Reads and checks a routes document; how it fits its chain is not checked.
    ///
    /// # Errors
    /// R-LIM-05, R-DOC-01 to R-DOC-04, R-DOC-07.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self> {
        let mut reader = open(bytes, limits)?;
        reader.token("\"version\":")?;
        let version = reader.integer(0..=MAX_INTEGER)?;
        reader.token(",\"generation\":")?;
        let generation = reader.integer(1..=MAX_GENERATION)?;
        reader.token(",\"commit\":")?;
        let commit = reader.digest()?;
        reader.token(",\"routes\":")?;
        let routes = reader.array(0..=usize::MAX, Route::read)?;
        reader.token(",\"metadata\":")?;
        let metadata = reader.strings()?;
        close(reader)?;
        check_order(version, &routes)?;
        check_metadata(&metadata)?;
        Ok(Self { version, generation, commit, routes, metadata })
    }

    /// The document's bytes.
    ///
    /// # Errors
    /// As [`parse`](Self::parse) with the limits that every reader supports, so that no document is written that one
    /// cannot read.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut writer = begin();
        writer.token("\"version\":").integer(self.version);
        writer.token(",\"generation\":").integer(self.generation);
        writer.token(",\"commit\":").quoted(&self.commit.to_string());
        writer.token(",\"routes\":").array(&self.routes, Route::write);
        writer.token(",\"metadata\":").strings(&self.metadata);
        let bytes = end(writer);
        Self::parse(&bytes, &Limits::default())?;
        Ok(bytes)
    }
}

/// R-DOC-04.
fn check_order(version: u64, routes: &[Route]) -> Result<()> {
    ensure(routes.is_sorted_by(|left, right| left.order(right).is_lt()), &rules::DOC_04, || {
        "the routes are not in ascending order of their starting versions, bytes and digests".into()
    })?;
    let last = routes.last().and_then(|route| route.from);
    ensure(last < Some(version), &rules::DOC_04, || {
        format!("a route to version {version} starts from version {}", last.unwrap_or_default())
    })
}

/// R-DOC-07.
fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<()> {
    let unknown = metadata.keys().find(|key| key.starts_with(MUST_KNOW));
    ensure(unknown.is_none(), &rules::DOC_07, || {
        format!("unknown metadata key {:?}, which readers must understand", unknown.map_or("", String::as_str))
    })
}

/// R-DOC-08.
fn check_assets(assets: &[Asset]) -> Result<()> {
    ensure(assets.is_sorted_by(|left, right| left.name < right.name), &rules::DOC_08, || {
        "the assets are not in ascending order of their names".into()
    })?;
    let mut folded = BTreeSet::new();
    for Asset { name, .. } in assets {
        let flaw = Asset::flaw_of_name(name);
        ensure(flaw.is_none(), &rules::DOC_08, || format!("the asset name {name:?} {}", flaw.unwrap_or_default()))?;
        ensure(folded.insert(fold_case(name)), &rules::DOC_08, || {
            format!("duplicate asset name {name:?} (compared with and without case)")
        })?;
    }
    for Asset { name, .. } in assets {
        let inner = name.match_indices('/').find(|(end, _)| folded.contains(&fold_case(&name[..*end])));
        ensure(inner.is_none(), &rules::DOC_08, || format!("the asset name {name:?} lies in another asset"))?;
    }
    Ok(())
}

/// R-LIM-07.
fn check_size_of_assets(assets: &[Asset], limits: &Limits) -> Result<()> {
    let (count, most) = (assets.len() as u64, limits.assets.min(MAX_ASSETS));
    ensure(count <= most, &rules::LIM_07, || format!("the commit has {count} assets, the limit is {most}"))?;
    let most = limits.asset_bytes.min(MAX_ASSET_BYTES);
    let longest = assets.iter().find(|asset| asset.file.size > most);
    ensure(longest.is_none(), &rules::LIM_07, || {
        let (name, size) = longest.map_or(("", 0), |asset| (&asset.name, asset.file.size));
        format!("the asset {name:?} has {size} bytes, the limit is {most}")
    })
}

impl Route {
    /// How routes of a document are ordered (R-DOC-04): by where they come from, nothing first; then by their bytes;
    /// then by the digests of their files. No two routes of a document are equal in all of these.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        let digests = |route: &Self| route.files.iter().map(|file| file.digest).collect::<Vec<_>>();
        (self.from.cmp(&other.from))
            .then_with(|| self.bytes().cmp(&other.bytes()))
            .then_with(|| digests(self).cmp(&digests(other)))
    }

    /// Routes in the order of a document, each of them once.
    pub(super) fn in_order(mut routes: Vec<Self>) -> Vec<Self> {
        routes.sort_by(Self::order);
        routes.dedup();
        routes
    }

    /// Bytes of its files together. No sum of sizes is too large for the type.
    pub fn bytes(&self) -> u128 {
        self.files.iter().map(|file| u128::from(file.size)).sum()
    }

    fn read(reader: &mut JsonReader<'_>) -> Result<Self> {
        reader.token("{\"from\":")?;
        let from = reader.optional(|reader| reader.integer(0..=MAX_INTEGER))?;
        reader.token(",\"files\":")?;
        let files = reader.array(1..=usize::MAX, FileReference::read)?;
        reader.token("}")?;
        Ok(Self { from, files })
    }

    fn write(writer: &mut JsonWriter, route: &Self) {
        writer.token("{\"from\":").optional(route.from, JsonWriter::integer);
        writer.token(",\"files\":");
        writer.array(&route.files, FileReference::write).token("}");
    }
}

impl FileReference {
    /// The object's name in the store, of a link.
    pub fn name(&self) -> ObjectName {
        ObjectName::File(self.digest)
    }

    /// R-CHN-09: the failure to report if the store has no such link.
    pub fn missing(&self) -> Error {
        Error::broken(&rules::CHN_09, "missing file: a route needs it").in_file(self.name().to_string())
    }

    /// Checks that a link with this size and digest is the one.
    ///
    /// # Errors
    /// R-CHN-10 (`CORRUPT`).
    pub fn check(&self, size: u64, digest: Digest) -> Result<()> {
        check_object((self.name(), *self), (size, digest), &rules::CHN_10, "file")
    }

    fn read(reader: &mut JsonReader<'_>) -> Result<Self> {
        reader.token("{\"digest\":")?;
        Self::read_rest(reader, 1)
    }

    /// Reads the digest, and a size of at least so many bytes at the end of an object.
    fn read_rest(reader: &mut JsonReader<'_>, least: u64) -> Result<Self> {
        let digest = reader.digest()?;
        reader.token(",\"size\":")?;
        let size = reader.integer(least..=MAX_INTEGER)?;
        reader.token("}")?;
        Ok(Self { digest, size })
    }

    fn write(writer: &mut JsonWriter, file: &Self) {
        file.write_rest(writer.token("{\"digest\":"));
    }

    fn write_rest(&self, writer: &mut JsonWriter) {
        writer.quoted(&self.digest.to_string());
        writer.token(",\"size\":").integer(self.size).token("}");
    }
}

impl Asset {
    /// The most assets that every reader takes of a version: no publisher gives it more.
    pub const MOST: usize = 1024;
    /// The most bytes that every reader takes of an asset: no publisher stores a longer one.
    pub const MOST_BYTES: u64 = 1 << 30;

    /// Why no asset can have this name (R-DOC-08), as an end of "the name ..."; `None` if one can.
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

    /// Checks that an object with this size and digest is the one.
    ///
    /// # Errors
    /// R-CHN-16 (`CORRUPT`).
    pub fn check(&self, size: u64, digest: Digest) -> Result<()> {
        check_object((self.object_name(), self.file), (size, digest), &rules::CHN_16, "asset")
    }

    fn read(reader: &mut JsonReader<'_>) -> Result<Self> {
        reader.token("{\"name\":")?;
        let name = reader.string()?;
        reader.token(",\"digest\":")?;
        Ok(Self { name, file: FileReference::read_rest(reader, 0)? })
    }

    fn write(writer: &mut JsonWriter, asset: &Self) {
        writer.token("{\"name\":").string(&asset.name).token(",\"digest\":");
        asset.file.write_rest(writer);
    }
}

#[cfg(test)]
mod tests;
