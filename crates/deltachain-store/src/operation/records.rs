//! The records that `follow` writes to its directory, for `status` and for its own restart:
//!
//! ```text
//! status.json   the result of the last poll of the chain; written after each poll
//! ran.json      the version for which the command of --exec has succeeded
//! servers.json  the last known version of each server, and whether it is being changed
//! follow.lock   held by `follow` as long as it runs
//! ```
//!
//! All of them are optional, and none says what the directory holds.

use std::error::Error as _;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::thread;
use std::time::Duration;

use deltachain::tensor::Digest;
use deltachain::{Error, ErrorClass, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::access::copies::StoreUse;
use crate::access::traffic::FailureNote;
use crate::directory::lock::open_lock;
use crate::directory::names::is_real_file;
use crate::directory::own::replace;
use crate::following::follower::{Follower, Place};
use crate::following::switched::SwitchReport;
use crate::operation::time::Time;
use crate::there::if_there;

const STATUS: &str = "status.json";
const RAN: &str = "ran.json";
const SERVERS: &str = "servers.json";
/// Maximum number of versions that are remembered of those that the directory has held.
const VERSIONS: usize = 64;
const LOCK: &str = "follow.lock";
/// Advice about a record that cannot be read.
const REMOVE_RECORD: &str = "remove it: `follow` writes the record again";

/// Maximum length of a record in bytes.
const LONGEST: u64 = 1 << 20;

/// Number of attempts to take the lock, and the pause between two: a process that checks the lock
/// holds it for an instant.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Status of a follower: `status.json`. A field that an older tool did not write has its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FollowStatus {
    /// The process ID of the follower, or of the last one.
    pub(crate) pid: u32,
    /// When that process began to follow.
    started: Option<Time>,
    /// When the chain was last polled, with or without success.
    pub last_look: Option<Time>,
    /// The last poll that succeeded.
    pub last_success: Option<Time>,
    /// The newest version of the chain that has been seen.
    pub head: Option<u64>,
    /// The versions that the directory has held, as polls have found them. The last one is the
    /// latest.
    pub(crate) versions: Vec<KnownVersion>,
    /// When the commit of the held version was stored.
    pub(crate) stored: Option<At>,
    /// Whether the last poll failed.
    pub(crate) failing: bool,
    /// The last failure, even if polls have succeeded since.
    pub(crate) last_error: Option<Failure>,
    /// The command of --exec; `None` without one.
    pub command: Option<CommandStatus>,
    /// The reason why the held version does not count as signed; `None` if it does, or if unsigned
    /// versions are accepted.
    pub unsigned: Option<String>,
    /// The reason why servers that download the chain themselves load the held version as a whole;
    /// `None` if they do not.
    pub whole: Option<String>,
    /// The stores that the process has used: the chain's own, and copies.
    pub stores: Vec<StoreRecord>,
}

impl FollowStatus {
    /// Notes that this process follows from now on.
    pub fn begins(&mut self) {
        (self.pid, self.started) = (process::id(), Some(Time::now()));
    }

    /// Copies the use of each store, and the newest version, from a follower. The newest version is
    /// not lowered here, because a newer one may have been listed since: after a rollback,
    /// [`found`](Self::found) lowers it.
    pub fn observe<P: Place>(&mut self, follower: &Follower<P>) {
        self.head = self.head.max(follower.newest());
        let uses = follower.reader.files.uses();
        self.stores = uses.into_iter().map(StoreRecord::from).collect();
    }

    /// Notes that the directory has been switched to another version.
    pub fn switched(&mut self, switched: &SwitchReport) {
        let stored = switched.lag.and_then(|lag| lag.seconds).and_then(Time::ago);
        self.stored = stored.map(|time| At {
            version: switched.version,
            time,
        });
    }

    /// Notes that a poll has failed.
    pub fn failed(&mut self, error: &Error) {
        (self.failing, self.last_error) = (true, Some(Failure::of(error)));
    }

    /// Notes that a poll has succeeded: the directory holds this version, and `head` is the newest.
    pub fn found(&mut self, version: u64, state: &str, head: u64) {
        let time = Time::now();
        self.failing = false;
        (self.last_look, self.last_success) = (Some(time), Some(time));
        self.head = Some(head);
        // After a rollback, newer versions and another version of this number no longer belong to
        // the chain.
        self.versions
            .retain(|known| known.version < version || known.is(version, state));
        if self
            .versions
            .last()
            .is_none_or(|last| !last.is(version, state))
        {
            self.versions.push(KnownVersion {
                version,
                state: state.to_owned(),
                newest: None,
            });
            self.versions
                .drain(..self.versions.len().saturating_sub(VERSIONS));
        }
        if let Some(last) = self.versions.last_mut()
            && version >= head
        {
            last.newest = Some(time);
        }
    }

    /// Returns the time when this version, or an older one, was last seen to be the newest.
    pub fn newest(&self, version: u64) -> Option<Time> {
        let older = self
            .versions
            .iter()
            .rev()
            .filter(|known| known.version <= version);
        older.into_iter().find_map(|known| known.newest)
    }
}

/// A version that the directory has held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownVersion {
    pub(crate) version: u64,
    /// Digest of its state.
    pub(crate) state: String,
    /// When it was last seen to be the newest of the chain, while it was held.
    pub(crate) newest: Option<Time>,
}

impl KnownVersion {
    pub(crate) fn is(&self, version: u64, state: &str) -> bool {
        (self.version, self.state.as_str()) == (version, state)
    }
}

/// A store, and the use that a follower has made of it since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreRecord {
    /// Its URL, without secrets.
    pub url: String,
    /// True for a copy of the chain.
    pub copy: bool,
    /// Bytes of documents and files that were downloaded from it, whether they were used or not.
    pub bytes: u64,
    /// Files that a copy did not have.
    pub missing: u64,
    /// Requests that failed.
    pub failures: u64,
    /// The last of these failures.
    pub last_failure: Option<Failure>,
    /// The last file of a copy that was not the chain's.
    pub damage: Option<Failure>,
}

impl From<StoreUse> for StoreRecord {
    fn from(used: StoreUse) -> Self {
        Self {
            url: used.name,
            copy: used.is_copy,
            bytes: used.bytes,
            missing: used.missing,
            failures: used.failures,
            last_failure: used
                .last_failure
                .map(|note| Failure::noted(ErrorClass::Io, note)),
            damage: used
                .damage
                .map(|note| Failure::noted(ErrorClass::Corrupt, note)),
        }
    }
}

/// A version and a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct At {
    /// The version.
    pub(crate) version: u64,
    /// The time.
    pub(crate) time: Time,
}

/// An error, and when it happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// When it happened.
    pub time: Time,
    /// Its class (SPEC section 11).
    pub(crate) class: String,
    /// The rule that was broken.
    pub rule: Option<String>,
    /// A description of the failure.
    pub message: String,
    /// True if it is a fault of this machine, such as a full disk, which a pause does not cure.
    #[serde(default)]
    pub(crate) is_local: bool,
}

impl Failure {
    /// A failure of a store.
    fn noted(class: ErrorClass, note: FailureNote) -> Self {
        Self {
            time: Time(note.time),
            class: class.name().to_owned(),
            rule: None,
            message: note.text,
            is_local: false,
        }
    }

    /// An error that has just happened.
    pub(crate) fn of(error: &Error) -> Self {
        Self {
            time: Time::now(),
            class: error.class().name().to_owned(),
            rule: error.rule().map(str::to_owned),
            message: format!("{error:#}"),
            is_local: is_local(error),
        }
    }
}

/// True for a fault of this machine that lasts until it is repaired. Followers only read stores, so
/// a full or read-only disk is always local.
fn is_local(error: &Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref());
    match source.map(io::Error::kind) {
        None => error.class() == ErrorClass::Io,
        Some(kind) => matches!(
            kind,
            ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::FileTooLarge
                | ErrorKind::ReadOnlyFilesystem
        ),
    }
}

/// Status of the command of --exec for the held version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandStatus {
    /// Digest of the command.
    pub digest: String,
    /// Whether it is running.
    pub running: bool,
    /// Number of failures for this version.
    pub failures: u64,
    /// Why it failed last.
    pub last_failure: Option<String>,
}

/// The version for which the command has succeeded: `ran.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// The version.
    pub version: u64,
    /// Digest of the version's commit.
    commit: String,
    /// Digest of the command.
    command: String,
    /// When the command ended.
    pub(crate) time: Time,
}

impl Ran {
    /// Creates the record of a command that has just succeeded for this version.
    pub fn now(version: u64, commit: Digest, command: &str) -> Self {
        Self {
            version,
            commit: commit.to_string(),
            command: command.to_owned(),
            time: Time::now(),
        }
    }

    /// Whether the record is of this command and this version.
    pub fn is(&self, version: u64, commit: Digest, command: &str) -> bool {
        (self.version, &self.commit, self.command.as_str())
            == (version, &commit.to_string(), command)
    }
}

/// The servers of `follow --engine`: `servers.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServersRecord {
    /// The kind of the servers, as --engine names it.
    pub engine: String,
    /// Whether they download the chain themselves, so that the directory has no tensors.
    pub download: bool,
    /// The servers, in the order of the options.
    pub servers: Vec<ServerRecord>,
}

/// A server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerRecord {
    /// URL of the server.
    pub url: String,
    /// The version that it had when it was last asked; `None` if it had none, or if the version is
    /// unknown.
    pub version: Option<u64>,
    /// State digest of the version that it was last seen to have.
    pub state: Option<String>,
    /// Whether it is being changed: it may hold parts of two versions.
    pub changing: bool,
    /// Whether it has been paused and not resumed.
    pub paused: bool,
    /// Number of failures since the server last had the version that it should have.
    pub failures: u64,
    /// Why it failed last.
    pub last_failure: Option<String>,
    /// When it was first known to have its version.
    pub since: Option<Time>,
}

/// The records in a directory.
#[derive(Debug, Clone)]
pub struct Records {
    directory: PathBuf,
}

impl Records {
    /// The records in the directory of a follower.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// The directory that is followed.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The status of the follower; `None` if no follower has written one.
    ///
    /// # Errors
    /// IO, also if the file is foreign.
    pub fn status(&self) -> Result<Option<FollowStatus>> {
        self.read(STATUS)
    }

    /// Writes the status of the follower.
    ///
    /// # Errors
    /// IO.
    pub fn write_status(&self, status: &FollowStatus) -> Result<()> {
        // It may be lost in a crash: the next poll writes it again.
        self.write(STATUS, status, false)
    }

    /// The version for which the command has succeeded, or `None`.
    ///
    /// # Errors
    /// IO, also if the file is foreign.
    pub fn ran(&self) -> Result<Option<Ran>> {
        self.read(RAN)
    }

    /// Records the version for which the command has succeeded. Blocks until the record is on disk.
    ///
    /// # Errors
    /// IO.
    pub fn write_ran(&self, ran: &Ran) -> Result<()> {
        self.write(RAN, ran, true)
    }

    /// The servers that are updated to each version; `None` if there are none.
    ///
    /// # Errors
    /// IO, also if the file is not ours.
    pub fn servers(&self) -> Result<Option<ServersRecord>> {
        self.read(SERVERS)
    }

    /// Records the state of the servers, or removes the record if there are none. Blocks until a
    /// new record is on disk.
    ///
    /// # Errors
    /// IO.
    pub fn write_servers(&self, servers: Option<&ServersRecord>) -> Result<()> {
        match servers {
            Some(servers) => self.write(SERVERS, servers, true),
            None => {
                let path = self.directory.join(SERVERS);
                let removed = if_there(fs::remove_file(&path)).map(drop);
                removed.map_err(|error| Error::io("removing", error).in_file(path))
            }
        }
    }

    /// Marks this process as the follower, until the file is closed. There is only one follower,
    /// which has locked the directory. `None` if the file system has no locks: then other processes
    /// cannot see the follower.
    pub fn lock(&self) -> Option<File> {
        let file = open_lock(&self.directory.join(LOCK)).ok()?;
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(_)) => return None,
            }
        }
        None
    }

    /// Whether the lock file exists.
    pub fn has_lock(&self) -> bool {
        fs::symlink_metadata(self.directory.join(LOCK)).is_ok()
    }

    /// Whether a follower is running.
    pub(crate) fn is_locked(&self) -> bool {
        let path = self.directory.join(LOCK);
        // Only a regular file is opened: a pipe would block.
        let is_file = is_real_file(&path);
        // This check holds the lock for an instant. `lock` above allows for that, and no other
        // process takes the lock.
        is_file
            && File::open(path)
                .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.directory.join(name);
        let reading = |error| Error::io("reading", error).in_file(&path);
        let Some(found) = if_there(fs::symlink_metadata(&path)).map_err(reading)? else {
            return Ok(None);
        };
        if !found.is_file() {
            return Err(Error::unusable("not a regular file", REMOVE_RECORD).in_file(path));
        }
        if found.len() > LONGEST {
            return Err(Error::unusable("too long for a record", REMOVE_RECORD).in_file(path));
        }
        let bytes = fs::read(&path).map_err(reading)?;
        let record = serde_json::from_slice(&bytes);
        record.map(Some).map_err(|error| {
            let text = format!("the record cannot be read: {error}");
            Error::unusable(text, REMOVE_RECORD).in_file(path)
        })
    }

    /// Writes a record. Readers see all of the new record or all of the old one, except on a full
    /// disk.
    fn write(&self, name: &str, record: &impl Serialize, sync: bool) -> Result<()> {
        let path = self.directory.join(name);
        let bytes = serde_json::to_vec(record)
            .map_err(|error| Error::usage(error.to_string()).in_file(&path))?;
        replace(&self.directory, name, &bytes, sync)
            .or_else(|error| match error.kind() {
                // A status that reports the full disk is worth more than an atomic write.
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded if !sync => {
                    overwrite(&path, &bytes)
                }
                _ => Err(error),
            })
            .map_err(|error| Error::io("writing", error).in_file(&path))
    }
}

/// Writes into the blocks that a file already has, which works on a full disk. A process that reads
/// the file meanwhile may see half of the content.
fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if !is_real_file(path) {
        return Err(ErrorKind::StorageFull.into());
    }
    let mut file = File::options().write(true).open(path)?;
    file.write_all(bytes)?;
    file.set_len(u64::try_from(bytes.len()).map_err(io::Error::other)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::in_directory(directory.path());
        assert_eq!(
            (records.status().unwrap(), records.ran().unwrap()),
            (None, None)
        );
        let time = Time(humantime::parse_rfc3339("2026-01-31T12:00:00Z").unwrap());
        let status = FollowStatus {
            pid: 7,
            head: Some(3),
            last_error: Some(Failure {
                time,
                ..Failure::of(&Error::usage("x"))
            }),
            ..FollowStatus::default()
        };
        records.write_status(&status).unwrap();
        records.write_status(&status).unwrap();
        assert_eq!(records.status().unwrap(), Some(status));
        let commit = Digest::of_bytes(b"");
        let ran = Ran::now(3, commit, "c");
        records.write_ran(&ran).unwrap();
        let read = records.ran().unwrap().unwrap();
        assert!(read.is(3, commit, "c") && !read.is(3, commit, "d") && !read.is(4, commit, "c"));
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            2,
            "nothing is left beside them"
        );
        // A record that another version of the tool has written, and one that no version has
        // written.
        fs::write(directory.path().join(STATUS), r#"{"head":4,"moon":"full"}"#).unwrap();
        assert_eq!(records.status().unwrap().unwrap().head, Some(4));
        fs::write(directory.path().join(STATUS), "no").unwrap();
        assert!(records.status().is_err());
    }

    #[test]
    fn a_follower_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::in_directory(directory.path());
        assert!(!records.is_locked());
        let lock = records.lock().unwrap();
        assert!(records.is_locked());
        drop(lock);
        assert!(!records.is_locked());
    }

    #[cfg(unix)]
    #[test]
    fn nothing_is_written_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::in_directory(&directory.path().join("model"));
        fs::create_dir(directory.path().join("model")).unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "mine").unwrap();
        for name in ["status.json", "status.json.new", "follow.lock"] {
            std::os::unix::fs::symlink(&other, directory.path().join("model").join(name)).unwrap();
        }
        records.write_status(&FollowStatus::default()).unwrap();
        assert!(records.lock().is_none() && !records.is_locked());
        assert_eq!(fs::read(&other).unwrap(), b"mine");
    }
}
