//! `fleet`: shows what the members of a fleet hold, by digest, and waits until all hold a version.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use deltachain::Result;
use deltachain_engines::{
    Awaited, Member, MemberCondition, Survey, find_version, survey, wait_for,
};
use deltachain_store::Observer as _;
use serde_json::json;

use crate::chain_args::FleetArgs;
use crate::failure;
use crate::interrupt;
use crate::numbers::{counted, grouped};
use crate::output::{Output, printable};
use crate::watcher::Watcher;

/// Digits of a digest that are shown.
const DIGITS: usize = 12;

pub(crate) fn run(args: &FleetArgs, output: Output) -> Result<u8> {
    let chain = args.chain.open()?;
    let Some(wanted) = &args.wait else {
        let found = survey(&chain, &args.members, args.member_timeout)?;
        output.result(|| as_text(&found), || json!(found))?;
        return Ok(failure::code(found.is_good()));
    };
    let wanted = find_version(&chain, wanted)?;
    let watcher = Watcher::new(output);
    let awaited = Awaited {
        version: wanted,
        expected: args.expect.map_or(1, NonZeroUsize::get),
        timeout: args.timeout,
    };
    let mut told = None;
    let waited = wait_for(
        &chain,
        &args.members,
        args.member_timeout,
        awaited,
        |count, all, pause| {
            if told.replace(count) != Some(count) {
                let all = counted(all, "member", "members");
                let version = wanted.version;
                watcher.remark(&format!("{count} of {all} hold version {version}; waiting"));
            }
            interrupt::wait(pause)
        },
    );
    let (found, is_there) = waited?;
    if !is_there {
        let seconds = args.timeout.as_secs_f64();
        watcher.remark(&format!("the time of {seconds} s is over"));
    }
    output.result(|| as_text(&found), || json!(found))?;
    Ok(failure::code(is_there))
}

fn as_text(found: &Survey) -> String {
    let mut lines = Vec::new();
    lines.push(match (found.head, &found.commit) {
        (Some(head), Some(commit)) => {
            format!("the newest version is {head}, commit {}", start(commit))
        }
        _ => "the chain has no version".to_owned(),
    });
    let mut groups: BTreeMap<Group<'_>, Vec<&Member>> = BTreeMap::new();
    for member in &found.members {
        groups.entry(Group::of(member)).or_default().push(member);
    }
    for (group, members) in &groups {
        lines.push(group.line(members));
        for member in members.iter().filter(|member| !member.is_good()) {
            lines.push(problem(member));
        }
    }
    lines.join("\n")
}

/// Members in the same condition that hold the same version.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group<'a> {
    condition: MemberCondition,
    version: Option<u64>,
    commit: Option<&'a str>,
    state: Option<&'a str>,
}

impl<'a> Group<'a> {
    fn of(member: &'a Member) -> Self {
        Self {
            condition: member.condition,
            version: member.version,
            commit: member.commit.as_deref(),
            state: member.state.as_deref(),
        }
    }

    fn line(&self, members: &[&Member]) -> String {
        let count = counted(members.len(), "member", "members");
        let condition = match self.condition {
            MemberCondition::Holds => return self.line_of_version(members, &count),
            MemberCondition::Empty => "without a version of the chain",
            MemberCondition::Paused => "paused",
            MemberCondition::Torn => "being changed, or torn",
            MemberCondition::Foreign => "with something that the chain does not have",
            MemberCondition::Silent => "silent",
        };
        let version = self
            .version
            .map_or_else(String::new, |version| format!(", version {version}"));
        format!("{count} {condition}{version}")
    }

    fn line_of_version(&self, members: &[&Member], count: &str) -> String {
        let version = self.version.unwrap_or_default();
        let behind = match members.iter().filter_map(|member| member.behind).max() {
            Some(0) | None => String::new(),
            Some(1) => ", 1 version behind".to_owned(),
            Some(behind) => format!(", {} versions behind", grouped(behind)),
        };
        let since = members.iter().filter_map(|member| member.since.as_deref());
        let since = match (since.clone().min(), since.max()) {
            (Some(first), Some(last)) if first == last => format!(", since {first}"),
            (Some(first), Some(last)) => format!(", since {first} to {last}"),
            _ => String::new(),
        };
        format!(
            "{count} with version {version}, commit {}, state {}{behind}{since}",
            start(self.commit.unwrap_or("unknown")),
            start(self.state.unwrap_or("unknown"))
        )
    }
}

fn problem(member: &Member) -> String {
    let server = member
        .server
        .as_ref()
        .map_or_else(String::new, |server| format!(" (server {server})"));
    let why = member.problem.as_deref().unwrap_or("no reason is known");
    printable(&format!("  {}{server}: {why}", member.address))
}

fn start(digest: &str) -> &str {
    digest.get(..DIGITS).unwrap_or(digest)
}
