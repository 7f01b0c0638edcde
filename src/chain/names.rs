//! Names of a chain's objects in its store (SPEC section 17.1).

use std::fmt;

use serde::{Serialize, Serializer};

use crate::json::MAX_INTEGER;
use crate::tensor::Digest;

/// The name of one of a chain's objects (SPEC section 17.1), below the chain's own prefix.
/// Displayed as the store spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// `chain.json`: the chain document.
    Chain,
    /// `commits/VERSION.json`: the commit of a version.
    Commit(u64),
    /// `routes/VERSION-GENERATION.json`: the routes to a version.
    Routes {
        /// The version that the routes lead to.
        version: u64,
        /// Sequence number of the document among the routes documents of the version, from 1.
        generation: u64,
    },
    /// `files/DIGEST.dcf`: a link, named by the digest of its bytes.
    File(Digest),
    /// `assets/DIGEST`: an asset, named by the digest of its bytes.
    Asset(Digest),
    /// `signatures/VERSION-COMMIT-NOTE`: a note on the commit of a version (SPEC section 23.2).
    Signature {
        /// The version.
        version: u64,
        /// Digest of the bytes of its commit.
        commit: Digest,
        /// Digest of the note's bytes; for the [own note](crate::chain::VerifierKey::own_note) of a
        /// key, the digest of the key.
        note: Digest,
    },
}

/// Number of digits of the state digest in the name of a version.
const STATE_DIGITS: usize = 12;

/// The name that a server gives to a version: its number, and digits of its state digest, such as
/// `12@9417bf72d3e1`.
pub fn version_name(version: u64, state: &str) -> String {
    format!("{version}@{}", state.get(..STATE_DIGITS).unwrap_or(state))
}

impl ObjectName {
    /// The folders of a chain's objects; names in other folders are not part of the chain.
    pub const FOLDERS: [&str; 5] = ["commits", "routes", "files", "assets", "signatures"];

    /// Parses a name as the store spells it. Returns `None` if the object is not part of the chain,
    /// which includes versions too large for a document, and generation 0.
    pub fn parse(name: &str) -> Option<Self> {
        if name == "chain.json" {
            return Some(Self::Chain);
        }
        let (folder, rest) = name.split_once('/')?;
        match *Self::FOLDERS.iter().find(|&&known| known == folder)? {
            "commits" => Some(Self::Commit(version(rest.strip_suffix(".json")?)?)),
            "routes" => {
                let (before, after) = rest.strip_suffix(".json")?.split_once('-')?;
                let generation = number(after, 10).filter(|&generation| generation > 0)?;
                Some(Self::Routes {
                    version: version(before)?,
                    generation,
                })
            }
            "files" => digest(rest.strip_suffix(".dcf")?).map(Self::File),
            "assets" => digest(rest).map(Self::Asset),
            "signatures" => {
                let (before, rest) = rest.split_once('-')?;
                let (commit, note) = rest.split_once('-')?;
                Some(Self::Signature {
                    version: version(before)?,
                    commit: digest(commit)?,
                    note: digest(note)?,
                })
            }
            _ => None,
        }
    }

    /// The generation of a routes document; 0 for a commit, which also names routes.
    pub fn generation(self) -> u64 {
        if let Self::Routes { generation, .. } = self {
            generation
        } else {
            0
        }
    }
}

/// Parses a digest in the only form that names and other texts may have.
pub(super) fn digest(digits: &str) -> Option<Digest> {
    Digest::from_hex(digits).filter(|digest| digest.to_string() == digits)
}

fn version(digits: &str) -> Option<u64> {
    number(digits, 20).filter(|&version| version <= MAX_INTEGER)
}

fn number(digits: &str, width: usize) -> Option<u64> {
    let decimal = digits.len() == width && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !decimal {
        return None;
    }
    digits.parse().ok()
}

/// Serialized as the name.
impl Serialize for ObjectName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain => f.write_str("chain.json"),
            Self::Commit(version) => write!(f, "commits/{version:020}.json"),
            Self::Routes {
                version,
                generation,
            } => write!(f, "routes/{version:020}-{generation:010}.json"),
            Self::File(digest) => write!(f, "files/{digest}.dcf"),
            Self::Asset(digest) => write!(f, "assets/{digest}"),
            Self::Signature {
                version,
                commit,
                note,
            } => write!(f, "signatures/{version:020}-{commit}-{note}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let digest = Digest::of_bytes(b"link");
        let names = [
            (ObjectName::Chain, "chain.json".to_owned()),
            (
                ObjectName::Commit(0),
                "commits/00000000000000000000.json".to_owned(),
            ),
            (
                ObjectName::Commit(MAX_INTEGER),
                "commits/00009007199254740991.json".to_owned(),
            ),
            (
                ObjectName::Routes {
                    version: 12,
                    generation: 9_999_999_999,
                },
                "routes/00000000000000000012-9999999999.json".to_owned(),
            ),
            (ObjectName::File(digest), format!("files/{digest}.dcf")),
            (ObjectName::Asset(digest), format!("assets/{digest}")),
            (
                ObjectName::Signature {
                    version: 12,
                    commit: digest,
                    note: Digest([0xab; 32]),
                },
                format!(
                    "signatures/00000000000000000012-{digest}-{}",
                    "ab".repeat(32)
                ),
            ),
        ];
        for (name, text) in names {
            assert_eq!(name.to_string(), text);
            assert_eq!(ObjectName::parse(&text), Some(name));
        }
    }

    #[test]
    fn notes_are_in_the_order_of_their_names() {
        let name = |version, commit: u8, note: u8| ObjectName::Signature {
            version,
            commit: Digest([commit; 32]),
            note: Digest([note; 32]),
        };
        let names = [
            name(9, 0xff, 0xff),
            name(10, 0, 9),
            name(10, 0x0a, 0),
            name(10, 0x0a, 0xa0),
            name(10, 0xa0, 0),
        ];
        assert!(names.is_sorted() && names.map(|name| name.to_string()).is_sorted());
    }

    #[test]
    fn other_objects_have_no_name() {
        let digest = Digest::of_bytes(b"link").to_string();
        let others = [
            String::new(),
            "chain.json.tmp".to_owned(),
            "/chain.json".to_owned(),
            "commits/0.json".to_owned(),
            "commits/+0000000000000000001.json".to_owned(),
            "commits/000000000000000000000.json".to_owned(),
            "commits/00009007199254740992.json".to_owned(),
            "commits/99999999999999999999.json".to_owned(),
            "commits/00000000000000000000.JSON".to_owned(),
            "commits/a/00000000000000000000.json".to_owned(),
            "routes/00000000000000000012.json".to_owned(),
            "routes/00000000000000000012-0000000000.json".to_owned(),
            "routes/00000000000000000012-00000000001.json".to_owned(),
            "routes/00000000000000000012-0000000001-0000000001.json".to_owned(),
            format!("files/{}.dcf", digest.to_uppercase()),
            format!("files/{}.dcf", &digest[1..]),
            format!("files/{digest}"),
            format!("assets/{}", digest.to_uppercase()),
            format!("assets/{}", &digest[1..]),
            format!("assets/{digest}.json"),
            format!("signatures/{digest}"),
            format!("signatures/12-{digest}-{digest}"),
            format!("signatures/00009007199254740992-{digest}-{digest}"),
            format!("signatures/00000000000000000012-{digest}"),
            format!("signatures/00000000000000000012-{digest}-{digest}.json"),
            format!("signatures/00000000000000000012-{digest}-{digest}-{digest}"),
            format!(
                "signatures/00000000000000000012-{}-{digest}",
                digest.to_uppercase()
            ),
        ];
        for name in others {
            assert_eq!(ObjectName::parse(&name), None, "{name}");
        }
    }
}
