//! Publishing (SPEC section 20): the document that the next commit follows, and checks of that
//! commit.

use std::collections::BTreeMap;

use crate::chain::checks::{check_parent, check_version, no_commit};
use crate::chain::{Asset, ChainDocument, Commit, ObjectName, Route};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::plain_name::lies_in;
use crate::rules::{self, ensure};
use crate::tensor::Digest;

/// Longest duration of an attempt, in seconds (R-PUB-08).
const LONGEST: u64 = 20 * 3600;

/// The parent of the next commit: the head's commit, or the chain document if there is no version
/// yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    digest: Digest,
    head: Option<Commit>,
}

impl Parent {
    /// Reads the contents of the chain document and of the head's commit. Each is `None` if the
    /// object does not exist; `head` is `None` if no version has been listed.
    ///
    /// # Errors
    /// R-CHN-01 to R-CHN-04, R-LIM-05, R-DOC-01 to R-DOC-08.
    pub fn read(
        chain: Option<&[u8]>,
        head: Option<(u64, Option<&[u8]>)>,
        limits: &Limits,
    ) -> Result<Self> {
        let chain = read_chain(chain, limits)?;
        let Some((version, content)) = head else {
            return Ok(Self {
                digest: chain,
                head: None,
            });
        };
        let (digest, commit) = read_commit(version, content, limits)?;
        if version == 0 {
            check_parent(version, &commit, chain)?;
        }
        Ok(Self {
            digest,
            head: Some(commit),
        })
    }

    /// Digest of the document's bytes.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The head's commit; `None` if there is no version yet.
    pub fn head(&self) -> Option<&Commit> {
        self.head.as_ref()
    }

    /// Number of the next version.
    pub fn next_version(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.version + 1)
    }

    /// The head's commit, for links that are made from a base.
    ///
    /// # Errors
    /// R-PUB-01 (`CHAIN`) if there is no version yet.
    pub fn head_for_base(&self) -> Result<&Commit> {
        let message =
            "the chain has no version yet, so no link can be made from a base: publish without one";
        self.head
            .as_ref()
            .ok_or_else(|| Error::broken(&rules::PUB_01, message))
    }

    /// Checks that the base of a link is this shard of the head.
    ///
    /// # Errors
    /// R-PUB-01 (`CHAIN`).
    pub fn check_base(&self, shard: usize, base: Digest) -> Result<()> {
        let Commit {
            version, shards, ..
        } = self.head_for_base()?;
        let expected = shards
            .get(shard)
            .map_or_else(|| "none".to_owned(), Digest::to_string);
        ensure(base.to_string() == expected, &rules::PUB_01, || {
            let what = if shards.len() == 1 {
                "base".to_owned()
            } else {
                format!("base of shard {shard}")
            };
            format!(
                "the {what} is not the newest version, {version}: its digest is {base} instead of \
                 {expected}"
            )
        })
    }

    /// Checks that the chain continues from a version that the publisher has published or followed.
    /// The version is given with the digest of its commit.
    ///
    /// # Errors
    /// R-PUB-11 (`CHAIN`).
    pub fn check_goes_on(&self, (version, commit): (u64, Digest)) -> Result<()> {
        let goes_on =
            self.head
                .as_ref()
                .is_some_and(|head| match head.version.checked_sub(version) {
                    Some(0) => self.digest == commit,
                    Some(1) => head.parent == commit,
                    above => above.is_some(),
                });
        if goes_on {
            Ok(())
        } else {
            Err(self.head_lost(version))
        }
    }

    /// The failure to report if the store has lost a version that was published: R-PUB-11.
    pub fn head_lost(&self, version: u64) -> Error {
        let name = ObjectName::Commit(version).to_string();
        let newest = self
            .head
            .as_ref()
            .map_or_else(|| "none".to_owned(), |head| head.version.to_string());
        let message = format!(
            "version {version} was published, but its commit is no longer in the store (the newest \
             version is {newest}), and its number is never used again. Restore {name} from a copy; \
             if it is lost for good, vouch for what the next version follows instead, {}",
            self.digest
        );
        Error::broken(&rules::PUB_11, message).in_file(name)
    }

    /// Checks that prepared links were made to follow this document.
    ///
    /// # Errors
    /// R-PUB-01 (`CHAIN`).
    pub fn check_follows(&self, version: u64, parent: Digest) -> Result<()> {
        ensure(
            (version, parent) == (self.next_version(), self.digest),
            &rules::PUB_01,
            || {
                format!(
                    "the links were made for version {version} after the document {parent}, but \
                     the next version is {} after {}",
                    self.next_version(),
                    self.digest
                )
            },
        )
    }

    /// Makes the next commit. The routes and the assets may be in any order.
    ///
    /// # Errors
    /// R-PUB-04 (`CHAIN`).
    pub fn next(
        &self,
        state: Digest,
        shards: Vec<Digest>,
        routes: Vec<Route>,
        mut assets: Vec<Asset>,
        metadata: BTreeMap<String, String>,
    ) -> Result<Commit> {
        let parent = self.head.as_ref().map(|head| head.version);
        let leads_here = routes
            .iter()
            .any(|route| route.from.is_none() || route.from == parent);
        ensure(leads_here, &rules::PUB_04, || {
            "no route starts from nothing or from the previous version".into()
        })?;
        let routes = Route::in_order(routes);
        assets.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(Commit {
            version: self.next_version(),
            parent: self.digest,
            state,
            shards,
            routes,
            assets,
            metadata,
        })
    }
}

/// Checks that no asset has the name of a folder of the version's layouts. `folders` are these
/// folders, each with a `/` at its end.
///
/// # Errors
/// R-PUB-10 (`CHAIN`).
pub fn check_folders<'a>(
    assets: &[Asset],
    folders: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    folders.into_iter().try_for_each(|folder| {
        let clash = assets.iter().find(|asset| lies_in(folder, &asset.name));
        ensure(clash.is_none(), &rules::PUB_10, || {
            let name = clash.map_or("", |asset| &asset.name);
            format!(
                "{name:?} cannot be a file of the version: files of tensors lie in the folder \
                 {folder:?}"
            )
        })
    })
}

/// Checks the object whose name kept a commit from being created. `own` are the bytes of that
/// commit, and `found` those of the object.
///
/// # Errors
/// R-PUB-03 (`CHAIN`) if another writer was first.
pub fn check_taken(version: u64, own: &[u8], found: Option<&[u8]>) -> Result<()> {
    ensure(found == Some(own), &rules::PUB_03, || {
        format!("another writer has published version {version}; this one has not been published")
    })
    .map_err(|error| error.in_file(ObjectName::Commit(version).to_string()))
}

/// The failure to report if a chain has objects, such as this one, but no chain document: R-CHN-01.
pub fn chain_lost(object: ObjectName) -> Error {
    let message = format!(
        "there is no chain document, but there are objects of a chain, such as {object}: put the \
         old chain.json back, byte for byte, or begin a chain elsewhere"
    );
    Error::broken(&rules::CHN_01, message).in_file(ObjectName::Chain.to_string())
}

/// The failure to report if the version before the head has no commit: R-PUB-09.
pub fn head_after_gap(head: u64) -> Error {
    let message = format!(
        "the head, version {head}, follows a gap: earlier commits were lost, or this object does \
         not belong to the chain"
    );
    Error::broken(&rules::PUB_09, message).in_file(ObjectName::Commit(head).to_string())
}

/// The failure to report if the head is not signed as the publisher's own trust requires: R-SIG-03.
pub fn head_not_signed(version: u64, commit: Digest) -> Error {
    let message = format!(
        "the head, version {version}, is not signed by the trusted keys: somebody else may have \
         published it. Check it, and if it is yours, vouch for its commit, {commit}"
    );
    Error::broken(&rules::SIG_03, message).in_file(ObjectName::Commit(version).to_string())
}

/// The failure to report if another object has the name of a note: R-SIG-02.
pub fn note_taken(name: ObjectName) -> Error {
    let message = "another object has the name of the note; no reader uses it: delete it";
    Error::broken(&rules::SIG_02, message).in_file(name.to_string())
}

/// Checks the number of seconds since the writer began to store a file. To be called before the
/// writer stores the document that names the file.
///
/// # Errors
/// R-PUB-08 (`CHAIN`).
pub fn check_duration(seconds: u64) -> Result<()> {
    ensure(seconds < LONGEST, &rules::PUB_08, || {
        let hours = seconds / 3600;
        format!(
            "the files were stored {hours} hours ago, too long: a prune may delete them as old; \
             start over"
        )
    })
}

/// The failure to report if this document was stored 20 hours or more after a file that it names:
/// R-PUB-08.
pub fn came_late(document: ObjectName) -> Error {
    let why = "by the store's clock, this document was stored 20 hours or more after its files, so \
               a prune may delete them as old";
    may_be_unusable(document, why)
}

/// The failure to report if a document was stored, but the store cannot be asked whether its files
/// were recent enough: R-PUB-08. `error` says why.
pub fn time_unknown(document: ObjectName, error: &Error) -> Error {
    let why = format!(
        "this document may have been stored 20 hours or more after its files, so a prune may \
         delete them as old; the store could not be asked for the time ({error:#})"
    );
    may_be_unusable(document, &why)
}

fn may_be_unusable(document: ObjectName, why: &str) -> Error {
    let (what, again) = match document {
        ObjectName::Commit(version) => (
            format!("version {version} is visible"),
            "publish again, which adds a snapshot",
        ),
        _ => ("the new routes are in force".to_owned(), "compact again"),
    };
    let message = format!("{what}, but may become unusable: {why}. To repair that, {again}");
    Error::broken(&rules::PUB_08, message).in_file(document.to_string())
}

/// The failure to report if the name of a routes document is taken: R-PUB-06.
pub fn routes_taken(name: ObjectName) -> Error {
    let message =
        "another process has changed the routes to this version in the meantime; start over";
    Error::broken(&rules::PUB_06, message).in_file(name.to_string())
}

/// Checks R-CHN-01 and returns the digest of the chain document.
pub(super) fn read_chain(content: Option<&[u8]>, limits: &Limits) -> Result<Digest> {
    let content = content.ok_or_else(|| Error::broken(&rules::CHN_01, "there is no chain"));
    content
        .and_then(|bytes| ChainDocument::parse(bytes, limits).map(|_| Digest::of_bytes(bytes)))
        .map_err(|error| error.in_file(ObjectName::Chain.to_string()))
}

/// Checks R-CHN-02 and R-CHN-03 and returns the commit with the digest of its bytes.
pub(super) fn read_commit(
    version: u64,
    content: Option<&[u8]>,
    limits: &Limits,
) -> Result<(Digest, Commit)> {
    let read = content.ok_or_else(|| no_commit(version)).and_then(|bytes| {
        let commit = Commit::parse(bytes, limits)?;
        check_version(version, &commit)?;
        Ok((Digest::of_bytes(bytes), commit))
    });
    read.map_err(|error| error.in_file(ObjectName::Commit(version).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::FileReference;

    fn chain_document() -> Vec<u8> {
        ChainDocument::new(7).to_bytes().unwrap()
    }

    fn route(from: Option<u64>) -> Route {
        Route {
            from,
            files: vec![FileReference {
                digest: Digest::of_bytes(b"a file"),
                size: 6,
            }],
        }
    }

    fn next(parent: &Parent, state: &[u8], from: &[Option<u64>]) -> Result<Commit> {
        let state = Digest::of_bytes(state);
        parent.next(
            state,
            vec![state],
            from.iter().copied().map(route).collect(),
            Vec::new(),
            BTreeMap::new(),
        )
    }

    fn read(chain: Option<&[u8]>, head: Option<(u64, Option<&[u8]>)>) -> Result<Parent> {
        Parent::read(chain, head, &Limits::default())
    }

    #[test]
    fn commits_follow_one_another() {
        let chain = chain_document();
        let parent = read(Some(&chain), None).unwrap();
        assert_eq!(
            (parent.next_version(), parent.head(), parent.digest()),
            (0, None, Digest::of_bytes(&chain))
        );
        assert_eq!(parent.head_for_base().unwrap_err().rule(), Some("R-PUB-01"));
        parent.check_follows(0, Digest::of_bytes(&chain)).unwrap();
        let first = next(&parent, b"0", &[None]).unwrap();
        assert_eq!((first.version, first.parent), (0, Digest::of_bytes(&chain)));

        let bytes = first.to_bytes().unwrap();
        let parent = read(Some(&chain), Some((0, Some(&bytes)))).unwrap();
        assert_eq!(
            (parent.next_version(), parent.digest()),
            (1, Digest::of_bytes(&bytes))
        );
        parent.check_base(0, Digest::of_bytes(b"0")).unwrap();
        let error = parent.check_base(0, Digest::of_bytes(b"1")).unwrap_err();
        assert_eq!(
            (error.rule(), error.class().name()),
            (Some("R-PUB-01"), "CHAIN")
        );
        assert!(error.message().contains(&first.state.to_string()));
        assert!(
            error
                .message()
                .contains(&Digest::of_bytes(b"1").to_string())
        );
        assert_eq!(
            parent
                .check_base(1, Digest::of_bytes(b"0"))
                .unwrap_err()
                .rule(),
            Some("R-PUB-01")
        );
        parent.check_follows(1, Digest::of_bytes(&bytes)).unwrap();
        for (version, digest) in [(0, Digest::of_bytes(&bytes)), (1, Digest::of_bytes(&chain))] {
            assert_eq!(
                parent.check_follows(version, digest).unwrap_err().rule(),
                Some("R-PUB-01")
            );
        }
        // Given in any order, written as readers want it.
        let second = next(&parent, b"1", &[Some(0), None, Some(0)]).unwrap();
        assert_eq!(second.routes, [route(None), route(Some(0))]);
        second.to_bytes().unwrap();
        let asset = |name: &str| Asset {
            name: name.to_owned(),
            file: FileReference {
                digest: Digest::of_bytes(b""),
                size: 0,
            },
        };
        let (routes, assets) = (vec![route(None)], vec![asset("b"), asset("C"), asset("a")]);
        let second = parent
            .next(second.state, second.shards, routes, assets, BTreeMap::new())
            .unwrap();
        assert_eq!(second.assets, [asset("C"), asset("a"), asset("b")]);
        second.to_bytes().unwrap();
    }

    #[test]
    fn a_commit_can_be_reached() {
        let chain = chain_document();
        let parent = read(Some(&chain), None).unwrap();
        assert_eq!(
            next(&parent, b"0", &[]).unwrap_err().rule(),
            Some("R-PUB-04")
        );
        let commit = Commit {
            version: 4,
            ..next(&parent, b"4", &[None]).unwrap()
        }
        .to_bytes()
        .unwrap();
        let parent = read(Some(&chain), Some((4, Some(&commit)))).unwrap();
        assert_eq!(
            next(&parent, b"5", &[Some(1), Some(3)]).unwrap_err().rule(),
            Some("R-PUB-04")
        );
        assert_eq!(next(&parent, b"5", &[Some(4), Some(1)]).unwrap().version, 5);
    }

    #[test]
    fn a_parent_is_checked() {
        let chain = chain_document();
        let commit = next(&read(Some(&chain), None).unwrap(), b"0", &[None]).unwrap();
        let first = commit.to_bytes().unwrap();
        let stray = Commit {
            parent: Digest::of_bytes(b""),
            ..commit
        }
        .to_bytes()
        .unwrap();
        for (head, rule) in [
            ((0, None), "R-CHN-03"),
            ((1, Some(&first[..])), "R-CHN-02"),
            ((0, Some(&first[1..])), "R-DOC-01"),
            ((0, Some(&stray[..])), "R-CHN-04"),
        ] {
            let error = read(Some(&chain), Some(head)).unwrap_err();
            assert_eq!(error.rule(), Some(rule));
            assert_eq!(error.file(), Some(&*ObjectName::Commit(head.0).to_string()));
        }
        assert_eq!(read(None, None).unwrap_err().rule(), Some("R-CHN-01"));
        assert_eq!(
            read(Some(b"{}"), None).unwrap_err().file(),
            Some("chain.json")
        );
    }

    #[test]
    fn a_name_that_is_taken_by_the_same_bytes_is_a_success() {
        check_taken(3, b"own", Some(b"own")).unwrap();
        for found in [Some(&b"other"[..]), None] {
            let error = check_taken(3, b"own", found).unwrap_err();
            assert_eq!(
                (error.rule(), error.class().name()),
                (Some("R-PUB-03"), "CHAIN")
            );
            assert!(
                error
                    .message()
                    .contains("another writer has published version 3")
            );
        }
    }
}
