"""The interface of preparers, which prepare versions ahead for a worker of a server: the same one,
whether the engine loads the files of a copy (`_engine_copy`) or its tensors follow in place
(`_engine_in_place`)."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from deltachain import ChainError, Subscriber, Update, WrongBaseError

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
        shapes: the shapes of its tensors; none if there is nothing to load, since it is held
            already.
    """

    number: int
    digest: str
    shapes: dict[str, list[int]]


_Version = TypeVar("_Version", bound=Version)

# Gives tensors of layers that cannot be written in place. They have a version's values after it is
# written.
Rest = Callable[[], Mapping[str, Any]]

# The description of what was loaded, for the log, and the sums of the model's weights; None if
# these have to be read.
LoadResult = tuple[str, WeightSums | None]


class Preparer(ABC, Generic[_Version]):
    """Prepares versions for one worker of a server. A thread works ahead while the engine serves an
    older version.

    The worker calls all of it from one thread, so the calls of one worker never overlap. An update
    is:

    1. `is_ready`, as often as a follower asks for that; then `shapes` if it is ready, and `failure`
       if not;
    2. `take`, which waits for the version;
    3. `is_held`, and `load` if it is not held: the model changes. If that fails, `is_torn` and
       `version`;
    4. `taken`, when the engine has the version; then `why_whole`;
    5. `go_on`, when all workers have loaded the version, and also after any failure since `take`.

    `lost` may come before any of these, and from `is_held`. `close` comes once, at the end.

    A worker may rely on this:

    - only `take` waits for the chain, and only `take` and `load` refuse a version;
    - from `take` to `go_on` the thread does not work ahead, and what was taken can be loaded;
    - only `load` writes to the model, never the thread.

    If `is_collective`, every worker has to make the same calls in the same order.

    The worker does not know which kind it has: a kind answers all of this for itself.

    Args:
        directory: what versions come from, for messages.
        subscriber: follows the chain, and is closed at the end; None if another process manages
            what is read here.

    Attributes:
        directory: the same.
        is_collective: whether the workers of a server follow together. Otherwise each takes for
            itself: first those that manage what others read (`keeps`).
        is_in_place: whether versions are written where the model is, so that its other weights have
            to be those of the version before.
    """

    is_collective = False
    is_in_place = False

    def __init__(self, directory: str, subscriber: Subscriber | None) -> None:
        self.directory, self._subscriber = directory, subscriber
        # Guards what the thread and the worker share.
        self._state = threading.Condition()
        self._ready: _Version | None = None
        # Whether the thread has to stop working ahead, from `take` to `go_on`; and to end.
        self._is_called = self._stop = False
        # It uses what a kind has of its own, so that is set before this is called.
        self._thread = threading.Thread(target=self._run, name="deltachain-ahead", daemon=True)
        self._thread.start()

    @property
    def keeps(self) -> bool:
        """Whether this process downloads the chain, and manages the directory if there is one."""
        return self._subscriber is not None

    @property
    def failure(self) -> str | None:
        """Why no newer version is ready: the last poll has failed."""
        return None if self._subscriber is None else self._subscriber.failure

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
    def is_ready(self, number: int) -> bool:
        """Whether a version is ready for this worker, or waiting would not help."""

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
            version: what was taken.
            holds: whether the model has a version. It may read all weights, and calls `lost` if
                other code has changed them.
        """
        return holds(version)

    @abstractmethod
    def load(self, version: _Version, load_all: Callable[..., None], rest: Rest) -> LoadResult:
        """Loads a version, or writes it in place.

        Args:
            version: what was taken.
            load_all: loads tensors by the model's own loader: `EngineWorker._load_all`.
            rest: gives what the loader may have to load beside that which is written in place.

        Raises:
            Exception: if it is not loaded. Then `is_torn` and `version` say what the model holds.
        """

    def is_torn(self, version: _Version) -> bool:
        """Whether the model may hold parts of two versions, after a `load` that failed. A loader
        that fails leaves these."""
        return True

    @property
    def version(self) -> int | None:
        """The version that the model holds if a `load` has failed, and it is not torn; None if that
        is unknown."""
        return None

    def why_whole(self, version: _Version) -> str | None:
        """Why versions are loaded as a whole from this one on, though this kind is there to write
        them in place; None if that is not so."""
        return None

    @abstractmethod
    def taken(self, version: _Version) -> None:
        """The engine has this version now."""

    @abstractmethod
    def lost(self) -> None:
        """The engine's weights are unknown, since other code has written to them: the next version
        is loaded as a whole."""

    def go_on(self) -> None:
        """All workers have loaded the version, or the update has failed: the thread may work ahead
        again."""
        with self._state:
            self._is_called = False
            self._state.notify_all()

    def close(self) -> None:
        """Ends the thread. The engine's tensors stay as they are."""
        self._end()
        if self._subscriber is not None:
            self._subscriber.close()

    # For the kinds.

    @abstractmethod
    def _wait(self, number: int | None, timeout: float) -> _Version:
        """`take`, but for the digest."""

    @abstractmethod
    def _run(self) -> None:
        """The thread: works ahead unless `_is_called`, and ends after `_stop`."""

    def _next(self) -> Update | None:
        """The next version of the chain; None if there is none, the thread has to stop, or another
        process downloads the chain."""
        if self._subscriber is None:
            return None
        stop = lambda: self._is_called or self._stop  # noqa: E731
        return next(self._subscriber.follow(stop=stop, poll=_POLL, poll_longest=_POLL), None)

    def _end(self) -> None:
        """Ends the thread. What the subscriber has locked still is."""
        with self._state:
            self._stop = True
            self._state.notify_all()
        self._thread.join(timeout=30.0)


def missing_version(number: int) -> ChainError:
    """The chain has no such version."""
    return ChainError(
        f"CHAIN: there is no version {number} in the chain",
        rule="R-CHN-03",
        advice="check the update",
    )
