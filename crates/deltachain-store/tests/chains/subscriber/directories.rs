//! Ownership of a directory: foreign data beside the follower's own stay, byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use deltachain::ErrorClass;
use deltachain::chain::ObjectName;
use deltachain::tensor::Digest;
use deltachain_store::{Follower, FollowerOptions, Health, check_directory};

use super::{long_chain, names, open, pull, shown, version_directory};
use crate::common::{Chain, Notes};

const MARKER: &str = "deltachain.directory";
/// Names in the follower's own format.
const VERSION: &str = "00000000000000000009-0123456789abcdef";
const UNFINISHED: &str = ".tmp-deltachain-0123456789ab";

fn link_name() -> String {
    format!("{}.dcf", "0123456789abcdef".repeat(4))
}

/// Everything below a directory: files with their content, directories, and links with their
/// target.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    fn visit(path: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap()) {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            let content = if kind.is_symlink() {
                format!("link to {}", fs::read_link(&path).unwrap().display())
            } else if kind.is_dir() {
                visit(&path, found);
                "directory".to_owned()
            } else {
                format!("file {:?}", fs::read(&path).unwrap())
            };
            found.insert(path, content);
        }
    }
    let mut found = BTreeMap::new();
    visit(root, &mut found);
    found
}

fn write(path: impl AsRef<Path>, content: &str) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[cfg(unix)]
fn link(target: impl AsRef<Path>, path: impl AsRef<Path>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(target, path).unwrap();
}

fn refused_as(class: ErrorClass, chain: &Chain, directory: &Path) -> deltachain::Error {
    let error = Follower::in_directory(chain.store.clone(), directory, FollowerOptions::default())
        .unwrap_err();
    assert_eq!(error.class(), class, "{error:?}");
    error
}

/// Checks that a directory is refused as a mistake of the user.
fn refused(chain: &Chain, directory: &Path) -> deltachain::Error {
    refused_as(ErrorClass::Usage, chain, directory)
}

/// Checks that a follower's directory is refused because something is in the way.
fn hindered(chain: &Chain, directory: &Path) -> deltachain::Error {
    refused_as(ErrorClass::Io, chain, directory)
}

#[test]
fn a_directory_that_holds_anything_else_is_refused_and_not_touched() {
    let chain = long_chain();
    let cases = [
        "notes.txt",
        "versions/3.11/python",
        "versions/readme",
        &format!("versions/{VERSION}"),
        "cache/page.html",
        "lock",
        ".tmp-x/f",
        "skip-4",
        MARKER,
    ];
    for name in cases {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path().join(name), "precious");
        let before = tree(folder.path());
        let error = refused(&chain, folder.path());
        assert_eq!(tree(folder.path()), before, "{name}");
        if name != MARKER {
            let first = name.split('/').next().unwrap();
            assert!(
                error.message().contains(first) && error.file().is_some(),
                "{error}"
            );
        }
        assert!(!Health::of(folder.path(), None).unwrap().healthy);
        // The same for a cache.
        let options = FollowerOptions::default().cache(Some(folder.path().to_owned()));
        let error = Follower::in_memory(chain.store.clone(), options).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Usage, "{error:?}");
        assert_eq!(tree(folder.path()), before, "{name}");
    }
}

#[test]
fn a_directory_that_has_lost_its_marker_is_refused() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    pull(&mut open(&chain, folder.path()), Some(0));
    fs::remove_file(folder.path().join(MARKER)).unwrap();
    let before = tree(folder.path());
    assert!(refused(&chain, folder.path()).message().contains(MARKER));
    assert!(!Health::of(folder.path(), None).unwrap().healthy);
    assert!(check_directory(folder.path(), &()).is_err());
    assert_eq!(tree(folder.path()), before);
}

/// Adds foreign entries in and beside every place of the follower. Returns their paths.
fn put_foreign_things(directory: &Path, elsewhere: &Path) -> Vec<PathBuf> {
    let versions = directory.join("versions");
    let mut all = Vec::new();
    let mut put = |path: PathBuf, content: &str| {
        write(&path, content);
        all.push(path);
    };
    put(directory.join("notes.txt"), "beside");
    put(directory.join("folder/notes.txt"), "beside");
    put(directory.join(".tmp-x/f"), "beside");
    put(directory.join(".tmp-AbCd12"), "beside");
    put(
        directory.join(UNFINISHED).join("f"),
        "in a directory of our shape, without a marker",
    );
    put(versions.join("3.11/python"), "in versions");
    put(versions.join("notes.txt"), "in versions");
    put(
        versions.join(VERSION).join("f"),
        "in a directory of our shape, without a record",
    );
    put(
        versions.join(VERSION.replace('9', "8")).join("held.json"),
        "no record",
    );
    put(directory.join("cache/notes.txt"), "in the cache");
    put(
        directory.join("cache/folder").join(link_name()),
        "in the cache",
    );
    put(directory.join("cache/.tmp-xyz"), "in the cache");
    put(
        directory.join("cache").join(link_name()).join("f"),
        "a directory with a name of our shape",
    );
    #[cfg(unix)]
    {
        link(elsewhere, directory.join(UNFINISHED.replace('0', "1")));
        link(elsewhere, versions.join(VERSION.replace('9', "7")));
        link(elsewhere, versions.join("elsewhere"));
        link(
            elsewhere.join("f"),
            directory.join("cache").join(link_name().replace('0', "1")),
        );
        link(elsewhere, directory.join("cache").join(UNFINISHED));
        let names = [
            UNFINISHED.replace('0', "1"),
            format!("versions/{}", VERSION.replace('9', "7")),
        ];
        all.extend(names.iter().map(|name| directory.join(name)));
        all.extend(
            ["versions/elsewhere", &format!("cache/{UNFINISHED}")].map(|name| directory.join(name)),
        );
        all.push(directory.join("cache").join(link_name().replace('0', "1")));
    }
    // In the current version, which is removed when it has been replaced twice.
    let model = version_directory(directory).join("model");
    for path in [
        model.join("mine.txt"),
        model.join("mine/f"),
        version_directory(directory).join("mine.txt"),
    ] {
        write(&path, "in a version");
        all.push(path);
    }
    all
}

#[test]
fn what_is_not_ours_stays() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let directory = folder.path();
    for name in ["f", "held.json", "model/model.safetensors", MARKER] {
        write(other.path().join(name), "elsewhere");
    }
    let mut options = FollowerOptions::default();
    // The cache keeps only files that are needed.
    options = options.cache_bytes(Some(0));
    let open = || Follower::in_directory(chain.store.clone(), directory, options.clone()).unwrap();
    pull(&mut open(), Some(0));
    let foreign = put_foreign_things(directory, other.path());
    let kept = || {
        let here = tree(directory);
        let there = tree(other.path());
        let here = foreign
            .iter()
            .map(|path| (path.clone(), here.get(path).cloned()))
            .collect::<BTreeMap<_, _>>();
        assert!(here.values().all(Option::is_some), "{here:#?}");
        (here, there)
    };
    let before = kept();
    let notes = Notes::default();
    let mut subscriber = open();
    assert_eq!(kept(), before);
    for version in [1, 2, 3, 0, 4] {
        let prepared = subscriber.prepare(Some(version), &notes).unwrap().unwrap();
        assert_eq!(kept(), before);
        subscriber.apply(prepared).unwrap();
        assert_eq!(kept(), before);
        assert_eq!(shown(directory), chain.whole(version));
    }
    drop(subscriber);
    assert!(open().prepare(None, &notes).unwrap().is_none());
    assert_eq!(kept(), before);
    // Each process names each foreign entry once.
    let remarks = notes.remarks();
    let about = remarks
        .iter()
        .filter(|remark| remark.contains("3.11") && remark.contains("is kept"))
        .count();
    assert_eq!(about, 1, "{remarks:#?}");
    // The follower has kept only its current and its previous version.
    let ours = tree(directory)
        .into_keys()
        .filter(|path| path.ends_with("held.json"))
        .count();
    assert_eq!(
        ours, 4,
        "with version 0, which has foreign entries, and a foreign record"
    );
}

#[cfg(unix)]
#[test]
fn links_in_our_places_are_not_followed() {
    let chain = long_chain();
    for name in ["versions", "cache", "current", "lock"] {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let directory = folder.path();
        drop(open(&chain, directory));
        pull(&mut open(&chain, directory), Some(0));
        let elsewhere = other.path().join("elsewhere");
        match name {
            "current" => fs::create_dir(&elsewhere).unwrap(),
            "lock" => fs::write(&elsewhere, "precious").unwrap(),
            _ => fs::rename(directory.join(name), &elsewhere).unwrap(),
        }
        if ["current", "lock"].contains(&name) {
            fs::remove_file(directory.join(name)).unwrap();
        } else {
            write(elsewhere.join(VERSION).join("f"), "precious");
        }
        link(&elsewhere, directory.join(name));
        let before = (tree(directory), tree(other.path()));
        let error = hindered(&chain, directory);
        assert!(error.file().unwrap().ends_with(name), "{error}");
        assert_eq!((tree(directory), tree(other.path())), before, "{name}");
    }
    // While a follower is running.
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let mut subscriber = open(&chain, folder.path());
    pull(&mut subscriber, Some(0));
    write(other.path().join(VERSION).join("held.json"), "{}");
    for name in ["versions", "cache"] {
        let path = folder.path().join(name);
        fs::rename(&path, folder.path().join("aside")).unwrap();
        link(other.path(), &path);
        let before = tree(other.path());
        assert_eq!(
            subscriber.prepare(Some(1), &()).unwrap_err().class(),
            ErrorClass::Io
        );
        assert_eq!(tree(other.path()), before);
        fs::remove_file(&path).unwrap();
        fs::rename(folder.path().join("aside"), &path).unwrap();
    }
    pull(&mut subscriber, Some(1));
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_the_lock_does_not_hang() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    drop(open(&chain, folder.path()));
    fs::remove_file(folder.path().join("lock")).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(folder.path().join("lock"))
        .status()
        .unwrap();
    assert!(made.success());
    assert!(
        hindered(&chain, folder.path())
            .file()
            .unwrap()
            .ends_with("lock")
    );
}

#[test]
fn a_directory_that_was_removed_is_made_anew() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("model");
    let mut subscriber = open(&chain, &directory);
    pull(&mut subscriber, Some(1));
    for what in ["", "versions", "cache"] {
        fs::remove_dir_all(directory.join(what)).unwrap();
        let notes = Notes::default();
        let prepared = subscriber.prepare(None, &notes).unwrap();
        if let Some(prepared) = prepared {
            subscriber.apply(prepared).unwrap();
        }
        assert_eq!(shown(&directory), chain.whole(4), "{what}");
        assert!(
            what == "cache"
                || notes
                    .remarks()
                    .iter()
                    .any(|remark| remark.contains("recreat"))
        );
    }
    // The new directory is locked, too.
    refused(&chain, &directory);
    // A directory that is removed after preparing is not a lasting failure, either.
    let prepared = subscriber.prepare(Some(0), &()).unwrap().unwrap();
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(
        subscriber.apply(prepared).unwrap_err().class(),
        ErrorClass::Io
    );
    pull(&mut subscriber, None);
    assert_eq!(shown(&directory), chain.whole(4));
    // A directory that has become foreign is not taken over.
    fs::remove_dir_all(&directory).unwrap();
    write(directory.join("notes.txt"), "precious");
    assert_eq!(
        subscriber.prepare(Some(0), &()).unwrap_err().class(),
        ErrorClass::Usage
    );
    assert_eq!(names(&directory), ["notes.txt"]);
}

#[test]
fn a_directory_can_be_looked_at() {
    let chain = long_chain();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("model");
    assert_eq!(
        Health::of(&directory, None).unwrap_err().class(),
        ErrorClass::Usage
    );
    let mut subscriber = open(&chain, &directory);
    let problems = || Health::of(&directory, None).unwrap().problems;
    assert_eq!(problems(), ["it holds no version"]);
    let switched = pull(&mut subscriber, Some(3));
    // The directory is locked meanwhile.
    let found = Health::of(&directory, None).unwrap();
    assert_eq!(
        (found.version, found.state),
        (Some(3), Some(switched.state.to_string()))
    );
    assert_eq!(found.commit, Some(switched.commit.to_string()));
    assert_eq!(found.directory.as_deref(), switched.directory.to_str());
    let chain = Digest::of_bytes(&fs::read(chain.path(ObjectName::Chain)).unwrap());
    assert_eq!(found.chain, Some(chain.to_string()));
    assert!(found.healthy && found.switched.is_some());
    let file = switched.directory.join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let missing = ["files are missing or have another length: model.safetensors"];
    fs::write(&file, &bytes[1..]).unwrap();
    assert_eq!(problems(), missing);
    fs::remove_file(&file).unwrap();
    assert_eq!(problems(), missing);
    fs::remove_dir(&switched.directory).unwrap();
    let found = Health::of(&directory, None).unwrap();
    assert_eq!((found.version, found.problems.len()), (None, 1));
}

#[test]
fn the_directory_of_a_chain_is_not_a_place_for_models_or_caches() {
    let chain = long_chain();
    let own = chain.folder.path();
    let before = names(own);
    let outside = tempfile::tempdir().unwrap();
    let beside = own.with_extension("beside");
    fs::create_dir(own.join("empty")).unwrap();
    let mut inside = vec![
        own.to_owned(),
        own.join("empty"),
        own.join("routes"),
        own.join("new/model"),
    ];
    let name = own.file_name().unwrap();
    inside.extend([
        own.join("files"),
        own.join("..").join(name),
        outside.path().join("missing/../..").join(name),
    ]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(own, outside.path().join("link")).unwrap();
        inside.extend([
            outside.path().join("link"),
            outside.path().join("link/model"),
        ]);
    }
    for directory in inside {
        let refused =
            Follower::in_directory(chain.store.clone(), &directory, FollowerOptions::default())
                .unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Usage, "{directory:?}");
        assert!(
            refused.message().contains("the chain's own directory"),
            "{directory:?}: {refused}"
        );
        // The chain's own files have names like the files in a cache.
        let options = FollowerOptions::default()
            .cache(Some(directory.clone()))
            .cache_bytes(Some(0));
        let refused = Follower::in_memory(chain.store.clone(), options).unwrap_err();
        assert!(
            refused.message().contains("the chain's own directory"),
            "{directory:?}: {refused}"
        );
    }
    fs::remove_dir(own.join("empty")).unwrap();
    assert_eq!(names(own), before);
    assert!(!outside.path().join("missing").exists());
    // A path with the same beginning is another directory.
    pull(&mut open(&chain, &beside), None);
    fs::remove_dir_all(beside).unwrap();
}
