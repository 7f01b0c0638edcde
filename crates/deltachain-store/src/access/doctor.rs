//! Tries whether a store or a directory can do what chains and their followers need. All operations
//! use objects below a new name, which are removed again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use deltachain::chain::{FileReference, ObjectName};
use deltachain::tensor::Digest;
use deltachain::{Error, Result};
use serde::Serialize;
use tempfile::{NamedTempFile, TempDir};

use crate::access::refusal::is_condition;
use crate::access::store::Store;

/// S3 refuses signed requests if their time differs by more than this.
const CLOCK: Duration = Duration::from_mins(15);

/// Number of attempts for each check; a store that is busy for longer is reported as failing.
const ATTEMPTS: u32 = 3;

/// Publishers that race for a version.
const RACERS: usize = 8;

/// Length of a file that has two parts, of which the first is the shortest that S3 allows.
const LONG: usize = (5 << 20) + 1;

/// One thing that was tried.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The operation that was tried, such as `put if absent`.
    pub tried: &'static str,
    /// The observation, or the reason why the operation does not work. May be empty.
    pub says: String,
    /// The operations on a chain that need it.
    pub breaks: &'static str,
    /// True if it works.
    pub works: bool,
    /// True if each chain or follower needs it.
    #[serde(rename = "needed")]
    pub is_needed: bool,
}

impl Finding {
    /// True if it is missing and needed.
    pub fn is_fatal(&self) -> bool {
        self.is_needed && !self.works
    }
}

/// The findings so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    /// Notes how a trial went. `Ok` holds what there is to say of it.
    fn note(
        &mut self,
        tried: &'static str,
        breaks: &'static str,
        trial: Result<impl Into<String>>,
    ) -> bool {
        let works = trial.is_ok();
        let says = trial.map_or_else(|error| format!("{error:#}"), Into::into);
        self.0.push(Finding {
            tried,
            says,
            breaks,
            works,
            is_needed: true,
        });
        works
    }

    /// The same for abilities that are useful but not needed.
    fn note_only(&mut self, tried: &'static str, breaks: &'static str, trial: Result<String>) {
        self.note(tried, breaks, trial);
        if let Some(last) = self.0.last_mut() {
            last.is_needed = false;
        }
    }
}

/// Tries out what a store or a directory can do. This touches only objects below a new name
/// `doctor-...`, and removes them, unless [`Stop`](crate::Stop) ends that. A web server can only be
/// read: there the chain document is read.
///
/// # Errors
/// IO if nothing can be made in a directory; USAGE if it was stopped. It is no error if something
/// does not work.
pub fn doctor(store: &Store) -> Result<Vec<Finding>> {
    // Parts are as short as possible, so that a short file has two.
    let store = &store.with_attempts(ATTEMPTS).with_part_bytes(1);
    let mut findings = Findings::default();
    match store.directory() {
        Some(directory) => {
            let place = tempfile::Builder::new()
                .prefix("doctor-")
                .tempdir_in(&directory);
            let place = place
                .map_err(|error| Error::io("creating a directory", error).in_file(&directory))?;
            try_directory(&mut findings, &place);
            let name = place
                .path()
                .file_name()
                .unwrap_or_default()
                .to_string_lossy();
            try_writing(&mut findings, &store.below(&name).below("store"));
        }
        None if store.can_list() => {
            let below = store.below(&format!("doctor-{:016x}", rand::random::<u64>()));
            try_writing(&mut findings, &below);
        }
        None => try_reading(&mut findings, store),
    }
    // A trial that was given up says nothing of the store.
    if store.stop.is_stopped() {
        Err(Error::usage("it was stopped"))
    } else {
        Ok(findings.0)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "other clocks are compared with this one"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

/// A trial that went well, or why not.
fn if_so(is_so: bool, why_not: &str) -> Result<&'static str> {
    if is_so {
        Ok("")
    } else {
        Err(Error::usage(why_not))
    }
}

/// Tries the operations that publishers and followers ask of a store, which has to be empty.
/// Removes what it stored.
fn try_writing(findings: &mut Findings, store: &Store) {
    let (first, second) = (ObjectName::Commit(0), ObjectName::Commit(1));
    if !try_creating(findings, store, first) {
        return;
    }
    let stored = now();
    let again = store.put_if_absent(first, b"another").and_then(|is_new| {
        let stays = !is_new && store.get(first)?.as_deref() == Some(b"first");
        if_so(stays, "the existing object was replaced")
    });
    let breaks = "publish: two publishers could both believe that they made a version";
    findings.note("put if absent", breaks, again);
    findings.note("put if absent, concurrent", breaks, race(store, second));
    try_seeing(findings, store, [first, second]);
    try_parts(findings, store);
    findings.note_only(
        "clock",
        "the times that follow and log show; requests to S3 beyond 15 minutes",
        clock(store, first, stored),
    );
    try_deleting(findings, store, first);
}

/// Tries to create an object. If that fails, tries what works without the condition on its name,
/// removes what was stored, and returns false.
fn try_creating(findings: &mut Findings, store: &Store, first: ObjectName) -> bool {
    let put = store.put_if_absent(first, b"first").and_then(|is_new| {
        // An earlier attempt of this call may have succeeded unseen.
        let is_own = is_new || store.get(first)?.as_deref() == Some(b"first");
        if_so(is_own, "a new name is already taken")
    });
    let is_conditional = put.as_ref().is_err_and(is_condition);
    if findings.note(
        "put, if the name is free",
        "init, publish and compact: nothing can be published",
        put,
    ) {
        return true;
    }
    let mut is_stored = true;
    if is_conditional {
        let plain = upload(store, b"plain", first).map(|()| "only the condition is refused");
        is_stored = findings.note("put", "nothing can be copied here either", plain);
    }
    // A put that failed may have stored the object all the same.
    let removed = remove(store).map(|()| "");
    if is_stored && (is_conditional || removed.is_err()) {
        findings.note(
            "delete",
            "prune; the objects of this test are still there",
            removed,
        );
    }
    false
}

/// Tries to read and to list objects that were just written.
fn try_seeing(findings: &mut Findings, store: &Store, [first, second]: [ObjectName; 2]) {
    let read = store.get(first).and_then(|content| {
        // The other one, where the condition was ignored.
        let is_there = matches!(content.as_deref(), Some(b"first" | b"another"));
        if_so(
            is_there,
            "an object that was just written cannot be read back",
        )
    });
    findings.note(
        "read after write",
        "everything: a version could be seen without its files",
        read,
    );
    let listed = store.objects().and_then(|objects| {
        let listed: Vec<_> = objects.iter().map(|object| object.name).collect();
        let after = store.listing(1)?.head();
        let are_there = listed == [first, second] && after == Some(1);
        if_so(
            are_there,
            "an object that was just written is missing from the list",
        )
    });
    findings.note(
        "list after write",
        "publish, pull, prune and fsck: new versions are not found",
        listed,
    );
}

/// Tries to upload a file in parts, and to read a range of it.
fn try_parts(findings: &mut Findings, store: &Store) {
    let content = vec![7; LONG];
    let file = FileReference {
        digest: Digest::of_bytes(&content),
        size: content.len() as u64,
    };
    let uploaded = upload(store, &content, file.name()).map(|()| "");
    if findings.note("upload in parts", "publish, of long files", uploaded) {
        let is_right = |bytes: &[u8], size| bytes == &content[5..15] && size == file.size;
        try_range(findings, store, file.name(), (5, 15), is_right);
    }
}

/// Removes all objects of the test, and looks for one of them.
fn try_deleting(findings: &mut Findings, store: &Store, first: ObjectName) {
    let removed = remove(store).and_then(|()| store.find(first));
    let removed =
        removed.and_then(|found| if_so(found.is_none(), "a deleted object is still there"));
    findings.note(
        "delete",
        "prune; the objects of this test are still there",
        removed,
    );
}

/// One of several that want a name gets it, and its content stands there.
fn race(store: &Store, name: ObjectName) -> Result<&'static str> {
    let content = |racer: usize| format!("racer {racer}").into_bytes();
    let won = thread::scope(|scope| {
        let race = |racer| move || store.put_if_absent(name, &content(racer));
        let failed = |error| Error::io("starting a thread", error);
        let start = |racer| {
            thread::Builder::new()
                .spawn_scoped(scope, race(racer))
                .map_err(failed)
        };
        let racers = (0..RACERS).map(start).collect::<Result<Vec<_>>>()?;
        let ended = |_| Err(Error::usage("a thread ended"));
        racers
            .into_iter()
            .map(|racer| racer.join().unwrap_or_else(ended))
            .collect::<Result<Vec<bool>>>()
    })?;
    let winners: Vec<usize> = (0..RACERS).filter(|&racer| won[racer]).collect();
    match (&winners[..], store.get(name)?) {
        (&[winner], Some(stands)) if stands == content(winner) => Ok(""),
        // The writer that won may not have heard of it.
        (&[], Some(_)) => Ok("the store told no writer that its put succeeded"),
        _ => Err(Error::usage(format!(
            "the store told {} of {RACERS} writers that their puts succeeded",
            winners.len()
        ))),
    }
}

fn upload(store: &Store, content: &[u8], name: ObjectName) -> Result<()> {
    let failed = |error| Error::io("writing a temporary file", error);
    let mut file = NamedTempFile::new().map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    store.upload(file.path(), name, content.len() as u64, &())
}

fn clock(store: &Store, name: ObjectName, written: SystemTime) -> Result<String> {
    let found = store
        .find(name)?
        .ok_or_else(|| Error::usage("missing object"))?;
    compare(found.stored, written)
}

/// Error of a clock that showed the time `told` when the local time was `now`.
fn compare(told: SystemTime, now: SystemTime) -> Result<String> {
    let (off, way) = match told.duration_since(now) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(error) => (error.duration(), "behind"),
    };
    let says = format!("{} s {way} this machine's", off.as_secs());
    if off <= CLOCK {
        Ok(says)
    } else {
        Err(Error::usage(says))
    }
}

fn remove(store: &Store) -> Result<()> {
    let names: Vec<ObjectName> = store.objects()?.iter().map(|object| object.name).collect();
    store.delete(&names)
}

/// Tries the operations that a follower asks of a web server.
fn try_reading(findings: &mut Findings, store: &Store) {
    let read = store
        .get(ObjectName::Chain)
        .and_then(|chain| if_so(chain.is_some(), "there is no chain.json"));
    let breaks = "pull and follow: there is nothing to follow";
    if findings.note("read", breaks, read) {
        try_range(findings, store, ObjectName::Chain, (1, 3), |bytes, _| {
            bytes.len() == 2
        });
    }
}

fn try_range(
    findings: &mut Findings,
    store: &Store,
    name: ObjectName,
    (start, end): (u64, u64),
    is_right: impl FnOnce(&[u8], u64) -> bool,
) {
    let range = store
        .block_on(store.get_range(name, start, end))
        .and_then(|range| {
            if_so(
                range.is_some_and(|(bytes, size)| is_right(&bytes, size)),
                "the wrong bytes are returned",
            )
        });
    findings.note(
        "range of an object",
        "pull and follow: files are fetched in parts",
        range,
    );
}

/// Tries the operations that a chain or a follower asks of a file system.
fn try_directory(findings: &mut Findings, place: &TempDir) {
    let place = place.path();
    let written = trial(write_and_sync(place));
    if !findings.note(
        "write and fsync",
        "everything: nothing can be written",
        written,
    ) {
        return;
    }
    let breaks = "init and publish, of a chain in this directory";
    findings.note(
        "hard link",
        breaks,
        trial(fs::hard_link(place.join("file"), place.join("linked"))),
    );
    findings.note(
        "rename over a file",
        "pull, follow and publish --work",
        trial(rename_over(place)),
    );
    #[cfg(unix)]
    try_unix(findings, place);
    findings.note(
        "lock",
        "pull and follow: two processes could use the same directory",
        trial(lock(&place.join("lock"))),
    );
    let clock = fs::metadata(place.join("file")).and_then(|metadata| metadata.modified());
    let clock = clock
        .map_err(|error| Error::io("asking", error))
        .and_then(|time| compare(time, now()));
    findings.note_only(
        "clock of the file system",
        "the times that follow and log show",
        clock,
    );
}

fn trial(result: io::Result<()>) -> Result<String> {
    result
        .map(|()| String::new())
        .map_err(|error| Error::io("trying", error))
}

fn write_and_sync(place: &Path) -> io::Result<()> {
    let mut file = File::create_new(place.join("file"))?;
    file.write_all(b"first")?;
    file.sync_all()
}

fn rename_over(place: &Path) -> io::Result<()> {
    fs::write(place.join("new"), "second")?;
    fs::rename(place.join("new"), place.join("file"))?;
    if fs::read(place.join("file"))? == b"second" {
        Ok(())
    } else {
        Err(io::Error::other("the old file is still there"))
    }
}

/// Tries the operations that other systems do not have.
#[cfg(unix)]
fn try_unix(findings: &mut Findings, place: &Path) {
    findings.note(
        "symbolic link, switched",
        "pull, follow and publish --work",
        trial(switch_link(place)),
    );
    let synced = File::open(place).and_then(|directory| directory.sync_all());
    findings.note(
        "fsync of a directory",
        "a version could be lost in a power failure",
        trial(synced),
    );
    let free = rustix::fs::statvfs(place);
    let free = free.map(|free| {
        format!(
            "{} MiB",
            (free.f_bavail.saturating_mul(free.f_frsize)) >> 20
        )
    });
    let free = free.map_err(|error| Error::io("asking", error.into()));
    findings.note_only("free space", "checked before a version is built", free);
}

#[cfg(unix)]
fn switch_link(place: &Path) -> io::Result<()> {
    use std::os::unix::fs::symlink;
    symlink("file", place.join("current"))?;
    symlink("linked", place.join("next"))?;
    fs::rename(place.join("next"), place.join("current"))?;
    if fs::read_link(place.join("current"))? == Path::new("linked") {
        Ok(())
    } else {
        Err(io::Error::other("the old link is still there"))
    }
}

/// A second handle must not get the lock that the first one has, and must get it afterwards.
fn lock(path: &Path) -> io::Result<()> {
    let (first, second) = (File::create(path)?, File::create(path)?);
    first.try_lock()?;
    match second.try_lock() {
        Err(fs::TryLockError::WouldBlock) => {}
        Err(fs::TryLockError::Error(error)) => return Err(error),
        Ok(()) => return Err(io::Error::other("two holders at once")),
    }
    drop(first);
    Ok(second.try_lock()?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use deltachain_testkit::faulty::{Call, Fault, FaultyStore, Operation};
    use futures_util::StreamExt;
    use object_store::ObjectStore;
    use object_store::memory::InMemory;

    use super::*;
    use crate::access::options::StoreOptions;

    fn missing(findings: &[Finding]) -> Vec<&'static str> {
        findings
            .iter()
            .filter(|finding| !finding.works)
            .map(|finding| finding.tried)
            .collect()
    }

    #[test]
    fn a_good_store_has_everything_and_nothing_is_left() {
        let store =
            Store::from_objects(Arc::new(InMemory::new()), "chain", StoreOptions::default())
                .unwrap();
        let below = store.below("doctor-1");
        let mut findings = Findings::default();
        try_writing(&mut findings, &below);
        assert_eq!(
            missing(&findings.0),
            <[&str; 0]>::default(),
            "{:?}",
            findings.0
        );
        assert_eq!(findings.0.len(), 9);
        assert_eq!(below.objects().unwrap(), []);
    }

    /// Tries a store of which some calls fail.
    fn try_faulty(
        plan: impl Fn(&Call<'_>) -> Option<Fault> + Send + Sync + 'static,
    ) -> (Store, Vec<Finding>) {
        let (objects, control) = FaultyStore::new(Arc::new(InMemory::new()));
        let options = StoreOptions::default().pause(Duration::from_millis(1));
        let store = Store::from_objects(objects, "chain", options).unwrap();
        control.plan(plan);
        let findings = doctor(&store).unwrap();
        control.heal();
        (store, findings)
    }

    fn left(store: &Store) -> usize {
        let listed = store.opened.objects.list(None).collect::<Vec<_>>();
        store.block_on(listed).len()
    }

    #[test]
    fn a_success_that_was_not_seen_is_no_fault_of_the_store() {
        let (store, findings) = try_faulty(|call| {
            let is_first = call.operation == Operation::Create && call.number == 0;
            (is_first && call.path.ends_with("00000000000000000000.json"))
                .then_some(Fault::FailAfter)
        });
        assert_eq!(missing(&findings), <[&str; 0]>::default(), "{findings:?}");
        assert_eq!(left(&store), 0);
    }

    #[test]
    fn an_object_that_was_stored_by_a_failed_put_is_removed() {
        let (store, findings) =
            try_faulty(|call| (call.operation == Operation::Create).then_some(Fault::FailAfter));
        assert_eq!(missing(&findings), ["put, if the name is free"]);
        assert_eq!(left(&store), 0);
    }

    #[test]
    fn a_file_is_uploaded_in_parts() {
        let parts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&parts);
        let (_, findings) = try_faulty(move |call| {
            if call.operation == Operation::Part {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            None
        });
        assert_eq!(missing(&findings), <[&str; 0]>::default(), "{findings:?}");
        assert_eq!(parts.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_good_directory_has_everything_and_nothing_is_left() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("mine"), "x").unwrap();
        let store = Store::open(place.path().to_str().unwrap(), StoreOptions::default()).unwrap();
        let findings = doctor(&store).unwrap();
        assert_eq!(missing(&findings), <[&str; 0]>::default(), "{findings:?}");
        assert!(findings.len() > 14);
        let left: Vec<_> = fs::read_dir(place.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["mine"]);
    }
}
