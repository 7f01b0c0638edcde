//! Readers with trust: the head that they select, the seen head, and notes that do not count.

use std::sync::Arc;

use super::*;
use crate::chain::{Note, SignatureCheck, Signer, SigningKey, Trust, TrustedKey, VerifierKey};

fn key(name: &str) -> Arc<dyn Signer> {
    Arc::new(SigningKey::from_seed(name, Digest::of_bytes(name.as_bytes()).0).unwrap())
}

fn trust(names: &[&str], quorum: usize) -> Trust {
    Trust::new(names.iter().map(|name| key(name).public().clone()), quorum).unwrap()
}

impl Store {
    /// Stores a note on the commit of a version, signed by these keys, under the name from its
    /// digest and as each key's own note.
    fn sign(self, version: u64, names: &[&str]) -> Self {
        let commit = self.digest(commit(version));
        let (mut store, note) = self.sign_as_1_1(version, names);
        for name in names {
            store.put(key(name).public().own_note(version, commit), note.clone());
        }
        store
    }

    /// Stores the note under the name from its digest only; also returns it.
    fn sign_as_1_1(mut self, version: u64, names: &[&str]) -> (Self, Vec<u8>) {
        let signers: Vec<_> = names.iter().map(|name| key(name)).collect();
        let chain = self.digest(ObjectName::Chain);
        let commit = self.digest(commit(version));
        let (name, note) = Note::make(chain, version, commit, &signers).unwrap();
        self.put(name, note.clone());
        (self, note)
    }

    /// Removes all notes on a version.
    fn unsign(mut self, version: u64) -> Self {
        self.objects.retain(|name, _| {
            !matches!(ObjectName::parse(name), Some(ObjectName::Signature { version: of, .. }) if of == version)
        });
        self
    }

    /// Makes a chain whose versions are signed by `a`.
    fn signed(versions: u64) -> Self {
        let add = |store: Self, version: u64| {
            store
                .add(&[(version.checked_sub(1), &[10])])
                .sign(version, &["a"])
        };
        (0..versions).fold(Self::new(), add)
    }

    /// Replaces the commit of a version by another one, and removes those above it.
    fn fork(mut self, version: u64) -> Self {
        for above in version..self.commits.len() as u64 {
            self.objects.remove(&commit(above).to_string());
        }
        self.commits.truncate(usize::try_from(version).unwrap());
        self.add(&[(version.checked_sub(1), &[11])])
    }

    fn seen(&self, version: u64) -> Option<(u64, Digest)> {
        self.objects
            .get(&commit(version).to_string())
            .map(|bytes| (version, Digest::of_bytes(bytes)))
    }

    fn planned(
        &self,
        wanted: Option<u64>,
        held: Option<VersionId>,
        trust: &Trust,
        seen: Option<(u64, Digest)>,
    ) -> Outcome {
        self.drive(&mut planner(wanted, held).trust(trust.clone(), seen))
            .map(|(plan, _)| plan)
            .map_err(Box::new)
    }
}

type Outcome = Result<Plan, Box<Error>>;

/// Returns the version, or the rule and the version of the faulty commit.
fn short(outcome: &Outcome) -> Result<u64, (&'static str, Option<u64>)> {
    outcome.as_ref().map(|plan| plan.version).map_err(|error| {
        let version = match error.file().and_then(ObjectName::parse) {
            Some(ObjectName::Commit(version)) => Some(version),
            _ => None,
        };
        (error.rule().unwrap(), version)
    })
}

fn of_plan(outcome: Outcome) -> SignatureCheck {
    outcome.unwrap().signed.unwrap()
}

#[test]
fn the_head_is_the_highest_signed_version() {
    let a = trust(&["a"], 1);
    let store = Store::signed(6);
    let held = store.held(4);
    let plan = store.planned(None, held, &a, None);
    assert_eq!(short(&plan), Ok(5));
    assert_eq!(path(plan.as_ref().unwrap()), (Some(4), vec![5]));
    let by = vec![key("a").public().clone()];
    assert_eq!(
        of_plan(plan),
        SignatureCheck {
            by,
            seen: store.seen(5),
            unsigned_head: None
        }
    );

    // A stranger's versions above the head, signed by the stranger or by no key.
    for signers in [&["stranger"][..], &[]] {
        let mut stranger = store.clone().add(&[(Some(5), &[10])]).add(&[(None, &[1])]);
        if !signers.is_empty() {
            stranger = stranger.sign(6, signers).sign(7, signers);
        }
        for held in [None, store.held(4), store.held(5)] {
            let plan = stranger.planned(None, held, &a, None);
            assert_eq!(short(&plan), Ok(5));
            let signed = of_plan(plan);
            let unsigned = signed.unsigned_head.unwrap().to_string();
            assert_eq!(signed.seen, store.seen(5));
            assert_eq!(
                unsigned,
                "version 7 exists, but none of the trusted keys has signed it"
            );
        }
        // They do not matter either if they are not documents, or have another version's number.
        stranger.put(commit(7), b"{}".to_vec());
        stranger.put(commit(6), stranger.objects[&commit(5).to_string()].clone());
        assert_eq!(
            short(&stranger.planned(None, store.held(4), &a, None)),
            Ok(5)
        );
        assert_eq!(
            short(&stranger.planned(Some(7), None, &a, None)),
            Err(("R-SIG-01", Some(7)))
        );
        assert_eq!(
            short(&stranger.planned(Some(8), None, &a, None)),
            Err(("R-CHN-03", Some(8)))
        );
    }
    let stranger = Store::signed(5).add(&[(Some(4), &[10])]);
    let plan = stranger.planned(None, stranger.held(4), &a, None);
    assert_eq!(path(plan.as_ref().unwrap()), (None, vec![]));
    assert_eq!(of_plan(plan).unsigned_head.unwrap().version, 5);
}

#[test]
fn trust_that_does_not_fit_is_no_rollback() {
    let store = Store::signed(6);
    let unsigned = |outcome: Outcome| {
        let error = outcome.unwrap_err();
        (
            error.rule().unwrap(),
            error
                .unsigned()
                .map(|unsigned| (unsigned.version, unsigned.signed_by, unsigned.quorum)),
        )
    };
    // The error names the newest version that waits for another signature.
    let both = trust(&["a", "b"], 2);
    let by_a = Some((5, 1, 2));
    assert_eq!(
        unsigned(store.planned(None, None, &both, None)),
        ("R-SIG-01", by_a)
    );
    assert_eq!(
        unsigned(store.planned(Some(5), None, &both, None)),
        ("R-SIG-01", by_a)
    );
    for held in [store.held(4), store.held(5)] {
        assert_eq!(
            unsigned(store.planned(None, held, &both, None)),
            ("R-CHN-14", by_a)
        );
        let removed = store.planned(None, held, &trust(&["b"], 1), None);
        assert_eq!(unsigned(removed), ("R-CHN-14", Some((5, 0, 1))));
    }
    assert_eq!(
        unsigned(store.planned(None, None, &trust(&["b"], 1), store.seen(5))),
        ("R-CHN-14", Some((5, 0, 1)))
    );
    // A rollback and an empty chain have nothing to do with signatures.
    let a = trust(&["a"], 1);
    assert_eq!(
        unsigned(Store::signed(4).planned(None, store.held(5), &a, None)),
        ("R-CHN-14", None)
    );
    assert_eq!(
        unsigned(Store::signed(0).planned(None, None, &a, None)),
        ("R-SIG-01", None)
    );
}

#[test]
fn a_signed_version_vouches_for_those_below() {
    let a = trust(&["a"], 1);
    let store = Store::signed(6).unsign(3).unsign(4);
    assert_eq!(
        path(store.planned(None, None, &a, None).as_ref().unwrap()),
        (None, vec![0, 1, 2, 3, 4, 5])
    );
    assert_eq!(
        short(&store.planned(Some(4), None, &a, None)),
        Err(("R-SIG-01", Some(4)))
    );
    assert_eq!(short(&store.planned(Some(2), None, &a, None)), Ok(2));
    // A stranger's commit is between two honest ones.
    let mut between = store.clone();
    between.change_commit(3, |commit| {
        commit.metadata = BTreeMap::from([("other".to_owned(), String::new())]);
    });
    assert_eq!(
        short(&between.planned(None, store.held(2), &a, None)),
        Err(("R-CHN-04", Some(4)))
    );
    assert_eq!(
        short(&between.planned(None, None, &a, None)),
        Err(("R-CHN-04", Some(4)))
    );
    // A signed commit that is not a valid document is a fault of the chain.
    let mut broken = Store::signed(2);
    broken.put(commit(1), b"{}".to_vec());
    let broken = broken.sign(1, &["a"]);
    assert_eq!(
        short(&broken.planned(None, None, &a, None)),
        Err(("R-DOC-01", Some(1)))
    );
    assert_eq!(
        short(&broken.planned(Some(1), None, &a, None)),
        Err(("R-DOC-01", Some(1)))
    );
    // An interrupted publisher leaves a note without its commit.
    let mut stopped = Store::signed(6);
    stopped.remove(commit(5));
    assert_eq!(
        short(&stopped.planned(None, store.held(4), &a, None)),
        Ok(4)
    );
    // A commit that is too long does not count as signed.
    let short_limit = Limits {
        document_bytes: 600,
        ..Limits::default()
    };
    let mut long = Store::signed(2);
    long.change_commit(1, |commit| {
        commit.metadata = BTreeMap::from([("a".to_owned(), "b".repeat(400))]);
    });
    let long = long.sign(1, &["a"]);
    let mut planner = Planner::new(None, None, None, &short_limit).trust(a, None);
    assert_eq!(long.drive(&mut planner).unwrap().0.version, 0);
}

#[test]
fn there_has_to_be_a_signed_version() {
    let a = trust(&["a"], 1);
    let unsigned = line();
    assert_eq!(
        short(&unsigned.planned(None, None, &a, None)),
        Err(("R-SIG-01", None))
    );
    assert_eq!(
        short(&unsigned.planned(Some(3), None, &a, None)),
        Err(("R-SIG-01", Some(3)))
    );
    assert_eq!(
        short(&Store::new().planned(None, None, &a, None)),
        Err(("R-SIG-01", None))
    );
    assert_eq!(
        short(&unsigned.planned(None, unsigned.held(3), &a, None)),
        Err(("R-CHN-14", Some(3)))
    );
    // The held version need not be signed.
    let later = unsigned.add(&[(Some(3), &[10])]).sign(4, &["a"]);
    let held = later.held(3);
    assert_eq!(
        path(later.planned(None, held, &a, None).as_ref().unwrap()),
        (Some(3), vec![4])
    );
    // Only other keys are trusted.
    assert_eq!(
        short(&later.planned(None, held, &trust(&["b", "c"], 1), None)),
        Err(("R-CHN-14", Some(3)))
    );
}

#[test]
fn a_quorum_has_to_sign() {
    let two = trust(&["a", "b", "c"], 2);
    let store = line()
        .sign(1, &["a", "b"])
        .sign(2, &["a", "x"])
        .sign(2, &["a"])
        .sign(2, &["a", "y"])
        .sign(3, &["c"]);
    assert_eq!(short(&store.planned(None, None, &two, None)), Ok(1));
    assert_eq!(
        short(&store.planned(None, None, &trust(&["a", "b", "c"], 1), None)),
        Ok(3)
    );
    let later = store.sign(3, &["b"]);
    let plan = later.planned(None, None, &two, None);
    assert_eq!(short(&plan), Ok(3));
    let mut names: Vec<String> = of_plan(plan)
        .by
        .iter()
        .map(|key| key.name().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(
        short(&later.planned(None, None, &trust(&["a", "b", "c"], 3), None)),
        Err(("R-SIG-01", None))
    );
}

#[test]
fn a_signed_head_does_not_go_back() {
    let a = trust(&["a"], 1);
    let store = Store::signed(7);
    let mut back = store.clone();
    back.remove(commit(6));
    // The removed head is held, or was seen.
    assert_eq!(
        short(&back.planned(None, store.held(6), &a, None)),
        Err(("R-CHN-14", Some(6)))
    );
    assert_eq!(
        short(&back.planned(None, store.held(4), &a, store.seen(6))),
        Err(("R-CHN-14", Some(6)))
    );
    assert_eq!(
        short(&back.planned(None, None, &a, store.seen(6))),
        Err(("R-CHN-14", Some(6)))
    );
    // The commit exists, but its notes have been removed.
    let hidden = store.clone().unsign(6);
    assert_eq!(
        short(&hidden.planned(None, store.held(6), &a, None)),
        Err(("R-CHN-14", Some(6)))
    );
    assert_eq!(
        short(&hidden.planned(None, None, &a, store.seen(6))),
        Err(("R-CHN-14", Some(6)))
    );
    assert_eq!(short(&store.planned(None, None, &a, store.seen(6))), Ok(6));
    // The held version is at least as new as the seen one, which is not compared.
    assert_eq!(
        short(&store.planned(None, store.held(6), &a, Some((5, Digest([7; 32]))))),
        Ok(6)
    );
    assert_eq!(
        short(&store.planned(None, store.held(6), &a, Some((6, Digest([7; 32]))))),
        Ok(6)
    );
}

#[test]
fn a_fork_is_refused_by_who_has_seen_the_head() {
    let a = trust(&["a"], 1);
    let store = Store::signed(7);
    let fork = store
        .clone()
        .fork(5)
        .sign(5, &["a"])
        .add(&[(Some(5), &[10])])
        .sign(6, &["a"])
        .add(&[(Some(6), &[10])])
        .sign(7, &["a"]);
    let seen = store.seen(5);
    let held = store.held(4);
    for held in [None, held] {
        assert_eq!(
            short(&fork.planned(None, held, &a, seen)),
            Err(("R-CHN-05", Some(5)))
        );
        assert_eq!(
            short(&fork.planned(None, held, &a, store.seen(6))),
            Err(("R-CHN-05", Some(6)))
        );
        assert_eq!(short(&fork.planned(None, held, &a, None)), Ok(7));
        // Requests for a version are refused, too: the commits up to the seen one are checked.
        assert_eq!(
            short(&fork.planned(Some(7), held, &a, seen)),
            Err(("R-CHN-05", Some(5)))
        );
        assert_eq!(
            short(&fork.planned(Some(4), held, &a, seen)),
            Err(("R-CHN-05", Some(5)))
        );
        let plan = store.planned(Some(4), held, &a, seen);
        assert_eq!(path(plan.as_ref().unwrap()).0, None);
        assert_eq!(of_plan(plan).seen, seen);
    }
    // The commits after the seen one are checked.
    let mut gap = store.clone();
    gap.remove(commit(5));
    assert_eq!(
        short(&gap.planned(None, None, &a, store.seen(4))),
        Err(("R-CHN-03", Some(5)))
    );
    assert_eq!(
        short(&gap.planned(None, None, &a, None)),
        Err(("R-CHN-03", Some(5)))
    );
    let snapshot = gap.with_routes(6, 1, &[(None, &[1])]);
    assert_eq!(short(&snapshot.planned(None, None, &a, None)), Ok(6));
    assert_eq!(
        short(&snapshot.planned(None, None, &a, store.seen(4))),
        Err(("R-CHN-03", Some(5)))
    );
    // No path begins at a version that was only seen.
    assert_eq!(
        path(
            store
                .planned(None, held, &a, store.seen(5))
                .as_ref()
                .unwrap()
        ),
        (Some(4), vec![5, 6])
    );
    let plan = store.planned(None, None, &a, store.seen(5));
    assert_eq!(path(plan.as_ref().unwrap()).0, None);
    assert_eq!(plan.unwrap().start, None);
}

#[test]
fn who_was_away_compares_only_what_was_seen() {
    let a = trust(&["a"], 1);
    let store = Store::signed(7);
    let away = |store: &Store, held, seen| {
        let mut planner = planner(None, held).trust(a.clone(), seen);
        planner.long_time = 2;
        short(
            &store
                .drive(&mut planner)
                .map(|(plan, _)| plan)
                .map_err(Box::new),
        )
    };
    let mut gap = store.clone().with_routes(6, 1, &[(None, &[1])]);
    gap.remove(commit(4));
    assert_eq!(away(&gap, None, store.seen(2)), Ok(6));
    assert_eq!(away(&gap, store.held(1), store.seen(2)), Ok(6));
    assert_eq!(away(&gap, store.held(1), store.seen(5)), Ok(6));
    assert_eq!(away(&gap, None, store.seen(4)), Err(("R-CHN-03", Some(4))));
    let other = |version| Some((version, Digest([7; 32])));
    assert_eq!(away(&gap, None, other(2)), Err(("R-CHN-05", Some(2))));
    assert_eq!(
        away(&gap, store.held(1), other(2)),
        Err(("R-CHN-05", Some(2)))
    );
    assert_eq!(
        away(&gap, store.held(1), other(5)),
        Err(("R-CHN-05", Some(5)))
    );
}

#[test]
fn to_accept_a_commit_does_not_set_trust_aside() {
    let a = trust(&["a"], 1);
    let store = Store::signed(5);
    let plan = |store: &Store, wanted, held, seen, version| {
        let accept = Some(store.digest(commit(version)));
        let mut planner =
            Planner::new(wanted, held, accept, &Limits::default()).trust(a.clone(), seen);
        store
            .drive(&mut planner)
            .map(|(plan, _)| plan)
            .map_err(Box::new)
    };
    let mut back = store.clone();
    back.remove(commit(4));
    let outcome = plan(&back, None, store.held(4), store.seen(4), 3);
    assert_eq!(short(&outcome), Ok(3));
    // The accepted commit replaces the seen one, even if it is older.
    assert_eq!(of_plan(outcome).seen, store.seen(3));
    assert_eq!(short(&plan(&back, None, None, store.seen(4), 3)), Ok(3));
    let by_number = plan(&back, Some(3), None, store.seen(4), 3);
    assert_eq!(of_plan(by_number).seen, store.seen(3));
    // Another commit is not accepted.
    assert_eq!(
        short(&plan(&back, None, store.held(4), None, 2)),
        Err(("R-CHN-14", Some(4)))
    );
    assert_eq!(
        short(&plan(&back, None, None, store.seen(4), 2)),
        Err(("R-CHN-14", Some(4)))
    );
    // The accepted commit is not signed, with and without signed versions below it.
    let below = back.clone().unsign(3);
    assert_eq!(
        short(&plan(&below, None, store.held(4), None, 3)),
        Err(("R-CHN-14", Some(4)))
    );
    assert_eq!(
        short(&plan(&below, Some(3), store.held(4), None, 3)),
        Err(("R-SIG-01", Some(3)))
    );
    let none = (0..3).fold(below, Store::unsign);
    assert_eq!(
        short(&plan(&none, None, store.held(4), None, 3)),
        Err(("R-SIG-01", None))
    );
    assert_eq!(
        short(&plan(&none, None, None, store.seen(4), 3)),
        Err(("R-SIG-01", None))
    );
    assert_eq!(
        short(&plan(&none, None, None, None, 3)),
        Err(("R-SIG-01", None))
    );
    // Accepting the held commit has no effect.
    assert_eq!(
        short(&plan(&back, None, store.held(3), store.seen(4), 3)),
        Err(("R-CHN-14", Some(4)))
    );
}

#[test]
fn a_note_that_does_not_count_is_as_if_it_were_not_there() {
    let a = trust(&["a"], 1);
    let store = Store::signed(4).unsign(3);
    let chain = store.digest(ObjectName::Chain);
    let digest = store.digest(commit(3));
    let signer = [key("a")];
    let put = |name: ObjectName, bytes: &[u8]| {
        let mut store = store.clone();
        store.put(name, bytes.to_vec());
        short(&store.planned(None, None, &a, None))
    };
    let named = |bytes: &[u8]| ObjectName::Signature {
        version: 3,
        commit: digest,
        note: Digest::of_bytes(bytes),
    };
    let (name, good) = Note::make(chain, 3, digest, &signer).unwrap();
    assert_eq!(put(name, &good), Ok(3));
    // Notes for another chain, version or commit.
    for (chain, version, commit) in [
        (Digest([7; 32]), 3, digest),
        (chain, 2, digest),
        (chain, 3, store.digest(commit(2))),
    ] {
        let (own, note) = Note::make(chain, version, commit, &signer).unwrap();
        assert_eq!(put(named(&note), &note), Ok(2));
        assert_eq!(put(own, &note), Ok(2));
    }
    // Notes that are cut, doubled, empty or too long, under the name from their digest and under
    // the name of the good note.
    let doubled = [good.as_slice(), &good].concat();
    for bytes in [
        &good[..good.len() - 1],
        &good[1..],
        &doubled,
        b"",
        &vec![0xff; 40_000],
    ] {
        assert_eq!(put(named(bytes), bytes), Ok(2));
        assert_eq!(put(name, bytes), Ok(2));
    }
    let mut gone = store.clone();
    gone.put(name, good.clone());
    let mut planner = planner(None, None).trust(a.clone(), None);
    let listing = gone.listing(0);
    gone.remove(name);
    let fetch = |names: &[ObjectName], _| {
        Ok(names
            .iter()
            .map(|name| (*name, gone.objects.get(&name.to_string())))
            .collect())
    };
    assert_eq!(
        planner
            .plan_with(|_, _| Ok(listing.clone()), fetch)
            .unwrap()
            .version,
        2
    );
}

#[test]
fn of_many_notes_the_first_64_are_looked_at() {
    let a = trust(&["a"], 1);
    let store = Store::signed(4);
    let digest = store.digest(commit(3));
    let rubbish = |low: u8, has_own: bool| {
        let mut store = store.clone();
        if !has_own {
            store.remove(key("a").public().own_note(3, digest));
        }
        for number in 0..64 {
            let note = Digest(std::array::from_fn(|place| match place {
                0 => low,
                31 => number,
                _ => 0,
            }));
            store.put(
                ObjectName::Signature {
                    version: 3,
                    commit: digest,
                    note,
                },
                vec![number],
            );
        }
        short(&store.planned(None, None, &a, None))
    };
    assert_eq!((rubbish(0xff, false), rubbish(0, false)), (Ok(3), Ok(2)));
    // Other notes cannot hide a key's own note.
    assert_eq!((rubbish(0xff, true), rubbish(0, true)), (Ok(3), Ok(3)));
    // Notes on other commits of the version do not count.
    let mut others = store.clone();
    for number in 0..200 {
        let commit = Digest([number; 32]);
        let note = Digest([0; 32]);
        others.put(
            ObjectName::Signature {
                version: 3,
                commit,
                note,
            },
            vec![number],
        );
    }
    assert_eq!(short(&others.planned(None, None, &a, None)), Ok(3));
}

#[test]
fn what_is_above_the_head_costs_few_rounds() {
    let a = trust(&["a"], 1);
    let mut store = Store::signed(3);
    for version in 3..200 {
        store = store
            .add(&[(Some(version - 1), &[10])])
            .sign(version, &["stranger"]);
    }
    let mut planner = planner(None, None).trust(a.clone(), None);
    let mut rounds = 0;
    let mut fetched = 0;
    let fetch = |names: &[ObjectName], _| {
        rounds += 1;
        fetched += names.len();
        Ok(names
            .iter()
            .map(|name| (*name, store.objects.get(&name.to_string())))
            .collect())
    };
    let plan = planner
        .plan_with(|from, _| Ok(store.listing(from)), fetch)
        .unwrap();
    assert_eq!(
        (
            plan.version,
            plan.signed.unwrap().unsigned_head.unwrap().version
        ),
        (2, 199)
    );
    assert!(rounds < 15 && fetched < 650, "{rounds} {fetched}");
    // Without lists, the planner asks only for own notes.
    let mut planner = self::planner(None, None).trust(a.clone(), None);
    let mut rounds = 0;
    let mut fetched = 0;
    let fetch = |names: &[ObjectName], _| {
        rounds += 1;
        fetched += names.len();
        Ok(names
            .iter()
            .map(|name| (*name, store.objects.get(&name.to_string())))
            .collect())
    };
    let list = |_, notes: bool| {
        assert!(!notes);
        Ok(Listing::of_head(Some(199)))
    };
    assert_eq!(planner.plan_with(list, fetch).unwrap().version, 2);
    assert!(rounds < 15 && fetched < 450, "{rounds} {fetched}");

    // If nothing is above the head, the planner reads only the chain document, the commit and the
    // own note, and lists no notes.
    let store = Store::signed(3);
    let mut planner = self::planner(None, store.held(2)).trust(a, None);
    assert_eq!(
        planner.step().unwrap(),
        PlannerStep::List {
            from: 2,
            notes: false
        }
    );
    planner.list(store.listing(2));
    let own = key("a").public().own_note(2, store.digest(commit(2)));
    for expected in [vec![ObjectName::Chain, commit(2)], vec![own]] {
        assert_eq!(
            planner.step().unwrap(),
            PlannerStep::Fetch(expected.clone())
        );
        for name in expected {
            planner.supply(
                name,
                store.objects.get(&name.to_string()).map(Vec::as_slice),
            );
        }
    }
    assert!(matches!(planner.step().unwrap(), PlannerStep::Follow(_)));
}

#[test]
fn a_commit_that_was_not_listed_is_looked_for_once_more() {
    let a = trust(&["a"], 1);
    let store = Store::signed(4);
    let mut lists = [store.listing(9), store.listing(2)].into_iter();
    let fetch = |names: &[ObjectName], _| {
        Ok(names
            .iter()
            .map(|name| (*name, store.objects.get(&name.to_string())))
            .collect())
    };
    let mut planner = planner(None, store.held(3)).trust(a, None);
    assert_eq!(
        planner
            .plan_with(|_, _| Ok(lists.next().unwrap()), fetch)
            .unwrap()
            .version,
        3
    );
}

#[test]
fn keys_are_told_apart_by_more_than_their_names() {
    let other: VerifierKey = SigningKey::from_seed("a", [9; 32])
        .unwrap()
        .public()
        .clone();
    let store = Store::signed(3);
    assert_eq!(
        short(&store.planned(None, None, &Trust::new([other], 1).unwrap(), None)),
        Err(("R-SIG-01", None))
    );
}

#[test]
fn keys_are_trusted_for_their_chains() {
    let store = Store::signed(3);
    let only = |name: &str, chain| TrustedKey {
        chains: [chain].into(),
        ..key(name).public().clone().into()
    };
    let here = store.digest(ObjectName::Chain);
    let other = Digest([7; 32]);
    let trusted = |keys: Vec<TrustedKey>, quorum| Trust::new(keys, quorum).unwrap();
    assert_eq!(
        short(&store.planned(None, None, &trusted(vec![only("a", here)], 1), None)),
        Ok(2)
    );
    // This refusal comes before all others, whatever version is held and whatever the caller
    // accepts.
    let of_other = trusted(vec![only("a", other)], 1);
    let held_of_other = store.held(1).map(|held| VersionId {
        chain: other,
        ..held
    });
    for held in [None, store.held(1), held_of_other] {
        for accept in [None, Some(store.digest(commit(2)))] {
            for wanted in [None, Some(2), Some(9)] {
                let mut planner = Planner::new(wanted, held, accept, &Limits::default())
                    .trust(of_other.clone(), None);
                assert_eq!(
                    rule_and_file(&store.drive(&mut planner).unwrap_err()),
                    ("R-SIG-05", "chain.json".into())
                );
            }
        }
    }
    // A key for another chain counts as missing; the quorum counts the others.
    let both = |quorum| {
        trusted(
            vec![only("a", other), key("b").public().clone().into()],
            quorum,
        )
    };
    assert_eq!(
        short(&store.planned(None, None, &both(1), None)),
        Err(("R-SIG-01", None))
    );
    assert_eq!(
        short(&store.planned(None, None, &both(2), None)),
        Err(("R-SIG-05", None))
    );
    assert_eq!(
        short(
            &store
                .sign(1, &["a", "b"])
                .planned(None, None, &both(1), None)
        ),
        Ok(1)
    );
}
