"""Reading a chain back, and looking after it: what the tool's commands `log`, `show`, `status`, `fsck`, `doctor`,
`prune` and `compact` report, as functions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack

from . import _native
from ._errors import Error, UsageError
from ._files import Profile, Progress
from ._settings import whole
from ._store import Credentials, open_store

__all__ = [
    "Asset",
    "Compacted",
    "DirectoryReport",
    "DoctorReport",
    "Finding",
    "FsckReport",
    "Pruned",
    "Route",
    "Status",
    "StoreSettings",
    "Version",
    "compact",
    "doctor",
    "fsck",
    "log",
    "prune",
    "show",
    "status",
    "undo_prune",
]

_Path = str | os.PathLike[str]

# Numbers of versions are below 2^64.
_MOST = (1 << 64) - 1


class StoreSettings(TypedDict, total=False):
    """Settings of the store of a chain, which all functions with a URL take, as in `Subscriber`."""

    storage_options: Mapping[str, Any] | None
    credentials: Credentials | None
    stall: float | None
    attempts: int | None
    max_rate: int | None


@dataclass(frozen=True, slots=True)
class Route:
    """A way to a version."""

    base: int | None
    """The version that it starts from; None for a snapshot."""
    bytes: int
    """Bytes of its files."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of a version beside its tensors."""

    name: str
    digest: str
    """Digest of its bytes."""
    size: int
    """Its length in bytes."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a chain."""

    version: int
    """Its number."""
    metadata: dict[str, str]
    """What was given when it was published, such as the step."""
    digest: str
    """Its state digest, 64 hexadecimal digits, as in `Update.digest`."""
    commit: str
    """Digest of its commit."""
    parent: str
    """Digest of the commit of the version before, or of the chain document."""
    stored: datetime | None
    """When it was published, by the store's clock; None if the store does not tell."""
    routes: tuple[Route, ...]
    """The ways to build it; none if it was pruned."""
    assets: tuple[Asset, ...]
    """Its files beside the tensors."""
    shards: tuple[str, ...]
    """State digest of each shard."""
    claimed_signers: tuple[str, ...] = ()
    """Names of keys that notes on it name. Nothing is proved by that: `Subscriber(trust=)` checks."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the directory of `deltachain follow`, or of a `Subscriber(host_copy=)`, holds, and how following it goes.
    What it says of the chain is what the tool's `follow` saw at its last poll; a `Subscriber` records no polls."""

    healthy: bool
    """Whether there are no problems."""
    problems: tuple[str, ...]
    """Why it is not healthy."""
    ready: bool | None
    """With `max_lag`, whether each server is ready for requests; None if that is not known or there is no server."""
    version: int | None
    """The held version; None if there is none, as for what follows."""
    metadata: dict[str, str]
    """What was given when it was published."""
    digest: str | None
    """Its state digest."""
    proof: str | None
    """How far its files were proven when they were built: "hashed"."""
    commit: str | None
    """Digest of its commit."""
    chain: str | None
    """Digest of the chain document."""
    directory: str | None
    """The directory of its files: the target of `current`."""
    switched: datetime | None
    """When `current` was switched to it."""
    stored: datetime | None
    """When it was published, by the store's clock; None if unknown."""
    age_seconds: float | None
    """Seconds since then."""
    head: int | None
    """The newest version seen."""
    lag_versions: int | None
    """Versions between the held one and the newest one seen."""
    lag_seconds: float | None
    """Seconds since the directory was last seen at the newest version."""
    last_look: datetime | None
    """The last poll."""
    last_success: datetime | None
    """The last successful poll."""
    failing: bool
    """Whether the last poll failed."""
    last_error: dict[str, Any] | None
    """The last failure: `time`, `class`, `rule`, `message`."""
    following: bool
    """Whether a `deltachain follow` is running."""
    process: int | None
    """The number of its process."""
    command: dict[str, Any] | None
    """The command of `--exec`: `succeeded`, `running`, `failures`, `last_failure`."""
    servers: tuple[dict[str, Any], ...]
    """The servers of `--engine`: `url`, `version` and more, as `deltachain status --json` prints them."""
    trust: dict[str, Any] | None = None
    """Whose versions are taken: `keys`, `quorum`, `seen`, `signed_by`, `unsigned`; None if everybody's are."""
    whole: str | None = None
    """Why servers that download the chain themselves load its versions as a whole; None if they do not."""


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What `fsck` found in a chain."""

    problems: tuple[Error, ...]
    """What is wrong, as errors with their rule and file; they are not raised."""
    hints: tuple[str, ...]
    """What is unusual, and does no harm."""
    versions: int
    """Versions of the chain."""
    pruned: int
    """Those among them that were pruned."""
    files: int
    """Files that were read."""
    bytes: int
    """Their bytes."""
    assets: int
    """Assets that were checked."""
    rebuilt: int
    """With `deep`, versions that were built."""
    orphans: int
    """Unreferenced files."""
    orphan_bytes: int
    """Their bytes."""
    unnamed: int
    """Those among them that no version names: a publisher was killed or is at work, or commits are lost. They stay."""
    unnamed_bytes: int
    """Their bytes."""
    unfinished: int
    """Unfinished files of writers that were killed."""

    @property
    def healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class DirectoryReport:
    """What `fsck` found in a follower's directory."""

    problems: tuple[Error, ...]
    """What is wrong, as errors with their rule and file; they are not raised."""
    version: int | None
    """The held version."""
    versions: int
    """Versions in the directory."""
    tensors: int
    """Tensors that were compared with their digests."""
    bytes: int
    """Their bytes."""
    cached: int
    """Links in the cache."""
    cached_bytes: int
    """Their bytes."""

    @property
    def healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `doctor` tried."""

    tried: str
    """What was tried."""
    works: bool
    """Whether it works."""
    needed: bool
    """Whether a chain cannot do without it."""
    says: str
    """What was seen; why it does not work, if it does not."""
    breaks: str
    """What does not work without it."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What a store or a directory can do."""

    findings: tuple[Finding, ...]
    """All that was tried."""

    @property
    def healthy(self) -> bool:
        """Whether everything that is needed works."""
        return not self.problems

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What is needed and does not work."""
        return tuple(found for found in self.findings if found.needed and not found.works)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` did, or would do."""

    done: bool
    """False with `dry_run`."""
    kept: tuple[int, ...]
    """Versions that were to be kept. Others that they are built from stay, too."""
    withdrawn: tuple[int, ...]
    """Versions that cannot be built any more. Their files are removed by a prune a day later."""
    removed: tuple[str, ...]
    """Files that were removed."""
    removed_bytes: int
    """Their bytes."""
    unfinished: int
    """Unfinished files, of writers that were killed, that were removed."""
    young: int
    """Unreferenced files that stay for now: they were stored or withdrawn within the last 24 hours."""
    young_bytes: int
    """Their bytes."""
    unnamed: int
    """Files that stay because no version names them: a publisher was killed or is at work, or commits are lost."""
    unnamed_bytes: int
    """Their bytes."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What `compact` did."""

    version: int
    """The version that has new routes."""
    routes: tuple[Route, ...]
    """The new routes."""


def log(url: _Path, last: int | None = 20, **store: Unpack[StoreSettings]) -> list[Version]:
    """The versions of a chain, newest first.

    >>> import tempfile, deltachain as dc
    >>> url = tempfile.mkdtemp()
    >>> with dc.Publisher(url) as pub:
    ...     for step in (10, 20):
    ...         _ = pub.publish({"w": dc.Tensor("U8", (1,), bytes([step]))}, metadata={"step": step})
    >>> [(version.version, version.metadata["step"]) for version in dc.log(url)]
    [(1, '20'), (0, '10')]

    Args:
        url: the chain: a directory, or `s3://BUCKET/PREFIX`, `gs://`, `az://`, `http(s)://`.
        last: the maximum of versions, the newest; None for all.
        store: settings of the store, as in `Subscriber`.

    Raises:
        ChainError: if there is no chain. One without versions gives an empty list.
        Error: if a commit of these versions cannot be read.
    """
    if last is not None and last <= 0:
        return []
    return newest(open_store(url, **store), last)


def newest(store: _native.Store, last: int | None) -> list[Version]:
    """The newest versions of a chain whose store is open."""
    whole("last", last, 1, _MOST)
    return [_version(entry) for entry in json.loads(store.log(last))]


def show(url: _Path, version: int | None = None, **store: Unpack[StoreSettings]) -> Version:
    """One version of a chain.

    Args:
        url: the chain.
        version: its number; by default, the newest.
        store: settings of the store, as in `Subscriber`.

    Raises:
        ChainError: if there is no such version, with the rule R-CHN-03, or no chain.
    """
    whole("version", version, 0, _MOST)
    return _version(json.loads(open_store(url, **store).show(version)))


def status(directory: _Path, max_lag: int | str | None = None) -> Status:
    """What a follower's directory holds, and whether it is healthy. Reads only the records in the directory: not the
    chain, nor the model's files.

    Args:
        directory: the directory of `deltachain follow`, or of a `Subscriber(host_copy=)`.
        max_lag: the maximum lag that is healthy: a number of versions, or a time such as `"90s"`, `"10m"` or `"2h"`
            since the directory was last seen at the newest version.

    Raises:
        UsageError: if there is no such directory. A directory that holds nothing is not healthy.
    """
    found = json.loads(_native.status(directory, None if max_lag is None else str(max_lag)))
    for name in ("switched", "stored", "last_look", "last_success"):
        found[name] = _time(found[name])
    found["digest"] = found.pop("state")
    found["metadata"] = given(found["metadata"] or {})
    found["problems"], found["servers"] = tuple(found["problems"]), tuple(found["servers"])
    return Status(**found)


def fsck(
    url: _Path,
    *,
    deep: bool = False,
    scratch: _Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    **store: Unpack[StoreSettings],
) -> FsckReport | DirectoryReport:
    """Checks a chain: every document, every file, and that each version can be reached. Of a follower's directory, all
    files are read and compared.

    Args:
        url: the chain, or the directory of a follower, which may be in use.
        deep: also build every version and compare its digest, and read all assets. Not for directories.
        scratch: a directory for temporary files of `deep`; by default, the system's.
        threads: threads that decode and hash; by default, as many as processors.
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the check.
        store: settings of the store, as in `Subscriber`.

    Returns:
        What was found: `healthy`, `problems` and figures. Problems are not raised.
    """
    problems, report = open_store(url, **store).fsck(deep, scratch, threads, progress)
    found = json.loads(report) | {"problems": tuple(problems)}
    if "hints" not in found:
        return DirectoryReport(**found)
    del found["signatures"]
    return FsckReport(**found | {"hints": tuple(found["hints"])})


def doctor(url: _Path, **store: Unpack[StoreSettings]) -> DoctorReport:
    """Tests whether a bucket or a directory supports what chains and followers need. Every operation is tested below a
    new name `doctor-...`, which is removed afterwards; in a bucket it stays if the call is interrupted.

    Args:
        url: the chain, or a directory for a follower.
        store: settings of the store, as in `Subscriber`.
    """
    found = json.loads(open_store(url, **store).doctor())
    return DoctorReport(tuple(Finding(**finding) for finding in found))


def prune(
    url: _Path,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    keep: Iterable[int] = (),
    abandoned: bool = False,
    accept_loss: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    **store: Unpack[StoreSettings],
) -> Pruned:
    """Removes old versions, and the files that only they need. The newest version and everything that kept versions are
    built from stay. Files are removed a day after nothing refers to them any more, so call it daily. Publishers and
    followers need not stop. Do not run two at once. Files that no version names stay. If the chain shows that commits
    are missing, nothing is removed.

    Args:
        url: the chain.
        keep_last: keep this many of the newest versions; None keeps all, with `abandoned`.
        keep_every: keep every version whose number is a multiple of this.
        keep: keep these versions.
        abandoned: also remove files older than 24 hours that no version names. Publishers that were killed leave such
            files, but so do lost commits, so do not do this daily.
        accept_loss: go on although commits are missing: they are lost for good.
        dry_run: change nothing; return what would be done.
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the call.
        store: settings of the store, as in `Subscriber`.
    """
    whole("keep_last", keep_last, 1, _MOST)
    whole("keep_every", keep_every, 1, _MOST)
    versions = _versions("keep", keep)
    if keep_last is None and (keep_every is not None or versions or not abandoned):
        raise UsageError("USAGE: keep_last= is missing; only abandoned=True alone keeps all versions")
    chain = open_store(url, **store)
    found = json.loads(chain.prune(keep_last, keep_every, versions, abandoned, accept_loss, dry_run, progress))
    for name in ("kept", "withdrawn", "removed"):
        found[name] = tuple(found[name])
    return Pruned(**found)


def undo_prune(url: _Path, **store: Unpack[StoreSettings]) -> tuple[int, ...]:
    """Takes back what `prune` withdrew within the last 20 hours. Change what prunes automatically first.

    Args:
        url: the chain.
        store: settings of the store, as in `Subscriber`.

    Returns:
        The versions that have their routes again.
    """
    return tuple(open_store(url, **store).undo_prune())


def compact(
    url: _Path,
    *,
    version: int | None = None,
    snapshot: bool = False,
    bases: Sequence[int] = (),
    profile: Profile = "compact",
    scratch: _Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    **store: Unpack[StoreSettings],
) -> Compacted:
    """Adds a snapshot, or links from older versions, to a version, so that late joiners read less. Everything is made
    from the chain itself, and verified before it is stored.

    Args:
        url: the chain.
        version: the version that gets new routes; by default, the newest.
        snapshot: add a snapshot of it.
        bases: add links from these older versions.
        profile: `"compact"`, `"local"` or `"direct"`, as in `Publisher`.
        scratch: a directory for temporary files, with space for two states; by default, the system's.
        threads: threads that compare and compress; by default, as many as processors.
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the call.
        store: settings of the store, as in `Subscriber`.

    Raises:
        UsageError: if neither `snapshot` nor `bases` is given.
    """
    whole("version", version, 0, _MOST)
    chain, older = open_store(url, **store), _versions("bases", bases)
    found = json.loads(chain.compact(version, snapshot, older, profile, scratch, threads, progress))
    return Compacted(found["version"], tuple(Route(route["from"], route["bytes"]) for route in found["routes"]))


def given(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata as the publisher gave them: without hints of the format."""
    return {key: value for key, value in metadata.items() if not key.startswith("deltachain.")}


def _versions(name: str, numbers: Iterable[int]) -> list[int]:
    listed = list(numbers)
    for number in listed:
        whole(name, number, 0, _MOST)
    return listed


def _version(entry: dict[str, Any]) -> Version:
    return Version(
        version=entry["version"],
        metadata=given(entry["metadata"]),
        digest=entry["state"],
        commit=entry["commit"],
        parent=entry["parent"],
        stored=_time(entry["stored"]),
        routes=tuple(Route(route["from"], sum(file["size"] for file in route["files"])) for route in entry["routes"]),
        assets=tuple(Asset(**asset) for asset in entry["assets"]),
        shards=tuple(entry["shards"]),
        claimed_signers=tuple(signer["name"] for signer in entry["claimed_signers"]),
    )


def _time(text: str | None) -> datetime | None:
    # A file system may have times that no calendar has.
    return None if text in (None, "-", "unknown") else datetime.fromisoformat(str(text))
