"""Reading a chain back, and maintaining it: the reports of the tool's commands `log`, `show`,
`status`, `fsck`, `doctor`, `prune`, `compact` and `mirror`, as functions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from . import _native
from ._errors import Error, UsageError
from ._files import Progress
from ._keys import Trusts, trusted
from ._settings import RouteProfile, absolute, check_profiles, function, maybe_absolute, whole
from ._store import Chain, open_store, store_of

__all__ = [
    "Asset",
    "CompactReport",
    "DirectoryReport",
    "DoctorReport",
    "FsckReport",
    "MirrorReport",
    "PruneReport",
    "Route",
    "DirectoryStatus",
    "Version",
    "compact",
    "doctor",
    "fsck",
    "log",
    "mirror",
    "prune",
    "show",
    "status",
    "undo_prune",
]

_Path = str | os.PathLike[str]

# Numbers of versions are below 2^64.
MOST_VERSION = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Route:
    """A route to a version.

    Attributes:
        base: the version that it starts from; None for a snapshot.
        bytes: bytes of its files.
    """

    base: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of a version beside its tensors.

    Attributes:
        name: its path in the model's directory.
        digest: digest of its bytes.
        size: its length in bytes.
    """

    name: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a chain.

    Attributes:
        version: its number.
        metadata: the metadata given when it was published, such as the step.
        digest: its state digest, 64 hexadecimal digits, as in `Update.digest`.
        commit: digest of its commit.
        parent: digest of the commit of the version before, or of the chain document.
        stored: when it was published, by the store's clock; None if the store has no time.
        routes: the routes that build it; none if it was pruned.
        assets: its files beside the tensors.
        shards: state digest of each shard.
        claimed_signers: names of keys in the notes on it. They prove nothing: `Subscriber(trust=)`
            verifies signatures.
    """

    version: int
    metadata: dict[str, str]
    digest: str
    commit: str
    parent: str
    stored: datetime | None
    routes: tuple[Route, ...]
    assets: tuple[Asset, ...]
    shards: tuple[str, ...]
    claimed_signers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DirectoryStatus:
    """The content of the directory of `deltachain follow`, or of a `Subscriber(host_copy=)`, and
    the state of its follower. The facts about the chain are those of the last poll of the tool's
    `follow`; a `Subscriber` records no polls.

    Attributes:
        healthy: whether there are no problems.
        problems: why it is not healthy.
        ready: with `max_lag`, whether each server is ready for requests; None if that is not known
            or there is no server.
        version: the held version; None if there is none, like the attributes below.
        metadata: the metadata given when it was published.
        digest: its state digest.
        proof: level of proof of its files when they were built: "hashed".
        commit: digest of its commit.
        chain: digest of the chain document.
        directory: the directory of its files: the target of `current`.
        switched: when `current` was switched to it.
        stored: when it was published, by the store's clock; None if unknown.
        age_seconds: seconds since then.
        head: the newest version seen.
        lag_versions: versions between the held one and the newest one seen.
        lag_seconds: seconds since the directory was last seen at the newest version.
        last_look: the last poll.
        last_success: the last successful poll.
        failing: whether the last poll failed.
        last_error: the last failure: `time`, `class`, `rule`, `message`.
        following: whether a `deltachain follow` is running.
        process: the number of its process.
        command: the command of `--exec`: `succeeded`, `running`, `failures`, `last_failure`.
        servers: the servers of `--engine`: `url`, `version` and more, as `deltachain status --json`
            prints them.
        stores: the stores that the follower has used, its copies after the chain's own: `url`,
            `copy`, `bytes`, `missing`, `failures`, `last_failure`, `damage`.
        trust: the trusted signers: `keys`, `quorum`, `seen`, `signed_by`, `unsigned`; None if
            signatures are not checked.
        whole: why servers that download the chain themselves load its versions as a whole; None if
            they do not.
    """

    healthy: bool
    problems: tuple[str, ...]
    ready: bool | None
    version: int | None
    metadata: dict[str, str]
    digest: str | None
    proof: str | None
    commit: str | None
    chain: str | None
    directory: str | None
    switched: datetime | None
    stored: datetime | None
    age_seconds: float | None
    head: int | None
    lag_versions: int | None
    lag_seconds: float | None
    last_look: datetime | None
    last_success: datetime | None
    failing: bool
    last_error: dict[str, Any] | None
    following: bool
    process: int | None
    command: dict[str, Any] | None
    servers: tuple[dict[str, Any], ...]
    stores: tuple[dict[str, Any], ...] = ()
    trust: dict[str, Any] | None = None
    whole: str | None = None


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The findings of `fsck` in a chain.

    Attributes:
        problems: the faults, as errors with their rule and file; they are not raised.
        hints: the unusual things that do no harm.
        versions: versions of the chain.
        pruned: the versions among them that were pruned.
        files: files that were read.
        bytes: their bytes.
        assets: assets that were checked.
        rebuilt: with `deep`, versions that were built.
        orphans: unreferenced files.
        orphan_bytes: their bytes.
        unnamed: the orphans that no version names, because a publisher was killed or is at work, or
            commits are lost. They stay.
        unnamed_bytes: their bytes.
        unfinished: unfinished files of writers that were killed.
    """

    problems: tuple[Error, ...]
    hints: tuple[str, ...]
    versions: int
    pruned: int
    files: int
    bytes: int
    assets: int
    rebuilt: int
    orphans: int
    orphan_bytes: int
    unnamed: int
    unnamed_bytes: int
    unfinished: int

    @property
    def healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class DirectoryReport:
    """The findings of `fsck` in a follower's directory.

    Attributes:
        problems: the faults, as errors with their rule and file; they are not raised.
        version: the held version.
        versions: versions in the directory.
        tensors: tensors that were compared with their digests.
        bytes: their bytes.
        cached: links in the cache.
        cached_bytes: their bytes.
    """

    problems: tuple[Error, ...]
    version: int | None
    versions: int
    tensors: int
    bytes: int
    cached: int
    cached_bytes: int

    @property
    def healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `doctor` tried.

    Attributes:
        tried: the operation that was tried.
        works: whether it works.
        needed: whether a chain needs it.
        says: the observation, or the reason why it does not work.
        breaks: the features that do not work without it.
    """

    tried: str
    works: bool
    needed: bool
    says: str
    breaks: str


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The findings of `doctor`: the abilities of a store or a directory.

    Attributes:
        findings: all that was tried.
    """

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """True if everything that is needed works."""
        return not self.problems

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings about needed operations that do not work."""
        return tuple(found for found in self.findings if found.needed and not found.works)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The result of `prune`, or what it would do.

    Attributes:
        done: false with `dry_run`.
        kept: versions that were to be kept.
        withdrawn: versions that cannot be built any more. Their files are removed by a prune a day
            later.
        needed: versions that were not to be kept, but stay, because kept versions are built from
            them.
        removed: files that were removed.
        removed_bytes: their bytes.
        unfinished: unfinished files, of writers that were killed, that were removed.
        young: unreferenced files that stay for now: they were stored or withdrawn within the last
            24 hours.
        young_bytes: their bytes.
        unnamed: files that stay because no version names them: a publisher was killed or is at
            work, or commits are lost.
        unnamed_bytes: their bytes.
    """

    done: bool
    kept: tuple[int, ...]
    withdrawn: tuple[int, ...]
    needed: tuple[int, ...]
    removed: tuple[str, ...]
    removed_bytes: int
    unfinished: int
    young: int
    young_bytes: int
    unnamed: int
    unnamed_bytes: int


@dataclass(frozen=True, slots=True)
class CompactReport:
    """The result of `compact`.

    Attributes:
        version: the version that has new routes.
        routes: the new routes.
    """

    version: int
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """The result of `mirror`.

    Attributes:
        problems: faults of the source or the copy that were found and not mended, as errors with
            their rule and file; they are not raised.
        version: the newest version of the copy; None if there is none.
        head: the newest version of the source, of those that are signed if `trust` is given.
        documents: documents that were copied now: commits, routes and signatures.
        files: files that were copied now.
        bytes: bytes of these files.
    """

    problems: tuple[Error, ...]
    version: int | None
    head: int | None
    documents: int
    files: int
    bytes: int

    @property
    def healthy(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def log(chain: Chain, last: int | None = 20) -> list[Version]:
    """The versions of a chain, newest first.

    >>> import tempfile, deltachain as dc
    >>> url = tempfile.mkdtemp()
    >>> with dc.Publisher(url) as pub:
    ...     for step in (10, 20):
    ...         weights = {"w": dc.Tensor("U8", (1,), bytes([step]))}
    ...         _ = pub.publish(weights, metadata={"step": step})
    >>> [(version.version, version.metadata["step"]) for version in dc.log(url)]
    [(1, '20'), (0, '10')]

    Args:
        chain: the chain: a directory, `s3://BUCKET/PREFIX`, `gs://`, `az://`, `http(s)://`, or a
            `Store`.
        last: the maximum of versions, the newest; None for all.

    Raises:
        ChainError: if there is no chain. One without versions gives an empty list.
        Error: if a commit of these versions cannot be read.
    """
    whole("last", last, 0, MOST_VERSION)
    return [] if last == 0 else newest(open_store(chain), last)


def newest(store: _native.Store, last: int | None) -> list[Version]:
    """The newest versions of a chain whose store is open."""
    whole("last", last, 1, MOST_VERSION)
    return [_version(entry) for entry in store.log(last)]


def show(chain: Chain, version: int | None = None) -> Version:
    """Returns one version of a chain.

    Args:
        chain: the chain.
        version: its number; by default, the newest.

    Raises:
        ChainError: if there is no such version, with the rule R-CHN-03, or no chain.
    """
    whole("version", version, 0, MOST_VERSION)
    return _version(open_store(chain).show(version))


def status(directory: _Path, max_lag: int | str | None = None) -> DirectoryStatus:
    """The content of a follower's directory, and whether it is healthy. Reads only the records in
    the directory, neither the chain nor the model's files.

    Args:
        directory: the directory of `deltachain follow`, or of a `Subscriber(host_copy=)`.
        max_lag: the maximum lag that is healthy: a number of versions, or a time such as `"90s"`,
            `"10m"` or `"2h"` since the directory was last seen at the newest version.

    Raises:
        UsageError: if there is no such directory. A directory that holds nothing is not healthy.
    """
    found = _native.status(absolute(directory), None if max_lag is None else str(max_lag))
    for name in ("switched", "stored", "last_look", "last_success"):
        found[name] = _time(found[name])
    found["digest"] = found.pop("state")
    found["metadata"] = given(found["metadata"] or {})
    for name in ("problems", "servers", "stores"):
        found[name] = tuple(found[name])
    return DirectoryStatus(**found)


def fsck(
    chain: Chain,
    *,
    deep: bool = False,
    scratch: _Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> FsckReport | DirectoryReport:
    """Checks a chain: every document, every file, and that each version can be reached. In a
    follower's directory, reads all files and compares them.

    Args:
        chain: the chain, or the directory of a follower, which may be in use.
        deep: also build every version and compare its digest, and read all assets. Not for
            directories.
        scratch: a directory for temporary files of `deep`; by default, the system's.
        threads: threads that decode and hash; by default, as many as processors.
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the
            check.

    Returns:
        The findings: `healthy`, `problems` and figures. Problems are not raised.
    """
    function("progress", progress)
    found = open_store(chain).fsck(deep, maybe_absolute(scratch), threads, progress)
    found["problems"] = tuple(found["problems"])
    if "hints" not in found:
        return DirectoryReport(**found)
    del found["signatures"]
    found["hints"] = tuple(found["hints"])
    return FsckReport(**found)


def doctor(chain: Chain) -> DoctorReport:
    """Tests whether a bucket or a directory supports what chains and followers need. Every
    operation is tested below a new name `doctor-...`, which is removed afterwards; in a bucket it
    stays if the call is interrupted.

    Args:
        chain: the chain, or a directory for a follower.
    """
    found = open_store(chain).doctor()
    return DoctorReport(tuple(Finding(**finding) for finding in found))


def prune(
    chain: Chain,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    keep: Iterable[int] = (),
    abandoned: bool = False,
    accept_loss: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> PruneReport:
    """Removes old versions, and the files that only they need. The newest version stays, and so
    does everything that kept versions are built from. A file is removed a day after it became
    unreferenced, so call this daily. Publishers and followers need not stop. Do not run two prunes
    at once. Files that no version names stay. If the chain shows that commits are missing, nothing
    is removed.

    Args:
        chain: the chain.
        keep_last: keep this many of the newest versions; None keeps all, with `abandoned`.
        keep_every: keep every version whose number is a multiple of this.
        keep: keep these versions.
        abandoned: also remove files older than 24 hours that no version names. Publishers that were
            killed leave such files, but so do lost commits, so do not do this daily.
        accept_loss: go on although commits are missing: they are lost for good.
        dry_run: change nothing; return what would be done.
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the
            call.
    """
    function("progress", progress)
    whole("keep_last", keep_last, 1, MOST_VERSION)
    whole("keep_every", keep_every, 1, MOST_VERSION)
    versions = _versions("keep", keep)
    if keep_last is None and (keep_every is not None or versions or not abandoned):
        raise UsageError(
            "USAGE: keep_last= is missing; only abandoned=True alone keeps all versions"
        )
    settings = {
        "keep_last": keep_last,
        "keep_every": keep_every,
        "keep": versions,
        "abandoned": abandoned,
        "accept_loss": accept_loss,
    }
    found = open_store(chain).prune(settings, dry_run, progress)
    for name in ("kept", "withdrawn", "needed", "removed"):
        found[name] = tuple(found[name])
    return PruneReport(**found)


def mirror(
    source: Chain,
    destination: Chain,
    *,
    trust: Trusts | None = None,
    up_to: tuple[int, str] | None = None,
    verify: bool = False,
    restore: bool = False,
    scratch: _Path | None = None,
    progress: Progress | None = None,
) -> MirrorReport:
    """Copies a chain, or its new objects, to another store, with its signatures. Files come before
    the documents that name them, commits in their order, and `chain.json` last on the first copy,
    so that the copy is valid at any time. Call it repeatedly. Nothing else may write to a copy, and
    nothing is removed from it.

    Args:
        source: the chain.
        destination: the place of the copy; a directory is made, but not its parent.
        trust: copy versions up to the newest one that these keys have signed, as for `Subscriber`.
        up_to: promote a version, given its number and the digest of its commit (`show`): copy the
            versions up to it, and none above. The destination is never set back. If the version
            cannot be reached there, because files are missing in the source, that is an error and
            nothing changes for readers.
        verify: also read the objects of the destination, and replace damaged ones.
        restore: repair the destination, which may be ahead, from the source, a copy of it: files by
            the destination's own routes, and documents up to the newest common version. Nothing is
            written above it.
        scratch: a directory for files on their way, with space for the largest; by default, the
            system's.
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the
            call.

    Returns:
        The number of copied objects, and `problems`: files that are missing or damaged in the
        source, and other faults that do not stop the copy. Problems are not raised.

    Raises:
        ChainError: if there is no chain, or the destination has another one, versions that the
            source does not have, or another commit of a version; if the version of up_to= cannot be
            promoted.
        UsageError: if the parent of the destination does not exist.
    """
    function("progress", progress)
    if restore and (trust is not None or up_to is not None):
        raise UsageError("USAGE: restore= excludes trust= and up_to=")
    if up_to is not None:
        whole("up_to", up_to[0], 0, MOST_VERSION)
    store, target = open_store(source), store_of(destination)
    settings = {
        "trust": trusted(trust),
        "up_to": up_to,
        "verify": verify,
        "restore": restore,
        "scratch": maybe_absolute(scratch),
    }
    found = store.mirror(target._native, settings, progress)
    found["problems"] = tuple(found["problems"])
    del found["whole"]
    return MirrorReport(**found)


def undo_prune(chain: Chain) -> tuple[int, ...]:
    """Restores what `prune` withdrew within the last 20 hours. Change the jobs that prune
    automatically first.

    Args:
        chain: the chain.

    Returns:
        The versions that have their routes again.
    """
    return tuple(open_store(chain).undo_prune())


def compact(
    chain: Chain,
    *,
    version: int | None = None,
    snapshot: bool = False,
    bases: Sequence[int] = (),
    profile: RouteProfile = "compact",
    scratch: _Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> CompactReport:
    """Adds a snapshot, or links from older versions, to a version, so that late joiners read less.
    Everything is made from the chain itself, and verified before it is stored.

    Args:
        chain: the chain.
        version: the version that gets new routes; by default, the newest.
        snapshot: add a snapshot of it.
        bases: add links from these older versions.
        profile: `"compact"` or `"local"`, as in `Publisher`.
        scratch: a directory for temporary files, with space for two states; by default, the
            system's.
        threads: threads that compare and compress; by default, as many as processors.
        progress: called as `progress(phase, done, total)`, in bytes. An exception from it ends the
            call.

    Raises:
        UsageError: if neither `snapshot` nor `bases` is given.
    """
    function("progress", progress)
    whole("version", version, 0, MOST_VERSION)
    check_profiles([profile])
    store = open_store(chain)
    settings = {
        "version": version,
        "snapshot": snapshot,
        "bases": _versions("bases", bases),
        "profile": profile,
        "scratch": maybe_absolute(scratch),
    }
    found = store.compact(settings, threads, progress)
    routes = tuple(Route(route["from"], route["bytes"]) for route in found["routes"])
    return CompactReport(found["version"], routes)


def given(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns metadata as the publisher gave them, without the format's hints."""
    return {key: value for key, value in metadata.items() if not key.startswith("deltachain.")}


def _versions(name: str, numbers: Iterable[int]) -> list[int]:
    listed = list(numbers)
    for number in listed:
        whole(name, number, 0, MOST_VERSION)
    return listed


def _version(entry: dict[str, Any]) -> Version:
    return Version(
        version=entry["version"],
        metadata=given(entry["metadata"]),
        digest=entry["state"],
        commit=entry["commit"],
        parent=entry["parent"],
        stored=_time(entry["stored"]),
        routes=tuple(
            Route(route["from"], sum(file["size"] for file in route["files"]))
            for route in entry["routes"]
        ),
        assets=tuple(Asset(**asset) for asset in entry["assets"]),
        shards=tuple(entry["shards"]),
        claimed_signers=tuple(signer["name"] for signer in entry["claimed_signers"]),
    )


def _time(text: str | None) -> datetime | None:
    # A file system may have times that no calendar has.
    return None if text in (None, "-", "unknown") else datetime.fromisoformat(str(text))
