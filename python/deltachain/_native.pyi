"""The native part of the package. Private: it may change in any release; the package provides names
and documentation. Names that `deltachain` exports from here are documented here."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any, Literal, Self, TypedDict, final

__version__: str

_Path = str | PathLike[str]
# Called as progress(phase, done, total), in bytes.
_Progress = Callable[[str, int, int], object] | None
# Called about twenty times a second: returns whether the work must end.
_Until = Callable[[], object] | None
# Settings by their names.
_Settings = Mapping[str, Any]
# A report by the names of its fields.
_Report = dict[str, Any]

class _LinkFigures(TypedDict):
    """Fields of `DiffReport`."""

    base: str
    target: str
    bytes: int
    target_bytes: int
    elements: int
    changed: int
    tensors: int

class _MadeLink(TypedDict):
    link: Link | None
    report: _LinkFigures

class _ApplyFigures(TypedDict):
    """Fields of `ApplyReport`."""

    base: str
    target: str
    target_bytes: int
    written: int
    copied: list[str]

class _DigestedState(TypedDict):
    digest: str
    tensors: list[TensorDigest]

class _HeaderFields(TypedDict):
    """Fields of `Header`."""

    base: str
    target: str
    compatible_features: int
    index_stored: int
    index_raw: int
    segments_length: int
    extension_length: int
    file_length: int

class _Checkpoint(TypedDict):
    tensors: list[CheckpointTensor]
    metadata: dict[str, str]

class _Differences(TypedDict):
    patches: list[TensorPatch]
    # The number of the next tensor.
    next: int | None

class _PublishedVersion(TypedDict):
    """Fields of `PublishReport`, except the times."""

    version: int
    digest: str
    commit: str
    bytes: int
    changed: int
    elements: int
    snapshot: bool
    is_new: bool

class _LagFigures(TypedDict):
    """Fields of `Lag`."""

    versions: int
    seconds: float | None

class _SwitchTimes(TypedDict):
    """Fields of `Times`."""

    plan: float
    download: float
    build: float
    switch: float

class _SwitchFacts(TypedDict):
    downloaded: int
    routes: list[tuple[int | None, int]]
    times: _SwitchTimes
    fallback: str | None

@final
class Buffer:
    """A copy of data with the buffer protocol; one-dimensional and read-only."""

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
    def header(self) -> _HeaderFields: ...
    def tensors(self) -> list[LinkTensor]: ...
    def verify(self, threads: int | None, progress: _Progress) -> None: ...
    def patches(self, numbers: list[int], base: object) -> list[TensorPatch]: ...
    def to_bytes(self) -> Buffer: ...
    def close(self) -> None: ...

@final
class LinkTensor:
    """A tensor that a link lists."""

    @property
    def name(self) -> str: ...
    @property
    def operation(self) -> Literal["patch", "set", "remove"]: ...
    @property
    def dtype(self) -> str | None: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def digest(self) -> str | None: ...

@final
class TensorForm:
    """Name, dtype and shape of a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...

@final
class TensorDigest:
    """A tensor of a state, with its digest."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def digest(self) -> str: ...

@final
class TensorPatch:
    """A patch of one tensor: numbers of its lanes, unless it has all of them, and their values."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def indices(self) -> Buffer | None: ...
    @property
    def values(self) -> Buffer: ...

@final
class TensorData:
    """A whole tensor."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def data(self) -> Buffer: ...

@final
class CheckpointTensor:
    """A tensor of a checkpoint, the file that has its data, and the offset of its first byte."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def path(self) -> PathLike[str]: ...
    @property
    def offset(self) -> int: ...

@final
class CallLock:
    """The lock of an object that only one call may use at a time. An exception always releases
    it."""

    def __new__(cls) -> CallLock: ...
    def call(self) -> LockedCall: ...

@final
class LockedCall:
    """The context of a call that has the lock. Pass it only to `with`: an exception keeps variables
    alive."""

    def __enter__(self) -> None: ...
    def __exit__(self, _kind: object, _error: object, _trace: object) -> None: ...

@final
class Claim:
    """A right that only the first caller gets."""

    def __new__(cls) -> Claim: ...
    def belongs_to(self, name: str) -> bool: ...

@final
class Snapshot:
    """A copy of a trainer's tensors while it is being taken."""

    # Objects with the attributes of `_publisher.GivenTensor`.
    def add(self, given: Sequence[Any]) -> None: ...
    def is_same(self, shard: int, name: str, tensor: object) -> bool: ...

@final
class Publisher:
    """The publisher of one process, with copies of its shards."""

    def __new__(cls, store: Store, settings: _Settings) -> Publisher: ...
    def head(self) -> Head | None: ...
    def repeated(self, metadata: dict[str, str], until: _Until) -> _PublishedVersion | None: ...
    def repeat(self) -> None: ...
    def snapshot(self) -> Snapshot: ...
    def discard(self, snapshot: Snapshot) -> None: ...
    def store(
        self,
        snapshot: Snapshot,
        numbers: list[int],
        of: int,
        commits: bool,
        until: _Until,
    ) -> bytes: ...
    def commit(
        self, stored: list[bytes], metadata: dict[str, str], until: _Until
    ) -> _PublishedVersion: ...
    def committed(self, version: int, commit: str) -> None: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...

@final
class Head:
    """The newest version of a chain, and its number of shards."""

    @property
    def version(self) -> int: ...
    @property
    def shards(self) -> int: ...

@final
class TensorPlace:
    """The place of a torch tensor when it was bound."""

    def __new__(cls, name: str, tensor: Any) -> TensorPlace: ...
    @property
    def name(self) -> str: ...
    @property
    def tensor(self) -> Any: ...
    def check(self, name: str, tensor: Any) -> None: ...

@final
class Store:
    """A directory or a bucket that holds a chain. It belongs to the process that opened it."""

    def __new__(cls, url: str, settings: _Settings) -> Store: ...
    def close(self) -> None: ...
    def missing_directory(self) -> PathLike[str] | None: ...
    def init(self) -> bool: ...
    def chain_digest(self) -> str: ...
    def log(self, last: int | None) -> list[_Report]: ...
    def show(self, version: int | None) -> _Report: ...
    def doctor(self) -> list[_Report]: ...
    # The problems of a report are exceptions.
    def fsck(
        self, deep: bool, scratch: _Path | None, threads: int | None, progress: _Progress
    ) -> _Report: ...
    def prune(self, settings: _Settings, dry_run: bool, progress: _Progress) -> _Report: ...
    def mirror(self, destination: Store, settings: _Settings, progress: _Progress) -> _Report: ...
    def undo_prune(self) -> list[int]: ...
    def compact(self, settings: _Settings, threads: int | None, progress: _Progress) -> _Report: ...

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
    def table(self) -> list[TensorDigest]: ...
    def changes(self) -> list[PieceSums] | None: ...
    @property
    def told(self) -> _SwitchFacts | None: ...
    def directory(self) -> PathLike[str] | None: ...
    def tensors(self) -> list[TensorForm]: ...
    def patches(self, begin: int) -> list[TensorPatch]: ...

@final
class PieceSums:
    """Sums of the old and of the new values that change in a 16 MiB piece of a storage: its
    address, and the number of the piece."""

    @property
    def storage(self) -> int: ...
    @property
    def piece(self) -> int: ...
    @property
    def old(self) -> tuple[int, int]: ...
    @property
    def new(self) -> tuple[int, int]: ...

@final
class Stream:
    """All tensors of a version, in batches."""

    # None after the last batch.
    def next(self) -> list[TensorData] | None: ...

@final
class FoundTensors:
    """The places of a version's tensors."""

    def told(self, unused: list[str]) -> bytes: ...

@final
class Polling:
    """Settings of polls of a chain."""

    def __new__(cls, poll: float, poll_longest: float, every: int | None) -> Polling: ...
    @property
    def failure(self) -> str | None: ...

@final
class PollResult:
    """The result of one poll: whether the version exists, and the update to it, unless it is
    held."""

    def __new__(cls, is_there: bool, prepared: PreparedUpdate | None) -> PollResult: ...
    @property
    def is_there(self) -> bool: ...
    @property
    def prepared(self) -> PreparedUpdate | None: ...

@final
class HeldVersion:
    """The version that a copy has, and the directory of its files if there is one."""

    @property
    def version(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def chain(self) -> str: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def directory(self) -> PathLike[str] | None: ...

class Follower:
    """A copy of a model at a version of a chain."""

    def __new__(cls, store: Store, is_into: bool, settings: _Settings) -> Self: ...
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
        given: list[tuple[str, TensorPlace, list[tuple[int, int]]]],
        torch: object | None,
        wants_sums: bool,
    ) -> FoundTensors: ...
    def fits(self, prepared: PreparedUpdate) -> bool: ...
    def bind(self, placed: FoundTensors, own: int, all: list[bytes]) -> None: ...
    def bind_alone(self, placed: FoundTensors, unused: set[str]) -> None: ...
    def prove(self, prepared: PreparedUpdate, ranks: object | None) -> None: ...
    def begin(self, prepared: PreparedUpdate) -> None: ...
    def stream(self, prepared: PreparedUpdate) -> Stream: ...
    def finish(self, prepared: PreparedUpdate) -> _SwitchFacts: ...
    def doubt(self, why: Literal["torn", "place", "budget"]) -> None: ...
    def held(self) -> HeldVersion | None: ...
    def poll(self, version: int | None, timeout: float | None, until: _Until) -> PollResult: ...
    def prepare(
        self, version: int | None, timeout: float | None, poll: float, until: _Until
    ) -> PreparedUpdate | None: ...
    def next(self, polling: Polling, waits: bool, until: _Until) -> PreparedUpdate | None: ...
    def switch(self, prepared: PreparedUpdate, ranks: object | None) -> _SwitchFacts: ...
    def lag(self, version: int) -> _LagFigures: ...
    def stored(self, version: int) -> datetime | None: ...
    def tensors(self) -> list[TensorForm]: ...
    def read(self, number: int) -> Buffer: ...
    def verify(self, until: _Until) -> None: ...
    def check(self, ranks: object | None, doubts: bool, until: _Until) -> None: ...
    def close(self) -> None: ...

def diff(
    base: object,
    target: object,
    out: _Path | None,
    settings: _Settings,
    threads: int | None,
    progress: _Progress,
) -> _MadeLink: ...
def apply_files(
    base: _Path | None,
    links: Sequence[_Path],
    out: _Path,
    replace: bool,
    threads: int | None,
    progress: _Progress,
) -> _ApplyFigures: ...
def apply_tensors(
    base: object,
    links: list[Link],
    allocate: Callable[[list[TensorForm]], dict[str, Any]],
    threads: int | None,
    progress: _Progress,
) -> dict[str, Any]: ...
def check_settings(threads: int | None, profiles: list[str]) -> None: ...
def digest(state: object, threads: int | None, progress: _Progress) -> _DigestedState: ...
def open_link(path: _Path | None, bytes: bytes | None) -> Link: ...
def write_file(path: _Path, link: Link, replace: bool) -> None: ...
def checkpoint(path: _Path) -> _Checkpoint: ...
def divide(sizes: Mapping[str, int], shards: int) -> dict[str, int]: ...
def compare(old: object, new: object, begin: int, threads: int | None) -> _Differences: ...

@final
class Servers:
    """Inference servers that one trainer updates, all at the same time. The requests are those of
    the follower's `--engine`; integrations/docs/engines.md has them.

    An update is `prepare`, `start`, `update`, `finish` and `resume`. A server that fails drops out
    of it, and resumes with the version that it holds; one that may hold parts of two versions stays
    paused until an update succeeds. If several servers fail, the first error has the others as
    notes. The object belongs to the process that made it.

    Args:
        urls: `http://HOST:PORT` of each server.
        backend: the settings of each server's backend: an object of JSON, as text.
        name: the name of this process for others that want to update the servers.
        timeout: maximum seconds for a request, and for a server to answer at the beginning.
        pause: the fate of requests that a server is answering when an update begins: `"keep"`: they
            continue with the new version; `"wait"`: they end first; `"abort"`: they end at once.

    Raises:
        UsageError: if a URL or a setting is invalid.
    """

    def __new__(
        cls, urls: list[str], backend: str, name: str, timeout: float, pause: str
    ) -> Servers: ...
    def begin(self) -> None:
        """Waits until all servers answer and no other process updates them, and gives their
        backends the settings.

        Raises:
            TimeoutError: if a server does not answer in time.
            IoError: if a server refuses, or another process updates it.
        """

    def prepare(self, version: int) -> None:
        """Waits until the servers can load a version without waiting for it, or until waiting would
        not help."""

    def start(self) -> None:
        """Pauses the servers, and begins an update.

        Raises:
            IoError: if all servers fail.
        """

    def update(self, version: int, digest: str) -> None:
        """Makes the servers load a version, given by its number and all 64 digits of its state
        digest.

        Raises:
            IoError: if all servers fail.
        """

    def finish(self, name: str) -> None:
        """Ends the update. The servers stay paused until `resume`; if one has failed, all others
        resume.

        Args:
            name: the servers' name for the version from then on: `version_name`.

        Raises:
            IoError: if a server has failed since the update began.
        """

    def resume(self) -> None:
        """Resumes the servers that hold a whole version, and ends an unfinished update.

        Raises:
            IoError: if a server stays paused.
        """

    def end(self) -> None:
        """Allows other processes to update the servers; without this call they may after 90 s.
        Paused servers stay paused."""

def fleet(chain: Store, settings: _Settings) -> tuple[_Report, bool]: ...
def difference(
    model: Mapping[str, Sequence[int]], version: Mapping[str, Sequence[int]]
) -> str | None:
    """Describes the first tensor that only one of two models has, or that has another shape in
    them; None if there is none."""

def misfit(model: _Path, version: Mapping[str, Sequence[int]]) -> str | None:
    """Returns why a version does not fit the model that an engine was started with: names or shapes
    differ.

    Args:
        model: the directory of that model.
        version: names and shapes of the version's tensors, as `Update.table` has them.

    Returns:
        The reason, for people; None if it fits, or if the directory has too little information.
    """

def version_name(version: int, digest: str) -> str:
    """Returns the name that engines report for a version, and that followers expect: its number,
    `@`, and 12 digits of its state digest."""

def is_managed(directory: _Path) -> bool:
    """True for a directory of `Subscriber(host_copy=...)`, of any process, even before its first
    version."""

def without_secrets(text: str) -> str: ...

@final
class FoundVersion:
    """A version in a subscriber's directory."""

    @property
    def version(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def directory(self) -> PathLike[str]: ...
    @property
    def metadata(self) -> dict[str, str]: ...

def find_version(directory: _Path, version: int | None) -> FoundVersion | None: ...
def status(directory: _Path, max_lag: str | None) -> _Report: ...
def secret_key(name: str, seed: bytes) -> str: ...
def public_key(secret: str) -> str: ...
def leave() -> None: ...
def forked() -> None: ...
def sum_numbers() -> Buffer: ...
def sums_of(tensor: object, begin: int) -> list[int]: ...
def sums_of_each(tensor: object, length: int) -> list[list[int]]: ...
def class_advice() -> dict[str, str]: ...
def main(arguments: list[str]) -> int: ...
