//! Asks the members of a fleet for their statuses, and compares them with a chain by digests. A
//! member is a follower with a port (`follow --listen`, page `/status`), a program that serves the
//! same, or a follower's directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use deltachain::{Error, Result};
use deltachain_store::{Health, Store, VersionDigests, show, version_digests};
use reqwest::Url;
use reqwest::blocking::Client;
use serde::{Deserialize, Serialize};

use crate::server::new_client;

/// Path of the page with the status of a follower.
const STATUS: &str = "/status";

/// Maximum number of members that are asked at the same time.
const AT_ONCE: usize = 128;

/// Maximum length of a status.
const STATUS_BYTES: u64 = 4 << 20;

/// Pause between two rounds of waiting.
const PAUSE: Duration = Duration::from_secs(1);

/// Minimum number of digits that name a commit.
const LEAST_DIGITS: usize = 12;

/// A member of a fleet, or several that one name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// The URL of a follower, without a slash at its end.
    Url(String),
    /// A follower's directory.
    Directory(PathBuf),
    /// The host name and the port of followers: each of the name's addresses is a member.
    Name(String),
    /// A file with an address in each line. Empty lines and lines that begin with `#` are skipped.
    File(PathBuf),
}

/// Parses `http://HOST:PORT`, `HOST:PORT`, `dns:NAME:PORT`, `@FILE` or the path of a directory. A
/// path has a slash in it.
impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(file) = text.strip_prefix('@') {
            return Ok(Self::File(file.into()));
        }
        if let Some(name) = text.strip_prefix("dns:") {
            parse_host(name)?;
            return Ok(Self::Name(name.to_owned()));
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            return parse_status_url(text).map(Self::Url);
        }
        if text.contains('/') || text.starts_with('.') {
            return Ok(Self::Directory(text.into()));
        }
        parse_host(text)?;
        parse_status_url(&format!("http://{text}")).map(Self::Url)
    }
}

/// Checks that a text has a host and a port.
fn parse_host(text: &str) -> Result<(), String> {
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(_)) => Ok(()),
        _ => Err(
            "a member is HOST:PORT, http://HOST:PORT, dns:NAME:PORT, @FILE, or a directory with a \
             slash, such as ./run7"
                .to_owned(),
        ),
    }
}

fn parse_status_url(text: &str) -> Result<String, String> {
    let url = Url::parse(text).map_err(|error| format!("{error}; write http://HOST:PORT"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the address must not have a password".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("a member is http://HOST:PORT".to_owned());
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// The condition of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberCondition {
    /// It holds a version of the chain.
    Holds,
    /// It holds no version yet.
    Empty,
    /// It is paused: it answers no requests.
    Paused,
    /// It may hold parts of two versions.
    Torn,
    /// It holds something that the chain does not have.
    Foreign,
    /// It did not answer in time, or not with a status.
    Silent,
}

/// A member of a fleet, with the version that it holds.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Member {
    /// URL of the follower, or its directory.
    pub address: String,
    /// URL of the inference server that the follower updates; `None` if it updates none.
    pub server: Option<String>,
    /// Its condition.
    pub condition: MemberCondition,
    /// The version that it says it holds.
    pub version: Option<u64>,
    /// Digest of that version's commit; `None` if unknown.
    pub commit: Option<String>,
    /// State digest of that version.
    pub state: Option<String>,
    /// Level of proof that it holds the version, as `status` gives it; `None` for servers.
    pub proof: Option<String>,
    /// True if enough trusted keys have signed the version; `None` if the follower trusts no keys.
    pub signed: Option<bool>,
    /// When it got the version, by its own clock.
    pub since: Option<String>,
    /// Number of versions between it and the head; `None` if it holds none of the chain.
    pub behind: Option<u64>,
    /// The problem of the member; `None` if no problem is known.
    pub problem: Option<String>,
}

impl Member {
    /// True if the member holds a version of the chain, and nothing is known to be wrong with it.
    /// It may be behind.
    pub fn is_good(&self) -> bool {
        self.condition == MemberCondition::Holds && self.problem.is_none()
    }

    /// True if it holds the version of this commit, and nothing is known to be wrong with it.
    fn holds(&self, entry: &VersionDigests) -> bool {
        self.is_good()
            && self.version == Some(entry.version)
            && self.commit.as_deref() == Some(entry.commit.to_string().as_str())
    }
}

/// The members of a fleet, with the versions that they hold.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Survey {
    /// The newest version of the chain; `None` if it has none.
    pub head: Option<u64>,
    /// Digest of its commit.
    pub commit: Option<String>,
    /// The members, in the order of their addresses.
    pub members: Vec<Member>,
}

impl Survey {
    /// True if nothing is known to be wrong with any member. Members may be behind.
    pub fn is_good(&self) -> bool {
        self.members.iter().all(Member::is_good)
    }

    /// The number of members that hold the version of this commit, with nothing known to be wrong
    /// with them, and whether these are all members.
    fn count(&self, entry: &VersionDigests) -> (usize, bool) {
        let holding = self.members.iter().filter(|member| member.holds(entry));
        let count = holding.count();
        (count, count == self.members.len())
    }
}

/// Finds the version that a text names: its number and the first digits of its commit, as
/// `12@9417bf72d3e1`.
///
/// # Errors
/// USAGE if the text has another form, or names another commit or the state digest; R-CHN-03
/// (`CHAIN`) if there is no such version; IO.
pub fn find_version(chain: &Store, text: &str) -> Result<VersionDigests> {
    let form = || {
        Error::usage(format!(
            "{text:?} is not VERSION@COMMIT, such as 12@9417bf72d3e1"
        ))
    };
    let (version, commit) = text.split_once('@').ok_or_else(form)?;
    let version: u64 = version.parse().map_err(|_| form())?;
    let is_digest = commit.len() >= LEAST_DIGITS
        && commit
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    if !is_digest {
        let text = format!(
            "{text:?} needs {LEAST_DIGITS} or more hexadecimal digits of the commit after the @"
        );
        return Err(Error::usage(text));
    }
    let entry = show(chain, Some(version), None)?;
    let own = entry.commit.to_string();
    if own.starts_with(commit) {
        return Ok(VersionDigests {
            version,
            commit: entry.commit,
            state: entry.state,
        });
    }
    let is_state = entry.state.to_string().starts_with(commit);
    let what = if is_state {
        "that is the digest of its state"
    } else {
        "it has another commit"
    };
    let text = format!("version {version} has the commit {own}; {commit} is not it: {what}");
    Err(Error::usage(text))
}

/// Asks all members what they hold, and compares it with the chain. Members that do not answer in
/// `patience` are silent. Followers are believed.
///
/// # Errors
/// USAGE if there are no members, or one is named twice; IO if a file of addresses cannot be read,
/// a name has no addresses, or the chain's store does not answer; errors of the chain.
pub fn survey(chain: &Store, addresses: &[Address], patience: Duration) -> Result<Survey> {
    let members = resolved(addresses)?;
    let client = new_client(|builder| builder.timeout(patience))?;
    let statuses = ask_all(&client, &members);
    let facts = ChainFacts::read(chain, &statuses)?;
    let mut found = Vec::new();
    for (address, status) in members.iter().zip(statuses) {
        facts.judge(&address.to_string(), status, &mut found);
    }
    Ok(Survey {
        head: facts.head.as_ref().map(|head| head.version),
        commit: facts.head.as_ref().map(|head| head.commit.to_string()),
        members: found,
    })
}

/// The members that a deployment waits for.
#[derive(Debug, Clone, Copy)]
pub struct Awaited {
    /// The version that they are to hold.
    pub version: VersionDigests,
    /// The number of members that must hold it.
    pub expected: usize,
    /// Time limit.
    pub timeout: Duration,
}

/// Asks the fleet until all members hold a version, enough of them, with nothing known to be wrong
/// with any; or until the time is over. Returns the last answers, and whether that is so.
/// `meanwhile` waits between two rounds: it gets the number of members that hold the version, the
/// number of members, and the time to wait.
///
/// # Errors
/// Same errors as [`survey`]; errors of `meanwhile`.
pub fn wait_for(
    chain: &Store,
    addresses: &[Address],
    patience: Duration,
    awaited: Awaited,
    mut meanwhile: impl FnMut(usize, usize, Duration) -> Result<()>,
) -> Result<(Survey, bool)> {
    let began = Instant::now();
    loop {
        let found = survey(chain, addresses, patience)?;
        let (count, are_all) = found.count(&awaited.version);
        if are_all && count >= awaited.expected {
            return Ok((found, true));
        }
        if began.elapsed() >= awaited.timeout {
            return Ok((found, false));
        }
        let all = found.members.len().max(awaited.expected);
        meanwhile(count, all, PAUSE)?;
    }
}

/// A member that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Resolved {
    Url(String),
    Directory(PathBuf),
}

impl std::fmt::Display for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Resolves names, and reads files of addresses.
fn resolved(addresses: &[Address]) -> Result<Vec<Resolved>> {
    let mut members = Vec::new();
    for address in addresses {
        match address {
            Address::File(file) => {
                for address in read_addresses(file)? {
                    resolve(&address, &mut members)?;
                }
            }
            address => resolve(address, &mut members)?,
        }
    }
    if members.is_empty() {
        return Err(Error::usage("the fleet has no members"));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = members.iter().find(|member| !seen.insert(*member)) {
        return Err(Error::usage(format!("{twice} is named twice")));
    }
    Ok(members)
}

fn resolve(address: &Address, members: &mut Vec<Resolved>) -> Result<()> {
    match address {
        Address::Url(url) => members.push(Resolved::Url(url.clone())),
        Address::Directory(path) => members.push(Resolved::Directory(path.clone())),
        Address::Name(name) => {
            let found = name
                .to_socket_addrs()
                .map_err(|error| Error::io(format!("finding the addresses of {name}"), error))?;
            let all: BTreeSet<SocketAddr> = found.collect();
            members.extend(all.iter().map(|one| Resolved::Url(format!("http://{one}"))));
        }
        Address::File(file) => {
            return Err(Error::usage("a file of addresses cannot name another one").in_file(file));
        }
    }
    Ok(())
}

fn read_addresses(file: &Path) -> Result<Vec<Address>> {
    let text = fs::read_to_string(file)
        .map_err(|error| Error::io("reading addresses", error).in_file(file))?;
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            line.parse()
                .map_err(|text| Error::usage(format!("{line:?}: {text}")).in_file(file))
        })
        .collect()
}

/// The status of a follower, as `status --json` gives it. Other keys are skipped.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    /// Always there.
    healthy: Option<bool>,
    problems: Vec<String>,
    version: Option<u64>,
    state: Option<String>,
    commit: Option<String>,
    chain: Option<String>,
    proof: Option<String>,
    trust: Option<TrustStatus>,
    switched: Option<String>,
    servers: Vec<ServerStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct TrustStatus {
    quorum: usize,
    signed_by: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ServerStatus {
    url: String,
    version: Option<u64>,
    state: Option<String>,
    changing: bool,
    paused: bool,
    last_failure: Option<String>,
    since: Option<String>,
}

/// Asks all members, many at the same time. An error is the reason why one is silent.
fn ask_all(client: &Client, members: &[Resolved]) -> Vec<Result<Status, String>> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(member) = members.get(at) else {
                return;
            };
            let status = ask(client, member);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.insert(at, status);
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(members.len()) {
            // If no thread can be started, this one asks all members.
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let silent = || Err("it was not asked".to_owned());
    (0..members.len())
        .map(|at| found.remove(&at).unwrap_or_else(silent))
        .collect()
}

fn ask(client: &Client, member: &Resolved) -> Result<Status, String> {
    let status: Status = match member {
        Resolved::Directory(directory) => {
            let health = Health::of(directory, None).map_err(|error| format!("{error:#}"))?;
            let value = serde_json::to_value(health).map_err(|error| error.to_string())?;
            serde_json::from_value(value).map_err(|error| error.to_string())?
        }
        Resolved::Url(url) => {
            let answer = client
                .get(format!("{url}{STATUS}"))
                .send()
                .map_err(|error| why_silent(&error))?;
            if !answer.status().is_success() {
                return Err(format!("it answers {}", answer.status()));
            }
            let mut bytes = Vec::new();
            answer
                .take(STATUS_BYTES + 1)
                .read_to_end(&mut bytes)
                .map_err(|_| "its answer did not end in time".to_owned())?;
            if bytes.len() as u64 > STATUS_BYTES {
                return Err("its answer is too long for a status".to_owned());
            }
            serde_json::from_slice(&bytes)
                .map_err(|_| "its answer is not the status of a follower".to_owned())?
        }
    };
    if status.healthy.is_none() {
        return Err("its answer is not the status of a follower".to_owned());
    }
    Ok(status)
}

fn why_silent(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        "no answer in time".to_owned()
    } else if error.is_connect() {
        "it cannot be connected to".to_owned()
    } else {
        "its answer is not HTTP".to_owned()
    }
}

/// The versions of the chain that members hold, and its head.
struct ChainFacts {
    chain: String,
    head: Option<VersionDigests>,
    versions: BTreeMap<u64, VersionDigests>,
}

impl ChainFacts {
    fn read(chain: &Store, statuses: &[Result<Status, String>]) -> Result<Self> {
        let digest = deltachain_store::chain_digest(chain)?;
        let held = statuses.iter().flatten().flat_map(|status| {
            let servers = status.servers.iter().filter_map(|server| server.version);
            status.version.into_iter().chain(servers)
        });
        let found = version_digests(chain, held)?;
        Ok(Self {
            chain: digest.to_string(),
            head: found.last().copied(),
            versions: found.iter().map(|entry| (entry.version, *entry)).collect(),
        })
    }

    /// Adds what a member holds: each of its servers, or its directory.
    fn judge(&self, address: &str, status: Result<Status, String>, found: &mut Vec<Member>) {
        let nothing = Member {
            address: address.to_owned(),
            server: None,
            condition: MemberCondition::Silent,
            version: None,
            commit: None,
            state: None,
            proof: None,
            signed: None,
            since: None,
            behind: None,
            problem: None,
        };
        let status = match status {
            Ok(status) => status,
            Err(why) => {
                found.push(Member {
                    problem: Some(why),
                    ..nothing
                });
                return;
            }
        };
        let own = self.of_follower(&status, nothing);
        if status.servers.is_empty() {
            found.push(own);
            return;
        }
        for server in &status.servers {
            found.push(self.of_server(&own, server));
        }
    }

    /// Returns the follower itself as a member, by its own copy.
    fn of_follower(&self, status: &Status, nothing: Member) -> Member {
        let signed = status.trust.as_ref().map(|trust| {
            let quorum = trust.quorum.max(1);
            trust.signed_by.len() >= quorum
        });
        let own = Member {
            version: status.version,
            commit: status.commit.clone(),
            state: status.state.clone(),
            proof: status.proof.clone(),
            signed,
            since: status.switched.clone(),
            problem: (!status.problems.is_empty()).then(|| status.problems.join("; ")),
            ..nothing
        };
        let Some(version) = status.version else {
            return Member {
                condition: MemberCondition::Empty,
                problem: own
                    .problem
                    .or_else(|| Some("it holds no version".to_owned())),
                ..own
            };
        };
        let is_same = self.versions.get(&version).is_some_and(|entry| {
            status.chain.as_deref() == Some(self.chain.as_str())
                && status.commit.as_deref() == Some(entry.commit.to_string().as_str())
        });
        if !is_same {
            let newest = self.head.as_ref().map(|head| head.version);
            let why = if status.chain.as_deref() != Some(self.chain.as_str()) {
                "it follows another chain".to_owned()
            } else if newest < Some(version) {
                format!("its version {version} is above the newest one of the chain")
            } else {
                format!("the chain has another commit of its version {version}")
            };
            return Member {
                condition: MemberCondition::Foreign,
                problem: Some(why),
                ..own
            };
        }
        Member {
            condition: MemberCondition::Holds,
            behind: self.behind(version),
            ..own
        }
    }

    /// Returns a server as a member; `own` is its follower. Workers report digests, and no commits.
    fn of_server(&self, own: &Member, server: &ServerStatus) -> Member {
        let entry = server
            .version
            .and_then(|version| self.versions.get(&version))
            .filter(|entry| server.state.as_deref() == Some(entry.state.to_string().as_str()));
        let (condition, what) = if server.changing {
            let text = "it is being changed, or may hold parts of two versions";
            (MemberCondition::Torn, Some(text))
        } else if server.paused {
            (MemberCondition::Paused, Some("it is paused"))
        } else if server.version.is_none() {
            let text = "it does not answer with a version of the chain";
            (MemberCondition::Empty, Some(text))
        } else if entry.is_none() {
            let text = "the chain does not have what it holds";
            (MemberCondition::Foreign, Some(text))
        } else {
            (MemberCondition::Holds, None)
        };
        Member {
            server: Some(server.url.clone()),
            condition,
            version: server.version,
            commit: entry.map(|entry| entry.commit.to_string()),
            state: server.version.and(server.state.clone()),
            proof: None,
            since: server.since.clone(),
            behind: entry.and_then(|entry| self.behind(entry.version)),
            problem: what
                .map(str::to_owned)
                .or_else(|| server.last_failure.clone())
                .or_else(|| own.problem.clone()),
            ..own.clone()
        }
    }

    /// The number of versions between a version of the chain and the head.
    fn behind(&self, version: u64) -> Option<u64> {
        let head = self.head.as_ref()?;
        Some(head.version.saturating_sub(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_members() {
        let url = |text: &str| Ok(Address::Url(text.to_owned()));
        for (text, expected) in [
            ("gpu-1:9465", url("http://gpu-1:9465")),
            ("[::1]:9465", url("http://[::1]:9465")),
            ("http://gpu-1:9465/", url("http://gpu-1:9465")),
            ("https://gpu-1/a", url("https://gpu-1/a")),
            (
                "dns:followers:9465",
                Ok(Address::Name("followers:9465".to_owned())),
            ),
            ("@members.txt", Ok(Address::File("members.txt".into()))),
            (
                "/models/run7",
                Ok(Address::Directory("/models/run7".into())),
            ),
            ("./run7", Ok(Address::Directory("./run7".into()))),
        ] {
            assert_eq!(text.parse::<Address>(), expected, "{text}");
        }
        for text in [
            "",
            "run7",
            "gpu-1:x",
            "dns:x",
            "http://u:p@a:1",
            "http://a:1?x",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
