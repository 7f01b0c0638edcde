//! The conversation with a testee: the features that it claims, and its answers.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use crate::cases::{Case, Operation};
use crate::index::{ADDITIONS, FEATURES, IN_PLACE, NOT_MINIMAL};
use crate::judge::{Terms, Verdict, answers, judge};
use crate::problem::{Problem, Result};
use crate::process::{Process, Reply, shortened};
use crate::workshop::Workshop;

/// The only version of the protocol that this program speaks.
pub(crate) const PROTOCOL: u64 = 2;
/// The operations that a testee may support.
const OPERATIONS: [&str; 10] = [
    "check",
    "apply",
    "patches",
    "sums",
    "in-place",
    "encode",
    "document",
    "plan",
    "replay",
    "replay-in-place",
];

/// The profile of readers that omit what SPEC section 14 allows a minimal chain reader to omit.
const MINIMAL: &str = "minimal-chain";

/// A testee that has said hello.
#[derive(Debug)]
pub(crate) struct Session {
    process: Process,
    hello: Hello,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hello {
    testee: String,
    protocol: u64,
    operations: Vec<String>,
    without: Vec<String>,
    /// The additions to version 1.0 that the testee supports.
    #[serde(default)]
    additions: Vec<String>,
    profile: Option<String>,
    /// True if its answers to `plan` include the routes.
    #[serde(default)]
    routes: bool,
}

/// Reason for not sending a case to a testee.
#[derive(Debug)]
pub(crate) enum Unasked {
    /// The testee's profile or additions do not require an answer.
    ByProfile(String),
    /// The testee says that it cannot answer.
    Unable(String),
}

/// Result of a case.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) verdict: Verdict,
    /// Last lines of standard error.
    pub(crate) stderr: Vec<String>,
    pub(crate) time: Duration,
}

impl Session {
    /// Starts the testee and asks for its features.
    pub(crate) fn start(command: &str, timeout: Duration) -> Result<Self> {
        let mut process = Process::new(command, timeout)?;
        let hello = greet(&mut process)?;
        Ok(Self { process, hello })
    }

    /// Returns name and version, as the testee gives them.
    pub(crate) fn name(&self) -> &str {
        &self.hello.testee
    }

    /// Returns the versions of SPEC.md for which the testee is tested, such as
    /// `1.0 and signatures`.
    pub(crate) fn format(&self) -> String {
        let known: Vec<&str> = ADDITIONS
            .into_iter()
            .filter(|name| self.hello.additions.iter().any(|own| own == name))
            .collect();
        if known.is_empty() {
            "1.0".to_owned()
        } else {
            format!("1.0 and {}", known.join(", "))
        }
    }

    /// Returns the reason for not sending this case to the testee, if there is one.
    pub(crate) fn unsupported(&self, case: &Case<'_>) -> Option<Unasked> {
        let features = &case.vector.features;
        if self.is_minimal()
            && let Some(feature) = features
                .iter()
                .find(|feature| NOT_MINIMAL.contains(&feature.as_str()))
        {
            return Some(Unasked::ByProfile(format!(
                "a minimal chain reader may be without the feature {feature}"
            )));
        }
        let is_left_out = |feature: &&String| {
            ADDITIONS.contains(&feature.as_str()) && !self.hello.additions.contains(feature)
        };
        // A reader that does not know an addition ignores its bytes in a link or beside it, and
        // answers as before.
        let is_of_any = |addition: &String| match case.operation {
            Operation::Check | Operation::Apply | Operation::Patches => true,
            Operation::Plan | Operation::Replay => addition == IN_PLACE,
            _ => false,
        };
        if let Some(addition) = features
            .iter()
            .chain(case.addition)
            .find(|feature| is_left_out(feature) && !is_of_any(feature))
        {
            return Some(Unasked::ByProfile(format!(
                "a reader need not know the addition {addition}"
            )));
        }
        let operation = case.operation.name();
        if !self.hello.operations.iter().any(|own| own == operation) {
            return Some(Unasked::Unable(format!(
                "does not claim the operation {operation}"
            )));
        }
        let missing = features
            .iter()
            .find(|feature| self.hello.without.contains(feature));
        missing.map(|feature| {
            Unasked::Unable(format!("says that it is without the feature {feature}"))
        })
    }

    fn is_minimal(&self) -> bool {
        self.hello.profile.as_deref() == Some(MINIMAL)
    }

    fn terms<'a>(&self, case: &Case<'a>) -> Terms<'a> {
        let mut terms = Terms::default();
        if self.is_minimal() {
            terms.also = case.minimal;
        }
        if self.hello.routes {
            terms.routes = case.routes;
        }
        terms
    }

    /// Sends a case and judges the answer. Restarts a testee that was lost before.
    pub(crate) fn ask(&mut self, case: &Case<'_>, workshop: &mut Workshop<'_>) -> Result<Asked> {
        if self.process.is_down() && greet(&mut self.process)? != self.hello {
            return Err(Problem::failed(
                "the testee, started again, introduces itself differently",
            ));
        }
        let request = workshop.request(case)?;
        let start = Instant::now();
        let reply = self.process.ask(&request.json);
        let time = start.elapsed();
        let verdict = match &reply {
            Reply::Lost(how) => Verdict::Wrong(format!("the testee {how}")),
            Reply::Line(line) => judge(case, self.terms(case), &request, line, workshop),
        };
        let stderr = self.process.take_tail();
        if matches!(&reply, Reply::Line(line) if !answers(case, line)) {
            // The testee is out of step: its next line might belong to this case, too.
            self.process.stop();
        }
        Ok(Asked {
            verdict,
            stderr,
            time,
        })
    }
}

fn greet(process: &mut Process) -> Result<Hello> {
    process.start()?;
    let line = match process.ask(&json!({ "operation": "hello", "protocol": PROTOCOL })) {
        Reply::Line(line) => line,
        Reply::Lost(how) => {
            return Err(Problem::failed(format!(
                "the testee does not say hello: it {how}"
            )));
        }
    };
    let hello: Hello = serde_json::from_str(&line).map_err(|error| {
        Problem::failed(format!(
            "the testee's hello is wrong: {error} in {}",
            shortened(&line)
        ))
    })?;
    if hello.protocol != PROTOCOL {
        return Err(Problem::failed(format!(
            "the testee speaks protocol {}, not {PROTOCOL}",
            hello.protocol
        )));
    }
    let unknown = |claimed: &[String], known: &[&str]| {
        claimed
            .iter()
            .find(|claimed| !known.contains(&claimed.as_str()))
            .map(ToOwned::to_owned)
    };
    if let Some(name) = unknown(&hello.operations, &OPERATIONS) {
        return Err(Problem::failed(format!(
            "the testee claims the operation {name}, which does not exist"
        )));
    }
    if let Some(name) = unknown(&hello.without, &FEATURES) {
        return Err(Problem::failed(format!(
            "the testee is without the feature {name}, which does not exist"
        )));
    }
    if let Some(name) = unknown(&hello.additions, &ADDITIONS) {
        return Err(Problem::failed(format!(
            "the testee names the addition {name}, which does not exist"
        )));
    }
    match &hello.profile {
        Some(profile) if profile != MINIMAL => Err(Problem::failed(format!(
            "the testee names the profile {profile}, which does not exist"
        ))),
        _ => Ok(hello),
    }
}
