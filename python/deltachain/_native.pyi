"""The native part of the package. Private: it may change in any release; the package gives it names and
documentation."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any, Literal, final

__version__: str

class _Rules:
    def __getattr__(self, name: str, /) -> str: ...

# The ids of the rules of SPEC.md: `rules.CHN_03` is `"R-CHN-03"`. What is not a rule is an `AttributeError`.
rules: _Rules

_Path = str | PathLike[str]
# Called as progress(phase, done, total), in bytes.
_Progress = Callable[[str, int, int], object] | None
# Asked about twenty times a second: whether the work is to end.
_Until = Callable[[], object] | None
# Name, dtype and shape.
_Info = tuple[str, str, list[int]]
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
    def header(self) -> dict[str, Any]: ...
    def tensors(self) -> list[tuple[str, Literal["patch", "set", "remove"], str | None, list[int], str | None]]: ...
    def verify(self, threads: int | None, progress: _Progress) -> None: ...
    def patches(self, numbers: list[int], base: object) -> list[_Row]: ...
    def to_bytes(self) -> Buffer: ...
    def close(self) -> None: ...

@final
class Checkpoint:
    """A reference checkpoint: names, dtypes and shapes of tensors."""

    def __new__(cls, path: _Path, /) -> Checkpoint: ...
    def tensors(self) -> list[_Info]: ...
    def places(self) -> list[tuple[PathLike[str], int]]: ...
    def metadata(self) -> dict[str, str]: ...

@final
class Snapshot:
    """A copy of a trainer's tensors while it is being taken."""

    @property
    def nbytes(self) -> int: ...
    def add(self, rows: list[tuple[int, str, object, tuple[str, tuple[int, ...]] | None]]) -> None: ...
    def is_same(self, shard: int, name: str, tensor: object) -> bool: ...

@final
class Publisher:
    """The publisher of one process, with copies of its shards."""

    def __new__(
        cls,
        store: Store,
        like: _Path | None,
        profile: str,
        snapshot_cost: float | None,
        snapshot_every: int | None,
        skips: list[int],
        assets: bool,
        max_changed: float | None,
        keep_last: int | None,
        scratch: _Path | None,
        once: str | None,
        sign: list[tuple[str, Callable[[bytes], bytes] | None]],
        trust: tuple[list[str], int] | None,
        vouch: str | None,
    ) -> Publisher: ...
    def head(self) -> tuple[int, str, int] | None: ...
    def repeated(self, metadata: dict[str, str], stop: Stop | None) -> dict[str, Any] | None: ...
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
        stop: Stop,
    ) -> list[str]: ...
    def commit(self, parts: list[str], metadata: dict[str, str], stop: Stop) -> dict[str, Any]: ...
    def committed(self, version: int, commit: str) -> None: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...

@final
class Stop:
    """Ends another thread's waiting for the store."""

    def __new__(cls) -> Stop: ...
    def stop(self) -> None: ...

@final
class Store:
    """A directory or a bucket that holds a chain. It belongs to the process that opened it."""

    def __new__(
        cls,
        url: str,
        settings: list[tuple[str, str]],
        credentials: Callable[[], Mapping[str, Any]] | None,
        is_new: bool | None,
        timeout: float | None,
        attempts: int | None,
        max_rate: int | None,
    ) -> Store: ...
    def missing_directory(self) -> PathLike[str] | None: ...
    def init(self) -> bool: ...

@final
class Prepared:
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
    def is_applied(self) -> bool: ...
    def directory(self) -> PathLike[str] | None: ...
    def patches(self, begin: int) -> list[_Row]: ...

@final
class Polling:
    """How a chain is polled."""

    def __new__(cls, poll: float, poll_longest: float) -> Polling: ...

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
        into: Mapping[str, Any] | None,
        trust: tuple[list[str], int] | None,
        forget_trust: bool,
    ) -> Follower: ...
    @property
    def switches(self) -> int: ...
    @property
    def is_torn(self) -> bool: ...
    def held(self) -> tuple[int, str, PathLike[str] | None] | None: ...
    def held_commit(self) -> tuple[str, dict[str, str]] | None: ...
    def poll(
        self, version: int | None, timeout: float | None, threads: int | None, progress: _Progress, until: _Until
    ) -> tuple[bool, Prepared | None]: ...
    def prepare(
        self,
        version: int | None,
        timeout: float | None,
        poll: float,
        threads: int | None,
        progress: _Progress,
        until: _Until,
    ) -> Prepared | None: ...
    def next(
        self,
        polling: Polling,
        waits: bool,
        until: _Until,
        threads: int | None,
        progress: _Progress,
    ) -> Prepared | None: ...
    def switch(self, prepared: Prepared, threads: int | None, progress: _Progress) -> dict[str, Any]: ...
    def lag(self, version: int) -> tuple[int, float | None]: ...
    def stored(self, version: int) -> datetime | None: ...
    def tensors(self) -> list[_Info]: ...
    def read(self, number: int) -> Buffer: ...
    def verify(self, threads: int | None, progress: _Progress, until: _Until) -> None: ...
    def close(self) -> None: ...

def diff_files(
    base: _Path | None,
    target: _Path,
    out: _Path,
    profile: str,
    metadata: dict[str, str],
    replace: bool,
    threads: int | None,
    progress: _Progress,
) -> dict[str, Any]: ...
def diff_states(
    base: object,
    target: object,
    out: _Path | None,
    profile: str,
    metadata: dict[str, str],
    replace: bool,
    threads: int | None,
    progress: _Progress,
) -> tuple[Link | None, dict[str, Any]]: ...
def apply_files(
    base: _Path | None,
    links: Sequence[_Path],
    out: _Path,
    replace: bool,
    threads: int | None,
    progress: _Progress,
) -> dict[str, Any]: ...
def apply_tensors(
    base: object,
    links: list[Link],
    allocate: Callable[[list[_Info]], dict[str, Any]],
    threads: int | None,
    progress: _Progress,
) -> tuple[dict[str, Any], str]: ...
def squash_files(
    base: _Path,
    links: Sequence[_Path],
    out: _Path,
    profile: str,
    metadata: dict[str, str],
    replace: bool,
    threads: int | None,
    progress: _Progress,
) -> dict[str, Any]: ...
def digest(state: object, threads: int | None, progress: _Progress) -> tuple[str, list[tuple[_Info, str]]]: ...
def open_link(path: _Path | None, bytes: bytes | None) -> Link: ...
def write_file(path: _Path, link: Link, replace: bool) -> None: ...
def compare(
    old: object, new: object, begin: int, threads: int | None
) -> tuple[list[_Row], int | None]: ...
@final
class Servers:
    """Servers of vLLM that a trainer updates to each version."""

    def __new__(cls, urls: list[str], backend: str, name: str, timeout: float, pause: str) -> Servers: ...
    def begin(self) -> None: ...
    def update(self, version: int, digest: str) -> None: ...
    def resume(self) -> None: ...
    def end(self) -> None: ...

def find_version(
    directory: _Path, version: int | None
) -> tuple[int, str, PathLike[str], dict[str, str]] | None: ...
def report(arguments: list[str], store: Store | None, threads: int | None, progress: _Progress) -> str: ...
def secret_key(name: str, seed: bytes) -> str: ...
def public_key(secret: str) -> str: ...
def is_managed(directory: _Path) -> bool: ...
def leave() -> None: ...
def forked() -> None: ...
def follow(arguments: list[str], on_event: Callable[[str], None], until: _Until) -> None: ...
def class_advice() -> list[tuple[str, str]]: ...
def main(arguments: list[str]) -> int: ...
