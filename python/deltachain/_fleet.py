"""What the members of a fleet hold, by digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from . import _native
from ._errors import TimeoutError, UsageError
from ._settings import number, whole
from ._store import Chain, open_store

__all__ = ["FleetReport", "Member", "fleet"]

_MOST = 10**6


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a fleet: a follower, or an inference server that a follower updates.

    Attributes:
        address: URL of the follower, or its directory.
        server: URL of the inference server; None if the follower updates none.
        condition: `"holds"`: it holds a version of the chain; `"empty"`: none yet; `"paused"`: it
            answers no requests; `"torn"`: it may hold parts of two versions; `"foreign"`: it holds
            something that the chain does not have; `"silent"`: it did not answer in time, or not
            with a status.
        version: the version that it says it holds.
        commit: digest of that version's commit; None if unknown.
        digest: state digest of that version.
        proof: level of proof that it holds the version, as `Subscriber.proof`; None for servers.
        signed: whether enough trusted keys have signed the version; None if it trusts no keys.
        since: when it got the version, by its own clock.
        behind: number of versions between it and the head; None if it holds none of the chain.
        problem: what is wrong with it; None if nothing is known to be.
    """

    address: str
    server: str | None
    condition: Literal["holds", "empty", "paused", "torn", "foreign", "silent"]
    version: int | None
    commit: str | None
    digest: str | None
    proof: str | None
    signed: bool | None
    since: datetime | None
    behind: int | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What the members of a fleet hold.

    Attributes:
        head: the newest version of the chain; None if it has none.
        commit: digest of that version's commit.
        members: in the order of their addresses.
    """

    head: int | None
    commit: str | None
    members: tuple[Member, ...]

    @property
    def healthy(self) -> bool:
        """True if all members hold versions of the chain, and nothing is known to be wrong with any
        of them. Members may be behind."""
        return not self.problems

    @property
    def problems(self) -> tuple[Member, ...]:
        """The members that something is wrong with."""
        return tuple(
            one for one in self.members if one.condition != "holds" or one.problem is not None
        )


def fleet(
    chain: Chain,
    members: Sequence[str],
    *,
    member_timeout: float = 5.0,
    wait: str | None = None,
    expect: int = 1,
    timeout: float = 600.0,
) -> FleetReport:
    """Asks the members of a fleet what they hold, and compares it with a chain by digests.
    Followers are believed.

    Args:
        chain: the chain.
        members: for each member, the port of a follower (`"gpu-1:9465"`, `"http://gpu-1:9465"`), a
            name with many addresses (`"dns:followers:9465"`), a file with an address in each line
            (`"@fleet.txt"`), or a follower's directory, a path with a slash (`"./run7"`).
        member_timeout: seconds in which a member must answer.
        wait: return when all members hold this version, and nothing is wrong with any: its number
            and the first digits of its commit, at least 12, such as `"12@9417bf72d3e1"`.
        expect: with `wait`, the minimum number of members.
        timeout: with `wait`, the maximum seconds.

    Raises:
        UsageError: if a member has an unknown form or is named twice, or `wait` names another
            commit.
        ChainError: if the chain has no such version.
        TimeoutError: if the time of `wait` is over.
        IoError: if the chain's store does not answer.
    """
    if isinstance(members, str):
        raise UsageError("USAGE: members= must be a list")
    number("member_timeout", member_timeout, 0.001)
    number("timeout", timeout, 0)
    whole("expect", expect, 1, _MOST)
    settings = {
        "members": list(members),
        "member_timeout": member_timeout,
        "wait": wait,
        "expect": expect,
        "timeout": timeout,
    }
    found, is_there = _native.fleet(open_store(chain), settings)
    report = FleetReport(found["head"], found["commit"], tuple(map(_member, found["members"])))
    if not is_there:
        held = sorted({f"{one.version}" for one in report.members if one.version is not None})
        count = max(expect, len(report.members))
        raise TimeoutError(
            f"TIMEOUT: after {timeout:.0f} s, not all of {count} members hold version {wait}, or "
            f"something is wrong with one: they hold {', '.join(held)}, and {len(report.problems)} "
            "have problems"
        )
    return report


def _member(found: dict[str, object]) -> Member:
    given = dict(found)
    given["digest"] = given.pop("state")
    since = given["since"]
    given["since"] = datetime.fromisoformat(since) if isinstance(since, str) else None
    return Member(**given)  # type: ignore[arg-type]
