"""The native part of the package. Private: it may change in any release; the package gives it names
and documentation. What `deltachain` exports from here is documented here."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any, Literal, Self, final

__version__: str

_Path = str | PathLike[str]
# Called as progress(phase, done, total), in bytes.
_Progress = Callable[[str, int, int], object] | None
# Asked about twenty times a second: whether the work is to end.
_Until = Callable[[], object] | None
# Name, dtype and shape.
_Info = tuple[str, str, list[int]]
# Fields of `PublishReport`, in their order, but for the last.
_PublishReport = tuple[int, str, str, int, int, int, bool, bool]
# Fields of `DiffReport`.
_Diff = tuple[str, str, int, int, int, int, int]
# Name, dtype, shape, numbers of lanes unless all are given, values.
_Row = tuple[str, str, list[int], "Buffer | None", "Buffer"]

@final
class Buffer:
    """A copy of something, shown through the buffer protocol; one-dimensional and read-only."""

    def __len__(self) -> int: ...
    def writable(self) -> Buffer: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Link:
    """A link whose header and index have been read and checked."""

    @property
    def path(self) -> PathLike[str] | None: ...
    @property
    def base(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def length(self) -> int: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def is_direct(self) -> bool: ...
    def header(self) -> list[int]: ...
    def tensors(
        self,
    ) -> list[tuple[str, Literal["patch", "set", "remove"], str | None, list[int], str | None]]: ...
    def verify(self, threads: int | None, progress: _Progress) -> None: ...
    def patches(self, numbers: list[int], base: object) -> list[_Row]: ...
    def to_bytes(self) -> Buffer: ...
    def close(self) -> None: ...

@final
class Snapshot:
    """A copy of a trainer's tensors while it is being taken."""

    def add(
        self, rows: list[tuple[int, str, object, tuple[str, tuple[int, ...]] | None]]
    ) -> None: ...
    def is_same(self, shard: int, name: str, tensor: object) -> bool: ...

@final
class Publisher:
    """The publisher of one process, with copies of its shards."""

    def __new__(
        cls,
        store: Store,
        like: _Path | None,
        profiles: list[str],
        snapshot_cost: float | None,
        snapshot_every: int | None,
        skips: list[int],
        assets: bool,
        exclude: list[str],
        max_changed: float | None,
        refuse_nonfinite: bool,
        allow_empty: bool,
        keep_last: int | None,
        scratch: _Path | None,
        once: str | None,
        sign: list[tuple[str, Callable[[bytes], bytes] | None]],
        trust: tuple[list[str], int] | None,
        vouch: str | None,
        unsigned: bool,
    ) -> Publisher: ...
    def head(self) -> tuple[int, int] | None: ...
    def repeated(self, metadata: dict[str, str], until: _Until) -> _PublishReport | None: ...
    def repeat(self) -> None: ...
    def snapshot(self) -> Snapshot: ...
    def discard(self, snapshot: Snapshot) -> None: ...
    def store(
        self,
        snapshot: Snapshot,
        numbers: list[int],
        of: int,
        commits: bool,
        threads: int | None,
        progress: _Progress,
        until: _Until,
    ) -> bytes: ...
    def commit(
        self, stored: list[bytes], metadata: dict[str, str], until: _Until
    ) -> _PublishReport: ...
    def committed(self, version: int, commit: str) -> None: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...

@final
class Place:
    """Where a tensor of torch lay when it was bound."""

    def __new__(cls, name: str, tensor: Any) -> Place: ...
    @property
    def name(self) -> str: ...
    @property
    def tensor(self) -> Any: ...
    def check(self, name: str, tensor: Any) -> None: ...

@final
class Store:
    """A directory or a bucket that holds a chain. It belongs to the process that opened it."""

    def __new__(
        cls,
        url: str,
        settings: list[tuple[str, str]],
        credentials: Callable[[], Mapping[str, Any]] | None,
        timeout: float | None,
        attempts: int | None,
        max_rate: int | None,
        copies: list[Store],
    ) -> Store: ...
    def close(self) -> None: ...
    def missing_directory(self) -> PathLike[str] | None: ...
    def init(self) -> bool: ...
    def log(self, last: int | None) -> str: ...
    def show(self, version: int | None) -> str: ...
    def doctor(self) -> str: ...
    def fsck(
        self, deep: bool, scratch: _Path | None, threads: int | None, progress: _Progress
    ) -> tuple[list[Exception], str]: ...
    def prune(
        self,
        keep_last: int | None,
        keep_every: int | None,
        keep: list[int],
        abandoned: bool,
        accept_loss: bool,
        dry_run: bool,
        progress: _Progress,
    ) -> str: ...
    def mirror(
        self,
        destination: Store,
        trust: tuple[list[str], int] | None,
        verify: bool,
        restore: bool,
        scratch: _Path | None,
        progress: _Progress,
    ) -> tuple[list[Exception], str]: ...
    def undo_prune(self) -> list[int]: ...
    def compact(
        self,
        version: int | None,
        snapshot: bool,
        bases: list[int],
        profile: str,
        scratch: _Path | None,
        threads: int | None,
        progress: _Progress,
    ) -> str: ...

@final
class PreparedUpdate:
    """A version that has been downloaded and verified."""

    @property
    def version(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def is_in_place(self) -> bool: ...
    def agreement(self) -> str: ...
    def table(self) -> list[tuple[str, str, list[int], str]]: ...
    def changes(self) -> list[tuple[int, int, tuple[int, int], tuple[int, int]]] | None: ...
    @property
    def told(self) -> dict[str, Any] | None: ...
    def directory(self) -> PathLike[str] | None: ...
    def tensors(self) -> list[_Info]: ...
    def patches(self, begin: int) -> list[_Row]: ...

@final
class Stream:
    """All tensors of a version, some at a time."""

    # Name, dtype, shape and bytes; None at the end.
    def next(self) -> list[tuple[str, str, list[int], Buffer]] | None: ...

@final
class Placed:
    """Where tensors of a version are."""

    def told(self, unused: list[str]) -> bytes: ...

@final
class Polling:
    """How a chain is polled."""

    def __new__(cls, poll: float, poll_longest: float, every: int | None) -> Polling: ...
    @property
    def failure(self) -> str | None: ...

class Follower:
    """A copy of a model at a version of a chain."""

    def __new__(
        cls,
        store: Store,
        directory: _Path | None,
        tensors: list[str] | None,
        cache: _Path | None,
        other_files: bool,
        allow_rollback: str | None,
        adopt: bool,
        trust: tuple[list[str], int] | None,
        forget_trust: bool,
        is_into: bool,
        threads: int | None,
        progress: _Progress,
    ) -> Self: ...
    @property
    def switches(self) -> int: ...
    @property
    def is_torn(self) -> bool: ...
    @property
    def trouble(self) -> str | None: ...
    @property
    def proof(self) -> str | None: ...
    def place(
        self,
        prepared: PreparedUpdate,
        given: list[tuple[str, Place, list[tuple[int, int]]]],
        torch: object | None,
        wants_sums: bool,
    ) -> Placed: ...
    def fits(self, prepared: PreparedUpdate) -> bool: ...
    def bind(self, placed: Placed, own: int, all: list[bytes]) -> None: ...
    def prove(self, prepared: PreparedUpdate, ranks: object | None) -> None: ...
    def begin(self, prepared: PreparedUpdate) -> None: ...
    def stream(self, prepared: PreparedUpdate) -> Stream: ...
    def finish(self, prepared: PreparedUpdate) -> dict[str, Any]: ...
    def doubt(self, why: Literal["torn", "place", "budget"]) -> None: ...
    # Number, digest, digest of the commit, metadata, and directory of the files.
    def held(self) -> tuple[int, str, str, dict[str, str], PathLike[str] | None] | None: ...
    def poll(
        self, version: int | None, timeout: float | None, until: _Until
    ) -> tuple[bool, PreparedUpdate | None]: ...
    def prepare(
        self, version: int | None, timeout: float | None, poll: float, until: _Until
    ) -> PreparedUpdate | None: ...
    def next(self, polling: Polling, waits: bool, until: _Until) -> PreparedUpdate | None: ...
    def switch(self, prepared: PreparedUpdate, ranks: object | None) -> dict[str, Any]: ...
    def lag(self, version: int) -> tuple[int, float | None]: ...
    def stored(self, version: int) -> datetime | None: ...
    def tensors(self) -> list[_Info]: ...
    def read(self, number: int) -> Buffer: ...
    def verify(self, until: _Until) -> None: ...
    def check(self, ranks: object | None, doubts: bool, until: _Until) -> None: ...
    def close(self) -> None: ...

def diff(
    base: object,
    target: object,
    out: _Path | None,
    profile: str,
    metadata: dict[str, str],
    replace: bool,
    threads: int | None,
    progress: _Progress,
) -> tuple[Link | None, _Diff]: ...
def apply_files(
    base: _Path | None,
    links: Sequence[_Path],
    out: _Path,
    replace: bool,
    threads: int | None,
    progress: _Progress,
) -> tuple[str, str, int, int, list[str]]: ...
def apply_tensors(
    base: object,
    links: list[Link],
    allocate: Callable[[list[_Info]], dict[str, Any]],
    threads: int | None,
    progress: _Progress,
) -> tuple[dict[str, Any], str]: ...
def check_settings(threads: int | None, profiles: list[str]) -> None: ...
def digest(
    state: object, threads: int | None, progress: _Progress
) -> tuple[str, list[tuple[_Info, str]]]: ...
def open_link(path: _Path | None, bytes: bytes | None) -> Link: ...
def write_file(path: _Path, link: Link, replace: bool) -> None: ...
def checkpoint(
    path: _Path,
) -> tuple[list[_Info], list[tuple[PathLike[str], int]], dict[str, str]]: ...
def divide(sizes: Mapping[str, int], shards: int) -> dict[str, int]: ...
def compare(
    old: object, new: object, begin: int, threads: int | None
) -> tuple[list[_Row], int | None]: ...

@final
class Servers:
    """Inference servers that one trainer updates, all at the same time. The requests are those of
    the follower's `--engine`; integrations/docs/engines.md has them.

    An update is `prepare`, `start`, `update`, `finish` and `resume`. A server that fails drops out
    of it, and resumes with the version that it holds; one that may hold parts of two versions stays
    paused until an update succeeds. If several fail, the errors of the others are notes of the
    first one's. The object belongs to the process that made it.

    Args:
        urls: `http://HOST:PORT` of each server.
        backend: the settings of each server's backend: an object of JSON, as text.
        name: what this process calls itself, where others are told that it updates the servers.
        timeout: maximum seconds for a request, and for a server to answer at the beginning.
        pause: what becomes of requests that a server is answering at an update: `"keep"`: they go
            on with the new version; `"wait"`: they end first; `"abort"`: they end at once.

    Raises:
        UsageError: if a URL or a setting is invalid.
    """

    def __new__(
        cls, urls: list[str], backend: str, name: str, timeout: float, pause: str
    ) -> Servers: ...
    def begin(self) -> None:
        """Waits until all answer and no other process updates them, and gives their backends the
        settings.

        Raises:
            TimeoutError: if a server does not answer in time.
            IoError: if a server refuses, or another process updates it.
        """

    def prepare(self, version: int) -> None:
        """Waits until they can load a version without waiting for it, or that would not help."""

    def start(self) -> None:
        """Pauses them, and begins an update.

        Raises:
            IoError: if all servers fail.
        """

    def update(self, version: int, digest: str) -> None:
        """Makes them load a version: its number, and all 64 digits of its state digest.

        Raises:
            IoError: if all servers fail.
        """

    def finish(self, name: str) -> None:
        """Ends the update. They stay paused until `resume`; if one has failed, all others resume.

        Args:
            name: what the servers call the version from then on: `version_name`.

        Raises:
            IoError: if a server has failed since the update began.
        """

    def resume(self) -> None:
        """Resumes those that hold a whole version, and ends an update that was not finished.

        Raises:
            IoError: if a server stays paused.
        """

    def end(self) -> None:
        """Allows other processes to update them; without this, after 90 s. Those that are paused
        stay so."""

def misfit(model: _Path, version: Mapping[str, Sequence[int]]) -> str | None:
    """Why a version does not fit the model that an engine was started with: names or shapes differ.

    Args:
        model: the directory of that model.
        version: names and shapes of the version's tensors, as `Update.table` has them.

    Returns:
        The reason, for people; None if it fits, or nobody knows, because the directory says too
        little.
    """

def version_name(version: int, digest: str) -> str:
    """A version in one word, as engines tell it and followers expect it: its number, `@`, and 12
    digits of its state digest."""

def is_managed(directory: _Path) -> bool:
    """Whether this is a directory of `Subscriber(host_copy=...)`, of any process, also before its
    first version."""

def without_secrets(text: str) -> str: ...
def find_version(
    directory: _Path, version: int | None
) -> tuple[int, str, PathLike[str], dict[str, str]] | None: ...
def status(directory: _Path, max_lag: str | None) -> str: ...
def secret_key(name: str, seed: bytes) -> str: ...
def public_key(secret: str) -> str: ...
def leave() -> None: ...
def forked() -> None: ...
def sum_numbers() -> Buffer: ...
def sums_of(tensor: object, begin: int) -> list[int]: ...
def sums_of_each(tensor: object, length: int) -> list[list[int]]: ...
def class_advice() -> dict[str, str]: ...
def main(arguments: list[str]) -> int: ...
