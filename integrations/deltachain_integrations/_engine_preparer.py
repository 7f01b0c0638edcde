"""The interface of preparers, which prepare versions ahead for a worker of a server. It is the same
whether the engine loads the files of a copy (`_engine_copy`) or its tensors follow in place
(`_engine_in_place`)."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from deltachain import ChainError, Error, Store, Subscriber, Update, WrongBaseError

from ._engine_weights import WeightSums

__all__ = ["LoadResult", "Preparer", "Rest", "Version", "missing_version"]

# Seconds between polls of the chain.
_POLL = 1.0


@dataclass(slots=True)
class Version:
    """A version that has been downloaded and verified, and can be loaded.

    Attributes:
        number: its number.
        digest: its state digest.
        shapes: the shapes of its tensors; empty if the version is already held and nothing has to
            be loaded.
    """

    number: int
    digest: str
    shapes: dict[str, list[int]]


_Version = TypeVar("_Version", bound=Version)

# Gives tensors of layers that cannot be written in place. They have a version's values once the
# version is written.
Rest = Callable[[], Mapping[str, Any]]

# The description of what was loaded, for the log, and the sums of the model's weights; None if the
# weights have to be read for that.
LoadResult = tuple[str, WeightSums | None]


class Preparer(ABC, Generic[_Version]):
    """Prepares versions for one worker of a server. A thread works ahead while the engine serves an
    older version.

    The worker makes all calls from one thread, so they never overlap. An update is:

    1. `is_ready` and `failure`, as often as a follower asks; then `shapes` if the version is ready;
    2. `take`, which waits for the version;
    3. `is_held`, and `load` if the version is not held: the model changes. If that fails, `is_torn`
       and `version`;
    4. `taken`, when the engine has the version; then `why_whole`;
    5. `go_on`, when all workers have loaded the version, and also after any failure since `take`.

    The worker may call `lost` before any of these, and within `is_held`. It calls `close` once, at
    the end.

    A worker may rely on this:

    - only `take` waits for the chain, and only `take` and `load` refuse a version;
    - from `take` to `go_on` the thread does not work ahead, and what was taken can be loaded;
    - only `load` writes to the model, never the thread.

    If `is_collective`, every worker has to make the same calls in the same order.

    The worker does not know which kind of preparer it has: each kind answers all calls itself.

    Args:
        directory: the place that versions come from, for messages.
        store: the chain's store; None if another process manages the directory.
        subscriber: follows the chain, and is closed at the end; None if another process manages the
            directory.

    Attributes:
        directory: the argument.
        chain: the digest of the chain's document; None until it is known, and if another process
            manages the directory.
        is_collective: whether the workers of a server follow together. Otherwise each worker takes
            versions for itself, and first the workers that manage a directory for others (`keeps`).
        is_in_place: whether versions are written into the model's memory, so that its other weights
            have to be those of the version before.
    """

    is_collective = False
    is_in_place = False

    def __init__(self, directory: str, store: Store | None, subscriber: Subscriber | None) -> None:
        self.directory, self._store, self._subscriber = directory, store, subscriber
        self.chain: str | None = None
        # Guards the data that the thread and the worker share.
        self._state = threading.Condition()
        self._ready: _Version | None = None
        # Whether the thread has to pause, from `take` to `go_on`, and whether it has to end.
        self._is_called = self._stop = False
        # The thread uses attributes of the subclass, which sets them before it calls this.
        self._thread = threading.Thread(target=self._run, name="deltachain-ahead", daemon=True)
        self._thread.start()

    @property
    def keeps(self) -> bool:
        """Whether this process downloads the chain, and manages the directory if there is one."""
        return self._subscriber is not None

    @abstractmethod
    def failure(self, number: int) -> str | None:
        """Why a version is not ready: the last attempt to prepare one has failed. None if it, or a
        later one, is held or ready, and if no attempt has failed."""

    @property
    def ready(self) -> int | None:
        """The version that is ready for this worker."""
        ready = self._ready
        return None if ready is None else ready.number

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the tensors of the version that is ready; none if there is none."""
        ready = self._ready
        return {} if ready is None else ready.shapes

    @abstractmethod
    def is_ready(self, number: int, *, begins: bool = False) -> bool:
        """True if a version is ready for this worker, or if waiting would not help.

        Args:
            number: the version.
            begins: whether this is the first question of an attempt. If no version is ready because
                the last poll has failed, another poll begins.
        """

    def take(self, number: int | None, digest: str | None, timeout: float) -> _Version:
        """Waits until a version is ready. The worker calls `go_on` afterwards, also if this fails.

        Args:
            number: its number; None: the newest.
            digest: its state digest, if known.
            timeout: maximum seconds.

        Raises:
            WrongBaseError: if the version has another digest.
            ChainError: if there is no such version.
            TimeoutError: if it takes too long.
            Error: if it cannot be downloaded, built or proven. What the engine has stays.
        """
        ready = self._wait(number, timeout)
        if digest is not None and ready.digest != digest:
            raise WrongBaseError(
                f"WRONG_BASE: version {ready.number} of the chain has the digest {ready.digest}, "
                f"but {digest} was expected",
                advice="check that the update is for this chain; nothing has changed",
            )
        return ready

    def is_held(self, version: _Version, holds: Callable[[Version], bool]) -> bool:
        """Whether the engine has this version already, so that nothing is loaded.

        Args:
            version: the version that `take` returned.
            holds: returns whether the model has a version. It may read all weights, and calls
                `lost` if other code has changed them.
        """
        return holds(version)

    @abstractmethod
    def load(self, version: _Version, load_all: Callable[..., None], rest: Rest) -> LoadResult:
        """Loads a version, or writes it in place.

        Args:
            version: the version that `take` returned.
            load_all: loads tensors by the model's own loader: `EngineWorker._load_all`.
            rest: returns the tensors that the loader may have to load beside the ones that are
                written in place.

        Raises:
            Exception: if the version is not loaded. Then `is_torn` and `version` say what the model
        holds.
        """

    def is_torn(self, version: _Version) -> bool:
        """True if the model may hold parts of two versions after a `load` that failed. A loader
        that fails leaves such a model."""
        return True

    @property
    def version(self) -> int | None:
        """The version that the model holds after a `load` has failed, if it is not torn; None if
        the version is unknown."""
        return None

    def why_whole(self, version: _Version) -> str | None:
        """The reason why versions are loaded as a whole from this one on, although this kind can
        write them in place; None if they are written in place."""
        return None

    @abstractmethod
    def taken(self, version: _Version) -> None:
        """Notes that the engine has this version now."""

    @abstractmethod
    def lost(self) -> None:
        """Notes that other code has written to the engine's weights, so that they are unknown: the
        next version is loaded as a whole."""

    def go_on(self) -> None:
        """Notes that all workers have loaded the version, or that the update has failed: the thread
        may work ahead again."""
        with self._state:
            self._is_called = False
            self._state.notify_all()

    def close(self) -> None:
        """Ends the thread. The engine's tensors stay as they are."""
        self._end()
        if self._subscriber is not None:
            self._subscriber.close()

    # For subclasses.

    @abstractmethod
    def _wait(self, number: int | None, timeout: float) -> _Version:
        """Does the work of `take`, except for the digest."""

    @abstractmethod
    def _run(self) -> None:
        """The thread: works ahead unless `_is_called`, and ends after `_stop`."""

    def _next(self) -> Update | None:
        """The next version of the chain; None if there is none, the thread has to stop, or another
        process downloads the chain."""
        if self._subscriber is None:
            return None
        if self.chain is None and self._store is not None:
            # The poll itself reports what is wrong.
            with suppress(Error):
                self.chain = self._store.chain_digest()
        stop = lambda: self._is_called or self._stop  # noqa: E731
        return next(self._subscriber.follow(stop=stop, poll=_POLL, poll_longest=_POLL), None)

    def _end(self) -> None:
        """Ends the thread. The subscriber keeps its locks."""
        with self._state:
            self._stop = True
            self._state.notify_all()
        self._thread.join(timeout=30.0)


def missing_version(number: int) -> ChainError:
    """The error that the chain has no such version."""
    return ChainError(
        f"CHAIN: there is no version {number} in the chain",
        rule="R-CHN-03",
        advice="check the update",
    )
