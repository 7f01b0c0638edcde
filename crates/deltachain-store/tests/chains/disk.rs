//! Full disks, and places that cannot be written: the reader and the chain keep what they have.

use std::fs;
use std::path::Path;
use std::process::Output;

use deltachain::{Error, ErrorClass};
use deltachain_store::{
    Base, Directory, Follower, FollowerOptions, PublishOptions, Publisher, Snapshots, Store, init,
};

use crate::support::child::{child_with_short_files, place};
use crate::support::foreign;
use crate::support::models::Models;
use crate::support::quick;
use crate::support::verify::{prove, shown};

/// Rows of the largest tensor. The model has 300 kB, and a link from one version to the next about
/// 10 kB.
const ROWS: u64 = 2400;
/// Maximum length of a file, in blocks of 512 or 1024 bytes: 50 or 100 kB.
const BLOCKS: u64 = 100;

fn store(place: &Path) -> Store {
    Store::create(place.join("store").to_str().unwrap(), quick()).unwrap()
}

fn publish(place: &Path, version: u64) -> Result<(), Error> {
    let mut models = Models::new(5, ROWS);
    let state = models.save(version, &place.join("models"));
    let before = version
        .checked_sub(1)
        .map(|before| models.save(before, &place.join("models")));
    let mut options = PublishOptions::default();
    // Snapshots exceed the maximum length of a file.
    options = options.snapshots(Snapshots::Every(1));
    let base = before
        .as_ref()
        .map_or(Base::Nothing, |base| Base::State(base.into()));
    Publisher::open(store(place), options)?
        .publish(&state, base, &())
        .map(drop)
}

fn follower(place: &Path) -> Follower<Directory> {
    Follower::in_directory(
        store(place),
        &place.join("model"),
        FollowerOptions::default(),
    )
    .unwrap()
}

fn advance(place: &Path) -> Result<(), Error> {
    let mut follower = follower(place);
    if let Some(prepared) = follower.prepare(None, &())? {
        follower.apply(prepared)?;
    }
    Ok(())
}

/// Creates a chain of one version with a follower, and the files of the next version.
fn chain() -> (tempfile::TempDir, Models) {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("models")).unwrap();
    init(&store(place.path())).unwrap();
    publish(place.path(), 0).unwrap();
    advance(place.path()).unwrap();
    let mut models = Models::new(5, ROWS);
    models.save(1, &place.path().join("models"));
    (place, models)
}

fn assert_refused(error: &Error) {
    assert_eq!(error.class(), ErrorClass::Io, "{error:?}");
    // Some errors of the operating system contain the path.
    assert!(
        error.file().is_some() || format!("{error:#}").contains("at path"),
        "{error:?}"
    );
    // The parent process reads this line.
    println!("refused: {error:?}");
}

#[test]
#[ignore = "a process that cannot write much"]
fn full_publisher() {
    let Some(place) = place() else { return };
    assert_refused(&publish(&place, 1).unwrap_err());
}

#[test]
#[ignore = "a process that cannot write much"]
fn full_follower() {
    let Some(place) = place() else { return };
    assert_refused(&advance(&place).unwrap_err());
}

fn run(test: &str, place: &Path) {
    let Output {
        status,
        stdout,
        stderr,
    } = child_with_short_files(&format!("disk::{test}"), place, BLOCKS)
        .output()
        .unwrap();
    let said = String::from_utf8(stdout).unwrap();
    assert!(
        status.success() && said.contains("refused: "),
        "{said}{}",
        String::from_utf8_lossy(&stderr)
    );
    said.lines()
        .filter(|line| line.contains("refused: "))
        .for_each(|line| println!("{test}: {line}"));
}

#[test]
fn a_full_disk_under_the_chain_changes_nothing() {
    let (place, mut models) = chain();
    let (place, store) = (place.path(), store(place.path()));
    run("full_publisher", place);
    assert_eq!(prove(&store).len(), 1);
    publish(place, 1).unwrap();
    advance(place).unwrap();
    assert_eq!(shown(&place.join("model")).as_ref(), Some(models.state(1)));
}

#[test]
fn a_full_disk_under_the_reader_leaves_what_it_has() {
    let (place, mut models) = chain();
    let place = place.path();
    publish(place, 1).unwrap();
    foreign::put(&place.join("model"));
    run("full_follower", place);
    foreign::check(&place.join("model"));
    assert_eq!(shown(&place.join("model")).as_ref(), Some(models.state(0)));
    let mut follower = follower(place);
    assert_eq!(follower.held().unwrap().version, 0);
    assert!(follower.prepare(Some(0), &()).unwrap().is_none());
    let prepared = follower.prepare(None, &()).unwrap().unwrap();
    follower.apply(prepared).unwrap();
    assert_eq!(shown(&place.join("model")).as_ref(), Some(models.state(1)));
    foreign::check(&place.join("model"));
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let (place, mut models) = chain();
    let place = place.path();
    // Not even the superuser can create a directory below a file.
    let file = place.join("file");
    fs::write(&file, "").unwrap();
    for path in [file.join("below"), file.clone()] {
        let error =
            Follower::in_directory(store(place), &path, FollowerOptions::default()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Io, "{error:?}");
        assert!(
            error.file().is_some_and(|named| named.contains("file")),
            "{error:?}"
        );
    }
    let error = Store::create(file.join("store").to_str().unwrap(), quick()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Io, "{error:?}");

    // An object cannot be stored where a file is in the way, either.
    for folder in ["commits", "files"] {
        let folder = place.join("store").join(folder);
        let aside = place.join("aside");
        fs::rename(&folder, &aside).unwrap();
        fs::write(&folder, "").unwrap();
        let error = publish(place, 1).unwrap_err();
        assert!(
            [ErrorClass::Io, ErrorClass::Chain].contains(&error.class()),
            "{error:?}"
        );
        fs::remove_file(&folder).unwrap();
        fs::rename(&aside, &folder).unwrap();
    }
    assert_eq!(prove(&store(place)).len(), 1);

    // The follower's folder for new versions is replaced by a file.
    let versions = place.join("model/versions");
    let error = {
        let mut follower = follower(place);
        publish(place, 1).unwrap();
        let aside = place.join("aside");
        fs::rename(&versions, &aside).unwrap();
        fs::write(&versions, "").unwrap();
        let error = follower.prepare(None, &()).unwrap_err();
        fs::remove_file(&versions).unwrap();
        fs::rename(&aside, &versions).unwrap();
        error
    };
    assert_eq!(error.class(), ErrorClass::Io, "{error:?}");
    assert_eq!(shown(&place.join("model")).as_ref(), Some(models.state(0)));
    advance(place).unwrap();
    assert_eq!(shown(&place.join("model")).as_ref(), Some(models.state(1)));
}
