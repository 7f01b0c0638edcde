//! The store: directories, an S3 server, memory and a web server, all by the same calls; retries,
//! timeouts, names.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deltachain::chain::{ChainDocument, Commit, FileReference, ObjectName};
use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Limits, Result};
use deltachain_store::{
    Face, Follower, FollowerOptions, Observer, Phase, RawObjects, Store, StoreOptions, advice, log,
};
use object_store::ObjectStore;
#[cfg(target_os = "linux")]
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;

use crate::common::{Chain, state};
#[cfg(target_os = "linux")]
use crate::support::child::{child_without_privileges, place};
use crate::support::counting::CountingStore;
use crate::support::faulty::{Call, Control, Fault, FaultyStore, Operation};
use crate::support::s3::S3Server;
use crate::support::web::{Fallback, WebServer};
use crate::support::{Random, quick};

const PREFIX: &str = "some prefix/模型 é";
/// Bytes of a part of an upload.
const PART: u64 = 5 << 20;

/// Runs a test on an empty store of each kind that can be written.
fn on_all_kinds(test: impl Fn(&Store)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(PREFIX);
    test(&Store::create(path.to_str().unwrap(), quick()).unwrap());
    let server = S3Server::start();
    test(&server.store(PREFIX, quick()));
    test(&Store::from_objects(Arc::new(InMemory::new()), PREFIX, quick()).unwrap());
    test(&Store::from_objects(Arc::new(InMemory::new()), "", quick()).unwrap());
}

/// Writes a file, and returns its path and the reference that a route would have.
fn file(directory: &Path, content: &[u8]) -> (std::path::PathBuf, FileReference) {
    let reference = FileReference {
        digest: Digest::of_bytes(content),
        size: content.len() as u64,
    };
    let path = directory.join(reference.digest.to_string());
    fs::write(&path, content).unwrap();
    (path, reference)
}

/// Counts the bytes of a phase.
#[derive(Default)]
struct Counter(AtomicU64);

impl Observer for Counter {
    fn begin(&self, _phase: Phase, _bytes: u64) {}

    fn advance(&self, _phase: Phase, bytes: u64) -> Result<()> {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn end(&self, _phase: Phase) {}

    fn remark(&self, _text: &str) {}
}

#[test]
fn what_is_stored_is_read_again() {
    on_all_kinds(|store| {
        assert!(store.can_list());
        assert_eq!(store.get(ObjectName::Chain).unwrap(), None);
        assert!(store.objects().unwrap().is_empty());
        assert_eq!(store.listing(0).unwrap(), store.listing(3).unwrap());

        assert!(store.put_if_absent(ObjectName::Chain, b"one").unwrap());
        assert!(!store.put_if_absent(ObjectName::Chain, b"two").unwrap());
        assert_eq!(store.get(ObjectName::Chain).unwrap().unwrap(), b"one");
        let routes = ObjectName::Routes {
            version: 7,
            generation: 1,
        };
        for name in [ObjectName::Commit(0), ObjectName::Commit(7), routes] {
            assert!(
                store
                    .put_if_absent(name, name.to_string().as_bytes())
                    .unwrap()
            );
        }
        let all = store
            .get_all(&[ObjectName::Commit(7), routes, ObjectName::Commit(8)])
            .unwrap();
        assert_eq!(all.len(), 3);
        for (name, content) in all {
            let expected = (name != ObjectName::Commit(8)).then(|| name.to_string().into_bytes());
            assert_eq!(content, expected);
        }

        let scratch = tempfile::tempdir().unwrap();
        // A single request, exactly one part, and several parts with a shorter last one.
        let mut references = Vec::new();
        for length in [1, 70_000, PART, PART + 1, 2 * PART + 300] {
            let (path, reference) = file(
                scratch.path(),
                &Random(length).bytes(usize::try_from(length).unwrap()),
            );
            let counter = Counter::default();
            store
                .upload(&path, reference.name(), reference.size, &counter)
                .unwrap();
            assert_eq!(counter.0.into_inner(), length);
            // Storing it again is not a fault.
            store
                .upload(&path, reference.name(), reference.size, &())
                .unwrap();
            let content = store.get(reference.name()).unwrap().unwrap();
            assert!(content == fs::read(&path).unwrap()[..content.len()]);
            references.push(reference);
        }

        let objects = store.objects().unwrap();
        assert!(objects.is_sorted_by_key(|object| object.name));
        let sizes = references
            .iter()
            .map(|reference| (reference.name(), reference.size));
        let documents = [ObjectName::Commit(0), ObjectName::Commit(7), routes];
        let documents = documents
            .into_iter()
            .map(|name| (name, name.to_string().len() as u64));
        let expected: BTreeSet<_> = sizes
            .chain(documents)
            .chain([(ObjectName::Chain, 3)])
            .collect();
        assert_eq!(
            objects
                .iter()
                .map(|object| (object.name, object.size))
                .collect::<BTreeSet<_>>(),
            expected
        );

        let gone: Vec<_> = references.iter().map(FileReference::name).collect();
        store.delete(&gone).unwrap();
        // Removing a missing object succeeds.
        store.delete(&gone).unwrap();
        assert_eq!(store.get(gone[0]).unwrap(), None);
        assert_eq!(store.objects().unwrap().len(), 4);
    });
}

#[test]
fn a_list_shows_what_a_reader_of_a_version_needs() {
    on_all_kinds(|store| {
        let routes = |version, generation| ObjectName::Routes {
            version,
            generation,
        };
        let names = [
            routes(2, 1),
            routes(3, 1),
            routes(3, 9_999_999_999),
            routes(4, 1),
            routes(10, 2),
        ];
        for name in (0..12)
            .map(ObjectName::Commit)
            .chain(names)
            .chain([ObjectName::Chain])
        {
            store.put_if_absent(name, b"x").unwrap();
        }
        let listing = |names: Vec<ObjectName>| {
            deltachain::chain::Listing::new(
                names.iter().map(ToString::to_string).collect::<Vec<_>>(),
            )
        };
        let all: Vec<_> = (0..12).map(ObjectName::Commit).chain(names).collect();
        assert_eq!(store.listing(0).unwrap(), listing(all.clone()));
        let above: Vec<_> = (3..12)
            .map(ObjectName::Commit)
            .chain(names[1..].to_vec())
            .collect();
        assert_eq!(store.listing(3).unwrap(), listing(above));
    });
}

#[test]
fn of_several_who_create_a_name_one_succeeds() {
    on_all_kinds(|store| {
        for version in 0..20 {
            let name = ObjectName::Commit(version);
            let created: Vec<u64> = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..8_u64)
                    .map(|writer| {
                        scope.spawn(move || {
                            store.put_if_absent(name, &writer.to_le_bytes()).unwrap()
                        })
                    })
                    .collect();
                (0..)
                    .zip(writers)
                    .filter_map(|(writer, thread)| thread.join().unwrap().then_some(writer))
                    .collect()
            });
            assert_eq!(created.len(), 1, "{store}: version {version}");
            assert_eq!(store.get(name).unwrap().unwrap(), created[0].to_le_bytes());
        }
    });
}

#[test]
fn other_objects_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().to_str().unwrap(), quick()).unwrap();
    store.put_if_absent(ObjectName::Commit(0), b"x").unwrap();
    let others = [
        "README",
        "chain.json.old",
        "commits/0.json",
        "commits/00000000000000000001.json~",
        "commits/00000000000000000001.json#1",
        "commits/00000000000000000002.json/file",
        "commits/sub/00000000000000000003.json",
        "routes/00000000000000000001.json",
        "files/x.dcf",
        ".hidden/chain.json",
        "späces and more/chain.json",
    ];
    for other in others {
        let path = directory.path().join(other);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"x").unwrap();
    }
    // A directory is not an object, whatever its name.
    fs::create_dir_all(directory.path().join("commits/00000000000000000004.json")).unwrap();
    let names: Vec<_> = store
        .objects()
        .unwrap()
        .iter()
        .map(|object| object.name)
        .collect();
    assert_eq!(names, [ObjectName::Commit(0)]);
    assert_eq!(
        store.listing(0).unwrap(),
        deltachain::chain::Listing::new(["commits/00000000000000000000.json"])
    );
}

#[test]
fn a_document_that_is_too_long_is_refused_as_such() {
    on_all_kinds(|store| {
        let longest = 1 << 24;
        for length in [longest, longest + 1, longest + 70_000, 3 * longest] {
            let name = ObjectName::Commit(length as u64);
            store.put_if_absent(name, &vec![b'{'; length]).unwrap();
            let content = store.get(name).unwrap().unwrap();
            assert_eq!(content.len(), length.min(longest + 1));
            let rule = Commit::parse(&content, &Limits::default())
                .unwrap_err()
                .rule()
                .unwrap();
            assert_eq!(rule == "R-LIM-05", length > longest);
        }
    });
}

#[test]
fn urls_that_make_no_sense_are_the_callers_fault() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("no such thing");
    let file = directory.path().join("file");
    fs::write(&file, b"").unwrap();
    let urls = [
        missing.to_str().unwrap().to_owned(),
        file.to_str().unwrap().to_owned(),
        format!("file://{}", missing.to_str().unwrap().replace(' ', "%20")),
        "ftp://example.org/chain".to_owned(),
        "unknown://bucket/prefix".to_owned(),
        "s3://".to_owned(),
        "http://".to_owned(),
        "C:\\no such thing".to_owned(),
        String::new(),
    ];
    for url in urls {
        let error = Store::open(&url, quick()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage, "{url}: {error}");
        assert_eq!(error.file(), Some(url.as_str()));
    }
    // The URL of an existing directory works like its path.
    let path = directory.path().join(PREFIX);
    let store = Store::create(path.to_str().unwrap(), quick()).unwrap();
    store.put_if_absent(ObjectName::Chain, b"here").unwrap();
    let url = url::Url::from_directory_path(&path).unwrap();
    assert_eq!(
        Store::open(url.as_str(), quick())
            .unwrap()
            .get(ObjectName::Chain)
            .unwrap()
            .unwrap(),
        b"here"
    );
}

#[test]
fn a_stranger_is_refused_at_once() {
    let server = S3Server::start();
    let store = server.store_of_stranger(PREFIX, quick());
    let error = store.get(ObjectName::Chain).unwrap_err();
    assert_eq!(
        (error.class(), error.file()),
        (ErrorClass::Io, Some("chain.json"))
    );
    let error = store.put_if_absent(ObjectName::Chain, b"x").unwrap_err();
    assert_eq!(
        (error.class(), error.file()),
        (ErrorClass::Io, Some("chain.json"))
    );
    assert!(!server.directory(PREFIX).join("chain.json").exists());
}

#[test]
fn a_web_server_shows_the_head_and_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(PREFIX);
    let writer = Store::create(path.to_str().unwrap(), quick()).unwrap();
    let server = WebServer::start(directory.path());
    let store = Store::open(&server.url("some%20prefix/模型 é/"), quick()).unwrap();
    assert!(!store.can_list());
    assert_eq!(store.objects().unwrap_err().class(), ErrorClass::Usage);
    assert_eq!(
        store.listing(0).unwrap(),
        deltachain::chain::Listing::of_head(None)
    );
    for head in 0..=40 {
        writer
            .put_if_absent(ObjectName::Commit(head), b"x")
            .unwrap();
        let expected = deltachain::chain::Listing::of_head(Some(head));
        for from in [0, head / 2, head] {
            assert_eq!(
                store.listing(from).unwrap(),
                expected,
                "head {head}, from {from}"
            );
        }
        assert_eq!(
            store.listing(head + 1).unwrap(),
            deltachain::chain::Listing::of_head(None)
        );
    }
    // Far fewer requests than versions.
    let before = server.requests();
    store.listing(0).unwrap();
    assert!(
        server.requests() - before <= 13,
        "{} requests",
        server.requests() - before
    );
    assert_eq!(store.get(ObjectName::Chain).unwrap(), None);
    assert_eq!(
        store
            .put_if_absent(ObjectName::Chain, b"x")
            .unwrap_err()
            .class(),
        ErrorClass::Usage
    );
    assert_eq!(
        store.delete(&[ObjectName::Chain]).unwrap_err().class(),
        ErrorClass::Usage
    );
    assert_eq!(writer.get(ObjectName::Chain).unwrap(), None);
}

#[test]
fn a_web_server_that_answers_everything_is_found_out() {
    let mut chain = Chain::new();
    chain.add(state(&[("a", &[1, 2, 3])]), &[None]);
    let page: Fallback = |_| Some(b"\n<!doctype html><title>Home</title>");
    // The probe gets a proper answer, so only the content reveals the server.
    let page_for_commits: Fallback = |path| page_of_commit(path, b"<html></html>");
    let compressed: Fallback = |path| page_of_commit(path, &[0x1f, 0x8b, 8, 0]);
    for fallback in [page, page_for_commits, compressed] {
        let server = WebServer::with_fallback(chain.folder.path(), fallback);
        let store = Store::open(&server.url(""), quick()).unwrap();
        let error = store.head(None).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Io);
        assert!(
            format!("{error:#}").contains("a page of its own"),
            "{error:#}"
        );
        assert!(advice(&error, Face::Tool).contains("404"));
        assert!(server.requests() <= 4, "{} requests", server.requests());
    }
    // A page in place of chain.json is named, too.
    let empty = tempfile::tempdir().unwrap();
    let server = WebServer::with_fallback(empty.path(), page);
    let store = Store::open(&server.url(""), quick()).unwrap();
    let error = store.get(ObjectName::Chain).unwrap_err();
    assert!(
        format!("{error:#}").contains("this is an HTML or XML page"),
        "{error:#}"
    );
    // A proper server gets the probe only once.
    let server = WebServer::start(chain.folder.path());
    let store = Store::open(&server.url(""), quick()).unwrap();
    assert_eq!(store.head(None).unwrap(), Some(0));
    let first = server.requests();
    assert_eq!(store.head(None).unwrap(), Some(0));
    assert_eq!(server.requests() - first, first - 1);
}

/// Pages that a proxy or a copy has put in the place of a document, in stores of all kinds.
#[test]
fn a_page_in_place_of_a_document_is_named() {
    let pages: [(&[u8], &str); 4] = [
        (
            b"\xef\xbb\xbf\n<!doctype html><title>Log in</title>",
            "an HTML or XML page",
        ),
        (b"<?xml version='1.0'?><Error/>", "an HTML or XML page"),
        (&[0x1f, 0x8b, 8, 0], "a file compressed with gzip"),
        (b"", "the document is empty"),
    ];
    on_all_kinds(|store| {
        for (page, said) in pages {
            for name in [ObjectName::Chain, ObjectName::Commit(0)] {
                assert!(
                    store
                        .put_if_absent(ObjectName::Chain, &chain_document())
                        .is_ok()
                );
                store.delete(&[name]).unwrap();
                store.put_if_absent(name, page).unwrap();
                let error = log(store, None, None).err().or_else(|| {
                    let directory = tempfile::tempdir().unwrap();
                    let options = FollowerOptions::default();
                    Follower::in_directory(store.clone(), directory.path(), options)
                        .and_then(|mut follower| follower.prepare(None, &()).map(drop))
                        .err()
                });
                let error = error.unwrap();
                let text = format!("{error:#}");
                assert!(text.contains(said), "{name}: {text}");
                assert_eq!(error.rule(), Some("R-DOC-01"), "{text}");
                let advice = advice(&error, Face::Tool);
                assert!(advice.contains("check the URL"), "{advice}");
                store.delete(&[name]).unwrap();
            }
        }
    });
}

fn chain_document() -> Vec<u8> {
    ChainDocument::new(7).to_bytes().unwrap()
}

/// Returns the content if this is the path of a commit.
fn page_of_commit(path: &str, content: &'static [u8]) -> Option<&'static [u8]> {
    let name = path.strip_prefix("/commits/")?;
    name.starts_with(|first: char| first.is_ascii_digit())
        .then_some(content)
}

#[test]
fn a_search_ends_whatever_a_store_answers() {
    let empty = tempfile::tempdir().unwrap();
    let server = WebServer::with_fallback(empty.path(), |path| page_of_commit(path, b"{"));
    let store = Store::open(&server.url(""), quick()).unwrap();
    assert_eq!(store.head(None).unwrap(), Some(u64::MAX));
    assert_eq!(store.head(Some(u64::MAX)).unwrap(), Some(u64::MAX));
    assert!(server.requests() < 200, "{} requests", server.requests());
    let error = log(&store, None, None).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Usage, "{error:#}");
    // A bucket whose lists always begin at the first name.
    let bucket = CountingStore::new();
    let store = Store::from_objects(bucket.clone(), "", quick()).unwrap();
    for version in 0..2500 {
        store
            .put_if_absent(ObjectName::Commit(version), b"{")
            .unwrap();
    }
    assert_eq!(store.head(None).unwrap(), Some(2499));
    bucket.ignores_offsets.store(true, Ordering::Relaxed);
    bucket.requests();
    store.head(None).unwrap();
    store.head(Some(1200)).unwrap();
    let requests = bucket.requests();
    assert!(requests < 500, "{requests} requests");
}

#[test]
fn a_web_server_without_ranges_is_refused_at_once() {
    let mut chain = Chain::new();
    chain.add(state(&[("a", &[1, 2, 3])]), &[None]);
    let pull = |server: &WebServer| {
        let store = Store::open(&server.url(""), quick()).unwrap();
        Follower::in_memory(store, FollowerOptions::default())
            .unwrap()
            .prepare(None, &())
            .map(drop)
    };
    let whole = WebServer::without_ranges(chain.folder.path());
    let ranges = WebServer::start(chain.folder.path());
    pull(&ranges).unwrap();
    let error = pull(&whole).unwrap_err();
    assert_eq!(
        (error.class(), error.rule()),
        (ErrorClass::Io, None),
        "{error}"
    );
    assert!(
        format!("{error:#}").contains("sends the whole file"),
        "{error:#}"
    );
    // No request is repeated; one more asks for the length of the file.
    assert_eq!(whole.requests(), ranges.requests() + 1);
}

/// A directory's refusal for lack of permission is final. The test is skipped if no process without
/// privileges can be started.
#[cfg(target_os = "linux")]
#[test]
fn what_the_system_does_not_allow_is_not_tried_again() {
    use std::os::unix::fs::PermissionsExt;

    let place = tempfile::tempdir().unwrap();
    let document = ObjectName::Chain.to_string();
    fs::write(place.path().join(&document), "x").unwrap();
    fs::create_dir(place.path().join("commits")).unwrap();
    let set_mode = |name: &str, mode| {
        fs::set_permissions(place.path().join(name), fs::Permissions::from_mode(mode))
    };
    set_mode("", 0o555).unwrap();
    set_mode(&document, 0o000).unwrap();
    set_mode("commits", 0o000).unwrap();
    let ended = child_without_privileges("store::a_process_that_may_not", place.path()).output();
    set_mode("", 0o755).unwrap();
    set_mode("commits", 0o755).unwrap();
    match ended {
        Ok(ended) if !matches!(ended.status.code(), Some(126 | 127)) => {
            let text =
                String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
            assert!(
                ended.status.success() && text.contains("1 passed"),
                "{text}"
            );
        }
        not_started => {
            println!("SKIPPED: a process without privileges cannot be started: {not_started:?}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "a part of what_the_system_does_not_allow_is_not_tried_again"]
fn a_process_that_may_not() {
    let Some(place) = place() else { return };
    let (objects, control) =
        FaultyStore::new(Arc::new(LocalFileSystem::new_with_prefix(place).unwrap()));
    let store = Store::from_objects(objects, "", quick()).unwrap();
    let refused = |error: Error| {
        assert!(
            format!("{error:#}").contains("Permission denied"),
            "{error:#}"
        );
    };
    refused(store.get(ObjectName::Chain).unwrap_err());
    refused(store.listing(0).unwrap_err());
    refused(
        store
            .put_if_absent(ObjectName::Commit(0), b"x")
            .unwrap_err(),
    );
    let commit = ObjectName::Commit(0).to_string();
    let calls = [
        (Operation::Get, "chain.json"),
        (Operation::List, "commits"),
        (Operation::Create, commit.as_str()),
    ];
    assert_eq!(
        calls.map(|(operation, path)| control.calls(operation, path)),
        [1, 1, 1]
    );
}

/// A store in memory that can fail, its control, and a store with the same objects without faults.
fn faulty(options: StoreOptions) -> (Store, Arc<Control>, Store) {
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (objects, control) = FaultyStore::new(Arc::clone(&inner));
    let store = Store::from_objects(objects, "", options).unwrap();
    (
        store,
        control,
        Store::from_objects(inner, "", quick()).unwrap(),
    )
}

/// Checks that an error is of class IO and names the object.
fn assert_given_up(error: &Error, name: ObjectName) {
    assert_eq!(
        (error.class(), error.file()),
        (ErrorClass::Io, Some(name.to_string().as_str())),
        "{error}"
    );
}

#[test]
fn what_fails_is_tried_again_and_given_up() {
    let options = quick().timeout(Duration::from_millis(20));
    let attempts = 4;
    let scratch = tempfile::tempdir().unwrap();
    let (short, short_reference) = file(scratch.path(), b"short");
    let (long, long_reference) = file(scratch.path(), &vec![7; 6 << 20]);
    for fault in [Fault::FailBefore, Fault::SilentBefore] {
        for failures in [attempts - 1, attempts] {
            let (store, control, clean) = faulty(options.clone());
            let document = ChainDocument::new(7).to_bytes().unwrap();
            clean.put_if_absent(ObjectName::Chain, &document).unwrap();
            let of_a_file =
                |call: &Call<'_>| matches!(call.operation, Operation::Part | Operation::Complete);
            control.plan(move |call| (call.number < failures && !of_a_file(call)).then_some(fault));
            let given_up = failures == attempts;
            let check = |result: Result<()>, name: ObjectName, operation| {
                assert_eq!(
                    control.calls(operation, &name.to_string()),
                    attempts,
                    "{fault:?} {operation:?} {name}"
                );
                match result {
                    Ok(()) => assert!(!given_up, "{fault:?} {operation:?}"),
                    Err(error) => {
                        assert!(given_up, "{fault:?} {operation:?}: {error:?}");
                        assert_given_up(&error, name);
                    }
                }
            };
            let got = store
                .get(ObjectName::Chain)
                .map(|content| assert_eq!(content.unwrap(), document));
            check(got, ObjectName::Chain, Operation::Get);
            let put = store
                .put_if_absent(ObjectName::Commit(0), b"x")
                .map(|created| assert!(created));
            check(put, ObjectName::Commit(0), Operation::Create);
            check(
                store.upload(&short, short_reference.name(), short_reference.size, &()),
                short_reference.name(),
                Operation::Put,
            );
            check(
                store.upload(&long, long_reference.name(), long_reference.size, &()),
                long_reference.name(),
                Operation::Begin,
            );
            check(
                store.delete(&[ObjectName::Commit(3)]),
                ObjectName::Commit(3),
                Operation::Delete,
            );
            assert_eq!(store.objects().is_err(), given_up);
            assert_eq!(control.calls(Operation::List, ""), attempts);
            assert_eq!(
                clean.get(short_reference.name()).unwrap().is_some(),
                !given_up
            );
            assert_eq!(
                clean.get(long_reference.name()).unwrap().is_some(),
                !given_up
            );
            assert_eq!(control.injected()[&fault], 6 * failures);
        }
    }
}

#[test]
fn parts_of_a_file_are_tried_again() {
    let scratch = tempfile::tempdir().unwrap();
    let (path, reference) = file(scratch.path(), &Random(1).bytes(11 << 20));
    for failing in [Operation::Begin, Operation::Part, Operation::Complete] {
        for fault in [
            Fault::FailBefore,
            Fault::FailAfter,
            Fault::SilentBefore,
            Fault::SilentAfter,
        ] {
            let options = quick().timeout(Duration::from_millis(20));
            let (store, control, clean) = faulty(options);
            control
                .plan(move |call| (call.operation == failing && call.number == 0).then_some(fault));
            store
                .upload(&path, reference.name(), reference.size, &())
                .unwrap();
            assert_eq!(control.injected()[&fault], 1);
            let objects = clean.objects().unwrap();
            assert_eq!(
                objects
                    .iter()
                    .map(|object| (object.name, object.size))
                    .collect::<Vec<_>>(),
                [(reference.name(), 11 << 20)]
            );
        }
    }
}

#[test]
fn what_cannot_get_better_is_not_tried_again() {
    let (store, control, _) = faulty(quick());
    assert_eq!(store.get(ObjectName::Chain).unwrap(), None);
    assert_eq!(control.calls(Operation::Get, "chain.json"), 1);
    control.stop_after(0);
    assert_given_up(
        &store.get(ObjectName::Commit(1)).unwrap_err(),
        ObjectName::Commit(1),
    );
    assert_eq!(
        control.calls(Operation::Get, "commits/00000000000000000001.json"),
        1
    );
}

#[test]
fn a_success_that_nobody_saw_is_no_second_one() {
    for fault in [Fault::FailAfter, Fault::SilentAfter] {
        let options = quick().timeout(Duration::from_millis(20));
        let (store, control, clean) = faulty(options);
        control.plan(move |call| (call.number == 0).then_some(fault));
        // A caller that needs to know whether it was first compares the object's content.
        assert!(!store.put_if_absent(ObjectName::Commit(0), b"mine").unwrap());
        assert_eq!(clean.get(ObjectName::Commit(0)).unwrap().unwrap(), b"mine");
        assert_eq!(
            control.calls(Operation::Create, "commits/00000000000000000000.json"),
            2
        );
    }
}

#[test]
fn a_conflict_is_no_taken_name() {
    let (store, control, clean) = faulty(quick());
    control.plan(|call| (call.number < 2).then_some(Fault::Conflict));
    assert!(store.put_if_absent(ObjectName::Commit(0), b"mine").unwrap());
    assert_eq!(control.injected()[&Fault::Conflict], 2);
    control.plan(|call| (call.operation == Operation::Create).then_some(Fault::Conflict));
    assert_given_up(
        &store
            .put_if_absent(ObjectName::Commit(1), b"mine")
            .unwrap_err(),
        ObjectName::Commit(1),
    );
    assert_eq!(clean.get(ObjectName::Commit(1)).unwrap(), None);
}

#[test]
fn a_document_that_came_in_part_is_asked_for_again() {
    let (store, control, _) = faulty(quick());
    let document = ChainDocument::new(7).to_bytes().unwrap();
    store.put_if_absent(ObjectName::Chain, &document).unwrap();
    control.plan(|call| (call.number < 2).then_some(Fault::Truncate));
    assert_eq!(store.get(ObjectName::Chain).unwrap().unwrap(), document);
    assert_eq!(control.injected()[&Fault::Truncate], 2);
    control.plan(|_| Some(Fault::Truncate));
    assert_given_up(
        &store.get(ObjectName::Chain).unwrap_err(),
        ObjectName::Chain,
    );
}

#[test]
fn a_document_that_came_damaged_is_asked_for_once_more() {
    let (store, control, _) = faulty(quick());
    let document = ChainDocument::new(7).to_bytes().unwrap();
    store.put_if_absent(ObjectName::Chain, &document).unwrap();
    let damaged = b"{}";
    store.put_if_absent(ObjectName::Commit(0), damaged).unwrap();
    // A document that is damaged in the store is read twice, and stays damaged.
    assert_eq!(store.get(ObjectName::Commit(0)).unwrap().unwrap(), damaged);
    assert_eq!(
        control.calls(Operation::Get, "commits/00000000000000000000.json"),
        2
    );
    assert_eq!(store.get(ObjectName::Chain).unwrap().unwrap(), document);
    assert_eq!(control.calls(Operation::Get, "chain.json"), 1);
}

#[test]
fn who_watches_can_stop_an_upload() {
    struct Stop;
    impl Observer for Stop {
        fn begin(&self, _phase: Phase, _bytes: u64) {}
        fn advance(&self, _phase: Phase, _bytes: u64) -> Result<()> {
            Err(Error::usage("enough"))
        }
        fn end(&self, _phase: Phase) {}
        fn remark(&self, _text: &str) {}
    }
    let scratch = tempfile::tempdir().unwrap();
    let (path, reference) = file(scratch.path(), &vec![1; 50 << 20]);
    let store = Store::from_objects(Arc::new(InMemory::new()), "", quick()).unwrap();
    assert_eq!(
        store
            .upload(&path, reference.name(), reference.size, &Stop)
            .unwrap_err()
            .message(),
        "enough"
    );
    assert_eq!(store.get(reference.name()).unwrap(), None);
}
