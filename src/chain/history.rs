//! A whole chain, or a range of its versions, for maintenance: every commit with its routes in
//! force, and every fault.
//!
//! A reader needs only a path, which the [`Planner`](crate::chain::Planner) finds.

use std::collections::{BTreeMap, BTreeSet};

use crate::chain::checks::{check_files, check_parent, check_routes, no_commit};
use crate::chain::publishing::{read_chain, read_commit};
use crate::chain::{Commit, FileReference, ObjectName, Route, RoutesDocument};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::rules;
use crate::tensor::Digest;

/// A version with its routes in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Digest of the commit's bytes.
    pub digest: Digest,
    /// The commit.
    pub commit: Commit,
    /// The document that names the routes in force: a routes document or the commit.
    pub source: ObjectName,
    /// The routes in force, without unusable ones (R-CHN-07). Empty if the version has been pruned.
    pub routes: Vec<Route>,
    /// The routes of that document that are known to be direct.
    pub direct: Vec<Route>,
    /// The highest generation of a routes document, usable or not; 0 without routes documents.
    pub(crate) generation: u64,
    /// All routes of earlier usable documents, by generation; the commit is generation 0. Some of
    /// these routes may still be in force.
    pub superseded: BTreeMap<u64, Vec<Route>>,
}

impl HistoryEntry {
    /// The routes of earlier documents, by generation, each generation with the document that
    /// replaced it.
    pub fn replaced(&self) -> impl Iterator<Item = (u64, &Vec<Route>, ObjectName)> {
        let version = self.commit.version;
        let next = self
            .superseded
            .keys()
            .skip(1)
            .copied()
            .chain([self.source.generation()]);
        let replaced = self.superseded.iter().zip(next);
        replaced.map(move |((&generation, routes), next)| {
            (
                generation,
                routes,
                ObjectName::Routes {
                    version,
                    generation: next,
                },
            )
        })
    }

    /// Makes the routes document that puts these routes, given in any order, in force. Its metadata
    /// mark a route as direct if it is known to be direct already, or if `is_direct` returns true
    /// for it.
    pub fn successor(
        &self,
        routes: Vec<Route>,
        is_direct: impl Fn(&Route) -> bool,
    ) -> RoutesDocument {
        let (version, commit) = (self.commit.version, self.digest);
        let (routes, metadata) = (Route::in_order(routes), BTreeMap::new());
        let mut document = RoutesDocument {
            version,
            generation: self.generation + 1,
            commit,
            routes,
            metadata,
        };
        document.mark_direct(|route| self.direct.contains(route) || is_direct(route));
        document
    }
}

/// Versions of a chain, and the faults of their documents.
#[derive(Debug, Default)]
pub struct History {
    /// The versions with a valid commit, by number.
    pub entries: BTreeMap<u64, HistoryEntry>,
    /// Faults of the chain document and of commits, including gaps.
    pub commit_faults: Vec<Error>,
    /// Faults of routes documents and of routes, which readers skip.
    pub route_faults: Vec<Error>,
    /// The routes that readers skip, if their documents can be parsed.
    pub unusable: Vec<Route>,
}

impl History {
    /// Reads the chain document, and the commits and routes documents of all versions from `first`
    /// on.
    pub fn read(documents: &BTreeMap<ObjectName, Vec<u8>>, first: u64, limits: &Limits) -> Self {
        let mut history = Self::default();
        let content = |name: ObjectName| documents.get(&name).map(Vec::as_slice);
        let chain = history.note(read_chain(content(ObjectName::Chain), limits));
        let mut next = first;
        for (&name, bytes) in documents {
            let ObjectName::Commit(version) = name else {
                continue;
            };
            if version > next {
                history.commit_faults.push(gap(next, version - 1));
            }
            next = version + 1;
            if let Some((digest, commit)) = history.note(read_commit(version, Some(bytes), limits))
            {
                let routes = commit.routes.clone();
                let direct = marked(&routes, &commit.direct_routes());
                let superseded = BTreeMap::new();
                history.entries.insert(
                    version,
                    HistoryEntry {
                        digest,
                        commit,
                        source: name,
                        routes,
                        direct,
                        generation: 0,
                        superseded,
                    },
                );
            }
        }
        history.check_parents(chain);
        history.find_routes(documents, limits);
        history.check_routes();
        history
    }

    /// Returns a version.
    ///
    /// # Errors
    /// R-CHN-03 (`CHAIN`) if it has no commit, or a commit with a fault.
    pub fn entry(&self, version: u64) -> Result<&HistoryEntry> {
        self.entries
            .get(&version)
            .ok_or_else(|| gap(version, version))
    }

    /// The files that commits and routes documents name, including those of unusable routes.
    pub fn named(&self) -> BTreeSet<ObjectName> {
        let entries = self.entries.values();
        let routes =
            entries.flat_map(|entry| entry.superseded.values().flatten().chain(&entry.routes));
        routes
            .chain(&self.unusable)
            .flat_map(|route| &route.files)
            .map(FileReference::name)
            .collect()
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|fault| self.commit_faults.push(fault)).ok()
    }

    /// R-CHN-04.
    fn check_parents(&mut self, chain: Option<Digest>) {
        let digest_of = |version: u64| self.entries.get(&version).map(|entry| entry.digest);
        let faults = self.entries.iter().filter_map(|(&version, entry)| {
            let before = version.checked_sub(1).map_or(chain, digest_of)?;
            check_parent(version, &entry.commit, before).err()
        });
        let faults: Vec<Error> = faults.collect();
        self.commit_faults.extend(faults);
    }

    /// Finds the usable routes document with the highest generation of each version.
    fn find_routes(&mut self, documents: &BTreeMap<ObjectName, Vec<u8>>, limits: &Limits) {
        for (&name, bytes) in documents {
            let ObjectName::Routes {
                version,
                generation,
            } = name
            else {
                continue;
            };
            let entry = self.entries.get_mut(&version);
            let digest = entry.as_ref().map(|entry| entry.digest);
            let read = RoutesDocument::parse(bytes, limits).and_then(|document| {
                let fits = check_routes(name, &document, digest);
                if fits.is_err() {
                    self.unusable.extend_from_slice(&document.routes);
                }
                fits.map(|()| document)
            });
            if let (Some(entry), Ok(document)) = (entry, &read) {
                // Documents ascend by generation.
                let before = std::mem::replace(&mut entry.source, name).generation();
                let routes = std::mem::replace(&mut entry.routes, document.routes.clone());
                entry.direct = marked(&document.routes, &document.direct_routes());
                entry.superseded.insert(before, routes);
            }
            if let Some(entry) = self.entries.get_mut(&version) {
                entry.generation = generation;
            }
            self.route_faults
                .extend(read.err().map(|fault| fault.in_file(name.to_string())));
        }
    }

    /// R-CHN-07.
    fn check_routes(&mut self) {
        let shards: BTreeMap<u64, usize> = self
            .entries
            .iter()
            .map(|(&version, entry)| (version, entry.commit.shards.len()))
            .collect();
        for (&version, HistoryEntry { source, routes, .. }) in &mut self.entries {
            routes.retain(|route| {
                let fits = check_files(version, route, |version| shards.get(&version).copied());
                if let Err(fault) = fits {
                    self.unusable.push(route.clone());
                    self.route_faults.push(fault.in_file(source.to_string()));
                    return false;
                }
                true
            });
        }
    }
}

/// The routes that are known to be direct.
fn marked(routes: &[Route], direct: &[bool]) -> Vec<Route> {
    routes
        .iter()
        .zip(direct)
        .filter(|(_, direct)| **direct)
        .map(|(route, _)| route.clone())
        .collect()
}

/// R-CHN-03.
fn gap(first: u64, last: u64) -> Error {
    if first == last {
        return no_commit(first);
    }
    let message = format!("there are no commits of versions {first} to {last}");
    Error::broken(&rules::CHN_03, message).in_file(ObjectName::Commit(first).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainDocument;

    fn route(from: Option<u64>, files: usize) -> Route {
        Route {
            from,
            files: vec![
                FileReference {
                    digest: Digest::of_bytes(b"a file"),
                    size: 6
                };
                files
            ],
        }
    }

    /// A chain of `count` versions, each with a link from the one before.
    fn documents(count: u64) -> BTreeMap<ObjectName, Vec<u8>> {
        let chain = ChainDocument::new(1).to_bytes().unwrap();
        let mut parent = Digest::of_bytes(&chain);
        let mut documents = BTreeMap::from([(ObjectName::Chain, chain)]);
        for version in 0..count {
            let state = Digest::of_bytes(&version.to_le_bytes());
            let routes = vec![route(version.checked_sub(1), 1)];
            let commit = Commit {
                version,
                parent,
                state,
                shards: vec![state],
                routes,
                assets: Vec::new(),
                metadata: BTreeMap::new(),
            }
            .to_bytes()
            .unwrap();
            parent = Digest::of_bytes(&commit);
            documents.insert(ObjectName::Commit(version), commit);
        }
        documents
    }

    fn read(documents: &BTreeMap<ObjectName, Vec<u8>>) -> History {
        History::read(documents, 0, &Limits::default())
    }

    fn rules(faults: &[Error]) -> Vec<(&str, &str)> {
        faults
            .iter()
            .map(|fault| (fault.rule().unwrap(), fault.file().unwrap()))
            .collect()
    }

    const COMMITS: [&str; 4] = [
        "commits/00000000000000000000.json",
        "commits/00000000000000000001.json",
        "commits/00000000000000000002.json",
        "commits/00000000000000000003.json",
    ];

    #[test]
    fn the_highest_usable_generation_is_in_force() {
        let mut documents = documents(3);
        let entry = read(&documents).entries[&2].clone();
        assert_eq!((entry.source, entry.generation), (ObjectName::Commit(2), 0));
        let first = entry.successor(vec![route(None, 1)], |_| false);
        let name = |generation| ObjectName::Routes {
            version: 2,
            generation,
        };
        documents.insert(name(1), first.to_bytes().unwrap());
        let entry = read(&documents).entries[&2].clone();
        assert_eq!(
            (entry.source, entry.generation, &entry.routes),
            (name(1), 1, &first.routes)
        );

        // For another commit, of another name, no document.
        let stray = RoutesDocument {
            generation: 2,
            commit: Digest::of_bytes(b""),
            ..first.clone()
        };
        documents.insert(name(2), stray.to_bytes().unwrap());
        documents.insert(name(3), first.to_bytes().unwrap());
        documents.insert(name(4), b"{}".to_vec());
        documents.insert(
            ObjectName::Routes {
                version: 9,
                generation: 1,
            },
            first.to_bytes().unwrap(),
        );
        let history = read(&documents);
        let entry = &history.entries[&2];
        assert_eq!((entry.source, entry.generation), (name(1), 4));
        assert_eq!(entry.successor(Vec::new(), |_| false).generation, 5);
        let names: Vec<String> = [2, 3, 4]
            .map(|generation| name(generation).to_string())
            .into();
        let stray = ObjectName::Routes {
            version: 9,
            generation: 1,
        }
        .to_string();
        assert_eq!(
            rules(&history.route_faults),
            [
                ("R-CHN-06", &*names[0]),
                ("R-CHN-02", &*names[1]),
                ("R-DOC-01", &*names[2]),
                ("R-CHN-02", &*stray)
            ]
        );
        assert!(history.commit_faults.is_empty());
    }

    #[test]
    fn what_is_said_of_routes_that_stay_is_carried_over() {
        let mut documents = documents(3);
        let marks = |document: &RoutesDocument| document.metadata.get("deltachain.direct").cloned();
        let entry = read(&documents).entries[&2].clone();
        let stays = route(Some(1), 1);
        let first = entry.successor(
            vec![route(None, 1), route(Some(0), 1), stays.clone()],
            |route| *route == stays,
        );
        assert_eq!(marks(&first).as_deref(), Some("2"));
        documents.insert(
            ObjectName::Routes {
                version: 2,
                generation: 1,
            },
            first.to_bytes().unwrap(),
        );
        let entry = read(&documents).entries[&2].clone();
        let without = entry.successor(vec![stays.clone(), route(Some(0), 1)], |_| false);
        assert_eq!(marks(&without).as_deref(), Some("1"));
        assert_eq!(
            marks(&entry.successor(vec![route(Some(0), 1)], |_| false)),
            None
        );
        let both = entry.successor(vec![stays, route(Some(0), 1), route(None, 1)], |_| true);
        assert_eq!(marks(&both).as_deref(), Some("1 2"));
        // Marks of the commit are carried over likewise.
        let mut commit = entry.commit;
        commit.mark_direct(|_| true);
        documents = BTreeMap::from([(ObjectName::Commit(2), commit.to_bytes().unwrap())]);
        let entry = History::read(&documents, 2, &Limits::default()).entries[&2].clone();
        assert_eq!(
            marks(&entry.successor(commit.routes, |_| false)).as_deref(),
            Some("0")
        );
    }

    #[test]
    fn faults_of_commits_are_told_and_the_rest_is_read() {
        let whole = documents(4);
        let history = read(&whole);
        assert_eq!(
            (
                history.entries.len(),
                history.commit_faults.len(),
                history.route_faults.len()
            ),
            (4, 0, 0)
        );

        let mut gap = whole.clone();
        gap.remove(&ObjectName::Commit(1));
        gap.remove(&ObjectName::Commit(2));
        let history = read(&gap);
        assert_eq!(rules(&history.commit_faults), [("R-CHN-03", COMMITS[1])]);
        assert!(history.commit_faults[0].message().contains("1 to 2"));
        assert_eq!(history.entries.keys().copied().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(history.entry(2).unwrap_err().rule(), Some("R-CHN-03"));
        assert_eq!(history.entry(3).unwrap().commit.version, 3);

        let mut fork = whole.clone();
        fork.insert(ObjectName::Commit(1), {
            let mut other = read(&whole).entries[&1].commit.clone();
            other.metadata.insert("a".to_owned(), String::new());
            other.to_bytes().unwrap()
        });
        assert_eq!(
            rules(&read(&fork).commit_faults),
            [("R-CHN-04", COMMITS[2])]
        );

        let mut other_chain = whole.clone();
        other_chain.insert(ObjectName::Chain, ChainDocument::new(2).to_bytes().unwrap());
        assert_eq!(
            rules(&read(&other_chain).commit_faults),
            [("R-CHN-04", COMMITS[0])]
        );

        let mut broken = whole.clone();
        broken.insert(ObjectName::Commit(3), whole[&ObjectName::Commit(2)].clone());
        broken.insert(ObjectName::Commit(0), b"{}".to_vec());
        broken.remove(&ObjectName::Chain);
        assert_eq!(
            rules(&read(&broken).commit_faults),
            [
                ("R-CHN-01", "chain.json"),
                ("R-DOC-01", COMMITS[0]),
                ("R-CHN-02", COMMITS[3])
            ]
        );
    }

    #[test]
    fn a_stretch_may_begin_anywhere() {
        let mut documents = documents(4);
        documents.remove(&ObjectName::Commit(0));
        documents.remove(&ObjectName::Commit(1));
        let history = History::read(&documents, 2, &Limits::default());
        assert!(history.commit_faults.is_empty());
        assert_eq!(history.entries.len(), 2);
    }

    #[test]
    fn routes_have_a_file_for_each_shard() {
        let mut documents = documents(2);
        let entry = read(&documents).entries[&1].clone();
        let routes = vec![
            route(Some(0), 1),
            route(Some(0), 2),
            route(None, 2),
            route(Some(0), 1),
        ];
        let document = entry.successor(routes, |_| false);
        assert_eq!(
            document.routes,
            [route(None, 2), route(Some(0), 1), route(Some(0), 2)]
        );
        let name = ObjectName::Routes {
            version: 1,
            generation: 1,
        };
        documents.insert(name, document.to_bytes().unwrap());
        let history = read(&documents);
        // Each route by itself; other routes from the same version do not matter.
        let name = name.to_string();
        assert_eq!(
            rules(&history.route_faults),
            [("R-CHN-07", &*name), ("R-CHN-07", &*name)]
        );
        assert_eq!(history.entries[&1].routes, [route(Some(0), 1)]);
    }
}
